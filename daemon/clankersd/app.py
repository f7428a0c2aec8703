"""The daemon: creates its parts, connects them, and runs them."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import structlog
from structlog.typing import EventDict

from clankers_protocol import VERSION
from clankers_protocol.paths import Paths
from clankersd import backups, config, log
from clankersd.admin.projects import follow_merge
from clankersd.admin.query_pool import QueryPool
from clankersd.admin.status import count_rows
from clankersd.capture import lost_events, opt_out
from clankersd.capture.pause import Pauses
from clankersd.capture.spool import Spool
from clankersd.capture.transcripts import Transcripts
from clankersd.config import Config, Loaded
from clankersd.db import Store, fts, make_store
from clankersd.db.backup import remove_unfinished
from clankersd.db.engine import HnswOptions, ServerOptions
from clankersd.db.row_counts import RowCounts
from clankersd.documents import batch
from clankersd.documents.ingest import Documents
from clankersd.embedders.base import EmbedderSettings
from clankersd.hook_start import HookStart, record_path
from clankersd.http.api_keys import FALLBACK_KEY_VARIABLE
from clankersd.index import backlog, reindex
from clankersd.index.counts import IndexCounts, count_index
from clankersd.index.files.sync import FileSync, WatchSettings
from clankersd.index.index import Index
from clankersd.index.queue import EmbeddingQueue
from clankersd.mcp.server import RunningCalls
from clankersd.memories import maintenance
from clankersd.memories.extraction import service as extraction
from clankersd.metrics import metrics
from clankersd.projects.identification import ProjectIdentification
from clankersd.recall.outcomes import InjectionJudge
from clankersd.recall.recent import RecallLog
from clankersd.recall.summaries.service import Summaries
from clankersd.redaction.engine import redact_all
from clankersd.rerankers import RerankerSettings
from clankersd.schedule.retention import follow_settings
from clankersd.schedule.scheduler import Scheduler
from clankersd.search.engine import SearchEngine
from clankersd.search.limiter import search_slot_released, search_slots
from clankersd.search.reranking import Reranking
from clankersd.transfer.exporting import Export
from clankersd.wire import rpc, systemd
from clankersd.wire.fair_limiter import FairLimiter
from clankersd.wire.jobs import Jobs
from clankersd.wire.server import Server
from clankersd.wire.sockets import StartRefused, listening_sockets, only_instance
from clankersd.wire.subscriptions import Hub

FEATURES = (
    "admin.client_config",
    "admin.database",
    "admin.doctor",
    "admin.id_lookup",
    "admin.metrics",
    "admin.projects",
    "admin.query",
    "admin.status",
    "backups",
    "capture.handlers",
    "capture.hooks",
    "capture.imports",
    "capture.pause",
    "capture.status",
    "documents.batch",
    "documents.chunk_search",
    "documents.documents",
    "documents.graph",
    "documents.ingest",
    "embedders.catalog",
    "forgetting.forget",
    "forgetting.retention",
    "index.handlers",
    "mcp.server",
    "memories.add",
    "memories.comparison",
    "memories.entities",
    "memories.transfer",
    "memories.extraction.service",
    "memories.graph",
    "memories.maintenance",
    "memories.read",
    "memories.relations",
    "memories.search",
    "memories.strength",
    "memories.update",
    "recall.fetch",
    "recall.ledger",
    "recall.memory_context",
    "recall.outcomes",
    "recall.recall",
    "recall.recent",
    "schedule.actions",
    "schedule.scheduler",
    "sessions.files",
    "sessions.sessions",
    "sessions.stats",
    "sessions.threads",
    "sessions.turns",
    "skills.skills",
    "transfer.exporting",
    "transfer.importing",
    "unified_search.facets",
    "unified_search.search",
    "unified_search.tool_calls",
    "wire.subscriptions",
)
"""Modules with handlers. Importing one registers its methods."""

for _feature in FEATURES:
    import_module(f"clankersd.{_feature}")

INDEX_SOURCES = {"files": "memory", "sessions": "sessions", "tools": "tools"}
"""Names of the indexed sources in the settings, with those that the index stores."""

DRAIN_SECONDS = 5.0
RESTART_SECONDS = 5.0


@dataclass
class Daemon:
    """The parts of the daemon, as handlers reach them."""

    paths: Paths
    loaded: Loaded
    flags: Mapping[str, Any]
    log_file: log.DailyFile
    store: Store
    hub: Hub
    jobs: Jobs
    index: Index
    queue: EmbeddingQueue
    files: FileSync
    documents: Documents = field(default_factory=Documents)
    queries: QueryPool = field(default_factory=QueryPool)
    searches: FairLimiter = field(default_factory=search_slots)
    export: Export = field(default_factory=Export)
    mcp_calls: RunningCalls = field(default_factory=RunningCalls)
    table_counts: RowCounts[dict[str, int]] = field(init=False)
    index_counts: RowCounts[IndexCounts] = field(init=False)
    search_engine: SearchEngine = field(init=False)
    server: Server = field(init=False)
    spool: Spool = field(init=False)
    transcripts: Transcripts = field(init=False)
    scheduler: Scheduler = field(init=False)
    extractor: extraction.Extractor = field(init=False)
    rebuilder: reindex.Rebuilder = field(init=False)
    pauses: Pauses = field(init=False)
    recall_log: RecallLog = field(init=False)
    background: Callable[..., Any] = field(init=False)
    stopping: anyio.Event = field(default_factory=anyio.Event)
    started: float = field(default_factory=time.monotonic)
    version: str = VERSION

    def __post_init__(self) -> None:
        self.search_engine = SearchEngine(
            self.store,
            self.index,
            self.queue,
            self.files,
            start_task=lambda task: self.background(task),
            seconds=self.config.search_seconds,
            reranking=Reranking(reranker_settings(self.config), lambda: search_slot_released(self)),
        )
        self.server = Server(
            partial(rpc.answer, self),
            lambda: self.config.max_connections,
            self.hub.remove_connection,
            lambda: self.config.request_seconds,
        )
        self.table_counts = RowCounts(self.store, count_rows)
        self.index_counts = RowCounts(self.store, count_index)
        self.pauses = Pauses(self.paths.data)
        self.recall_log = RecallLog(self.store, self.pauses, InjectionJudge(self.store))
        self.spool = Spool(self, self.paths.spool)
        self.transcripts = Transcripts(self)
        self.scheduler = Scheduler(self)
        self.extractor = extraction.Extractor(self)
        self.rebuilder = reindex.Rebuilder(self.index, self.queue, self.files, self.jobs)

    @property
    def config(self) -> Config:
        return self.loaded.config

    async def reload(self) -> None:
        """Load the configuration again and apply what changed; on ConfigError nothing changes."""
        loaded = config.load(self.paths.config, self.flags, hook_start=self.loaded.hook_start)
        old, new = self.config, loaded.config
        self.loaded = loaded
        if new.durability != old.durability:
            await self.store.set_durability(new.durability)
        if index_settings(new) != index_settings(old) or self.index.problem:
            await self.index.apply_settings(*index_settings(new))
        if reranker_settings(new) != reranker_settings(old):
            await self.search_engine.reranking.apply_settings(reranker_settings(new))
        if watch_settings(new) != watch_settings(old):
            await self.files.apply_settings(watch_settings(new))
        self.search_engine.timeout_seconds = new.search_seconds
        self.queue.cache_entries = new.embedding_cache_entries
        self.index.max_tool_output_chars = new.tool_output_characters
        log.configure(self.log_file, loaded.config.log_level, _redact)
        await follow_settings(self)
        structlog.get_logger(component="daemon").info("configuration reloaded")


def index_settings(config: Config) -> tuple[EmbedderSettings, int, int, tuple[str, ...]]:
    """Return the arguments of `Index` from the configuration: embedder, chunk sizes in tokens, sources."""
    settings = EmbedderSettings(
        provider=config.embedder,
        model=config.embedder_model,
        url=config.embedder_url,
        key_file=config.embedder_key_file,
        dims=config.embedder_dims or None,
        weight=config.embedder_weight or None,
        fallback=None if config.embedder_fallback == "none" else fallback_settings(config),
    )
    chosen = {*config.index_sources, *(["tools"] if config.index_tools else [])}
    sources = tuple(INDEX_SOURCES[name] for name in INDEX_SOURCES if name in chosen)
    return settings, config.chunk_tokens, config.chunk_overlap, sources


def server_options(config: Config) -> ServerOptions:
    """Return what the configuration says of the server with the database."""
    hnsw = HnswOptions(config.hnsw_m, config.hnsw_ef_construction, config.hnsw_ef_search)
    return ServerOptions(
        config.database_url,
        config.database_schema,
        config.database_shared,
        config.database_read_url,
        hnsw,
        config.database_write_seconds,
    )


def fallback_settings(config: Config) -> EmbedderSettings:
    """Return the settings of the fallback embedder from the configuration."""
    return EmbedderSettings(
        provider=config.embedder_fallback,
        model=config.embedder_fallback_model or config.embedder_model,
        url=config.embedder_fallback_url,
        key_file=config.embedder_fallback_key_file,
        dims=config.embedder_dims or None,
        key_variable=FALLBACK_KEY_VARIABLE,
    )


def reranker_settings(config: Config) -> RerankerSettings:
    """Return the settings of the reranker from the configuration."""
    return RerankerSettings(
        provider=config.reranker,
        model=config.reranker_model,
        url=config.reranker_url,
        key_file=config.reranker_key_file,
        candidates=config.reranker_candidates,
        seconds=config.reranker_seconds,
        weight=config.reranker_weight,
    )


def watch_settings(config: Config) -> WatchSettings:
    """Return the settings of the watched files from the configuration."""
    return WatchSettings(
        roots=tuple(Path(path).expanduser() for path in config.watch_roots),
        extra=tuple(Path(path).expanduser() for path in config.watch_extra),
        projects=config.watch_projects,
        agent_files=config.watch_agent_files,
        debounce_ms=config.watch_debounce_ms,
        poll=config.watch_poll,
        sync_minutes=config.sync_minutes,
    )


@asynccontextmanager
async def running(paths: Paths, flags: Mapping[str, Any], hook_start: HookStart | None = None) -> AsyncIterator[Daemon]:
    """Run a daemon: it listens inside the block and has finished its work after it."""
    loaded = config.load(paths.config, flags, hook_start=hook_start)
    for folder in (paths.data, paths.database.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (owner := paths.data.stat().st_uid) != os.geteuid():
        raise StartRefused(f"{paths.data} belongs to another user (uid {owner}): start the daemon as that user")
    paths.data.chmod(0o700)
    lost_events.prepare(paths.data)
    log_file = log.DailyFile(paths.logs)
    log.configure(log_file, loaded.config.log_level, _redact)
    logger = structlog.get_logger(component="daemon")
    for ignored in loaded.ignored:
        logger.warning("setting ignored", key=ignored.key, source=ignored.source, reason=ignored.reason)
    with only_instance(paths.database):
        if hook_start is None:
            record_path(paths.database, paths.config)
        if removed := remove_unfinished(paths.backups):
            logger.info("unfinished backups removed", files=[path.name for path in removed])
        store = make_store(server_options(loaded.config), paths.database, paths.backups, loaded.config.durability)
        store.get_write_source = rpc.current_connection.get
        index = Index(store, *index_settings(loaded.config))
        index.max_tool_output_chars = loaded.config.tool_output_characters
        queue = EmbeddingQueue(index, loaded.config.embedding_cache_entries)
        files = FileSync(index, watch_settings(loaded.config), opt_out.is_opted_out)
        hub = Hub(store)
        store.publish = hub.publish
        daemon = Daemon(paths, loaded, flags, log_file, store, hub, Jobs(store), index, queue, files)
        await store.open()
        try:
            async with _committing(store), _serving(daemon):
                yield daemon
        finally:
            await store.close()
            logger.info("stopped")
            log_file.close()


@asynccontextmanager
async def _committing(store: Store) -> AsyncIterator[None]:
    """Commit writes until every service has ended: a job that is cancelled still stores its own end."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_service, "commit", store.run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _serving(daemon: Daemon) -> AsyncIterator[None]:
    sockets, handed_over = listening_sockets(daemon.paths.socket)
    async with anyio.create_task_group() as services:
        daemon.background = services.start_soon
        for name, service in _services(daemon).items():
            services.start_soon(_run_service, name, service)
        if handed_over:
            services.start_soon(_stop_when_idle, daemon)
        for listener in sockets:
            await daemon.server.listen(listener)
        structlog.get_logger(component="daemon").info(
            "ready", version=daemon.version, socket=str(daemon.paths.socket), problem=daemon.store.problem
        )
        systemd.notify("READY=1\nSTATUS=Listening")
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                systemd.notify("STOPPING=1")
                await daemon.server.drain(DRAIN_SECONDS)
                if not handed_over:
                    daemon.paths.socket.unlink(missing_ok=True)
            services.cancel_scope.cancel()


def _services(daemon: Daemon) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the background services by name."""
    return {
        "recover": daemon.store.recover,
        "jobs": daemon.jobs.run,
        "subscriptions": daemon.hub.run,
        "schedule": daemon.scheduler.run,
        "embed": daemon.queue.run,
        "shared index": daemon.index.sync_shared_index_periodically,
        "chunk": partial(backlog.process_backlog, daemon.index),
        "rebuild": daemon.rebuilder.run,
        "sweep": partial(reindex.sweep_periodically, daemon.index),
        "merge": partial(fts.merge_periodically, daemon.store),
        "files": daemon.files.run,
        "documents": daemon.documents.worker.run,
        "queries": daemon.queries.run,
        "ingest": partial(batch.resume, daemon),
        "extract": daemon.extractor.run,
        "recall": daemon.recall_log.run,
        "maintain": partial(maintenance.run_maintenance, daemon),
        "backups": partial(backups.run_daily_backups, daemon),
        "retention": partial(follow_settings, daemon),
        "projects": ProjectIdentification(daemon.store, partial(follow_merge, daemon)).run,
        "spool": daemon.spool.run,
        "transcripts": daemon.transcripts.run,
        "summaries": Summaries(daemon.store).run,
        "logs": partial(log.remove_old_logs, daemon.log_file, lambda: daemon.config.log_retention_days),
        "watchdog": systemd.feed_watchdog,
    }


async def _run_service(name: str, service: Callable[[], Awaitable[None]]) -> None:
    """Run a service; if it fails, log the error and restart it, without affecting other services."""
    while True:
        try:
            await service()
        except Exception:
            structlog.get_logger(component=name).exception("service failed")
            metrics.service_restarts[name] += 1
            await anyio.sleep(RESTART_SECONDS)
        else:
            return


def _redact(event: EventDict) -> EventDict:
    redacted, _ = redact_all(dict(event))
    assert isinstance(redacted, dict)
    return redacted


async def _stop_when_idle(daemon: Daemon) -> None:
    """Stop a socket-activated daemon that has been idle for a while; the next client starts it again."""
    idle_since = anyio.current_time()
    while True:
        await anyio.sleep(0.2)
        limit = daemon.config.idle_exit_seconds
        if daemon.server.connections or daemon.jobs.running or daemon.scheduler.next_event_at or not limit:
            idle_since = anyio.current_time()
        elif anyio.current_time() - idle_since >= limit:
            structlog.get_logger(component="daemon").info("idle", seconds=limit)
            daemon.stopping.set()
            return
