"""The file sync while the database is away."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from clankersd.index.files import sync
from clankersd.index.files.scan import WatchSettings
from clankersd.index.files.sync import FileSync
from clankersd.index.files.watcher import Watcher

pytestmark = pytest.mark.anyio


async def test_sync_waits_before_it_tries_again_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Watcher] = []

    def start(*arguments: Any) -> Watcher:
        started.append(Watcher(*arguments))
        return started[-1]

    monkeypatch.setattr(sync, "Watcher", start)
    index: Any = SimpleNamespace(live=None, store=SimpleNamespace(on_open=[]))
    settings = WatchSettings(
        roots=(), extra=(), agent_files=False, debounce_ms=10, poll=False, sync_minutes=0, projects=True
    )
    with anyio.move_on_after(1):
        await FileSync(index, settings).run()
    assert len(started) == 1
