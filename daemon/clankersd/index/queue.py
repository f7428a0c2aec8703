"""The index queue: chunks get their vectors, a batch at a time, from the cache or the embedder."""

import json
import time
from collections import deque
from typing import Any

import anyio
import structlog

from clankersd import clock
from clankersd.db import Db
from clankersd.embedders.base import Embedder, EmbedderUnavailable, ItemFailed
from clankersd.index import generations, vectors
from clankersd.index.generations import Generation
from clankersd.index.index import Index

BATCH = 64
MAX_ATTEMPTS = 3
IDLE_SECONDS = 30.0
LEAST_RETRY, FIRST_RETRY, LAST_RETRY = 1.0, 5.0, 300.0
RATE_SECONDS = 30.0
GATHER_SECONDS = 0.2
GIVE_WAY = 4
"""While events come in, embedding pauses for so many times as long as it worked: they have the right of way."""

MOST_PAUSE = 0.5

_PENDING = f"""
    SELECT chunk, text, hash, {vectors.LABEL} AS label FROM index_queue JOIN chunks ON chunks.id = chunk
    WHERE generation = :generation AND attempts < :attempts ORDER BY chunk LIMIT :limit
"""
_CACHED = """
    SELECT hash, embedding FROM embedding_cache
    WHERE provider = :provider AND model = :model AND provider_key = :provider_key
      AND (:dims IS NULL OR dims = :dims) AND hash IN (SELECT value FROM json_each(:hashes))
"""
_CACHE = """
    INSERT INTO embedding_cache (provider, model, provider_key, hash, embedding, dims, updated_at)
    VALUES (:provider, :model, :provider_key, :hash, :embedding, :dims, :now)
    ON CONFLICT (provider, model, provider_key, hash) DO UPDATE
    SET embedding = :embedding, dims = :dims, updated_at = :now
"""
_PRUNE = """
    DELETE FROM embedding_cache WHERE (provider, model, provider_key, hash) IN (
        SELECT provider, model, provider_key, hash FROM embedding_cache ORDER BY updated_at LIMIT :excess
    )
"""
_FAILED = (
    "UPDATE index_queue SET attempts = attempts + 1, error = :error WHERE generation = :generation AND chunk = :chunk"
)

log = structlog.get_logger(component="queue")


class EmbeddingQueue:
    """The one place where vectors are made."""

    def __init__(self, index: Index, cache_entries: int) -> None:
        self.cache_entries = cache_entries
        self._index = index
        self._idle = anyio.Event()
        self._hurried = anyio.Event()
        self._retry = FIRST_RETRY
        self._since_pruned = cache_entries  # the last run may have left too many
        self._finished: deque[tuple[float, int]] = deque()

    @property
    def rate(self) -> float:
        """Chunks a second, over the last while."""
        recent = [(at, count) for at, count in self._finished if at > time.monotonic() - RATE_SECONDS]
        if len(recent) < 2:  # one moment is no stretch of time
            return 0.0
        return sum(count for _, count in recent) / max(recent[-1][0] - recent[0][0], 0.001)

    async def run(self) -> None:
        """Embed what waits, for as long as the daemon lives."""
        while True:
            try:
                while await self._some(self._index.live) or await self._some(self._index.building):
                    self._retry = FIRST_RETRY
                await self._see_whether_it_is_over()
                self._idle.set()
                await self._wait(IDLE_SECONDS)
            except EmbedderUnavailable as error:
                self._pause(error)
                await self._rest(max(error.retry_after or 0.0, LEAST_RETRY))
                await self._wait(LAST_RETRY if error.permanent else self._backoff())
            except Exception:
                log.exception("queue stumbled")
                await self._wait(self._backoff())

    async def finish_pending(self, seconds: float) -> None:
        """Give the queue a moment to embed what has just been stored."""
        if self._index.vector_problem or (self._idle.is_set() and not self._index.woken.is_set()):
            return
        self._work_begins()
        self._hurried.set()
        with anyio.move_on_after(seconds):
            await self._idle.wait()

    async def count_pending(self, generation: Generation | None) -> int:
        """How many chunks wait for their vector in this generation."""
        if generation is None or (
            self._idle.is_set() and not self._index.woken.is_set() and not self._index.vector_problem
        ):
            return 0
        sql = "SELECT count(*) FROM index_queue WHERE generation = :id AND attempts < :attempts"
        return await self._index.store.read(
            lambda db: int(db.value(sql, {"id": generation.id, "attempts": MAX_ATTEMPTS}))
        )

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._index.woken.wait()
            with anyio.move_on_after(GATHER_SECONDS):  # more may come: many at once cost little more than one
                await self._hurried.wait()
        self._index.woken, self._hurried = anyio.Event(), anyio.Event()
        self._work_begins()

    async def _rest(self, seconds: float) -> None:
        """Leave a service in peace that asked for it, whatever comes in; only new settings end the rest."""
        with anyio.move_on_after(seconds):
            await self._index.settings_changed.wait()

    def _work_begins(self) -> None:
        if self._idle.is_set():
            self._idle = anyio.Event()

    async def _see_whether_it_is_over(self) -> None:
        """An outage ends even when nothing waits any more that would show it."""
        if self._index.problem and self._index.embedder is None:
            await self._index.retry_embedder()
        elif self._index.problem and self._index.embedder is not None:
            await self._index.embedder.embed_query("is anybody there")
            self._index.clear_problem()

    def _pause(self, error: EmbedderUnavailable) -> None:
        if error.reason != self._index.problem:
            log.warning("embedding paused", problem=error.reason)
        self._index.problem = self._index.last_error = error.reason
        self._index.problem_is_permanent = error.permanent
        self._idle.set()

    def _backoff(self) -> float:
        self._retry = min(self._retry * 2, LAST_RETRY)
        return self._retry

    async def _some(self, generation: Generation | None) -> int:
        """Embed a batch of this generation; tells how many there were."""
        embedder = self._index.embedder
        if generation is None or embedder is None or not self._index.can_embed(generation):
            return 0
        params = {"generation": generation.id, "attempts": MAX_ATTEMPTS, "limit": BATCH}
        began = time.monotonic()
        rows = await self._index.store.read(lambda db: db.fetch(_PENDING, params))
        if not rows:
            return 0
        known = await self._look_up(generation, [row["hash"] for row in rows])
        missing = {row["hash"]: row["text"] for row in rows if row["hash"] not in known}
        fresh, failed = await _embed(embedder, missing)
        if self._index.embedder is not embedder:
            return len(rows)  # it was exchanged meanwhile: these vectors belong to nobody
        if generation.differs_from(self._index.wanted):
            return 0  # its first vector told that it is another model: `paused` says so
        self._index.clear_problem()
        await self._store(generation, rows, known | fresh, fresh, failed)
        self._finished.append((time.monotonic(), len(rows)))
        while self._finished[0][0] < time.monotonic() - RATE_SECONDS:
            self._finished.popleft()
        if self._index.store.queue.is_busy:
            await anyio.sleep(min((time.monotonic() - began) * GIVE_WAY, MOST_PAUSE))
        return len(rows)

    async def _look_up(self, generation: Generation, hashes: list[str]) -> dict[str, bytes]:
        params = _key(generation) | {"dims": generation.identity.dims, "hashes": json.dumps(hashes)}
        rows = await self._index.store.read(lambda db: db.fetch(_CACHED, params))
        return {row["hash"]: row["embedding"] for row in rows}

    async def _store(
        self, generation: Generation, rows: list[dict[str, Any]], known: dict[str, bytes], fresh: dict[str, bytes],
        failed: dict[str, str],
    ) -> None:  # fmt: skip
        ready = [(row["chunk"], known[row["hash"]]) for row in rows if row["hash"] in known]
        refused = [(row["chunk"], failed[row["hash"]]) for row in rows if row["hash"] in failed]

        def store(db: Db) -> Generation:
            current = self._with_dims(db, generation, ready)
            vectors.insert(db, current, ready)
            for chunk, _ in ready:
                db.execute(
                    "DELETE FROM index_queue WHERE generation = :g AND chunk = :c", {"g": current.id, "c": chunk}
                )
            for chunk, reason in refused:
                db.execute(_FAILED, {"generation": current.id, "chunk": chunk, "error": reason})
            self._remember(db, current, fresh)
            return current

        current = await self._index.store.write(store, bulk=True)
        labels = {row["chunk"]: row["label"] for row in rows}
        self._take_over(current, [(chunk, blob, labels[chunk]) for chunk, blob in ready])
        if refused:
            self._index.last_error = refused[-1][1]

    def _with_dims(self, db: Db, generation: Generation, ready: list[tuple[int, bytes]]) -> Generation:
        if generation.identity.dims is None and ready:
            return generations.set_dims(db, generation, len(ready[0][1]) // 4)
        return generation

    def _remember(self, db: Db, generation: Generation, fresh: dict[str, bytes]) -> None:
        now = clock.now()
        for digest, embedding in fresh.items():
            row = {"hash": digest, "embedding": embedding, "dims": len(embedding) // 4, "now": now}
            db.execute(_CACHE, _key(generation) | row)
        self._since_pruned += len(fresh)
        if self._since_pruned > self.cache_entries // 100:  # not each time: counting walks through all of them
            excess = db.value("SELECT count(*) FROM embedding_cache") - self.cache_entries
            db.execute(_PRUNE, {"excess": max(excess, 0)})
            self._since_pruned = 0

    def _take_over(self, generation: Generation, ready: list[vectors.LabelledVector]) -> None:
        index = self._index
        if index.live and index.live.id == generation.id:
            index.live = generation
        elif index.building and index.building.id == generation.id:
            index.building = generation
        index.vectors_added(generation, ready)


async def _embed(embedder: Embedder, missing: dict[str, str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """The vectors of texts, and why some have none, both by the text's hash."""
    outcomes = await embedder.embed(list(missing.values())) if missing else []
    fresh, failed = {}, {}
    for digest, outcome in zip(missing, outcomes, strict=True):
        if isinstance(outcome, ItemFailed):
            failed[digest] = outcome.reason
        else:
            fresh[digest] = outcome.astype("<f4").tobytes()
    return fresh, failed


def _key(generation: Generation) -> dict[str, Any]:
    identity = generation.identity
    return {"provider": identity.provider, "model": identity.model, "provider_key": identity.provider_key}
