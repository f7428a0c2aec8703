"""Vector search: the vector of a query, and the chunks with the nearest vectors."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.search import Embedding
from clankersd.db import Db, Store
from clankersd.embedders.base import Embedder, EmbedderUnavailable, ItemFailed, Vector
from clankersd.embedders.memory_headroom import import_numpy
from clankersd.embedders.normalize import parse_embedding
from clankersd.index import vector_store
from clankersd.index.index import Index
from clankersd.index.mirror import Mirror
from clankersd.index.queue import EmbeddingQueue
from clankersd.index.tokenize import searched_part
from clankersd.projects import PROJECT_NUMBERS
from clankersd.search.centres import Centres, from_centre
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.closeness import DEFAULT_BASELINE, Calibration, language_baseline
from clankersd.search.filters import NO_MEMORIES, ChunkFilter, Criteria, build_filter
from clankersd.search.nearest import LabelLookup, ScoredChunks, nearest_in_memory
from clankersd.search.turn_scoring import smooth_similarities

PENDING_SECONDS = 0.05
"""Time that a search gives the queue to embed what has just been stored."""

MAX_VECTORS_LOADED_INLINE = 5_000
"""Up to this many vectors are loaded into memory while the search waits; more of them in the background."""

MAX_VECTORS_COMPARED_STORED = 200_000
"""Vectors up to which those on disk are compared while they are loaded into memory: with a cold file cache, a million
of them take longer than a search may."""

NEAREST_ELSEWHERE = 32
"""Nearest chunks of all projects among which the best one of another project is looked for."""

MAX_REFILLS = 4
"""Rounds in which deleted or hidden chunks are replaced by others."""

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

    `in_conversation` are the found chunks that have a neighbour in their session. `note` states how the similarities
    are worse than usual.
    """

    nearest: ScoredChunks = field(default_factory=list)
    query: QueryVector = field(default_factory=QueryVector)
    hidden: set[int] = field(default_factory=set)
    cosines: dict[int, float] = field(default_factory=dict)
    in_conversation: set[int] = field(default_factory=set)
    note: str | None = None


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
        self._centres = Centres(store, index)

    def on_database_opened(self, _db: Db) -> None:
        """Begin anew with a connection, whose database may be another one."""
        self._centres.clear()

    @property
    def embedder(self) -> Embedder | None:
        return self._index.embedder

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

    async def search(
        self, query: str, chunk_filter: ChunkFilter, k: int, labels: LabelLookup | None = None
    ) -> VectorMatches:
        """Find the `k` chunks nearest to a query among those that pass the filter.

        `labels` are looked up by another task, or here.
        """
        embedded = await self.embed_query(query)
        if embedded.vector is None:
            return VectorMatches(query=embedded)
        if labels is not None:
            await labels.done.wait()
        if await self._is_loading_many():
            return VectorMatches(query=_unavailable("they are being loaded into memory"))
        try:
            return VectorMatches(await self.nearest(embedded.vector, chunk_filter, k, labels), embedded)
        except MemoryError as error:
            return VectorMatches(query=_unavailable(f"too little memory: {error}"))

    async def nearest(
        self, vector: Vector, chunk_filter: ChunkFilter, k: int, labels: LabelLookup | None = None
    ) -> ScoredChunks:
        """Return the `k` nearest chunks, by the vectors in memory once they are loaded."""
        await self._index.sync_shared_index()
        await self._load_mirror()
        mirror = self._index.mirror
        if mirror is not None and mirror.complete:
            return await nearest_in_memory(self._store, mirror, vector, chunk_filter, k, labels)
        return await self._nearest_stored(vector, k, chunk_filter.ids, chunk_filter.params)

    async def nearest_exact(self, vector: Vector, chunk_filter: ChunkFilter, k: int) -> ScoredChunks:
        """Return the `k` nearest chunks and their cosines, by the vectors as they are stored."""
        await self._index.sync_shared_index()
        mirror = self._index.mirror
        if mirror is None or not mirror.complete:
            await self._load_mirror()
            return await self._nearest_stored(vector, k, chunk_filter.ids, chunk_filter.params)
        # Vectors in memory are rounded: the best of them, more than wanted, are compared again as they are on disk.
        found: ScoredChunks = []
        for _ in range(MAX_REFILLS):
            rough = await nearest_in_memory(self._store, mirror, vector, chunk_filter, 2 * k + 32)
            params = {"listed": json.dumps([chunk for chunk, _ in rough])}
            found = await self._nearest_stored(vector, k, _LISTED, params)
            if len(found) >= min(k, len(rough)):
                break
            missing = {chunk for chunk, _ in rough}.difference(chunk for chunk, _ in found)
            if missing == await self._discard_deleted(mirror, missing, len(rough)):
                break
        return found

    async def similarities(
        self, matches: VectorMatches, chunks: Sequence[int], chunk_filter: ChunkFilter
    ) -> dict[int, float]:
        """Return the similarity of each chunk to the query, averaged with that of its neighbours in the conversation.

        Similarities are measured from the centre of the scope: what all its texts have in common is no evidence. As
        long as not everything is in memory, they are plain cosines, and the note of the matches says so.
        """
        if not self._can_smooth(matches):
            matches.cosines, matches.note = dict(matches.nearest), self._plain_note(matches)
            # All others are farther away.
            lowest = min(matches.cosines.values(), default=0.0)
            return {chunk: matches.cosines.get(chunk, lowest) for chunk in chunks} if matches.cosines else {}
        import numpy as np

        smoothed, cosines = await self.similarity_columns(matches, np.array(chunks, np.int64), chunk_filter)
        found = zip(chunks, cosines.tolist(), smoothed.tolist(), strict=True)
        both = {chunk: (cosine, similarity) for chunk, cosine, similarity in found if cosine == cosine}
        matches.cosines = {chunk: cosine for chunk, (cosine, _) in both.items()}
        return {chunk: similarity for chunk, (_, similarity) in both.items()}

    async def similarity_columns(
        self, matches: VectorMatches, chunks: Any, chunk_filter: ChunkFilter
    ) -> tuple[Any, Any]:  # fmt: skip
        """Return the similarities of chunks, an array, and their cosines, as arrays; NaN for one without a vector."""
        import numpy as np

        if not self._can_smooth(matches):
            nearest, matches.note = dict(matches.nearest), self._plain_note(matches)
            cosines = np.array([nearest.get(chunk, np.nan) for chunk in chunks.tolist()], np.float64)
            lowest = min(nearest.values(), default=np.nan)  # all others are farther away
            return np.where(np.isnan(cosines), lowest, cosines), cosines
        centre = await self._centres.find(chunk_filter)
        vector, mirror, live = matches.query.vector, self._index.mirror, self._index.live
        assert vector is not None
        assert mirror is not None
        assert live is not None
        similarities = np.zeros((1, len(chunks)))

        def compare(compared: Any) -> Any:
            nonlocal similarities
            similarities = mirror.compare([vector] if centre is None else [vector, centre], compared)
            return similarities[0] if centre is None else from_centre(vector, centre, *similarities)

        if self._chunks.is_behind and chunks.max(initial=0) > self._chunks.last:
            matches.note = _describe_missing_neighbours("the newest messages", "they", self._chunks.problem)
        smoothed, has_neighbour = smooth_similarities(self._chunks, live.chunking.number, chunks, compare)
        matches.in_conversation = set(chunks[has_neighbour].tolist())
        return smoothed, similarities[0][: len(chunks)]  # those of their neighbours come after them

    def _can_smooth(self, matches: VectorMatches) -> bool:
        mirror, chunks = self._index.mirror, self._chunks
        is_loaded = mirror is not None and mirror.complete and chunks.is_loaded and chunks.columns is not None
        return is_loaded and matches.query.vector is not None and self._index.live is not None

    def _plain_note(self, matches: VectorMatches) -> str | None:
        """Return why the similarities of what was found are plain cosines; None if nothing was found."""
        if not matches.nearest:
            return None
        mirror = self._index.mirror
        has_vectors = mirror is not None and mirror.complete
        what, problem = ("chunks", self._chunks.problem) if has_vectors else ("vectors", self._index.mirror_problem)
        return _describe_missing_neighbours("messages", what, problem)

    async def calibrate(
        self, query: str | None, matches: VectorMatches, chunk_filter: ChunkFilter, elsewhere: bool
    ) -> Calibration:  # fmt: skip
        """Measure the mean cosine in the scope and, with `elsewhere`, the best one of this query in other projects.

        Other projects are those that the filter does not name. A memory may be of any of them.
        """
        live, vector = self._index.live, matches.query.vector
        if vector is None or live is None or live.identity.dims is None:
            return Calibration()
        centre = await self._centres.find(chunk_filter)
        baseline = DEFAULT_BASELINE if centre is None else float(centre @ centre)
        everything = build_filter(Criteria(sources=["sessions"]), live.chunking.number, NO_MEMORIES)
        if live.identity.provider == "static":
            baseline = max(baseline, language_baseline(searched_part(query or "")))
        elif centre is None:  # the default is that of the static model
            baseline = max(baseline, await self._centres.mean_cosine(everything))
        if not elsewhere:
            return Calibration(baseline)
        own_projects = [test.project for test in chunk_filter.label_tests if test.project is not None]

        def read_projects(db: Db) -> tuple[dict[int, int | None], set[int]]:
            own = {row[0] for one in own_projects for row in db.tuples(f"SELECT * FROM {PROJECT_NUMBERS}", one)}
            return dict(db.tuples(_PROJECTS, {"near": json.dumps([chunk for chunk, _ in nearest])})), own

        for _ in range(MAX_REFILLS):
            nearest = await self.nearest(vector, everything, NEAREST_ELSEWHERE)
            projects, own = await self._store.read_for_search(read_projects)
            missing, mirror = {chunk for chunk, _ in nearest}.difference(projects), self._index.mirror
            if not missing or mirror is None or missing == await self._discard_deleted(mirror, missing, len(nearest)):
                break
        of_others = [
            cosine for chunk, cosine in nearest if projects.get(chunk) is not None and projects[chunk] not in own
        ]
        return Calibration(baseline, max(of_others, default=None))

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
        matches.hidden |= await self._discard_deleted(mirror, missing, len(matches.nearest))
        nearest = await self.nearest(vector, chunk_filter, k + 2 * len(matches.hidden))
        matches.nearest = [(chunk, score) for chunk, score in nearest if chunk not in matches.hidden][:k]

    async def _discard_deleted(self, mirror: Mirror, missing: set[int], found_count: int) -> set[int]:
        """Remove those of the chunks from memory that were deleted; return the others.

        If they are most of those that a search has found, all other deleted chunks are removed as well.
        """
        # Not from a replica, which may not have them yet.
        params = {"ids": json.dumps(sorted(missing))}
        existing = {row[0] for row in await self._store.read(lambda db: db.tuples(_EXISTING, params))}
        deleted = missing - existing
        mirror.discard(deleted)
        if len(deleted) * 2 > found_count:
            size = mirror.size
            rows = await self._store.read(lambda db: db.tuples("SELECT id FROM chunks"))
            mirror.keep_only([chunk for (chunk,) in rows], size)
        return existing

    async def _nearest_stored(self, vector: Vector, k: int, ids: str, params: dict[str, Any]) -> ScoredChunks:
        """Compare with the vectors on disk."""
        live = self._index.live
        if live is None or live.identity.dims is None:
            return []
        blob = vector.astype("<f4").tobytes()
        return await self._store.read_for_search(lambda db: vector_store.nearest(db, live, blob, k, ids, params))

    async def _is_loading_many(self) -> bool:
        """Begin to load the vectors unless they are loaded; return whether those on disk are too many meanwhile."""
        index = self._index
        if index.vector_count <= MAX_VECTORS_COMPARED_STORED or self._store.engine.indexes_vectors:
            return False
        await self._load_mirror()
        is_loaded = index.mirror is not None and index.mirror.complete
        return not is_loaded and index.mirror_problem is None

    async def _load_mirror(self) -> None:
        """Load the vectors into memory: few of them now, many in the background."""
        index = self._index
        if index.mirror is not None or index.live is None or index.live.identity.dims is None:
            return
        if index.vector_count <= MAX_VECTORS_LOADED_INLINE:
            await index.load_mirror()
        else:
            self._start_task(index.load_mirror)


def _describe_missing_neighbours(messages: str, missing: str, problem: str | None) -> str:
    state = f"not in memory: {problem}" if problem else "being loaded into memory"
    return f"{messages} were ranked without their neighbours, since {missing} are {state}"


def _unavailable(problem: str) -> QueryVector:
    return QueryVector(problem=f"vector search unavailable: {problem}")
