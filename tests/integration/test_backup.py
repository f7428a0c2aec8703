"""Backups are made while events are stored."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import anyio
import apsw
import pytest

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
