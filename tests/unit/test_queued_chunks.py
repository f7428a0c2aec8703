"""New chunks are queued for the embedder by the transaction that stores them, all of it together."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from clankersd.db import Db
from clankersd.db.group_commit import Change, commit_together
from clankersd.db.migrations import migrate
from clankersd.index.chunks import Chunking, Owner, append_chunks, chunk_text, replace_chunks

CHUNKING = Chunking(1, 400, 80)
GENERATION = """
    INSERT INTO index_generations
        (state, chunking, chunk_tokens, overlap, sources, provider, model, provider_key, created_at)
    VALUES (:state, 1, 400, 80, '[]', :provider, '', '', 1)
"""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Db]:
    connection = apsw.Connection(str(tmp_path / "clankers.db"))
    connection.execute("PRAGMA foreign_keys = 1")
    db = Db(connection)
    migrate(db, tmp_path)
    db.execute(GENERATION, {"state": "live", "provider": "static"})
    db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('s', 1, 1)")
    yield db
    connection.close()


def store(name: str, text: str, fails: bool = False) -> Change:
    """A change that stores a message with its chunks; it may fail afterwards."""

    def change(db: Db) -> None:
        db.execute("INSERT INTO messages (id, session_id, created_at) VALUES (:id, 's', 1)", {"id": name})
        append_chunks(db, owner(name), chunk_text(text, CHUNKING), 0, 10)
        if fails:
            raise ValueError("refused")

    return change


def owner(name: str) -> Owner:
    return Owner("message_id", name, "sessions", f"messages/{name}", 1, "s", "user")


def queued(db: Db) -> list[str]:
    sql = "SELECT message_id FROM index_queue JOIN chunks ON chunks.id = index_queue.chunk ORDER BY chunk"
    return [name for (name,) in db.tuples(sql)]


def test_chunks_of_all_changes_are_queued_once(db: Db) -> None:
    commit_together(db, [store("a", "one"), store("b", "two\n" * 500), store("c", "three")])
    assert queued(db) == ["a", "b", "b", "c"]
    commit_together(db, [store("d", "four")])
    assert queued(db) == ["a", "b", "b", "c", "d"]


def test_chunks_of_a_failing_change_are_not_queued_and_those_of_others_are(db: Db) -> None:
    results = commit_together(db, [store("a", "one"), store("b", "two", fails=True), store("c", "three")])
    assert [result.error is None for result in results] == [True, False, True]
    assert queued(db) == ["a", "c"]


def test_chunks_after_a_failed_commit_are_queued(db: Db) -> None:
    commit_together(db, [store("a", "one", fails=True)])
    commit_together(db, [store("b", "two")])
    assert queued(db) == ["b"]


def test_chunks_that_the_same_transaction_deletes_are_not_queued(db: Db) -> None:
    def delete(db: Db) -> None:
        db.execute("DELETE FROM messages WHERE id = 'a'")

    commit_together(db, [store("a", "one"), store("b", "two"), delete, store("c", "three")])
    assert queued(db) == ["b", "c"]


def test_replaced_chunks_are_queued_beside_those_that_stayed(db: Db) -> None:
    commit_together(db, [store("a", "one")])
    db.execute("DELETE FROM index_queue")
    commit_together(db, [lambda db: replace_chunks(db, owner("a"), chunk_text("two", CHUNKING))])
    assert queued(db) == ["a"]
    db.execute("DELETE FROM index_queue")
    commit_together(db, [lambda db: replace_chunks(db, owner("a"), chunk_text("two", CHUNKING))])
    assert queued(db) == []


def test_chunks_are_queued_for_the_generation_that_is_being_built_too(db: Db) -> None:
    commit_together(db, [lambda db: db.execute(GENERATION, {"state": "building", "provider": "static"})])
    commit_together(db, [store("a", "one")])
    assert queued(db) == ["a", "a"]


def test_chunks_are_not_queued_without_an_embedder(db: Db) -> None:
    db.execute("UPDATE index_generations SET provider = 'none'")
    commit_together(db, [store("a", "one")])
    assert queued(db) == []


def test_chunks_can_be_removed_from_the_queue_by_the_transaction_that_stores_them(db: Db) -> None:
    def remove(db: Db) -> None:
        db.engine.queue_new_chunks(db)
        db.execute("DELETE FROM index_queue")

    commit_together(db, [store("a", "one"), remove, store("b", "two")])
    assert queued(db) == ["b"]
