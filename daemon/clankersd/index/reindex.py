"""Reindexing: build a new generation beside the live one, and publish it in one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller

import anyio
import structlog

from clankers_protocol.errors import Conflict, RpcError, StorageUnavailable
from clankersd.db import Db
from clankersd.index import generations
from clankersd.index.backlog import TEXT_KINDS, rechunk
from clankersd.index.chunks import add_tools_to_backlog
from clankersd.index.files.sync import FileSync
from clankersd.index.generations import Generation
from clankersd.index.index import REINDEX_LOCK, Index
from clankersd.index.queue import MAX_ATTEMPTS, EmbeddingQueue
from clankersd.wire.jobs import Jobs, Progress

TEXTS_PER_READ = 200
QUEUED_CHUNKS_PER_COMMIT = 2000
SWEPT_CHUNKS_PER_COMMIT = 500
SWEEP_SECONDS = 60.0
PROGRESS_SECONDS = 0.1
OUTAGE_SECONDS = 120.0
"""A reindex ends when the embedder has been unavailable for this long."""

SETTLE_SECONDS = 1.0
"""Wait before an automatic rebuild, so that several settings can be changed first."""

CHECK_SECONDS = 5.0
"""Interval of the check whether a rebuild is needed that no setting asks for: an embedder has recovered."""

RETRY_SECONDS = 600.0
"""Wait after an automatic rebuild that failed; changed settings end it."""

_COUNT_CHUNKS = """
    SELECT (SELECT count(*) FROM chunks WHERE chunking = :chunking) AS chunks,
           (SELECT count(*) FROM index_queue WHERE generation = :id AND attempts >= :attempts) AS failed,
           (SELECT max(error) FROM index_queue WHERE generation = :id) AS error
"""

log = structlog.get_logger(component="reindex")


async def rebuild(index: Index, queue: EmbeddingQueue, files: FileSync, progress: Progress) -> dict[str, int]:
    """Build a new generation with the configured embedder, publish it and drop the old one."""
    if index.problem and index.embedder is None:
        raise Conflict(f"there is nothing to build with: {index.problem}")
    if index.wanted.identity.provider != "none" and index.store.vec.version is None:
        raise Conflict(
            f"vectors cannot be stored: {index.store.engine.vector_extension} is missing ({index.store.vec.problem})"
        )

    def create_building(db: Db) -> Generation:
        if index.building is not None or not db.engine.lock(db, REINDEX_LOCK):
            raise Conflict("a reindex is running already")
        chunking = generations.choose_chunking(db, index.wanted, index.live)
        return generations.create(db, index.wanted, "building", chunking)

    building = await index.store.write(create_building)
    index.building = building
    try:
        assert index.live
        if building.chunking == index.live.chunking:
            await _queue_all_chunks(index, building, progress)
        else:
            await _rechunk_all(index, files, progress)
        index.wake()
        await _wait_for_vectors(index, queue, building, progress)
        return await _publish(index, building)
    except BaseException:
        index.end_building(building)
        with anyio.CancelScope(shield=True):
            await index.store.write(lambda db: generations.drop_building(db, building))
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await index.store.write(lambda db: db.engine.unlock(db, REINDEX_LOCK))
            await sweep(index)


class Rebuilder:
    """Rebuilds the index in the background when it is not the configured one."""

    def __init__(self, index: Index, queue: EmbeddingQueue, files: FileSync, jobs: Jobs) -> None:
        self._index = index
        self._queue = queue
        self._files = files
        self._jobs = jobs
        self._job_id: str | None = None
        self._holders = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Start no rebuild inside the block, which changes the settings and may rebuild the index itself."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    async def join_or_cancel(self) -> str | None:
        """Return the id of a running automatic rebuild with the current settings; cancel one with earlier settings."""
        job_id, building = self._job_id, self._index.building
        if job_id is None:
            return None
        if building is None or building.differs_from(self._index.wanted) is None:
            return job_id
        with suppress(Conflict):  # it has just ended
            await self._jobs.cancel(job_id)
        return None

    async def run(self) -> None:
        """Rebuild whenever the settings ask for another index, for as long as the daemon runs."""
        await self._jobs.ready.wait()
        while True:
            changed = self._index.settings_changed
            if self._index.rebuild_reason is None:
                with anyio.move_on_after(CHECK_SECONDS):
                    await changed.wait()
                continue
            await anyio.sleep(SETTLE_SECONDS)
            is_free = not self._holders and not self._jobs.is_running("reindex") and not self._index.store.problem
            if is_free and not changed.is_set() and (reason := self._index.rebuild_reason):
                await self._rebuild(reason)
                with anyio.move_on_after(RETRY_SECONDS if self._index.rebuild_error else 0):
                    await changed.wait()

    async def _rebuild(self, reason: str) -> None:
        log.info("rebuilding", reason=reason)

        async def work(progress: Progress) -> dict[str, int]:
            return await rebuild(self._index, self._queue, self._files, progress)

        try:
            self._job_id = await self._jobs.start("reindex", work)
            job = await self._jobs.wait(self._job_id)
        except RpcError as error:  # storage is unavailable, or somebody else was faster
            log.warning("rebuild not started", problem=error.message)
            return
        finally:
            self._job_id = None
        if job.state != "done" and self._index.rebuild_reason:
            self._index.rebuild_error = job.error or "it was cancelled"


async def sweep_periodically(index: Index) -> None:
    """Delete dropped generations at the start and then periodically, for as long as the daemon runs."""
    while True:
        try:
            await sweep(index)
        except StorageUnavailable as error:
            log.debug("sweep postponed", problem=error.message)
        await anyio.sleep(SWEEP_SECONDS)


async def sweep(index: Index) -> None:
    """Delete the chunks and vectors of dropped generations, in small transactions."""
    while await index.store.write(lambda db: generations.remove_dropped(db, SWEPT_CHUNKS_PER_COMMIT), bulk=True):
        pass


async def _queue_all_chunks(index: Index, building: Generation, progress: Progress) -> None:
    """Queue the existing chunks for new vectors; used when the chunking stays the same."""
    if building.identity.provider == "none":
        return
    after = 0
    ids = "SELECT id FROM chunks WHERE chunking = :chunking AND id > :after ORDER BY id LIMIT :limit"

    def queue_some(db: Db) -> int:
        params = {"chunking": building.chunking.number, "after": after, "limit": QUEUED_CHUNKS_PER_COMMIT}
        last = db.value(f"SELECT max(id) FROM ({ids})", params)
        db.execute(
            f"INSERT INTO index_queue (generation, chunk) SELECT :generation, id FROM ({ids}) WHERE true "
            "ON CONFLICT DO NOTHING",
            params | {"generation": building.id},
        )
        return int(last or 0)

    while last := await index.store.write(queue_some, bulk=True):
        after = last
        await progress(0, None, "counting chunks")


async def _rechunk_all(index: Index, files: FileSync, progress: Progress) -> None:
    """Chunk every stored text again; texts stored from now on are chunked for both generations."""
    for name, kind in TEXT_KINDS.items():
        if kind.select_ids:
            done, params = 0, {"after": "", "limit": TEXTS_PER_READ}
            while rows := await index.store.read(methodcaller("fetch", sql=kind.select_ids, params=params)):
                await rechunk(index, [(name, row["id"]) for row in rows])
                done += len(rows)
                params["after"] = rows[-1]["id"]
                index.wake()
                await progress(done, None, f"chunking: {name}")
    await index.store.write(add_tools_to_backlog)
    await files.rechunk(progress)


async def _wait_for_vectors(index: Index, queue: EmbeddingQueue, building: Generation, progress: Progress) -> None:
    """Wait until every text is chunked and every chunk embedded; raises Conflict if no vector is made for too long."""
    total = 0
    last_pending, progressed_at = -1, anyio.current_time()
    while True:
        _ensure_building(index.building, building)
        pending = await index.store.read(lambda db: int(db.value("SELECT count(*) FROM index_backlog")))
        if building.identity.provider != "none":
            pending += await queue.count_pending(building)
        if not pending:
            break
        if difference := building.differs_from(index.wanted):
            raise Conflict(f"the configuration was changed meanwhile: {difference}")
        if index.problem and index.problem_is_permanent:
            raise Conflict(f"no vectors can be made: {index.problem}")
        if pending != last_pending or not index.problem:
            last_pending, progressed_at = pending, anyio.current_time()
        elif anyio.current_time() - progressed_at > OUTAGE_SECONDS:
            raise Conflict(f"no vectors could be made for {OUTAGE_SECONDS:g} seconds: {index.problem}")
        total = max(total, pending)
        await progress(total - pending, total, index.problem or "making vectors")
        await anyio.sleep(PROGRESS_SECONDS)
    await progress(total, total)


def _ensure_building(current: Generation | None, building: Generation) -> Generation:
    """Return the generation as it is now; raises Conflict if `Index.on_database_opened` has dropped it.

    Another daemon that shares the tables may build one since then.
    """
    if current is None or current.id != building.id:
        raise Conflict("the database was opened again meanwhile; start the reindex again")
    return current


async def _publish(index: Index, building: Generation) -> dict[str, int]:
    """Make the new generation the live one; raises Conflict if there are texts and none of them has a vector."""
    building = _ensure_building(index.building, building)  # with the dimensions of a remote model

    def count_chunks(db: Db) -> tuple[int, int, str | None]:
        params = {"chunking": building.chunking.number, "id": building.id, "attempts": MAX_ATTEMPTS}
        [(chunks, failed, error)] = db.tuples(_COUNT_CHUNKS, params)
        return chunks, failed, error

    def publish(db: Db) -> tuple[Generation, int, int]:
        _ensure_building(generations.find(db, "building"), building)
        chunks, failed, _ = count_chunks(db)
        return generations.publish(db, building), chunks, failed

    if building.identity.provider != "none":
        chunks, failed, error = await index.store.read(count_chunks)
        if chunks and failed >= chunks:  # the old index is better
            raise Conflict(f"the model made no vector for any of the {chunks:,} chunks: {error}")
    await index.index_vectors(building)
    live, chunks, failed = await index.store.write(publish)
    index.rebuild_error = None
    index.live, index.building, index.mirror = live, None, None
    index.vector_count = chunks - failed if live.identity.provider != "none" else 0
    log.info("reindexed", generation=live.id, chunks=chunks, failed=failed)
    return {"chunks": chunks, "failed": failed}
