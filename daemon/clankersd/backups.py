"""Backups: one a day by default, one on demand, and restoring one while the daemon runs."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.backups import BackupCreate, BackupFile, BackupRestore, Restored
from clankers_protocol.database_files import (
    SHRUNK_SHARE,
    count_texts_without_index,
    delete_backup,
    describe_backup,
    find_backups,
    list_backups,
    select_obsolete,
)
from clankers_protocol.errors import Conflict, InvalidParams, NotFound, RpcError
from clankers_protocol.memory_transfer import MemoryExport
from clankers_protocol.safe_writes import write_file
from clankersd import clock
from clankersd.db import Db
from clankersd.db.backup import Copy
from clankersd.db.compact_backup import copy_without_index
from clankersd.db.errors import SchemaRefused
from clankersd.memories.transfer import memory_export
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

FIRST_BACKUP_SECONDS = 60.0
CHECK_INTERVAL_SECONDS = 60.0
HOUR_MS = 3_600_000
DAILY = "daily"
AUTOMATIC = (DAILY, "scheduled")
"""Reasons of the backups that are rotated. Others stay until their owner deletes them."""

log = structlog.get_logger(component="backup")


@handles(BackupCreate)
async def create(daemon: "Daemon", request: BackupCreate) -> JobStarted:
    if request.without_derived:
        work = partial(make_backup, daemon, reason="manual-without-index", copy=copy_without_index)
    else:
        work = partial(make_backup, daemon, reason="manual")
    return JobStarted(await daemon.jobs.start("backup", work))


@handles(BackupRestore)
async def restore(daemon: "Daemon", request: BackupRestore) -> Restored:
    daemon.jobs.ensure_not_running("backup")
    source = Path(request.path)
    if not source.is_absolute():
        raise InvalidParams("invalid params: expected an absolute path - at `$.path`")
    if not await anyio.to_thread.run_sync(os.path.isfile, source):  # raises nothing for a path that is too long
        raise NotFound(f"there is no file {source}")
    try:
        restored = await daemon.store.restore(source)
    except ValueError as error:
        raise InvalidParams(f"invalid params: {error} - at `$.path`") from error
    except SchemaRefused as error:
        raise Conflict(f"the backup was not restored: {error}") from error
    log.warning("database restored", backup=str(source), replaced=restored.replaced)
    await daemon.jobs.close_restored()
    daemon.index.wake()
    rebuilding = count_texts_without_index(restored.rows)
    if rebuilding:
        with suppress(Conflict):  # it runs already
            await daemon.jobs.start("sync", daemon.files.sync)
    return Restored(restored.database, str(source), restored.rows["sessions"], restored.replaced, rebuilding)


async def make_backup(daemon: "Daemon", progress: Progress, reason: str, copy: Copy | None = None) -> dict[str, Any]:
    """Make a verified backup. An automatic one also writes the memories as JSONL, and older ones are deleted."""
    await progress(0, 1, "copying the database")
    try:
        path = await daemon.store.back_up(reason, copy)
    except OSError as error:  # of the folder; those of the database are RPC errors already
        raise Conflict(f"the backup cannot be written: {error.filename}: {error.strerror}") from error
    made = await anyio.to_thread.run_sync(describe_backup, path)
    result: dict[str, Any] = {
        "file": made.name,
        "path": made.path,
        "bytes": made.bytes,
        "rows": made.rows,
        "note": None,
    }
    if copy is None and (problem := await daemon.store.snapshot_read(daemon.store.engine.full_backup_problem)):
        result["note"] = f"the index is not in it, because {problem}"
    if made.reason in AUTOMATIC:
        await progress(0, 1, "exporting memories")
        result["memories"] = str(await _write_memories(daemon))
        folder, keep = daemon.paths.backups, daemon.config.backup_keep
        result["deleted"] = await anyio.to_thread.run_sync(_delete_obsolete, folder, made, keep)
    await progress(1, 1)
    log.info("backup made", **result)
    return result


async def run_daily_backups(daemon: "Daemon") -> None:
    """Make a backup every `backup_hours`, for as long as the daemon runs; the first one a minute after the start."""
    await anyio.sleep(FIRST_BACKUP_SECONDS)
    while True:
        try:
            if await _is_due(daemon):
                await daemon.jobs.wait(await daemon.jobs.start("backup", partial(make_backup, daemon, reason=DAILY)))
        except (RpcError, OSError) as error:
            log.warning("daily backup failed", error=str(error))
        await anyio.sleep(CHECK_INTERVAL_SECONDS)


async def _is_due(daemon: "Daemon") -> bool:
    hours = daemon.config.backup_hours
    if not hours or daemon.store.problem or not await daemon.store.read(_has_data):
        return False
    made = find_backups(daemon.paths.backups, f"clankers-*-{DAILY}")
    newest = max((path.stat().st_mtime for path in made), default=None)
    if newest is None:
        return True
    elapsed = clock.now() - newest * 1000
    return elapsed < 0 or elapsed >= hours * HOUR_MS  # negative: the clock was set back


def _has_data(db: Db) -> bool:
    return any(db.value(f"SELECT 1 FROM {table} LIMIT 1") for table in ("sessions", "memories", "documents"))


async def _write_memories(daemon: "Daemon") -> Path:
    """Write every memory to `memory-backup-YYYY-MM-DD.jsonl`, which any tool can read; `memory import` takes it."""
    date = datetime.fromtimestamp(clock.now() / 1000, UTC).strftime("%Y-%m-%d")
    path = daemon.paths.backups / f"memory-backup-{date}.jsonl"
    lines: list[bytes] = []
    request = MemoryExport(scopes=["*"], limit=50)
    while True:
        page = await memory_export(daemon, request)
        lines += [msgspec.json.encode(record) for record in page.memories]
        if page.cursor is None:
            break
        request = msgspec.structs.replace(request, cursor=page.cursor)
    await anyio.to_thread.run_sync(write_file, path, b"".join(line + b"\n" for line in lines))
    return path


def _delete_obsolete(folder: Path, made: BackupFile, keep: int) -> list[str]:
    automatic = [backup for backup in list_backups(folder) if backup.reason in AUTOMATIC]
    most_rows = max((backup.rows or 0 for backup in automatic), default=0)
    if (made.rows or 0) < most_rows * SHRUNK_SHARE:
        log.warning("backup is much smaller than an earlier one", file=made.name, rows=made.rows, most_rows=most_rows)
    obsolete = [Path(backup.path) for backup in select_obsolete(automatic, keep)]
    obsolete += sorted(folder.glob("memory-backup-*.jsonl"), reverse=True)[keep:]
    for path in obsolete:
        delete_backup(path)
    return [path.name for path in obsolete]
