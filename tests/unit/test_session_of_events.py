"""The session of an event is stored with it, and kept up to date, however many events one change applies."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from clankers_protocol.events import MessageEvent
from clankersd.capture.apply import apply_event
from clankersd.capture.events import CapturedEvent, FirstPrompt, MessageReported, SessionOptedOut
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


def message(name: str, at: int) -> CapturedEvent:
    return MessageReported(MessageEvent(name, "s", "user", "hello", created_at=BEGIN + at))


def apply_in_one_change(db: Db, *events: CapturedEvent) -> None:
    index = IndexSettings([], (), 1000)
    with db.transaction():
        for event in events:
            apply_event(db, prepare_event(index, event))


def test_the_session_is_as_new_as_its_newest_event(db: Db) -> None:
    apply_in_one_change(db, message("a", 5000), message("b", 9000), message("c", 7000), message("d", 8000))
    assert db.tuples("SELECT created_at, updated_at FROM sessions") == [(BEGIN + 5000, BEGIN + 9000)]
    assert db.value("SELECT count(*) FROM messages") == 4


def test_nothing_is_stored_after_the_session_has_opted_out(db: Db) -> None:
    apply_in_one_change(
        db, message("a", 5000), SessionOptedOut("s", BEGIN + 6000), message("b", 4000), message("c", 7000)
    )
    assert db.tuples("SELECT id FROM messages") == [("a",)]


def test_the_first_prompt_of_a_session_stays(db: Db) -> None:
    prompts = [FirstPrompt("s", "one", BEGIN + 5000), FirstPrompt("s", "two", BEGIN + 6000)]
    apply_in_one_change(db, prompts[1], message("a", 5000), *prompts)
    assert db.tuples("SELECT title, user_prompt FROM sessions") == [("one", "one")]
