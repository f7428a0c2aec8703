"""A message that a hook and a transcript report is one row, whatever order one change has them in."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from clankers_protocol.events import MessageEvent
from clankersd.capture.apply import apply_event
from clankersd.capture.events import CapturedEvent, HookIdentity, MessageReported, TranscriptIdentity
from clankersd.capture.history_process import IndexSettings
from clankersd.capture.prepared import prepare_event
from clankersd.db import Db
from clankersd.db.migrations import migrate

BEGIN = 1_750_000_000_000


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    made = Db(connection)
    migrate(made, tmp_path)
    yield made
    connection.close()


def line(line_id: str, text: str, session: str = "s") -> CapturedEvent:
    message = MessageEvent(line_id, session, "user", text, created_at=BEGIN)
    return MessageReported(message, TranscriptIdentity("prompt", "p", line_id))


def hook(prompt_id: str, text: str) -> CapturedEvent:
    return MessageReported(
        MessageEvent(prompt_id, "s", "user", text, created_at=BEGIN), HookIdentity("prompt", prompt_id)
    )


def apply_in_one_change(db: Db, *events: CapturedEvent) -> None:
    index = IndexSettings([], (), 1000)
    with db.transaction():
        for event in events:
            prepared = prepare_event(index, event)
            apply_event(db, prepared)


def stored(db: Db) -> list[tuple[str, str]]:
    return db.tuples("SELECT id, text_content FROM messages ORDER BY text_content")


def test_lines_of_a_transcript_are_stored_under_their_ids(db: Db) -> None:
    apply_in_one_change(db, line("l1", "one"), line("l2", "two"), line("l3", "two"))
    assert stored(db) == [("l1", "one"), ("l2", "two"), ("l3", "two")]
    apply_in_one_change(db, line("l1", "one"), line("l2", "two"), line("l3", "two"))
    assert stored(db) == [("l1", "one"), ("l2", "two"), ("l3", "two")]


def test_a_line_is_the_message_that_a_hook_reported_in_the_same_change(db: Db) -> None:
    """The change knows from its first line that no hook has reported anything, until one does."""
    apply_in_one_change(db, line("l1", "one"), hook("p2", "two"), line("l2", "two"), line("l3", "three"))
    assert stored(db) == [("l1", "one"), ("l3", "three"), ("p2", "two")]


def test_a_line_is_the_message_that_a_hook_reported_before(db: Db) -> None:
    apply_in_one_change(db, hook("p1", "one"), hook("p2", "two"))
    apply_in_one_change(db, line("l2", "two"), line("l1", "one"), line("l3", "three"), line("l4", "four"))
    assert stored(db) == [("l4", "four"), ("p1", "one"), ("l3", "three"), ("p2", "two")]


def test_a_line_of_a_fork_belongs_to_the_session_that_had_it_first(db: Db) -> None:
    apply_in_one_change(db, line("l1", "one"), line("l2", "two"))
    apply_in_one_change(db, line("l3", "three", "fork"), line("l2", "two", "fork"), line("l4", "four", "fork"))
    assert db.tuples("SELECT id, session_id FROM messages ORDER BY id") == [
        ("l1", "s"),
        ("l2", "s"),
        ("l3", "fork"),
        ("l4", "fork"),
    ]
    assert db.value("SELECT metadata ->> '$.forkedFrom' FROM sessions WHERE id = 'fork'") == "s"
