"""Parts of sessions are stored together and in order, and a session ends with one that could not be stored."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from clankers_protocol.capture import ImportStart
from clankersd.capture.events import SessionInactive
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.base import PastSession
from clankersd.capture.history_reader import MAX_EVENTS_AHEAD, SessionPart, _PartsAhead
from clankersd.capture.imports import _Import
from clankersd.capture.prepared import PreparedEvent
from clankersd.capture.transcripts import Piece, Position
from clankersd.db.group_commit import Change, ChangeResult

pytestmark = pytest.mark.anyio


class FailingStore:
    """A store that refuses the first changes that it is given."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    async def write_all(self, changes: list[Any]) -> list[ChangeResult]:
        is_first = not self.changes
        self.changes += [change.func.__name__ for change in changes]
        failed: Change | None = changes[0] if is_first and changes else None
        return [
            ChangeResult(error=ValueError("refused")) if one is failed else ChangeResult(({}, 0)) for one in changes
        ]


def part_of(session: PastSession, number: int) -> SessionPart:
    event = PreparedEvent(SessionInactive("s"), "s", {"id": "s"})
    return SessionPart(session, [], [event], Piece(Position(str(session.path), "claude-code", "s", read_to=number)))


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def work(store: FailingStore) -> _Import:
    daemon: Any = SimpleNamespace(
        store=store,
        pauses=None,
        index=SimpleNamespace(chunkings=lambda _source: []),
        files=SimpleNamespace(add_project=lambda _project: None),
    )
    return _Import(daemon, ImportStart("claude-code"), HARNESSES["claude-code"])


FIRST, SECOND = (PastSession(name, Path("/"), Path(f"/{name}.jsonl"), None, 0, name) for name in "ab")


async def test_a_session_ends_with_the_part_that_cannot_be_stored(work: _Import, store: FailingStore) -> None:
    for part in (part_of(FIRST, 1), part_of(FIRST, 2), part_of(SECOND, 3)):
        await work._store_parts([part])
    await work._store_parts([])
    assert store.changes == ["_apply_and_count", "_apply_and_count", "_record_position"]
    assert work._unreadable == {FIRST}


async def test_a_transcript_is_not_read_beyond_the_part_that_cannot_be_stored(work: _Import) -> None:
    """Parts that are stored together: what comes after the failed one is read again by the next import."""
    await work._store_parts([part_of(FIRST, 1), part_of(FIRST, 2), part_of(SECOND, 3)])
    assert [piece.position.read_to for piece in work._stored_pieces] == [3]
    assert work._unreadable == {FIRST}


async def test_small_sessions_are_stored_together() -> None:
    ahead = _PartsAhead()
    for number in range(10):
        await ahead.add(part_of(FIRST, number))
    await ahead.complete()
    assert [len(parts) async for parts in ahead.batches()] == [10]


async def test_reading_waits_while_many_events_are_ahead() -> None:
    event = PreparedEvent(SessionInactive("s"), "s", {"id": "s"})
    large = SessionPart(FIRST, [], [event] * MAX_EVENTS_AHEAD)
    ahead, batches = _PartsAhead(), []
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            for part in (large, large, part_of(FIRST, 1)):
                await ahead.add(part)
            await ahead.complete()

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        async for parts in ahead.batches():
            batches.append(len(parts))
            await anyio.wait_all_tasks_blocked()
    assert batches == [1, 1, 1]
