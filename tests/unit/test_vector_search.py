"""Vector search in memory: as many neighbours as wanted are found, whether few or many chunks pass the filter."""

import json
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import numpy as np
import pytest

from clankersd.db import Store
from clankersd.embedders.base import Vector
from clankersd.index.mirror import Mirror
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.filters import ChunkFilter
from clankersd.search.nearest import MAX_LISTED_CHUNKS, OVERSAMPLING, ScoredChunks, nearest_in_memory
from clankersd.search.vector_search import (
    MAX_VECTORS_COMPARED_STORED,
    QueryVector,
    VectorMatches,
    VectorSearch,
)

CHUNKS = 4 * MAX_LISTED_CHUNKS
POOL = 20
DIMS = 256


class Chunks:
    """A database with nothing but chunks in it; it counts what it is asked for."""

    def __init__(self, kinds: list[str]) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE TABLE chunks (id INTEGER PRIMARY KEY, kind TEXT)")
        self._db.executemany("INSERT INTO chunks (kind) VALUES (?)", [(kind,) for kind in kinds])
        self.rows = 0

    def close(self) -> None:
        self._db.close()

    async def read_for_search(self, work: "Callable[[Chunks], list[Any]]") -> list[Any]:
        return work(self)

    def tuples(self, sql: str, params: dict[str, Any]) -> list[Any]:
        found = self._db.execute(sql, params).fetchall()
        self.rows += len(found)
        return found


def fan() -> tuple[Mirror, Vector]:
    """Vectors that turn away from a direction step by step, and that direction: a lower id is nearer."""
    chance = np.random.default_rng(1)
    direction, away = np.linalg.qr(chance.normal(size=(DIMS, 2)))[0].T
    angles = np.linspace(0.2, np.pi - 0.2, CHUNKS)[:, None]
    vectors = (np.cos(angles) * direction + np.sin(angles) * away).astype(np.float32)
    mirror = Mirror(1, DIMS)
    mirror.add([(number, vector.tobytes(), "memories global", 0) for number, vector in enumerate(vectors, 1)])
    return mirror, direction.astype(np.float32)


MIRROR, DIRECTION = fan()


def nearest(kinds: list[str], kind: str) -> tuple[list[int], int]:
    """The nearest chunks of a kind, and how many rows it took to find them."""
    chunks = Chunks(kinds)
    condition = "chunks.kind = :kind"
    ids = f"SELECT chunks.id FROM chunks WHERE {condition}"
    chunk_filter = ChunkFilter(condition, {"kind": kind}, is_narrow=True, id_query=ids)
    found = anyio.run(nearest_in_memory, cast(Store, chunks), MIRROR, DIRECTION, chunk_filter, POOL)
    chunks.close()
    return [chunk for chunk, _ in found], chunks.rows


def by_similarity(vector: Vector, chunks: list[int]) -> ScoredChunks:
    """Chunks with their similarity to a vector, most similar first."""
    [similarities] = MIRROR.compare([vector], np.array(chunks))
    return sorted(zip(chunks, similarities.tolist(), strict=True), key=lambda scored: -scored[1])


def expected(kinds: list[str], kind: str) -> list[int]:
    of_kind = [number for number, one in enumerate(kinds, 1) if one == kind]
    return [chunk for chunk, _ in by_similarity(DIRECTION, of_kind)][:POOL]


@pytest.mark.parametrize("every", [1, 2, 3, 200, CHUNKS], ids=lambda every: f"one of {every}")
def test_nearest_in_memory_finds_the_nearest_that_pass_the_filter(every: int) -> None:
    kinds = ["wanted" if number % every == 0 else "other" for number in range(CHUNKS)]
    found, _ = nearest(kinds, "wanted")
    assert found == expected(kinds, "wanted")


def test_nearest_in_memory_checks_few_chunks_where_nearly_all_pass() -> None:
    found, rows = nearest(["wanted"] * CHUNKS, "wanted")
    assert found == expected(["wanted"] * CHUNKS, "wanted")
    assert rows <= MAX_LISTED_CHUNKS + 1 + POOL * OVERSAMPLING[0]


def test_nearest_in_memory_finds_many_matching_chunks_that_are_all_far_away() -> None:
    kinds = ["other"] * (CHUNKS // 2) + ["wanted"] * (CHUNKS // 2)
    found, _ = nearest(kinds, "wanted")
    assert found == expected(kinds, "wanted")


def test_nearest_in_memory_finds_nothing_where_no_chunk_passes() -> None:
    assert nearest(["other"] * CHUNKS, "wanted") == ([], 0)


class LoadedIndex:
    """An index whose vectors are in memory."""

    mirror = MIRROR
    mirror_problem: str | None = None
    live = None
    vector_count = CHUNKS

    async def sync_shared_index(self) -> None: ...


@pytest.mark.parametrize(
    ("is_complete", "problem", "reason"),
    [
        (False, None, "vectors are being loaded into memory"),
        (False, "too little memory: 1 MB", "vectors are not in memory: too little memory: 1 MB"),
        (True, None, "chunks are being loaded into memory"),
    ],
)
def test_similarities_without_neighbours_say_so(is_complete: bool, problem: str | None, reason: str) -> None:
    """Right after a start, hits were ranked by plain cosines without a word."""
    index = LoadedIndex()
    index.mirror, index.mirror_problem = Mirror(1, DIMS), problem
    index.mirror.complete = is_complete
    search = VectorSearch(cast(Any, None), cast(Any, index), cast(Any, None), ChunkTable(), cast(Any, None))
    matches = VectorMatches([(1, 0.9), (2, 0.5)], QueryVector(DIRECTION))
    _, cosines = anyio.run(search.similarity_columns, matches, np.array([1, 2]), cast(Any, None))
    assert cosines.tolist() == [0.9, 0.5]
    assert matches.note == f"messages were ranked without their neighbours, since {reason}"
    again = VectorMatches(matches.nearest, matches.query)
    assert anyio.run(search.similarities, again, [1, 2], cast(Any, None)) == {1: 0.9, 2: 0.5}
    assert again.note == matches.note
    nothing = VectorMatches([], matches.query)
    anyio.run(search.similarities, nothing, [], cast(Any, None))
    assert nothing.note is None


@pytest.mark.parametrize(
    ("count", "indexes_vectors", "problem", "is_searched"),
    [
        (MAX_VECTORS_COMPARED_STORED, False, None, True),
        (MAX_VECTORS_COMPARED_STORED + 1, False, None, False),
        (MAX_VECTORS_COMPARED_STORED + 1, True, None, True),
        (MAX_VECTORS_COMPARED_STORED + 1, False, "too little memory", True),
    ],
)
def test_many_vectors_on_disk_are_not_compared_while_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch, count: int, indexes_vectors: bool, problem: str | None, is_searched: bool
) -> None:
    """Right after a start, a search among a million vectors failed because it took longer than ten seconds."""

    async def embed_query(_: VectorSearch, query: str) -> QueryVector:
        return QueryVector(DIRECTION)

    async def stored(*_: object) -> ScoredChunks:
        return [(1, 0.9)]

    monkeypatch.setattr(VectorSearch, "embed_query", embed_query)
    monkeypatch.setattr(VectorSearch, "_nearest_stored", stored)
    index = LoadedIndex()
    index.mirror, index.mirror_problem, index.vector_count = Mirror(1, DIMS), problem, count
    store = SimpleNamespace(engine=SimpleNamespace(indexes_vectors=indexes_vectors))
    search = VectorSearch(cast(Any, store), cast(Any, index), cast(Any, None), ChunkTable(), cast(Any, None))
    chunk_filter = ChunkFilter("true", {}, is_narrow=False)
    found = anyio.run(search.search, "anything", chunk_filter, POOL)
    assert bool(found.nearest) == is_searched
    unavailable = "vector search unavailable: they are being loaded into memory"
    assert found.query.problem == (None if is_searched else unavailable)


def test_nearest_exact_lists_few_chunks_where_nearly_all_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listed and sorted all chunks of the store, and again for each larger number of neighbours."""

    async def stored(_: VectorSearch, vector: Vector, k: int, ids: str, params: dict[str, Any]) -> ScoredChunks:
        return by_similarity(vector, json.loads(params["listed"]))[:k]

    MIRROR.complete = True
    monkeypatch.setattr(VectorSearch, "_nearest_stored", stored)
    kinds = ["other" if number % 50 == 0 else "wanted" for number in range(CHUNKS)]
    chunks = Chunks(kinds)
    condition = "chunks.kind = :kind"
    chunk_filter = ChunkFilter(condition, {"kind": "wanted"}, is_narrow=True)
    search = VectorSearch(cast(Any, chunks), cast(Any, LoadedIndex()), cast(Any, None), ChunkTable(), cast(Any, None))
    found = anyio.run(search.nearest_exact, DIRECTION, chunk_filter, POOL)
    chunks.close()
    assert [chunk for chunk, _ in found] == expected(kinds, "wanted")
    assert chunks.rows < CHUNKS / 2
