"""Building the index anew beside the live one, and putting it in its place in one transaction."""

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

SLICE = 200
SWEEP = 500
SWEEP_SECONDS = 60.0
WATCH_SECONDS = 0.1

log = structlog.get_logger(component="reindex")


async def rebuild(index: Index, queue: EmbeddingQueue, files: FileSync, progress: Progress) -> dict[str, int]:
    """Build a whole new generation with the configured embedder, then publish it and drop the old one."""
    if index.problem and index.embedder is None:
        raise Conflict(f"there is nothing to build with: {index.problem}")
    if index.embedder is not None and index.store.vec.version is None:
        raise Conflict(f"vectors cannot be stored: sqlite-vec is missing ({index.store.vec.problem})")
    building = await index.store.write(lambda db: _begin(db, index))
    index.building = building
    try:
        assert index.live
        if building.chunking == index.live.chunking:
            await _queue_all(index, building, progress)
        else:
            await _cut_all(index, files, progress)
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
    """Remove what an earlier run left, at the start and now and then, for as long as the daemon lives."""
    while True:
        try:
            await sweep(index)
        except StorageUnavailable as error:
            log.debug("sweeping waits", problem=error.message)
        await anyio.sleep(SWEEP_SECONDS)


async def sweep(index: Index) -> None:
    """Remove what dropped generations left, a little at a time."""
    while await index.store.write(lambda db: generations.remove_dropped(db, SWEEP), bulk=True):
        pass


def _begin(db: Db, index: Index) -> Generation:
    if index.building is not None:
        raise Conflict("a reindex is running already")
    alike = index.live is not None and index.wanted.has_same_chunking(index.live)
    chunking = index.live.chunking.number if alike and index.live else generations.next_chunking(db)
    return generations.create(db, index.wanted, "building", chunking)


async def _queue_all(index: Index, building: Generation, progress: Progress) -> None:
    """The chunks stay, only their vectors are made anew."""
    if building.identity.provider == "none":
        return
    after = 0
    ids = "SELECT id FROM chunks WHERE chunking = :chunking AND id > :after ORDER BY id LIMIT :limit"

    def queue_slice(db: Db) -> int:
        params = {"chunking": building.chunking.number, "after": after, "limit": SLICE * 10}
        last = db.value(f"SELECT max(id) FROM ({ids})", params)
        db.execute(
            f"INSERT INTO index_queue (generation, chunk) SELECT :generation, id FROM ({ids}) WHERE true "
            "ON CONFLICT DO NO_EMBEDDER",
            params | {"generation": building.id},
        )
        return int(last or 0)

    while last := await index.store.write(queue_slice, bulk=True):
        after = last
        await progress(0, None, "counting chunks")


async def _cut_all(index: Index, files: FileSync, progress: Progress) -> None:
    """Cut everything anew; what comes in meanwhile is cut for both indexes by those who store it."""
    for name, kind in TEXT_KINDS.items():
        if kind.all_after:
            await _cut_kind(index, name, kind.all_after, progress)
    if "tools" in index.wanted.sources:
        await index.store.write(add_tools_to_backlog)
    await files.rechunk(progress)


async def _cut_kind(index: Index, name: str, all_after: str, progress: Progress) -> None:
    done, params = 0, {"after": "", "limit": SLICE}
    while rows := await index.store.read(lambda db: db.fetch(all_after, params)):
        for row in rows:
            await rechunk(index, name, row["id"])
        done += len(rows)
        params["after"] = rows[-1]["id"]
        index.wake()
        await progress(done, None, f"cutting: {name}")


async def _wait_for_vectors(index: Index, queue: EmbeddingQueue, building: Generation, progress: Progress) -> None:
    """The queue makes them; this watches it. An outage of the embedder only makes it longer."""
    total = 0
    while waiting := await _unfinished(index, queue, building):
        if difference := building.differs_from(index.wanted):
            raise Conflict(f"the configuration was changed meanwhile: {difference}")
        if index.problem and index.problem_is_permanent:
            raise Conflict(f"no vectors can be made: {index.problem}")
        total = max(total, waiting)
        await progress(total - waiting, total, index.problem or "making vectors")
        await anyio.sleep(WATCH_SECONDS)
    await progress(total, total)


async def _unfinished(index: Index, queue: EmbeddingQueue, building: Generation) -> int:
    backlog = await index.store.read(lambda db: int(db.value("SELECT count(*) FROM index_backlog")))
    return backlog + (await queue.count_pending(building) if building.identity.provider != "none" else 0)


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
