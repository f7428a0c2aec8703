"""Group commit: what is announced is what is stored."""

from collections.abc import Iterator

import apsw
import pytest

from clankersd.db import Db, Notification
from clankersd.db.group_commit import Change, commit_together


@pytest.fixture
def db() -> Iterator[Db]:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE messages (id TEXT PRIMARY KEY) STRICT")
    yield Db(connection)
    connection.close()


def store(*ids: str, fails: bool = False) -> Change:
    """A change that stores these messages and announces each; it may fail afterwards."""

    def change(db: Db) -> None:
        for name in ids:
            db.execute("INSERT INTO messages VALUES (:id) ON CONFLICT DO NOTHING", {"id": name})
            db.after_commit(Notification("message", "stored", name))
        if fails:
            raise ValueError("refused")

    return change


def announced_and_stored(db: Db, *changes: Change) -> tuple[list[str], list[str]]:
    """Ids as they are announced and as they are stored, once every change has run."""
    announced, waiting = list[str](), list(changes)
    while waiting:
        results = commit_together(db, waiting)
        announced += [notification.id for result in results for notification in result.notifications]
        waiting = waiting[len(results) :]
    return announced, [row[0] for row in db.tuples("SELECT id FROM messages ORDER BY rowid")]


def test_notifications_of_every_change_follow_its_commit(db: Db) -> None:
    announced, stored = announced_and_stored(db, store("a"), store("b", "c"))
    assert announced == stored == ["a", "b", "c"]


def test_notifications_of_a_failing_change_are_dropped_with_it(db: Db) -> None:
    announced, stored = announced_and_stored(db, store("a"), store("b", "c", fails=True), store("d"))
    assert announced == stored == ["a", "d"]


def test_notifications_of_a_single_failing_change_are_dropped(db: Db) -> None:
    assert announced_and_stored(db, store("a", fails=True)) == ([], [])
    assert announced_and_stored(db, store("b")) == (["b"], ["b"])


def test_notifications_repeated_within_a_change_are_announced_once(db: Db) -> None:
    assert announced_and_stored(db, store("a", "b", "a"), store("a")) == (["a", "b", "a"], ["a", "b"])


@pytest.mark.parametrize("fails", [False, True])
def test_change_cache_is_empty_when_the_next_change_begins(db: Db, fails: bool) -> None:
    cached: list[object] = []

    def change(db: Db) -> None:
        cached.append(db.change_cache.get(("updated_at", "s")))
        db.change_cache["updated_at", "s"] = 1
        if fails and len(cached) == 2:
            raise ValueError("refused")

    commit_together(db, [change, change])
    commit_together(db, [change])
    assert set(cached) == {None}
