"""Which write-ahead log may be replayed onto which database file."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from clankersd.db.backup import back_up
from clankersd.db.connection import Db
from clankersd.db.wal import is_complete, new_generation, prepare_to_open, read_wal


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Db]:
    """A stamped database whose WAL holds a table that its file does not."""
    raw = apsw.Connection(str(tmp_path / "live.db"))
    raw.pragma("journal_mode", "wal")
    raw.wal_autocheckpoint(0)
    db = Db(raw)
    with db.transaction():
        new_generation(db)
        db.execute("CREATE TABLE first (text)")
    raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    with db.transaction():
        new_generation(db)
        db.execute("CREATE TABLE second (text)")
        db.execute("INSERT INTO second VALUES (zeroblob(100000))")
    yield db
    raw.close()


def crashed(tmp_path: Path) -> Path:
    """The files as a crash would leave them."""
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"live.db{suffix}", tmp_path / f"crashed.db{suffix}")
    return tmp_path / "crashed.db"


def test_wal_is_kept_before_during_and_after_its_checkpoint(db: Db, tmp_path: Path) -> None:
    before = crashed(tmp_path)
    assert prepare_to_open(before) is None
    old_pages = before.stat().st_size // 4096
    db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    after = crashed(tmp_path)
    new_pages = after.stat().st_size // 4096
    assert prepare_to_open(after) is None
    for pages in range(new_pages, old_pages - 1, -1):  # a checkpoint writes page 1 first and extends the file last
        os.truncate(after, pages * 4096)
        assert prepare_to_open(after) is None
    os.truncate(after, 4096)
    with pytest.raises(apsw.CorruptError):
        prepare_to_open(after)


def test_wal_of_a_later_generation_is_moved_aside_from_an_earlier_copy(db: Db, tmp_path: Path) -> None:
    database = crashed(tmp_path)
    shutil.copy(back_up(db, tmp_path / "backups", "test"), database)
    wal = database.with_name("crashed.db-wal")
    contents = wal.read_bytes()
    aside = prepare_to_open(database)
    assert aside
    assert aside.read_bytes() == contents
    assert not wal.exists()


def test_wal_beside_an_empty_file_is_kept_and_the_file_refused(db: Db, tmp_path: Path) -> None:
    database = crashed(tmp_path)
    os.truncate(database, 0)
    with pytest.raises(apsw.CorruptError):
        prepare_to_open(database)
    assert read_wal(database.with_name("crashed.db-wal"))


def test_wal_without_stamps_is_kept(tmp_path: Path) -> None:
    raw = apsw.Connection(str(tmp_path / "live.db"))
    raw.pragma("journal_mode", "wal")
    raw.execute("CREATE TABLE first (text)")
    assert prepare_to_open(crashed(tmp_path)) is None
    raw.close()


def test_wal_with_a_torn_header_or_no_commit_holds_nothing(db: Db, tmp_path: Path) -> None:
    wal = crashed(tmp_path).with_name("crashed.db-wal")
    whole = wal.read_bytes()
    wal.write_bytes(whole[: 32 + 24 + 4096])
    assert read_wal(wal) is None
    wal.write_bytes(whole[:16] + b"\xff" * 8 + whole[24:])
    assert read_wal(wal) is None


def test_file_is_complete_unless_it_lacks_pages_of_its_header(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    raw = apsw.Connection(str(database))
    raw.execute("CREATE TABLE event (text); INSERT INTO event VALUES (zeroblob(100000))")
    raw.close()
    whole = database.read_bytes()
    assert is_complete(database)
    for damaged in (whole[: len(whole) // 2], whole[:4096], whole[:100], b"", b"not a database " * 1000):
        database.write_bytes(damaged)
        assert not is_complete(database)
    assert not is_complete(tmp_path / "missing.db")
