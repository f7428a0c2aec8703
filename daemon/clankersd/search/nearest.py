"""Nearest vectors in memory among the chunks that pass a filter."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

from clankersd.db import Db, Store
from clankersd.embedders.base import Vector
from clankersd.index.mirror import LabelSet, Mirror
from clankersd.index.vector_store import read_moved_chunks
from clankersd.projects import PROJECT_NUMBERS
from clankersd.search.filters import MATCHING_CHUNKS, ChunkFilter

MAX_VECTORS_COMPARED_INLINE = 16_384
"""More vectors are compared in a thread; these take less than a thread is worth."""

MAX_VECTORS_FILTERED_INLINE = 1 << 18
"""Of more vectors, those of a project are selected in a thread."""

MAX_LISTED_CHUNKS = 1_000
"""Up to this many matching chunks are listed and compared. Where there are more, the nearest are checked first."""

OVERSAMPLING = (2, 32)
"""Oversampling factors tried before falling back to a comparison of every matching chunk."""

MAX_CHECKED_CHUNKS = 65_536
"""Nearest chunks that are checked at most; instead of more of them, all matching chunks are listed."""

ScoredChunks = list[tuple[int, float]]
"""Ids of chunks with their similarity, most similar first."""

T = TypeVar("T")


class LabelLookup:
    """Lookup of the labels that a filter accepts, and of chunks that moved to another project since the last one.

    Only tests on a project need the database. A task that reads it for another one sets `done`, also if it failed.
    """

    def __init__(self, chunk_filter: ChunkFilter, mirror: Mirror | None) -> None:
        self.mirror = mirror
        self.done = anyio.Event()
        self._tests = chunk_filter.label_tests
        self._sets: list[LabelSet] | None = None
        self._moved: list[tuple[int, int, int]] = []
        self._has_unread_moves = False
        if all(test.project is None for test in self._tests):
            self._sets = [LabelSet(test.matches_label) for test in self._tests]
            self.done.set()

    @property
    def has_labels(self) -> bool:
        return self._sets is not None

    @property
    def is_complete(self) -> bool:
        """True once all chunks that have moved were read as well."""
        return self.has_labels and not self._has_unread_moves

    def read(self, db: Db) -> None:
        """Look up the numbers of the filter's projects, and the next chunks that have moved."""
        if self.is_complete:
            return
        sets = []
        for test in self._tests:
            numbers = None if test.project is None else db.tuples(f"SELECT * FROM {PROJECT_NUMBERS}", test.project)
            sets.append(LabelSet(test.matches_label, None if numbers is None else frozenset(row[0] for row in numbers)))
        if self.mirror is not None:
            self._moved, self._has_unread_moves = read_moved_chunks(db, self.mirror.moves_seen)
        self._sets = sets

    def apply(self) -> list[LabelSet]:
        """Update the projects of vectors in memory, and return the labels."""
        assert self._sets is not None
        if self.mirror is not None:
            self.mirror.move(self._moved)
        return self._sets


async def nearest_in_memory(
    store: Store,
    mirror: Mirror,
    vector: Vector,
    chunk_filter: ChunkFilter,
    k: int,
    lookup: LabelLookup | None = None,
) -> ScoredChunks:
    """Return the `k` nearest chunks that pass the filter.

    Few matching chunks are all compared. Of many, the nearest of those with fitting labels are checked against the
    filter instead.
    """
    if lookup is None or lookup.mirror is not mirror or not lookup.has_labels:
        lookup = LabelLookup(chunk_filter, mirror)
        if not lookup.is_complete:
            await store.read_for_search(lookup.read)
    labels = lookup.apply()
    while not lookup.is_complete:
        await store.read_for_search(lookup.read)
        labels = lookup.apply()

    async def nearest(count: int, chunks: list[int] | None) -> ScoredChunks:
        if mirror.size > MAX_VECTORS_FILTERED_INLINE or len(chunks or ()) > MAX_VECTORS_COMPARED_INLINE:
            return await anyio.to_thread.run_sync(mirror.nearest, vector, count, chunks, labels)
        rows = mirror.eligible(chunks, labels)
        return await in_thread_if(len(rows) > MAX_VECTORS_COMPARED_INLINE, mirror.nearest_rows, vector, count, rows)

    if not chunk_filter.is_narrow:
        return await nearest(k, None)
    listed = await fetch_ids(store, f"{chunk_filter.ids} LIMIT {MAX_LISTED_CHUNKS + 1}", chunk_filter.params)
    if len(listed) <= MAX_LISTED_CHUNKS:
        return await nearest(k, listed)
    for factor in OVERSAMPLING:
        if k * factor > MAX_CHECKED_CHUNKS:
            break
        near = await nearest(k * factor, None)
        matching = await store.read_for_search(lambda db, near=near: _matching(db, chunk_filter, near))  # type: ignore[misc]
        passing = [(chunk, similarity) for chunk, similarity in near if chunk in matching]
        if len(passing) >= k or len(near) < k * factor:
            return passing[:k]
    return await nearest(k, await fetch_ids(store, chunk_filter.ids, chunk_filter.params))


def _matching(db: Db, chunk_filter: ChunkFilter, near: ScoredChunks) -> set[int]:
    """Return those of the chunks that pass the filter."""
    params = chunk_filter.params | {"near": json.dumps([chunk for chunk, _ in near])}
    return {row[0] for row in db.tuples(MATCHING_CHUNKS.format(condition=chunk_filter.condition), params)}


async def fetch_ids(store: Store, sql: str, params: dict[str, Any]) -> list[int]:
    return await store.read_for_search(lambda db: [row[0] for row in db.tuples(sql, params)])


async def in_thread_if(is_large: bool, work: Callable[..., T], *arguments: Any) -> T:
    """Run large work in a thread and small work directly: reaching a thread takes a millisecond."""
    return await anyio.to_thread.run_sync(work, *arguments) if is_large else work(*arguments)
