"""Faults of the files: deleted, replaced, truncated, damaged, locked, or on a disk that is full or read-only."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
from helpers.ctl import ctl
from helpers.waiting import eventually
from helpers.writers import stored
from tests.faults.harness import NOTHING, Run, fault, is_root

FAULT_SECONDS = 0.5
"""How long a fault that passes by itself lasts."""

PAGE_BYTES = 4096


@fault("kill -9", "SIGKILL while connections write")
def kill(run: Run) -> frozenset[str]:
    run.crash()
    run.daemon.start()
    return NOTHING


@fault("kill -9, and again while starting", "SIGKILL, and again 0.3 s after the start")
def kill_twice(run: Run) -> frozenset[str]:
    run.crash()
    run.daemon.start(wait=False)
    time.sleep(0.3)
    run.crash()
    run.daemon.start()
    return NOTHING


@fault("wal deleted", "unlink")
def delete_wal(run: Run) -> frozenset[str]:
    run.beside("-wal").unlink(missing_ok=True)
    return NOTHING


@fault("shm deleted", "unlink")
def delete_shm(run: Run) -> frozenset[str]:
    run.beside("-shm").unlink(missing_ok=True)
    return NOTHING


@fault("wal and shm deleted", "unlink both")
def delete_wal_and_shm(run: Run) -> frozenset[str]:
    run.beside("-wal").unlink(missing_ok=True)
    run.beside("-shm").unlink(missing_ok=True)
    return NOTHING


@fault("wal and shm deleted, kill -9", "unlink both, and SIGKILL at once")
def delete_and_kill(run: Run) -> frozenset[str]:
    delete_wal_and_shm(run)
    run.crash()
    run.daemon.start()
    return NOTHING


@fault("kill -9, wal and shm deleted", "SIGKILL, then unlink both")
def kill_and_delete(run: Run) -> frozenset[str]:
    run.crash()
    delete_wal_and_shm(run)
    run.daemon.start()
    return NOTHING


@fault("wal truncated", "truncate to 0 bytes")
def truncate_wal(run: Run) -> frozenset[str]:
    os.truncate(run.beside("-wal"), 0)
    return NOTHING


@fault("database truncated", "truncate to half")
def truncate_database(run: Run) -> frozenset[str]:
    os.truncate(run.daemon.database, run.daemon.database.stat().st_size // 2)
    return NOTHING


@fault("database emptied", "truncate to 0 bytes")
def empty_database(run: Run) -> frozenset[str]:
    os.truncate(run.daemon.database, 0)
    return NOTHING


@fault("database deleted, rescued copy restored", "unlink all files; the owner restores the copy that the daemon saved")
def delete_database(run: Run) -> frozenset[str]:
    """The owner restores what the daemon saved."""
    for suffix in ("", "-wal", "-shm"):
        run.beside(suffix).unlink(missing_ok=True)
    backups = run.daemon.data / "backups"
    run.restore(eventually(lambda: next(backups.glob("*-rescued.db"), None), "the database is saved"))
    return NOTHING


@fault("database replaced by a backup", "the owner moves a backup over it")
def replace_database(run: Run) -> set[str]:
    """The owner moves a backup over the database of a running daemon."""
    backup = run.back_up()
    given_up = run.stop_writing() - stored(backup)
    copy = run.daemon.data / "copy.db"
    shutil.copy(backup, copy)
    copy.rename(run.daemon.database)
    return given_up


@fault("database overwritten by a backup", "the owner copies a backup over it with cp")
def overwrite_database(run: Run) -> set[str]:
    """The owner copies a backup over the database of a running daemon."""
    backup = run.back_up()
    given_up = run.stop_writing() - stored(backup)
    subprocess.run(["cp", str(backup), str(run.daemon.database)], check=True)
    return given_up


@fault("kill -9, database overwritten by a backup", "SIGKILL, then cp; the old WAL lies there")
def kill_and_overwrite(run: Run) -> set[str]:
    """The owner copies a backup over the database after a crash; its WAL still lies there."""
    backup = run.back_up()
    run.crash()
    given_up = run.stop_writing() - stored(backup)
    subprocess.run(["cp", str(backup), str(run.daemon.database)], check=True)
    run.daemon.start()
    return given_up


@fault("kill -9, backup restored", "SIGKILL, then clankers-ctl backup restore")
def restore_after_kill(run: Run) -> set[str]:
    """The owner restores a backup with `clankers-ctl` after a crash."""
    backup = run.back_up()
    run.crash()
    given_up = run.stop_writing() - stored(backup)
    assert ctl(run.daemon, "backup", "restore", backup.name, "--yes").code == 0
    run.daemon.start()
    return given_up


@fault("file size limit", "RLIMIT_FSIZE for 0.5 s")
def limit_file_size(run: Run) -> frozenset[str]:
    """Like a full disk, for a moment."""
    assert run.daemon.process
    pid, now = run.daemon.process.pid, run.beside("-wal").stat().st_size
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (now + 4096, before[1]))
    time.sleep(FAULT_SECONDS)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    return NOTHING


@fault("database locked", "BEGIN EXCLUSIVE by another program for 0.5 s")
def lock_database(run: Run) -> frozenset[str]:
    """Another program holds the write lock for a moment."""
    other = apsw.Connection(str(run.daemon.database))
    other.set_busy_timeout(5000)
    other.execute("BEGIN EXCLUSIVE")
    time.sleep(FAULT_SECONDS)
    other.execute("ROLLBACK")
    other.close()
    return NOTHING


@fault("checkpoint by another program", "wal_checkpoint(TRUNCATE) by another program")
def checkpoint_elsewhere(run: Run) -> frozenset[str]:
    """Another program empties the WAL into the database."""
    other = apsw.Connection(str(run.daemon.database))
    other.set_busy_timeout(5000)
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    other.close()
    return NOTHING


@fault("database damaged, backup restored", "a page of the messages overwritten while stopped; the owner restores")
def damage_database(run: Run) -> set[str]:
    backup = run.back_up()
    given_up = run.stop_writing() - stored(backup)
    assert run.daemon.stop() == 0  # which leaves no newer copy of the page in the WAL
    run.daemon.close()
    damage(run.daemon.database, root_page(run.daemon.database, "messages") - 1)
    run.daemon.start()
    with run.daemon.connect() as connection:
        refused = connection.request("upsertMessage", {"message": {"id": "refused", "sessionId": "refused"}})
        assert "error" in refused, "an event was acknowledged into a damaged table"
    run.restore(backup)
    return given_up


@fault("database damaged while running, backup restored", "a page of the messages overwritten; the owner restores")
def damage_running_database(run: Run) -> set[str]:
    backup = run.back_up()
    given_up = run.stop_writing() - stored(backup)
    damage(run.daemon.database, root_page(run.daemon.database, "messages") - 1)
    run.restore(backup)
    return given_up


@fault("shm damaged", "every byte of it overwritten")
def damage_shm(run: Run) -> frozenset[str]:
    with run.beside("-shm").open("r+b") as file:
        file.write(b"\xa5" * run.beside("-shm").stat().st_size)
    return NOTHING


@fault("wal replaced", "an empty file in its place")
def replace_wal(run: Run) -> frozenset[str]:
    run.beside("-wal").unlink(missing_ok=True)
    run.beside("-wal").write_bytes(b"")
    return NOTHING


@fault("shm replaced", "a file of zeros in its place")
def replace_shm(run: Run) -> frozenset[str]:
    size = run.beside("-shm").stat().st_size
    run.beside("-shm").unlink()
    run.beside("-shm").write_bytes(bytes(size))
    return NOTHING


@fault("shm truncated", "truncate to 0 bytes; started again if that ended the process (SIGBUS)")
def truncate_shm(run: Run) -> frozenset[str]:
    os.truncate(run.beside("-shm"), 0)
    time.sleep(FAULT_SECONDS)
    assert run.daemon.process
    if run.daemon.process.poll() is not None:
        run.notes.append(f"the daemon ended with {run.daemon.process.returncode}")
        run.daemon.close()
        run.daemon.start()
    return NOTHING


@fault("wal damaged, kill -9", "the last page of it overwritten after SIGKILL, as a torn write would")
def damage_wal_tail(run: Run) -> set[str]:
    run.crash()
    promised = run.stop_writing()
    wal = run.beside("-wal")
    with wal.open("r+b") as file:
        file.seek(max(32, wal.stat().st_size - PAGE_BYTES))
        file.write(b"\xa5" * PAGE_BYTES)
    run.daemon.start()
    return promised - stored(run.daemon.database)  # the bytes are gone; what counts is that the rest is whole


@fault("wal damaged while running, backup restored", "the page that was written last overwritten; the owner restores")
def damage_running_wal(run: Run) -> set[str]:
    backup = run.back_up()
    promised = run.stop_writing()
    wal = run.beside("-wal")
    with wal.open("r+b") as file:
        file.seek(max(32, wal.stat().st_size - PAGE_BYTES))
        file.write(b"\xa5" * PAGE_BYTES)
    run.restore(backup)
    return promised - stored(backup)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a disk of 24 MB over the folder."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if not is_root() or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise NotImplementedError("only root can mount a small disk, and not everywhere")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@fault("disk full", "the last byte of a 24 MB disk taken for 0.5 s", disk=small_disk)
def fill_disk(run: Run) -> frozenset[str]:
    filler = run.daemon.home / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    time.sleep(FAULT_SECONDS)
    filler.unlink()
    return NOTHING


@fault("read-only", "the database immutable (root) or mode 0400 at the start, for 0.5 s")
def make_read_only(run: Run) -> frozenset[str]:
    run.crash()
    database = str(run.daemon.database)
    lock, unlock = (["chattr", "+i"], ["chattr", "-i"]) if is_root() else (["chmod", "0400"], ["chmod", "0600"])
    if subprocess.run([*lock, database], capture_output=True, check=False).returncode:
        raise NotImplementedError("chattr does not work here")
    try:
        run.daemon.start()
        time.sleep(FAULT_SECONDS)
    finally:
        subprocess.run([*unlock, database], check=True)
    return NOTHING


def root_page(database: Path, table: str) -> int:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(str(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get))
    finally:
        db.close()


def damage(path: Path, page: int) -> None:
    """Overwrite one page."""
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(b"\xa5" * PAGE_BYTES)
