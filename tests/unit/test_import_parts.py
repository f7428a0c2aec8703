"""The parts of a session are stored in order, and none after one that could not be stored."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clankers_protocol.capture import ImportStart
from clankersd.capture.events import SessionInactive
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.base import PastSession
from clankersd.capture.history_reader import SessionPart
from clankersd.capture.imports import _Import
from clankersd.capture.prepared import PreparedEvent
from clankersd.capture.transcripts import Piece, Position
from clankersd.db.group_commit import Change, Outcome

pytestmark = pytest.mark.anyio


class FailingStore:
    """A store that refuses the first changes that it is given."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    async def write_all(self, changes: list[Any]) -> list[Outcome]:
        is_first = not self.changes
        self.changes += [change.func.__name__ for change in changes]
        failed: Change | None = changes[0] if is_first and changes else None
        return [Outcome(error=ValueError("refused")) if one is failed else Outcome(({}, 0)) for one in changes]


def part_of(session: PastSession, number: int) -> SessionPart:
    event = PreparedEvent(SessionInactive("s"), "s", {"id": "s"})
    return SessionPart(session, [], [event], Piece(Position(str(session.path), "claude-code", "s", read_to=number)))


async def test_a_session_ends_with_the_part_that_cannot_be_stored() -> None:
    store = FailingStore()
    daemon: Any = SimpleNamespace(
        store=store,
        pauses=None,
        index=SimpleNamespace(chunkings=lambda _source: []),
        files=SimpleNamespace(add_project=lambda _project: None),
    )
    work = _Import(daemon, ImportStart("claude-code"), HARNESSES["claude-code"])
    first, second = (PastSession(name, Path("/"), Path(f"/{name}.jsonl"), None, 0, name) for name in "ab")
    for part in (part_of(first, 1), part_of(first, 2), part_of(second, 3)):
        await work._store_part(part)
    await work._store([])
    assert store.changes == ["_apply_and_count", "_apply_and_count", "_record_position"]
    assert work._unreadable == {first}
