"""The parts of a fault run: a daemon with connections that write to it, and the record of what it acknowledged."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.documents import finished
from helpers.waiting import eventually
from helpers.writers import Writer, acknowledged, stored, writing

chance = random.Random()  # where a fault strikes


@dataclass
class Run:
    """One daemon in a folder of its own, and everybody who writes to it."""

    daemon: DaemonProcess
    writers: list[Writer] = field(default_factory=list)
    promised: dict[str, set[str]] = field(default_factory=dict)
    """Acknowledged ids by table, besides the messages of the writers."""

    notes: list[str] = field(default_factory=list)
    """Figures that the fault measured."""

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

    def crash_during(self, work: Callable[[RawConnection], object], within_seconds: float) -> None:
        """Begin some work, end the daemon with SIGKILL at a random moment of it, and start it again."""

        def run() -> None:
            with suppress(OSError, AssertionError), self.daemon.connect() as connection:  # it ends with the daemon
                work(connection)

        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        time.sleep(chance.uniform(0, within_seconds))
        self.crash()
        worker.join()
        self.daemon.start()

    def beside(self, suffix: str) -> Path:
        return self.daemon.database.with_name(f"{self.daemon.database.name}{suffix}")

    def back_up(self) -> Path:
        """Let the daemon make a backup."""
        with self.daemon.connect() as connection:
            return Path(finished(connection, connection.call("backup.create")["jobId"])["path"])

    def restore(self, backup: Path) -> None:
        """Restore a backup as the owner does."""
        restored = ctl(self.daemon, "backup", "restore", backup.name, "--yes")
        assert restored.code == 0, restored.err

    def missing(self, given_up: set[str] | frozenset[str]) -> set[str]:
        """Return the acknowledged ids that are not in the database."""
        lost = self.stop_writing() - given_up - stored(self.daemon.database)
        for table, ids in self.promised.items():
            lost |= ids - given_up - column(self.daemon.database, f"SELECT id FROM {table}")
        return lost

    def resident_bytes(self, name: str = "VmRSS") -> int:
        """Resident set size of the daemon; VmHWM is its peak."""
        assert self.daemon.process
        status = Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0]) * 1024


NOTHING: frozenset[str] = frozenset()
Inject = Callable[[Run], set[str] | frozenset[str]]
MakeDaemon = Callable[[Path], DaemonProcess]


def plain_daemon(home: Path) -> DaemonProcess:
    return DaemonProcess(home, CLANKERS_EMBEDDER="none", CLANKERS_BACKUP_HOURS="0")


@contextmanager
def ordinary_disk(_folder: Path) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Fault:
    """A fault: its name, how it is injected, and the function that does so.

    The function gets a `Run`, injects the fault and does what the owner would have to do; then the runner waits until
    events are stored again. It returns the ids that the owner gave up knowingly, as by restoring an older backup. Every
    other acknowledged write must be there in the end.
    """

    name: str
    how: str
    inject: Inject
    make_daemon: MakeDaemon = plain_daemon
    disk: Callable[[Path], AbstractContextManager[None]] = ordinary_disk


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    how: str,
    make_daemon: MakeDaemon = plain_daemon,
    disk: Callable[[Path], AbstractContextManager[None]] = ordinary_disk,
) -> Callable[[Inject], Inject]:
    """Register the decorated function as a fault."""

    def register(inject: Inject) -> Inject:
        FAULTS[name] = Fault(name, how, inject, make_daemon, disk)
        return inject

    return register


def column(database: Path, sql: str) -> set[str]:
    """Return the first column of a query, read beside the daemon."""
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        return {str(row[0]) for row in db.execute(sql)}
    finally:
        db.close()


def integrity_check(database: Path) -> str:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return str(db.pragma("integrity_check"))
    finally:
        db.close()


def is_root() -> bool:
    return os.geteuid() == 0


def encoded_request(method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
