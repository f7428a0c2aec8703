"""Handlers of `index.*`: its status, the watched paths, syncing files and reindexing."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from clankers_protocol.admin import JobStarted
from clankers_protocol.errors import InvalidParams
from clankers_protocol.search import (
    FilesStatus,
    GenerationStatus,
    IndexAdd,
    IndexRemove,
    IndexReport,
    IndexStatus,
    IndexSync,
    Reindex,
    Synced,
)
from clankersd.config import ConfigError, write_setting
from clankersd.db import Db
from clankersd.index import generations, vectors
from clankersd.index.files.sync import SyncReport
from clankersd.index.generations import Generation
from clankersd.index.queue import MAX_ATTEMPTS
from clankersd.index.reindex import rebuild
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


class _Counts(msgspec.Struct):
    """Contents of the index in the database, as of one moment."""

    live: GenerationStatus | None
    building: GenerationStatus | None
    chunks: dict[str, int]
    backlog: int
    cache_entries: int
    files: int


@handles(IndexStatus)
async def index_status(daemon: "Daemon", request: IndexStatus) -> IndexReport:
    index, queue, files = daemon.index, daemon.queue, daemon.files
    has_vec = daemon.store.vec.version is not None
    counts = await daemon.store.read(lambda db: _count(db, has_vec))
    return IndexReport(
        vectors=index.vector_problem or "ready",
        rate=round(queue.rate, 1),
        last_error=index.last_error,
        in_memory=index.mirror is not None and index.mirror.complete,
        files=FilesStatus(
            mode=files.mode,
            problem=files.problem,
            dirty=files.dirty,
            watched=files.watched,
            last_sync=files.last_sync,
            files=counts.files,
        ),
        live=counts.live,
        building=counts.building,
        chunks=counts.chunks,
        backlog=counts.backlog,
        cache_entries=counts.cache_entries,
    )


@handles(IndexSync)
async def index_sync(daemon: "Daemon", request: IndexSync) -> Synced:
    return _to_wire(await daemon.files.sync())


@handles(IndexAdd)
async def index_add(daemon: "Daemon", request: IndexAdd) -> Synced:
    return _to_wire(await daemon.files.add(Path(request.path)))


@handles(IndexRemove)
async def index_remove(daemon: "Daemon", request: IndexRemove) -> Synced:
    return _to_wire(await daemon.files.remove(Path(request.path)))


@handles(Reindex)
async def reindex(daemon: "Daemon", request: Reindex) -> JobStarted:
    daemon.jobs.ensure_not_running("reindex")  # before any setting is changed
    if request.embedder is not None:
        await _change_embedder(daemon, request)

    async def work(progress: Progress) -> dict[str, int]:
        return await rebuild(daemon.index, daemon.queue, daemon.files, progress)

    return JobStarted(await daemon.jobs.start("reindex", work))


async def _change_embedder(daemon: "Daemon", request: Reindex) -> None:
    try:
        write_setting(daemon.paths.config, "embedder", request.embedder)
        write_setting(daemon.paths.config, "embedder_model", request.model or None)
        await daemon.reload()
    except ConfigError as error:
        raise InvalidParams(f"invalid params: {error}") from error
    if daemon.config.embedder != request.embedder:
        raise InvalidParams("invalid params: embedder is set by the environment or a flag, which beat the file")


def _count(db: Db, has_vec: bool) -> _Counts:
    live, building = generations.find(db, "live"), generations.find(db, "building")
    per_source = db.fetch(
        "SELECT source, count(*) AS chunks FROM chunks WHERE chunking = :chunking GROUP BY source ORDER BY source",
        {"chunking": live.chunking.number if live else 0},
    )
    return _Counts(
        live=_generation_status(db, live, has_vec) if live else None,
        building=_generation_status(db, building, has_vec) if building else None,
        chunks={row["source"]: row["chunks"] for row in per_source},
        backlog=db.value("SELECT count(*) FROM index_backlog"),
        cache_entries=db.value("SELECT count(*) FROM embedding_cache"),
        files=db.value("SELECT count(*) FROM files"),
    )


def _generation_status(db: Db, generation: Generation, has_vec: bool) -> GenerationStatus:
    params = {"id": generation.id, "attempts": MAX_ATTEMPTS}
    queued = "SELECT count(*) FROM index_queue WHERE generation = :id AND attempts"
    identity = generation.identity
    return GenerationStatus(
        provider=identity.provider,
        model=identity.model,
        dims=identity.dims,
        chunk_tokens=generation.chunk_tokens,
        chunk_overlap=generation.overlap,
        vectors=vectors.count(db, generation) if has_vec else 0,
        pending=db.value(f"{queued} < :attempts", params),
        failed=db.value(f"{queued} >= :attempts", params),
    )


def _to_wire(report: SyncReport) -> Synced:
    return msgspec.convert(report, Synced, from_attributes=True)
