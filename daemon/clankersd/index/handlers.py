"""Handlers of `index.*`: its status, the watched paths, syncing files and reindexing."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from clankers_protocol.admin import JobStarted
from clankers_protocol.errors import Conflict, InvalidParams
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
from clankersd.config import Config, ConfigError, write_settings
from clankersd.db import Db
from clankersd.embedders import make_embedder
from clankersd.embedders.base import PROBE_TEXT, Embedder, EmbedderSettings, EmbedderUnavailable, ItemFailed
from clankersd.hook_start import LOCAL_EMBEDDERS
from clankersd.index import generations
from clankersd.index.files.sync import SyncReport
from clankersd.index.generations import Generation
from clankersd.index.queue import MAX_ATTEMPTS
from clankersd.index.reindex import rebuild
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


EMBEDDER_SETTINGS = (
    "embedder_url", "embedder_key_file", "embedder_dims", "embedder_weight", "embedder_fallback",
    "embedder_fallback_model", "embedder_fallback_url", "embedder_fallback_key_file",
)  # fmt: skip
REMOTE_PROBE_SECONDS, LOCAL_PROBE_SECONDS = 5.0, 60.0
"""Time that an embedder has for its first vector; a local one has to load its model."""


@dataclass(frozen=True)
class _PendingChunks:
    """Chunks of a generation that wait for their vector, and those that were given up."""

    generation: Generation
    pending: int
    failed: int


@dataclass(frozen=True)
class _PendingWork:
    """Work of the index that is not done yet, as of one moment."""

    live: _PendingChunks | None
    building: _PendingChunks | None
    backlog: int
    files: int


@handles(IndexStatus)
async def index_status(daemon: "Daemon", request: IndexStatus) -> IndexReport:
    index, queue, files = daemon.index, daemon.queue, daemon.files
    work = await daemon.store.read(_pending_work)  # before the counts: what it says is done is then in them
    counted = (await daemon.index_counts.get()).result
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
            files=work.files,
        ),
        live=_generation_status(work.live, counted.vectors) if work.live else None,
        building=_generation_status(work.building, counted.vectors) if work.building else None,
        chunks=counted.chunks,
        backlog=work.backlog,
        cache_entries=counted.cache_entries,
        fallback=index.fallback_note,
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
    await daemon.store.ensure_owner("reindex")
    running = await daemon.rebuilder.join_or_cancel()
    if running is not None and request.embedder is None:
        return JobStarted(running)
    daemon.jobs.ensure_not_running("reindex")
    switched = _switched_settings(daemon, request)

    async def work(progress: Progress) -> dict[str, int]:
        with daemon.rebuilder.hold():
            if not switched:
                return await rebuild(daemon.index, daemon.queue, daemon.files, progress)
            return await _switch(daemon, switched, progress)

    return JobStarted(await daemon.jobs.start("reindex", work))


def _switched_settings(daemon: "Daemon", request: Reindex) -> dict[str, Any]:
    """Return the settings to change for another embedder; raises InvalidParams if they cannot be changed."""
    if unknown := set(request.settings) - set(EMBEDDER_SETTINGS):
        raise InvalidParams(f"invalid params: {min(unknown)} is no setting of an embedder - at `$.settings`")
    if request.embedder is None:
        if request.settings:
            raise InvalidParams("invalid params: settings are changed together with the embedder - at `$.embedder`")
        return {}
    changes = {"embedder": request.embedder, "embedder_model": request.model or None, **request.settings}
    origins = daemon.loaded.origins
    if beaten := [key for key in changes if origins.get(key) in ("environment", "flag")]:
        raise InvalidParams(f"invalid params: {beaten[0]} is set by the environment or a flag, which beat the file")
    return changes


async def _switch(daemon: "Daemon", changes: dict[str, Any], progress: Progress) -> dict[str, int]:
    """Change the embedder and rebuild the index. If any of it fails or is cancelled, the settings are restored."""
    await _probe(daemon, changes, progress)
    before = {key: getattr(daemon.config, key) if daemon.loaded.origins.get(key) == "file" else None for key in changes}
    try:
        try:
            write_settings(daemon.paths.config, changes)
            await daemon.reload()
        except ConfigError as error:
            raise InvalidParams(str(error)) from error
        if daemon.config.embedder != changes["embedder"]:
            raise Conflict("the daemon does not accept this embedder from its settings file: clankers-ctl config show")
        return await rebuild(daemon.index, daemon.queue, daemon.files, progress)
    except BaseException:
        with anyio.CancelScope(shield=True):
            write_settings(daemon.paths.config, before)
            await daemon.reload()
        raise


async def _probe(daemon: "Daemon", changes: dict[str, Any], progress: Progress) -> None:
    """Raise Conflict unless the embedder makes a vector within seconds. Nothing is changed."""
    config = msgspec.structs.replace(
        daemon.config,
        **{key: value if value is not None else getattr(Config(), key) for key, value in changes.items()},
    )
    if config.embedder == "none":
        return
    await progress(0, None, "trying the embedder")
    is_remote = config.embedder not in LOCAL_EMBEDDERS
    seconds = REMOTE_PROBE_SECONDS if is_remote else LOCAL_PROBE_SECONDS
    settings = EmbedderSettings(
        config.embedder, config.embedder_model, config.embedder_url, config.embedder_key_file,
        dims=config.embedder_dims or None,
    )  # fmt: skip
    embedder: Embedder | None = None
    try:
        with anyio.fail_after(seconds):
            embedder = await anyio.to_thread.run_sync(make_embedder, settings, abandon_on_cancel=True)
            assert embedder
            embedder.preflight()
            await embedder.embed_query(PROBE_TEXT)
    except TimeoutError as error:
        raise Conflict(f"{config.embedder} did not answer within {seconds:g} seconds; nothing was changed") from error
    except (EmbedderUnavailable, ItemFailed) as error:
        raise Conflict(f"{config.embedder} cannot be used: {error.reason}; nothing was changed") from error
    finally:
        if embedder is not None:
            with anyio.CancelScope(shield=True):
                await embedder.close()


def _pending_work(db: Db) -> _PendingWork:
    return _PendingWork(
        live=_pending_chunks(db, generations.find(db, "live")),
        building=_pending_chunks(db, generations.find(db, "building")),
        backlog=db.value("SELECT count(*) FROM index_backlog"),
        files=db.value("SELECT count(*) FROM files"),
    )


def _pending_chunks(db: Db, generation: Generation | None) -> _PendingChunks | None:
    if generation is None:
        return None
    params = {"id": generation.id, "attempts": MAX_ATTEMPTS}
    queued = "SELECT count(*) FROM index_queue WHERE generation = :id AND attempts"
    return _PendingChunks(
        generation,
        pending=db.value(f"{queued} < :attempts", params),
        failed=db.value(f"{queued} >= :attempts", params),
    )


def _generation_status(chunks: _PendingChunks, vectors: dict[int, int]) -> GenerationStatus:
    generation, identity = chunks.generation, chunks.generation.identity
    return GenerationStatus(
        provider=identity.provider,
        model=identity.model,
        dims=identity.dims,
        chunk_tokens=generation.chunk_tokens,
        chunk_overlap=generation.overlap,
        vectors=vectors.get(generation.id, 0),
        pending=chunks.pending,
        failed=chunks.failed,
    )


def _to_wire(report: SyncReport) -> Synced:
    return msgspec.convert(report, Synced, from_attributes=True)
