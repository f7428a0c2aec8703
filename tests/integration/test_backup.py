"""Backups are made while events are stored."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import anyio
import apsw
import pytest

from clankers_protocol.errors import StorageUnavailable
from clankersd.db import Db, Store, backup

pytestmark = pytest.mark.anyio


async def test_event_is_stored_while_a_backup_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copying, stored = threading.Event(), threading.Event()
    real = backup.back_up

    def slow(db: Db, folder: Path, *more: object) -> Path:
        copying.set()
        assert stored.wait(30), "the event waited for the backup"
        return real(db, folder, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(backup, "back_up", slow)
    database = Store(tmp_path / "a.db", tmp_path / "backups", "normal")
    await database.open()
    assert database.problem is None
    made: list[Path] = []

    async def back_up() -> None:
        made.append(await database.back_up("test"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.run)
        async with anyio.create_task_group() as copies:
            copies.start_soon(back_up)
            await anyio.to_thread.run_sync(copying.wait, 30)
            await database.write(lambda db: db.execute("CREATE TABLE event (text)"))
            stored.set()
        tasks.cancel_scope.cancel()
    await database.close()
    assert [path.exists() for path in made] == [True]
    assert not list((tmp_path / "backups").glob("*.unfinished*"))


def test_backup_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fill_disk(_: Db, target: Path, __: Callable[[], bool]) -> None:
        for suffix in ("", "-journal", "-wal"):
            target.with_name(target.name + suffix).touch()
        raise apsw.FullError

    raw = apsw.Connection(":memory:")
    with pytest.raises(apsw.FullError):
        backup.back_up(Db(raw), tmp_path, "manual", copy=fill_disk)
    assert list(tmp_path.iterdir()) == []


def test_backup_that_would_leave_no_space_for_events_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = backup.SPARE_BYTES  # enough for events, but not for the copy, too
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    raw = apsw.Connection(":memory:")
    raw.execute("CREATE TABLE event (text)")
    with pytest.raises(apsw.FullError, match="a backup needs"):
        backup.back_up(Db(raw), tmp_path, "manual")
    assert list(tmp_path.iterdir()) == []


async def test_smaller_backup_copied_over_the_open_database_is_not_taken_for_a_truncated_file(tmp_path: Path) -> None:
    """Every page of the database is cached, so that a truncated file would be replaced."""
    database = Store(tmp_path / "a.db", tmp_path / "backups", "normal")
    await database.open()

    async def store(text: str) -> None:
        await database.write(lambda db: db.execute("INSERT INTO event (text) VALUES (:text)", {"text": text}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.run)
        await database.write(lambda db: db.execute("CREATE TABLE event (text)"))
        await store("before")
        copy = await database.back_up("test")
        await store("after" * 100_000)
        await database.truncate_wal()
        assert await database.run_exclusive(lambda db: db.value("PRAGMA integrity_check")) == "ok"
        assert copy.stat().st_size < database.path.stat().st_size
        shutil.copyfile(copy, database.path)
        with pytest.raises(StorageUnavailable):
            await store("refused")
        await database.open()
        await store("new")
        texts = await database.read(lambda db: db.tuples("SELECT text FROM event"))
        tasks.cancel_scope.cancel()
    await database.close()
    assert texts == [("before",), ("new",)]
    assert [path.name for path in (tmp_path / "backups").glob("*rescued*")], "what was stored after it is kept"
