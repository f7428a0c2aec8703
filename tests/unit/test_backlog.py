"""The note of a search on stored texts that are not indexed yet."""

from collections.abc import Iterator

import apsw
import pytest

from clankersd import app
from clankersd.db import Db
from clankersd.index import backlog
from clankersd.index.backlog import MAX_COUNTED_TEXTS, TEXT_KINDS, TEXTS_PER_READ, add_to_backlog, describe_backlog


@pytest.fixture
def db() -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE index_backlog (position INTEGER PRIMARY KEY, kind, owner, UNIQUE (kind, owner))")
    yield Db(connection)
    connection.close()


def add(db: Db, kind: str, count: int) -> None:
    for number in range(count):
        add_to_backlog(db, kind, str(number))


def test_backlog_of_many_texts_is_described(db: Db) -> None:
    add(db, "tool", TEXTS_PER_READ)
    assert describe_backlog(db, lambda source: True) is None
    add(db, "session title", 20)
    note = "70 stored texts, such as tool calls and titles, wait to be indexed"
    assert describe_backlog(db, lambda source: source == "sessions") == note
    assert describe_backlog(db, lambda source: source == "documents") is None


def test_backlog_is_not_counted_to_its_end(db: Db) -> None:
    add(db, "tool", MAX_COUNTED_TEXTS + 5)
    assert (describe_backlog(db, lambda source: True) or "").startswith("at least 1,000 stored texts")


def test_every_kind_of_text_has_a_source() -> None:
    assert app.FEATURES  # they register their kinds
    assert backlog._SOURCES.keys() == TEXT_KINDS.keys()
