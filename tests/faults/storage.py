"""The faults. To add one, write a function and name it in `FAULTS`.

A function gets a `Run`: a daemon with connections that write to it. It injects the fault and does what the owner would
have to do; then the runner waits until events are stored again. It returns the ids that the owner gave up knowingly, as
by restoring an older backup. Every other acknowledged event must be there in the end.
"""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess
from helpers.schedules import create, ended, make_due, wake
from helpers.waiting import eventually
from helpers.writers import Writer, acknowledged, stored, writing

FAULT_SECONDS = 0.5
"""How long a fault that passes by itself lasts."""


@dataclass
class Run:
    """One daemon in a folder of its own, and everybody who writes to it."""

    daemon: DaemonProcess
    writers: list[Writer] = field(default_factory=list)

    def begin_writing(self, count: int = 2) -> None:
        """Start connections that write, and wait until the daemon acknowledges their events."""
        new = writing(self.daemon, count, f"c{len(self.writers)}-")
        self.writers += new
        eventually(lambda: all(len(writer.acknowledged) > 50 for writer in new), "events are acknowledged", within=60)

    def stop_writing(self) -> set[str]:
        """Stop all writers, and return the ids of all acknowledged events."""
        for writer in self.writers:
            writer.stop()
        return acknowledged(self.writers)

    def crash(self) -> None:
        """End the daemon with SIGKILL."""
        self.daemon.kill()
        self.daemon.close()

    def beside(self, suffix: str) -> Path:
        return self.daemon.database.with_name(f"{self.daemon.database.name}{suffix}")

    def back_up(self) -> Path:
        """Let the daemon make a backup."""
        with self.daemon.connect() as connection:
            action = create(connection, builtin="backup")
            make_due(self.daemon, action)
            wake(connection, action)
            (run,) = ended(connection, action)
        return self.daemon.data / "backups" / str(run["result"]["result"]["file"])

    def restore(self, backup: Path) -> None:
        """Restore a backup as the owner does, and start the daemon again."""
        restored = ctl(self.daemon, "backup", "restore", backup.name, "--yes")
        assert restored.code == 0, restored.err
        self.daemon.wait()
        self.daemon.close()
        self.daemon.start()


NOTHING: frozenset[str] = frozenset()
Inject = Callable[[Run], set[str] | frozenset[str]]


def kill(run: Run) -> frozenset[str]:
    run.crash()
    run.daemon.start()
    return NOTHING


def kill_twice(run: Run) -> frozenset[str]:
    run.crash()
    run.daemon.start(wait=False)
    time.sleep(0.3)
    run.crash()
    run.daemon.start()
    return NOTHING


def delete_wal(run: Run) -> frozenset[str]:
    run.beside("-wal").unlink(missing_ok=True)
    return NOTHING


def delete_shm(run: Run) -> frozenset[str]:
    run.beside("-shm").unlink(missing_ok=True)
    return NOTHING


def delete_wal_and_shm(run: Run) -> frozenset[str]:
    run.beside("-wal").unlink(missing_ok=True)
    run.beside("-shm").unlink(missing_ok=True)
    return NOTHING


def truncate_wal(run: Run) -> frozenset[str]:
    os.truncate(run.beside("-wal"), 0)
    return NOTHING


def truncate_database(run: Run) -> frozenset[str]:
    os.truncate(run.daemon.database, run.daemon.database.stat().st_size // 2)
    return NOTHING


def empty_database(run: Run) -> frozenset[str]:
    os.truncate(run.daemon.database, 0)
    return NOTHING


def delete_database(run: Run) -> frozenset[str]:
    """The owner restores what the daemon saved."""
    for suffix in ("", "-wal", "-shm"):
        run.beside(suffix).unlink(missing_ok=True)
    backups = run.daemon.data / "backups"
    run.restore(eventually(lambda: next(backups.glob("*-rescued.db"), None), "the database is saved"))
    return NOTHING


def replace_database(run: Run) -> set[str]:
    """The owner moves a backup over the database of a running daemon."""
    backup = run.back_up()
    given_up = run.stop_writing() - stored(backup)
    copy = run.daemon.data / "copy.db"
    shutil.copy(backup, copy)
    copy.rename(run.daemon.database)
    return given_up


def overwrite_database(run: Run) -> set[str]:
    """The owner copies a backup over the database of a running daemon."""
    backup = run.back_up()
    given_up = run.stop_writing() - stored(backup)
    subprocess.run(["cp", str(backup), str(run.daemon.database)], check=True)
    return given_up


def kill_and_overwrite(run: Run) -> set[str]:
    """The owner copies a backup over the database after a crash; its WAL still lies there."""
    backup = run.back_up()
    run.crash()
    given_up = run.stop_writing() - stored(backup)
    subprocess.run(["cp", str(backup), str(run.daemon.database)], check=True)
    run.daemon.start()
    return given_up


def restore_after_kill(run: Run) -> set[str]:
    """The owner restores a backup with `clankers-ctl` after a crash."""
    backup = run.back_up()
    run.crash()
    given_up = run.stop_writing() - stored(backup)
    assert ctl(run.daemon, "backup", "restore", backup.name, "--yes").code == 0
    run.daemon.start()
    return given_up


def limit_file_size(run: Run) -> frozenset[str]:
    """Like a full disk, for a moment."""
    assert run.daemon.process
    pid, now = run.daemon.process.pid, run.beside("-wal").stat().st_size
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (now + 4096, before[1]))
    time.sleep(FAULT_SECONDS)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    return NOTHING


def lock_database(run: Run) -> frozenset[str]:
    """Another program holds the write lock for a moment."""
    other = apsw.Connection(str(run.daemon.database))
    other.set_busy_timeout(5000)
    other.execute("BEGIN EXCLUSIVE")
    time.sleep(FAULT_SECONDS)
    other.execute("ROLLBACK")
    other.close()
    return NOTHING


def checkpoint_elsewhere(run: Run) -> frozenset[str]:
    """Another program empties the WAL into the database."""
    other = apsw.Connection(str(run.daemon.database))
    other.set_busy_timeout(5000)
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    other.close()
    return NOTHING


FAULTS: dict[str, Inject] = {
    "kill -9": kill,
    "kill -9, and again while starting": kill_twice,
    "wal deleted": delete_wal,
    "shm deleted": delete_shm,
    "wal and shm deleted": delete_wal_and_shm,
    "wal truncated": truncate_wal,
    "database truncated": truncate_database,
    "database emptied": empty_database,
    "database deleted, rescued copy restored": delete_database,
    "database replaced by a backup": replace_database,
    "database overwritten by a backup": overwrite_database,
    "kill -9, database overwritten by a backup": kill_and_overwrite,
    "kill -9, backup restored": restore_after_kill,
    "file size limit": limit_file_size,
    "database locked": lock_database,
    "checkpoint by another program": checkpoint_elsewhere,
}
