"""Reindexing: build a new generation beside the live one, and publish it in one transaction."""

import anyio
import structlog

from clankers_protocol.errors import Conflict, StorageUnavailable
from clankersd.db import Db
from clankersd.index import generations
from clankersd.index.backlog import TEXT_KINDS, rechunk
from clankersd.index.chunks import add_tools_to_backlog
from clankersd.index.files.sync import FileSync
from clankersd.index.generations import Generation
from clankersd.index.index import Index
from clankersd.index.queue import MAX_ATTEMPTS, EmbeddingQueue
from clankersd.wire.jobs import Progress

TEXTS_PER_READ = 200
QUEUED_CHUNKS_PER_COMMIT = 2000
SWEPT_CHUNKS_PER_COMMIT = 500
SWEEP_SECONDS = 60.0
PROGRESS_SECONDS = 0.1

log = structlog.get_logger(component="reindex")


async def rebuild(index: Index, queue: EmbeddingQueue, files: FileSync, progress: Progress) -> dict[str, int]:
    """Build a new generation with the configured embedder, publish it and drop the old one."""
    if index.problem and index.embedder is None:
        raise Conflict(f"there is nothing to build with: {index.problem}")
    if index.embedder is not None and index.store.vec.version is None:
        raise Conflict(f"vectors cannot be stored: sqlite-vec is missing ({index.store.vec.problem})")
    building = await index.store.write(lambda db: _create_building(db, index))
    index.building = building
    try:
        assert index.live
        if building.chunking == index.live.chunking:
            await _queue_all_chunks(index, building, progress)
        else:
            await _rechunk_all(index, files, progress)
        index.wake()
        await _wait_for_vectors(index, queue, building, progress)
        return await _publish(index)
    except BaseException:
        index.building = None
        with anyio.CancelScope(shield=True):
            await index.store.write(generations.drop_unfinished)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await sweep(index)


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


def _create_building(db: Db, index: Index) -> Generation:
    if index.building is not None:
        raise Conflict("a reindex is running already")
    if index.live is not None and index.wanted.has_same_chunking(index.live):
        chunking = index.live.chunking.number
    else:
        chunking = generations.next_chunking(db)
    return generations.create(db, index.wanted, "building", chunking)


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
            await _rechunk_kind(index, name, kind.select_ids, progress)
    await index.store.write(add_tools_to_backlog)
    await files.rechunk(progress)


async def _rechunk_kind(index: Index, name: str, select_ids: str, progress: Progress) -> None:
    done, params = 0, {"after": "", "limit": TEXTS_PER_READ}
    while rows := await index.store.read(lambda db: db.fetch(select_ids, params)):
        for row in rows:
            await rechunk(index, name, row["id"])
        done += len(rows)
        params["after"] = rows[-1]["id"]
        index.wake()
        await progress(done, None, f"chunking: {name}")


async def _wait_for_vectors(index: Index, queue: EmbeddingQueue, building: Generation, progress: Progress) -> None:
    """Wait until the queue has embedded every chunk; an outage of the embedder only makes that take longer."""
    total = 0
    while pending := await _count_unfinished(index, queue, building):
        if difference := building.differs_from(index.wanted):
            raise Conflict(f"the configuration was changed meanwhile: {difference}")
        if index.problem and index.problem_is_permanent:
            raise Conflict(f"no vectors can be made: {index.problem}")
        total = max(total, pending)
        await progress(total - pending, total, index.problem or "making vectors")
        await anyio.sleep(PROGRESS_SECONDS)
    await progress(total, total)


async def _count_unfinished(index: Index, queue: EmbeddingQueue, building: Generation) -> int:
    """Count the texts to chunk and the chunks to embed."""
    unfinished = await index.store.read(lambda db: int(db.value("SELECT count(*) FROM index_backlog")))
    if building.identity.provider != "none":
        unfinished += await queue.count_pending(building)
    return unfinished


async def _publish(index: Index) -> dict[str, int]:
    building = index.building
    assert building

    def publish(db: Db) -> tuple[Generation, int, int]:
        live = generations.publish(db, building)
        failed = "SELECT count(*) FROM index_queue WHERE generation = :id AND attempts >= :attempts"
        chunks = "SELECT count(*) FROM chunks WHERE chunking = :chunking"
        return (
            live,
            int(db.value(chunks, {"chunking": live.chunking.number})),
            int(db.value(failed, {"id": live.id, "attempts": MAX_ATTEMPTS})),
        )

    live, chunks, failed = await index.store.write(publish)
    index.live, index.building, index.mirror = live, None, None
    index.vector_count = chunks - failed if live.identity.provider != "none" else 0
    log.info("reindexed", generation=live.id, chunks=chunks, failed=failed)
    return {"chunks": chunks, "failed": failed}
