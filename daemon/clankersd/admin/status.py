"""Health, status and settings of the daemon."""

import os
import platform
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from clankers_protocol import PROTOCOL
from clankers_protocol.admin import (
    DaemonConfig,
    DaemonConfigure,
    DaemonReload,
    DaemonStatus,
    DatabaseFile,
    DatabasePath,
    Discover,
    EnsureDb,
    GetDbPath,
    Health,
    HealthReport,
    RetentionReport,
    Settings,
    Sizes,
    StatusReport,
    WriteQueue,
)
from clankers_protocol.errors import InvalidParams, StorageUnavailable
from clankers_protocol.reference import openrpc
from clankersd.capture import lost_events
from clankersd.config import ConfigError, write_setting
from clankersd.db import Db
from clankersd.forgetting.retention import describe, is_configured
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_TABLES = (
    "projects", "sessions", "messages", "tools", "session_errors", "compaction_events", "memories", "entities",
    "documents", "skills", "scheduled_actions", "files",
)  # fmt: skip


@handles(Health)
async def health(daemon: "Daemon", request: Health) -> HealthReport:
    store = daemon.store
    problem = _problem(daemon)
    return HealthReport(
        ok=problem is None,
        version=daemon.version,
        protocol=PROTOCOL,
        **store.versions(),
        schema_version=daemon.store.schema_version,
        problem=problem,
        degraded=daemon.index.degraded,
        warnings=_warnings(daemon),
        write_wait_ms=round(store.queue.wait_seconds * 1000, 1),
        longest_write_wait_ms=round(store.queue.longest_wait_seconds * 1000, 1),
    )


@handles(EnsureDb)
async def ensure_db(daemon: "Daemon", request: EnsureDb) -> DatabaseFile:
    return DatabaseFile(str(daemon.store.path), await daemon.store.create_if_missing())


@handles(GetDbPath)
async def get_db_path(daemon: "Daemon", request: GetDbPath) -> DatabasePath:
    return DatabasePath(str(daemon.store.path))


@handles(DaemonStatus)
async def status(daemon: "Daemon", request: DaemonStatus) -> StatusReport:
    store, commits = daemon.store, daemon.store.queue.counts
    retention: RetentionReport | None = None
    try:
        sizes, counted = await store.read(_measure), await daemon.table_counts.get()
        if is_configured(daemon.config):
            retention = await store.read(partial(describe, config=daemon.config))
    except StorageUnavailable:
        sizes, counted = None, None  # `problem` says why
    problem = _problem(daemon)
    return StatusReport(
        ok=problem is None,
        problem=problem,
        degraded=daemon.index.degraded,
        version=daemon.version,
        protocol=PROTOCOL,
        python_version=platform.python_version(),
        **store.versions(),
        schema_version=store.schema_version,
        pid=os.getpid(),
        uptime_seconds=round(time.monotonic() - daemon.started, 1),
        memory_bytes=_memory(),
        connections=daemon.server.connections,
        socket_path=str(daemon.paths.socket),
        db_path=str(store.path),
        database_server=store.server_name,
        data_path=str(daemon.paths.data),
        log_path=str(daemon.paths.logs),
        config_path=str(daemon.paths.config),
        queue=WriteQueue(store.queue.size, commits.writes, commits.commits, commits.largest_commit),
        sizes=sizes,
        counts=counted.result if counted else {},
        counted_at=counted.at if counted else None,
        warnings=_warnings(daemon),
        subscriptions=daemon.hub.subscription_count,
        retention=retention,
    )


@handles(DaemonConfig)
async def show_config(daemon: "Daemon", request: DaemonConfig) -> Settings:
    return daemon.loaded.describe()


@handles(DaemonConfigure)
async def configure(daemon: "Daemon", request: DaemonConfigure) -> Settings:
    try:
        write_setting(daemon.paths.config, request.key, request.value)
        await daemon.reload()
    except ConfigError as error:
        raise InvalidParams(f"invalid params: {error}") from error
    return _describe_changed(daemon)


@handles(DaemonReload)
async def reload(daemon: "Daemon", request: DaemonReload) -> Settings:
    try:
        await daemon.reload()
    except ConfigError as error:
        raise InvalidParams(f"invalid params: {error}") from error
    return _describe_changed(daemon)


def _describe_changed(daemon: "Daemon") -> Settings:
    """Describe the settings after a change, with a note if the index has to follow it."""
    settings = daemon.loaded.describe()
    if reason := daemon.index.rebuild_reason:
        settings.notes.append(
            f"The index is rebuilt in the background, because {reason}. "
            "Search uses what there is until then; `clankers-ctl jobs` shows the progress."
        )
    return settings


@handles(Discover)
async def discover(daemon: "Daemon", request: Discover) -> dict[str, Any]:
    return openrpc(daemon.version)


def _warnings(daemon: "Daemon") -> list[str]:
    lost = lost_events.warnings(daemon.paths.data)
    return [
        *daemon.store.warnings,
        *daemon.pauses.warnings(),
        *daemon.spool.warnings(),
        *lost,
        *daemon.loaded.warnings(),
    ]


def _problem(daemon: "Daemon") -> str | None:
    return daemon.store.problem or daemon.spool.problem or daemon.store.queue.problem


def count_rows(db: Db) -> dict[str, int]:
    """Count the rows of the tables that hold what is not derived."""
    return {table: db.value(f"SELECT count(*) FROM {table}") for table in _TABLES}


def _measure(db: Db) -> Sizes:
    sizes = db.engine.measure(db)
    return Sizes(database=sizes.database, wal=sizes.wal, free=sizes.free)


def _memory() -> int | None:
    """Return the resident memory in bytes, on platforms that report it cheaply."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
