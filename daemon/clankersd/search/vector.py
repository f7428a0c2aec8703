"""Vector search: the vector of a query, and the chunks with the nearest vectors."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.search import Embedding
from clankersd.db import Db, Store
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, Vector
from clankersd.embedders.memory_headroom import import_numpy
from clankersd.embedders.normalize import parse_embedding
from clankersd.index import vectors
from clankersd.index.index import Index
from clankersd.index.queue import EmbeddingQueue
from clankersd.index.vectors import LabelSet, Mirror, read_moved_chunks
from clankersd.projects import PROJECT_NUMBERS
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.closeness import DEFAULT_BASELINE, Calibration
from clankersd.search.filters import MATCHING_CHUNKS, NO_MEMORIES, ChunkFilter, Criteria, build_filter
from clankersd.search.ranking import Candidate
from clankersd.search.rows import RankingRow
from clankersd.search.turn_scoring import smooth_similarities

PENDING_SECONDS = 0.05
"""Time that a search gives the queue to embed what has just been stored."""

MAX_VECTORS_LOADED_INLINE = 5_000
"""Up to this many vectors are loaded into memory while the search waits; more of them in the background."""

MAX_VECTORS_COMPARED_INLINE = 16_384
"""More vectors are compared in a thread; these take less than a thread is worth."""

MAX_LISTED_CHUNKS = 1_000
"""Up to this many matching chunks are listed and compared. Where there are more, the nearest are checked first."""

OVERSAMPLING = (2, 32)
"""Oversampling factors tried before falling back to a comparison of every matching chunk."""

NEAREST_ELSEWHERE = 32
"""Nearest chunks of all projects among which the best one of another project is looked for."""

CENTRE_SAMPLE = 256
MIN_CENTRE_SAMPLE = 50
"""Vectors whose mean is the centre of a scope; of fewer the mean would say more about them than about the scope."""

MAX_CENTRE_CANDIDATES = 20_000
CENTRE_TTL_SECONDS = 60.0
MAX_CENTRES = 100

ScoredChunks = list[tuple[int, float]]
"""Ids of chunks with their similarity, most similar first."""

T = TypeVar("T")

_PROJECTS = "SELECT chunks.id, chunks.project FROM json_each(:near) CROSS JOIN chunks ON chunks.id = json_each.value"
_EXISTING = "SELECT id FROM chunks WHERE id IN (SELECT value FROM json_each(:ids))"
_LISTED = "SELECT value FROM json_each(:listed)"


@dataclass(frozen=True)
class QueryVector:
    """The vector of a query. Without one, `problem` states why; a query of punctuation has neither."""

    vector: Vector | None = None
    problem: str | None = None


@dataclass
class VectorMatches:
    """Chunks near a query, those that turned out not to be visible, and the cosine of every chunk that was compared.

    `in_conversation` are the found chunks that have a neighbour in their session.
    """

    nearest: ScoredChunks = field(default_factory=list)
    query: QueryVector = field(default_factory=QueryVector)
    hidden: set[int] = field(default_factory=set)
    cosines: dict[int, float] = field(default_factory=dict)
    in_conversation: set[int] = field(default_factory=set)


class VectorSearch:
    """Nearest neighbours of a vector among the chunks of the live index."""

    def __init__(
        self, store: Store, index: Index, queue: EmbeddingQueue, chunks: ChunkTable, start_task: Callable[..., Any]
    ) -> None:  # fmt: skip
        self._store = store
        self._chunks = chunks
        self._index = index
        self._queue = queue
        self._start_task = start_task
        self._centres: dict[str, tuple[float, Vector | None]] = {}

    async def embed_query(self, query: str) -> QueryVector:
        """Embed a query, after giving the queue a moment to embed what has just been stored."""
        if problem := self._index.vector_problem:
            return _unavailable(problem)
        await self._queue.finish_pending(PENDING_SECONDS)
        assert self._index.embedder
        try:
            vector = await self._index.embedder.embed_query(query)
        except EmbedderUnavailable as error:
            return _unavailable(error.reason)
        except ItemFailed:
            return QueryVector()
        if (
            problem := self._index.vector_problem
        ):  # the first vector of a remote model may have shown that it has changed
            return _unavailable(problem)
        return QueryVector(vector)

    def parse_embedding(self, embedding: Embedding, at: str = "$.embedding") -> Vector:
        """Check an embedding from a client against the index and scale it to length 1."""
        live = self._index.live
        if live is None or live.identity.dims is None or self._store.vec.version is None:
            raise Conflict(f"the index has no vectors: {self._index.vector_problem or 'none was made yet'}")
        try:
            import_numpy()
        except (ImportError, MemoryError) as error:
            raise Conflict(f"vectors cannot be compared: numpy is unavailable: {error}") from error
        vector = parse_embedding(embedding)
        if isinstance(vector, ItemFailed):
            raise InvalidParams(f"invalid params: {vector.reason} - at `{at}`")
        if len(vector) != live.identity.dims:
            problem = f"an embedding of {len(vector)} numbers, where those of the index have {live.identity.dims}"
            raise InvalidParams(f"invalid params: {problem} - at `{at}`")
        return vector

    async def search(self, query: str, chunk_filter: ChunkFilter, k: int) -> VectorMatches:
        """Find the `k` chunks nearest to a query among those that pass the filter."""
        embedded = await self.embed_query(query)
        if embedded.vector is None:
            return VectorMatches(query=embedded)
        try:
            return VectorMatches(await self.nearest(embedded.vector, chunk_filter, k), embedded)
        except MemoryError as error:
            return VectorMatches(query=_unavailable(f"too little memory: {error}"))

    async def nearest(self, vector: Vector, chunk_filter: ChunkFilter, k: int) -> ScoredChunks:
        """Return the `k` nearest chunks, by the vectors in memory once they are loaded."""
        await self._index.follow()
        await self._load_mirror()
        mirror = self._index.mirror
        if mirror is not None and mirror.complete:
            return await nearest_in_memory(self._store, mirror, vector, chunk_filter, k)
        return await self._nearest_stored(vector, k, chunk_filter.ids, chunk_filter.params)

    async def nearest_exact(self, vector: Vector, chunk_filter: ChunkFilter, k: int) -> ScoredChunks:
        """Return the `k` nearest chunks and their cosines, by the vectors as they are stored."""
        await self._index.follow()
        mirror = self._index.mirror
        if mirror is None or not mirror.complete:
            await self._load_mirror()
            return await self._nearest_stored(vector, k, chunk_filter.ids, chunk_filter.params)
        ids = await _fetch_ids(self._store, chunk_filter.ids, chunk_filter.params)
        # Vectors in memory are rounded: the best of them, more than wanted, are compared again as they are on disk.
        rough = await in_thread_if(len(ids) > MAX_VECTORS_COMPARED_INLINE, mirror.similarities, vector, ids)
        best = sorted(rough, key=rough.__getitem__, reverse=True)[: 2 * k + 32]
        return await self._nearest_stored(vector, k, _LISTED, {"listed": json.dumps(best)})

    async def similarities(
        self, matches: VectorMatches, rows: Mapping[int, RankingRow], chunk_filter: ChunkFilter
    ) -> dict[int, float]:
        """Return the similarity of each row to the query, averaged with that of its neighbours in the conversation.

        Similarities are measured from the centre of the scope: what all its texts have in common is no evidence.
        """
        mirror, live = self._index.mirror, self._index.live
        vector = matches.query.vector
        is_ready = (
            mirror is not None and mirror.complete and self._chunks.is_loaded and self._chunks.columns is not None
        )
        if vector is None or mirror is None or live is None or not is_ready:
            matches.cosines = dict(matches.nearest)
            return matches.cosines
        centre = await self._centre(chunk_filter)

        def compare(chunks: Any) -> Any:
            cosines = mirror.compare([vector] if centre is None else [vector, centre], chunks)
            found = zip(chunks.tolist(), cosines[0].tolist(), strict=True)
            matches.cosines = {chunk: cosine for chunk, cosine in found if chunk in rows and cosine == cosine}
            return cosines[0] if centre is None else from_centre(vector, centre, *cosines)

        smoothed, matches.in_conversation = smooth_similarities(self._chunks, live.chunking.number, list(rows), compare)
        return smoothed

    async def calibrate(
        self, matches: VectorMatches, chunk_filter: ChunkFilter, found: Sequence[Candidate[Any]], elsewhere: bool
    ) -> Calibration:
        """Measure the mean cosine in the scope and, with `elsewhere`, the best one of this query in other projects."""
        live, vector = self._index.live, matches.query.vector
        if vector is None or live is None or live.identity.dims is None:
            return Calibration()
        centre = await self._centre(chunk_filter)
        baseline = DEFAULT_BASELINE if centre is None else float(centre @ centre)
        if not elsewhere:
            return Calibration(baseline)
        everything = build_filter(Criteria(sources=["sessions"]), live.chunking.number, NO_MEMORIES)
        nearest = await self.nearest(vector, everything, NEAREST_ELSEWHERE)
        params = {"near": json.dumps([chunk for chunk, _ in nearest])}
        projects = dict(await self._store.read_for_search(lambda db: db.tuples(_PROJECTS, params)))
        own = {candidate.row.project for candidate in found if candidate.row.project is not None}
        of_others = [
            cosine for chunk, cosine in nearest if projects.get(chunk) is not None and projects[chunk] not in own
        ]
        return Calibration(baseline, max(of_others, default=None))

    async def _centre(self, chunk_filter: ChunkFilter) -> Vector | None:
        """Return the mean vector of the chunks that pass the filter, from a sample, cached; None if they are few."""
        live = self._index.live
        assert live is not None
        params = {name: value for name, value in chunk_filter.params.items() if name != "now"}  # or no key occurs twice
        key = json.dumps([live.id, chunk_filter.ids, params], sort_keys=True, default=str)
        now = anyio.current_time()
        if key in self._centres and self._centres[key][0] > now:
            return self._centres[key][1]
        listed = await _fetch_ids(self._store, f"{chunk_filter.ids} LIMIT {MAX_CENTRE_CANDIDATES}", chunk_filter.params)
        sample = listed[:: max(1, len(listed) // CENTRE_SAMPLE)]
        blobs = await self._store.read_for_search(lambda db: vectors.read_vectors(db, live, sample))
        centre = None
        if len(blobs) >= MIN_CENTRE_SAMPLE:
            import numpy as np

            centre = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1).mean(axis=0)
        if len(self._centres) >= MAX_CENTRES:
            self._centres.clear()
        self._centres[key] = now + CENTRE_TTL_SECONDS, centre
        return centre

    async def replace_missing(
        self, matches: VectorMatches, missing: set[int], chunk_filter: ChunkFilter, k: int
    ) -> None:  # fmt: skip
        """Search again for others in place of chunks that have been deleted since, or that the filter rejects now.

        Deleted chunks are removed from memory; the others only make the search look further.
        """
        mirror, vector = self._index.mirror, matches.query.vector
        if mirror is None or vector is None:
            matches.nearest = [(chunk, score) for chunk, score in matches.nearest if chunk not in missing]
            return
        # Not from a replica, which may not have them yet.
        params = {"ids": json.dumps(sorted(missing))}
        existing = {row[0] for row in await self._store.read(lambda db: db.tuples(_EXISTING, params))}
        deleted = missing - existing
        mirror.discard(deleted)
        if len(deleted) * 2 > len(matches.nearest):  # a mass deletion: drop all other deleted chunks as well
            rows = await self._store.read(lambda db: db.tuples("SELECT id FROM chunks"))
            mirror.keep_only([chunk for (chunk,) in rows])
        matches.hidden |= existing
        nearest = await self.nearest(vector, chunk_filter, k + 2 * len(matches.hidden))
        matches.nearest = [(chunk, score) for chunk, score in nearest if chunk not in matches.hidden][:k]

    async def _nearest_stored(self, vector: Vector, k: int, ids: str, params: dict[str, Any]) -> ScoredChunks:
        """Compare with the vectors on disk."""
        live = self._index.live
        if live is None or live.identity.dims is None:
            return []
        blob = vector.astype("<f4").tobytes()
        return await self._store.read_for_search(lambda db: vectors.nearest(db, live, blob, k, ids, params))

    async def _load_mirror(self) -> None:
        """Load the vectors into memory: few of them now, many in the background."""
        index = self._index
        if index.mirror is not None or index.live is None or index.live.identity.dims is None:
            return
        if index.vector_count <= MAX_VECTORS_LOADED_INLINE:
            await index.load_mirror()
        else:
            self._start_task(index.load_mirror)


def from_centre(query: Vector, centre: Vector, similarities: Vector, to_centre: Vector) -> Vector:
    """Return the cosines of vectors to a query after the centre was subtracted from all of them.

    `similarities` and `to_centre` are their inner products with the query and with the centre; all have length 1.
    """
    import numpy as np

    square, of_query = float(centre @ centre), float(query @ centre)
    length = max(1 - 2 * of_query + square, 1e-6) ** 0.5
    lengths = np.maximum(1 - 2 * to_centre + square, 1e-6) ** 0.5
    return (similarities - to_centre - of_query + square) / (length * lengths)  # type: ignore[no-any-return]


async def nearest_in_memory(
    store: Store, mirror: Mirror, vector: Vector, chunk_filter: ChunkFilter, k: int
) -> ScoredChunks:  # fmt: skip
    """Return the `k` nearest chunks that pass the filter.

    Few matching chunks are all compared. Of many, the nearest of those with fitting labels are checked against the
    filter instead.
    """
    labels = await _label_sets(store, mirror, chunk_filter)

    def nearest(count: int, chunks: list[int] | None) -> Awaitable[ScoredChunks]:
        is_large = mirror.size > MAX_VECTORS_COMPARED_INLINE
        return in_thread_if(is_large, mirror.nearest, vector, count, chunks, labels)

    if not chunk_filter.is_narrow:
        return await nearest(k, None)
    listed = await _fetch_ids(store, f"{chunk_filter.ids} LIMIT {MAX_LISTED_CHUNKS + 1}", chunk_filter.params)
    if len(listed) <= MAX_LISTED_CHUNKS:
        return await nearest(k, listed)
    for factor in OVERSAMPLING:
        near = await nearest(k * factor, None)
        params = chunk_filter.params | {"near": json.dumps([chunk for chunk, _ in near])}
        matching = set(await _fetch_ids(store, MATCHING_CHUNKS.format(condition=chunk_filter.condition), params))
        passing = [(chunk, similarity) for chunk, similarity in near if chunk in matching]
        if len(passing) >= k or len(near) < k * factor:
            return passing[:k]
    return await nearest(k, await _fetch_ids(store, chunk_filter.ids, chunk_filter.params))


async def _label_sets(store: Store, mirror: Mirror, chunk_filter: ChunkFilter) -> list[LabelSet]:
    """Look up the numbers of the filter's projects, and update the projects of chunks that have moved since."""
    tests = chunk_filter.label_tests
    if all(test.project is None for test in tests):
        return [LabelSet(test.matches_label) for test in tests]

    def look_up(db: Db) -> tuple[list[LabelSet], list[tuple[int, int, int]]]:
        sets = []
        for test in tests:
            numbers = None if test.project is None else db.tuples(f"SELECT * FROM {PROJECT_NUMBERS}", test.project)
            sets.append(LabelSet(test.matches_label, None if numbers is None else frozenset(row[0] for row in numbers)))
        return sets, read_moved_chunks(db, mirror.moves_seen)

    sets, moved = await store.read_for_search(look_up)
    mirror.move(moved)
    return sets


def _unavailable(problem: str) -> QueryVector:
    return QueryVector(problem=f"vector search unavailable: {problem}")


async def _fetch_ids(store: Store, sql: str, params: dict[str, Any]) -> list[int]:
    return [row[0] for row in await store.read_for_search(lambda db: db.tuples(sql, params))]


async def in_thread_if(is_large: bool, work: Callable[..., T], *arguments: Any) -> T:
    """Run large work in a thread and small work directly: reaching a thread takes a millisecond."""
    return await anyio.to_thread.run_sync(work, *arguments) if is_large else work(*arguments)
