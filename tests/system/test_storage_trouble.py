"""The database's disk, file or lock gives trouble: the daemon refuses, says so, lives on, and recovers."""

import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.store import message, upsert
from helpers.waiting import eventually
from helpers.writers import quick_check, stored

STORAGE_UNAVAILABLE = 5001


def assert_refused(reply: dict[str, Any]) -> None:
    """The reply tells the caller to keep its event."""
    assert "error" in reply, reply
    assert reply["error"]["code"] == STORAGE_UNAVAILABLE, reply
    assert reply["error"]["data"]["retry"] == "spool"


def assert_in_trouble(connection: RawConnection, *words: str) -> None:
    """`health` says that events cannot be stored, and why."""
    health = connection.call("health")
    assert health["ok"] is False
    assert any(word in health["problem"] for word in words), health["problem"]


def stores_again(connection: RawConnection, name: str) -> Callable[[], bool]:
    return lambda: "error" not in upsert(connection, name)


def fill_until_refused(connection: RawConnection) -> tuple[set[str], dict[str, Any]]:
    """Store messages until one is refused: the acknowledged names, and the refusal."""
    kept: set[str] = set()
    for number in range(20_000):
        reply = upsert(connection, f"fill-{number}", text="x" * 20_000)
        if "error" in reply:
            return kept, reply
        kept.add(f"fill-{number}")
    raise AssertionError("the disk did not fill up")


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = home / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_full_disk_is_refused_until_there_is_space_again(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 8_000_000)
    with running_daemon(small_disk) as daemon, daemon.connect() as connection:
        kept, refusal = fill_until_refused(connection)
        assert_refused(refusal)
        assert_in_trouble(connection, "full", "disk")
        filler.unlink()
        eventually(stores_again(connection, "after"), "the daemon stores again")
        assert connection.call("health")["ok"]
        assert kept
        assert kept | {"after"} <= stored(daemon.database)
        assert quick_check(daemon.database) == "ok"
        assert daemon.stop() == 0


def test_disk_that_is_full_to_the_last_byte_does_not_end_the_daemon(small_disk: Path) -> None:
    with running_daemon(small_disk) as daemon, daemon.connect() as connection:
        assert "error" not in upsert(connection, "before")
        filler = small_disk / "filler"
        fill_to_the_brim(filler)
        _, refusal = fill_until_refused(connection)
        assert_refused(refusal)
        with daemon.connect() as another:
            assert_in_trouble(another, "full", "disk")
        filler.unlink()
        eventually(stores_again(connection, "after"), "the daemon stores again")
        assert {"before", "after"} <= stored(daemon.database)


def fill_to_the_brim(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def test_limit_on_the_size_of_files_is_refused_like_a_full_disk(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        assert daemon.process
        pid = daemon.process.pid
        assert "error" not in upsert(connection, "before")
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (3_000_000, before[1]))
        kept, refusal = fill_until_refused(connection)
        assert_refused(refusal)
        assert_in_trouble(connection, "full", "disk")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        eventually(stores_again(connection, "after"), "the daemon stores again")
        assert kept | {"before", "after"} <= stored(daemon.database)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The file may not be written; root is stopped by the immutable flag only."""
    if os.geteuid() != 0:
        path.chmod(0o400)
        yield
        path.chmod(0o600)
        return
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", str(path)], check=False).returncode:
        pytest.skip("root writes to everything, and chattr does not work here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_read_only_file_is_refused_until_it_can_be_written(home: Path) -> None:
    with database_with(home, "before") as database, DaemonHandle(home) as daemon:
        with read_only(database):
            daemon.start()
            with daemon.connect() as connection:
                assert_refused(upsert(connection, "refused"))
                assert_in_trouble(connection, "read-only", "permissions", "opened")
        with daemon.connect() as connection:
            eventually(stores_again(connection, "after"), "the daemon stores again")
        assert stored(database) == {"before", "after"}


def test_file_that_is_no_database_is_left_as_it_is(home: Path) -> None:
    garbage = b"not a database " * 8000
    with DaemonHandle(home) as daemon:
        daemon.data.mkdir(mode=0o700)
        daemon.database.write_bytes(garbage)
        daemon.start()
        with daemon.connect() as connection:
            assert_refused(upsert(connection, "refused"))
            assert_in_trouble(connection, "not a database")
        assert daemon.stop() == 0
        assert daemon.database.read_bytes() == garbage


@pytest.mark.parametrize("table", ["moz_places (id INTEGER PRIMARY KEY, url TEXT)", "sessions (id TEXT, token TEXT)"])
def test_database_of_another_program_is_left_as_it_is(home: Path, table: str) -> None:
    with DaemonHandle(home) as daemon:
        daemon.data.mkdir(mode=0o700)
        with closing(sqlite3.connect(daemon.database)) as theirs:
            theirs.execute(f"CREATE TABLE {table}")
        before = daemon.database.read_bytes()
        daemon.start()
        with daemon.connect() as connection:
            assert_refused(upsert(connection, "refused"))
            assert_in_trouble(connection, "another program")
        assert daemon.stop() == 0
        assert daemon.database.read_bytes() == before


def test_good_file_put_in_the_place_of_a_bad_one_is_taken_up(home: Path) -> None:
    with database_with(home, "before") as database, DaemonHandle(home) as daemon:
        good = home / "good.db"
        database.rename(good)
        database.write_bytes(b"not a database " * 8000)
        daemon.start()
        with daemon.connect() as connection:
            assert_refused(upsert(connection, "refused"))
            good.rename(database)
            eventually(stores_again(connection, "after"), "the daemon stores again")
            assert connection.call("health")["ok"]
        assert stored(database) == {"before", "after"}


def test_damaged_page_is_refused_until_a_good_file_is_in_place(home: Path) -> None:
    names = [f"before-{number}" for number in range(300)]
    with database_with(home, *names) as database, DaemonHandle(home) as daemon:
        good = home / "good.db"
        shutil.copy(database, good)
        damage(database, "messages")
        daemon.start()
        with daemon.connect() as connection:
            assert_refused(upsert(connection, "refused"))
            assert_in_trouble(connection, "damaged")
            assert_refused(upsert(connection, "refused-again"))
            good.rename(database)
            eventually(stores_again(connection, "after"), "the daemon stores again")
        assert stored(database) == {*names, "after"}
        assert quick_check(database) == "ok"


def damage(database: Path, table: str) -> None:
    """Overwrite the page at the root of the table."""
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    [(page,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    [(size,)] = db.execute("PRAGMA page_size").fetchall()
    db.close()
    assert isinstance(page, int)
    assert isinstance(size, int)
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


@pytest.mark.parametrize("suffixes", [[""], ["", "-wal", "-shm"]], ids=["database only", "with its log"])
def test_deleted_file_is_refused_and_ensure_db_makes_a_new_one(
    fresh_daemon: DaemonProcess, suffixes: list[str]
) -> None:
    with fresh_daemon.connect() as connection:
        assert "error" not in upsert(connection, "before")
        for suffix in suffixes:
            Path(f"{fresh_daemon.database}{suffix}").unlink(missing_ok=True)
        assert_refused(upsert(connection, "refused"))
        assert_in_trouble(connection, "deleted")
        assert connection.call("ensureDb") == {"dbPath": str(fresh_daemon.database), "created": True}
        assert connection.call("health")["ok"]
        assert "error" not in upsert(connection, "after")
        assert connection.call("ensureDb")["created"] is False
    assert stored(fresh_daemon.database) == {"after"}


def test_file_moved_away_and_back_is_taken_up_again(home: Path, fresh_daemon: DaemonProcess) -> None:
    away = home / "away.db"
    with fresh_daemon.connect() as connection:
        assert "error" not in upsert(connection, "before")
        fresh_daemon.database.rename(away)
        assert_refused(upsert(connection, "refused"))
        away.rename(fresh_daemon.database)
        eventually(stores_again(connection, "after"), "the daemon stores again")
        assert connection.call("health")["ok"]
    assert {"before", "after"} <= stored(fresh_daemon.database)


def test_another_file_put_in_place_while_running_is_taken_up_as_it_is(home: Path) -> None:
    other_home = home / "other"
    other_home.mkdir()
    names = {f"other-{number}" for number in range(500)}
    with database_with(other_home, *names) as other, running_daemon(home) as daemon:
        with daemon.connect() as connection:
            for number in range(20):
                assert "error" not in upsert(connection, f"replaced-{number}")
            other.rename(daemon.database)
            eventually(stores_again(connection, "after"), "the daemon stores again")
        assert daemon.stop() == 0
        assert quick_check(daemon.database) == "ok"
        assert stored(daemon.database) == names | {"after"}


@contextmanager
def locked(database: Path) -> Iterator[None]:
    other = apsw.Connection(str(database))
    other.set_busy_timeout(5000)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_file_locked_by_another_program_is_refused_until_it_lets_go(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection, fresh_daemon.connect() as another:
        assert "error" not in upsert(connection, "before")
        with locked(fresh_daemon.database):
            assert_refused(upsert(connection, "refused"))
            assert_in_trouble(another, "locked")
        eventually(lambda: another.call("health")["ok"], "health is well again by itself")
        assert "error" not in upsert(connection, "after")
    assert stored(fresh_daemon.database) == {"before", "after"}


def test_file_locked_at_the_start_is_taken_up_when_the_lock_goes(home: Path) -> None:
    with database_with(home, "before") as database, DaemonHandle(home) as daemon:
        with locked(database):
            daemon.start()
            with daemon.connect() as connection:
                assert_refused(upsert(connection, "refused"))
        with daemon.connect() as connection:
            eventually(stores_again(connection, "after"), "the daemon stores again")
        assert stored(database) == {"before", "after"}


class DaemonHandle(DaemonProcess):
    """A daemon that the test starts by itself, and that is gone after the block."""

    def __enter__(self) -> "DaemonHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def database_with(home: Path, *names: str) -> Iterator[Path]:
    """The database of a daemon that stored these messages and stopped."""
    with running_daemon(home) as daemon:
        with daemon.connect() as connection:
            events = [{"message": message(name)} for name in names]
            assert connection.call("events.batch", events=events)["ok"]
        assert daemon.stop() == 0
        yield daemon.database
