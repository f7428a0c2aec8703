"""The embedding queue: chunks get their vectors, one batch at a time, from the cache or the embedder."""

import hashlib
import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from clankersd.db import Db
from clankersd.db.engine import CHUNK_TEXT
from clankersd.embedders.base import PROBE_TEXT, EmbedderUnavailable, ItemFailed
from clankersd.index import generations, vector_store
from clankersd.index.generations import Generation
from clankersd.index.index import Index

BATCH_CHUNKS = 64
MAX_ATTEMPTS = 3
IDLE_SECONDS = 30.0
MIN_RETRY_SECONDS, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 5.0, 300.0
RATE_WINDOW_SECONDS = 30.0
GATHER_SECONDS = 0.2
"""Wait after the first new chunk for more of them: a full batch costs little more than a single text."""

YIELD_FACTOR = 4
"""While events are being stored, embedding pauses for this many times as long as it worked: events have priority."""

MAX_YIELD_SECONDS = 0.5

PROVIDERS_WITHOUT_CACHE = ("static",)
"""Embedders that make a vector faster than it is found in the cache."""

# The queue first: PostgreSQL would read all chunks up to the first that waits, for each batch of a large import.
_PENDING = f"""
    SELECT chunk, {CHUNK_TEXT} AS text, hash, {vector_store.LABEL} AS label, {vector_store.PROJECT} AS project
    FROM (
        SELECT chunk FROM index_queue WHERE generation = :generation AND attempts < :attempts
        ORDER BY chunk LIMIT :limit
    ) AS waiting CROSS JOIN chunks ON chunks.id = chunk ORDER BY chunk
"""
_REMOVE = """
    DELETE FROM index_queue WHERE generation = :generation AND chunk IN (SELECT value FROM json_each(:chunks))
"""
_FIND_CACHED = """
    SELECT lower(hex(key)), embedding FROM embedding_cache
    WHERE key IN (SELECT unhex(value) FROM json_each(:keys)) AND (:dims IS NULL OR length(embedding) = 4 * :dims)
"""
_STORE_CACHED = """
    INSERT INTO embedding_cache (key, embedding) VALUES (unhex(:key), :embedding)
    ON CONFLICT (key) DO UPDATE SET embedding = :embedding
"""
_PRUNE_CACHE = "DELETE FROM embedding_cache WHERE id IN (SELECT id FROM embedding_cache ORDER BY id LIMIT :excess)"
_COUNT_FAILURE = (
    "UPDATE index_queue SET attempts = attempts + 1, error = :error WHERE generation = :generation AND chunk = :chunk"
)

log = structlog.get_logger(component="embedding")


@dataclass(frozen=True)
class _Batch:
    """Chunks to embed, with the vectors found for them and the reasons why some have none, both by text hash."""

    rows: list[dict[str, Any]]
    vectors: dict[str, bytes]
    new_vectors: dict[str, bytes]
    failures: dict[str, str]


class EmbeddingQueue:
    """The only place where vectors of chunks are computed."""

    def __init__(self, index: Index, cache_entries: int) -> None:
        self.cache_entries = cache_entries
        self._index = index
        self._is_idle = False
        self._hurried = anyio.Event()
        self._complete_until = 0.0
        """Time of the monotonic clock: of the chunks that were stored before it, none of the live index is pending."""
        self._batch_ended = anyio.Event()
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._cached_since_pruning = cache_entries  # the last run may have left too many
        self._finished: deque[tuple[float, int]] = deque()
        self.behind_since: float | None = None
        """Time of the monotonic clock since which chunks wait for a vector; None if the queue was emptied since."""

    @property
    def rate(self) -> float:
        """Chunks per second over the last RATE_WINDOW_SECONDS."""
        recent = [(at, count) for at, count in self._finished if at > time.monotonic() - RATE_WINDOW_SECONDS]
        if len(recent) < 2:  # a single moment has no duration
            return 0.0
        return sum(count for _, count in recent) / max(recent[-1][0] - recent[0][0], 0.001)

    @property
    def is_quick(self) -> bool:
        """True if a few texts are embedded in a fraction of the time that a commit takes."""
        live = self._index.live
        return live is not None and live.identity.provider in PROVIDERS_WITHOUT_CACHE

    async def run(self) -> None:
        """Embed pending chunks for as long as the daemon runs."""
        while True:
            try:
                while await self._embed_batch(self._index.live) or await self._embed_batch(self._index.building):
                    self._retry_seconds = FIRST_RETRY_SECONDS
                self.behind_since = None if self._index.embedder else self.behind_since or time.monotonic()
                await self._check_recovery()
                self._is_idle = True
                self._end_batch()
                await self._wait_for_work(IDLE_SECONDS)
            except EmbedderUnavailable as error:
                self._report_unavailable(error)
                # A service that asked for a pause gets it even when chunks arrive; only new settings end it.
                with anyio.move_on_after(max(error.retry_after or 0.0, MIN_RETRY_SECONDS)):
                    await self._index.settings_changed.wait()
                await self._wait_for_work(MAX_RETRY_SECONDS if error.permanent else self._backoff())
            except Exception:
                log.exception("embedding queue failed")
                await self._wait_for_work(self._backoff())

    async def finish_pending(self, seconds: float) -> None:
        """Wait up to `seconds` for the chunks that were stored before the call to be embedded.

        Chunks stored after the call are not awaited: while events are stored all the time, the queue is never empty.
        """
        if self._index.vector_problem or (self._is_idle and not self._index.woken.is_set()):
            return
        asked = time.monotonic()
        self._hurried.set()
        with anyio.move_on_after(seconds):
            while self._complete_until < asked and not self._index.vector_problem:
                await self._batch_ended.wait()

    async def count_pending(self, generation: Generation | None) -> int:
        """Count the chunks that wait for their vector in this generation."""
        index = self._index
        if generation is None or (self._is_idle and not index.woken.is_set() and not index.vector_problem):
            return 0
        sql = "SELECT count(*) FROM index_queue WHERE generation = :id AND attempts < :attempts"
        params = {"id": generation.id, "attempts": MAX_ATTEMPTS}
        return await index.store.read(lambda db: int(db.value(sql, params)))

    async def _wait_for_work(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._index.woken.wait()
            with anyio.move_on_after(GATHER_SECONDS):
                await self._hurried.wait()
        self._index.woken, self._hurried = anyio.Event(), anyio.Event()
        self._is_idle = False

    async def _check_recovery(self) -> None:
        """Test whether an outage is over, which no pending chunk would show."""
        index = self._index
        if not index.problem:
            return
        if index.embedder is None:
            await index.retry_embedder()
        else:
            await index.embedder.embed_query(PROBE_TEXT)
            index.clear_problem()

    def _report_unavailable(self, error: EmbedderUnavailable) -> None:
        if error.reason != self._index.problem:
            log.warning("embedding paused", problem=error.reason)
        self._index.problem = self._index.last_error = error.reason
        self._index.problem_is_permanent = error.permanent
        self._is_idle = True
        self._end_batch()

    def _backoff(self) -> float:
        self._retry_seconds = min(self._retry_seconds * 2, MAX_RETRY_SECONDS)
        return self._retry_seconds

    async def _embed_batch(self, generation: Generation | None) -> int:
        """Embed a batch of this generation; return the number of its chunks."""
        embedder = self._index.embedder
        if generation is None or embedder is None or not self._index.can_embed(generation):
            return 0
        params = {"generation": generation.id, "attempts": MAX_ATTEMPTS, "limit": BATCH_CHUNKS}
        started = time.monotonic()
        rows = await self._index.store.read(lambda db: db.fetch(_PENDING, params))
        if not rows:
            self._end_batch(generation, started)
            return 0
        self.behind_since = self.behind_since or started
        cached = await self._find_cached(generation, [row["hash"] for row in rows])
        missing = {row["hash"]: row["text"] for row in rows if row["hash"] not in cached}
        outcomes = await embedder.embed(list(missing.values())) if missing else []
        new_vectors: dict[str, bytes] = {}
        failures: dict[str, str] = {}
        for digest, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, ItemFailed):
                failures[digest] = outcome.reason
            else:
                new_vectors[digest] = outcome.astype("<f4").tobytes()
        if self._index.embedder is not embedder:
            return len(rows)  # the embedder was replaced in the meantime: these vectors fit no generation
        if generation.model_differs_from(self._index.wanted):
            return 0  # the first vector showed that it is another model, which `vector_problem` reports
        self._index.clear_problem()
        await self._store(generation, _Batch(rows, cached | new_vectors, new_vectors, failures))
        self._end_batch(generation, started if len(rows) < BATCH_CHUNKS else None)
        self._finished.append((time.monotonic(), len(rows)))
        while self._finished[0][0] < time.monotonic() - RATE_WINDOW_SECONDS:
            self._finished.popleft()
        if self._index.store.queue.is_busy:
            with anyio.move_on_after(min((time.monotonic() - started) * YIELD_FACTOR, MAX_YIELD_SECONDS)):
                await self._hurried.wait()  # a search waits for what was stored before it
            self._hurried = anyio.Event()
        return len(rows)

    def _end_batch(self, generation: Generation | None = None, complete_until: float | None = None) -> None:
        """Have those who wait look again. `complete_until` is given if all that was pending then has been embedded."""
        live = self._index.live
        if complete_until is not None and generation is not None and live is not None and generation.id == live.id:
            self._complete_until = complete_until
        self._batch_ended.set()
        self._batch_ended = anyio.Event()

    async def _find_cached(self, generation: Generation, hashes: list[str]) -> dict[str, bytes]:
        if generation.identity.provider in PROVIDERS_WITHOUT_CACHE:
            return {}
        hash_by_key = {_cache_key(generation, digest): digest for digest in hashes}
        params = {"dims": generation.identity.dims, "keys": json.dumps(list(hash_by_key))}
        rows = await self._index.store.read(lambda db: db.tuples(_FIND_CACHED, params))
        return {hash_by_key[key]: embedding for key, embedding in rows}

    async def _store(self, generation: Generation, batch: _Batch) -> None:
        """Store the vectors of a batch and count its failures, and update the index after the commit."""
        ready = [(row["chunk"], batch.vectors[row["hash"]]) for row in batch.rows if row["hash"] in batch.vectors]
        failed = [(row["chunk"], batch.failures[row["hash"]]) for row in batch.rows if row["hash"] in batch.failures]

        def store(db: Db) -> Generation:
            current = generation
            if current.identity.dims is None and ready:
                current = generations.set_dims(db, current, len(ready[0][1]) // 4)
            vector_store.insert(db, current, ready)
            if ready:
                chunks = json.dumps([chunk for chunk, _ in ready])
                db.execute(_REMOVE, {"generation": current.id, "chunks": chunks})
            for chunk, reason in failed:
                db.execute(_COUNT_FAILURE, {"generation": current.id, "chunk": chunk, "error": reason})
            self._cache(db, current, batch.new_vectors)
            if db.unindexed_chunks:  # one commit for both
                db.before_commit(Db.index_full_text)
            return current

        index = self._index
        current = await index.store.write(store, bulk=True)
        if index.live and index.live.id == current.id:
            index.live = current
        elif index.building and index.building.id == current.id:
            index.building = current
        rows = {row["chunk"]: row for row in batch.rows}
        index.vectors_added(
            current, [(chunk, vector, rows[chunk]["label"], rows[chunk]["project"]) for chunk, vector in ready]
        )
        if failed:
            index.last_error = failed[-1][1]

    def _cache(self, db: Db, generation: Generation, new_vectors: dict[str, bytes]) -> None:
        if generation.identity.provider in PROVIDERS_WITHOUT_CACHE:
            return
        for digest, embedding in new_vectors.items():
            db.execute(_STORE_CACHED, {"key": _cache_key(generation, digest), "embedding": embedding})
        self._cached_since_pruning += len(new_vectors)
        if self._cached_since_pruning > self.cache_entries // 100:  # not each time: counting scans all entries
            excess = db.value("SELECT count(*) FROM embedding_cache") - self.cache_entries
            db.execute(_PRUNE_CACHE, {"excess": max(excess, 0)})
            self._cached_since_pruning = 0


def _cache_key(generation: Generation, digest: str) -> str:
    """Return the key of a text's vector in the cache, in hexadecimal."""
    identity = generation.identity
    named = "\0".join((identity.provider, identity.model, identity.provider_key, digest))
    return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
