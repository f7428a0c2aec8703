"""Database maintenance: manual migrations, integrity checks, vacuum."""

import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import from_thread

from clankers_protocol.admin import DbCheck, DbMigrate, DbRollback, DbVacuum, EngineCopy, JobStarted, Migrated
from clankers_protocol.errors import Conflict, InvalidParams
from clankersd.db import Db
from clankersd.db.engine_copy import CopyDiffers, copy_rows, open_copy
from clankersd.db.errors import SchemaRefused, ServerGone
from clankersd.db.migrations import MigrationRun
from clankersd.forgetting.erasing import erase_free_space
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


@handles(DbMigrate)
async def migrate(daemon: "Daemon", request: DbMigrate) -> Migrated:
    try:
        return _migrated(await daemon.store.migrate())
    except SchemaRefused as error:
        raise Conflict(str(error)) from error


@handles(DbRollback)
async def roll_back(daemon: "Daemon", request: DbRollback) -> Migrated:
    try:
        return _migrated(await daemon.store.roll_back())
    except SchemaRefused as error:
        raise Conflict(str(error)) from error


@handles(DbCheck)
async def check(daemon: "Daemon", request: DbCheck) -> JobStarted:
    def find_problems(db: Db, table: str) -> list[str]:
        return find_integrity_errors(db, table) + find_orphans(db, table)

    async def work(progress: Progress) -> dict[str, Any]:
        tables = await daemon.store.read(table_names)
        problems: list[str] = []
        for number, table in enumerate(tables):
            await progress(number, len(tables), table)
            problems += await daemon.store.snapshot_read(partial(find_problems, table=table))
        await progress(len(tables), len(tables))
        return {"ok": not problems, "problems": problems}

    return JobStarted(await daemon.jobs.start("check", work))


@handles(DbVacuum)
async def vacuum(daemon: "Daemon", request: DbVacuum) -> JobStarted:
    await daemon.store.ensure_owner("vacuum")

    async def work(progress: Progress) -> dict[str, int]:
        before = await daemon.store.read(_bytes)
        await erase_free_space(daemon.store, progress)
        return {"freedBytes": before - await daemon.store.read(_bytes)}

    return JobStarted(await daemon.jobs.start("vacuum", work))


@handles(EngineCopy)
async def copy_to_engine(daemon: "Daemon", request: EngineCopy) -> JobStarted:
    is_url = request.to.startswith(("postgresql://", "postgres://"))
    if not is_url and not Path(request.to).is_absolute():
        raise InvalidParams("invalid params: expected a postgresql:// URL or an absolute path - at `$.to`")

    async def work(progress: Progress) -> dict[str, Any]:
        stop = threading.Event()

        def report(table: str, done: int, total: int) -> None:
            from_thread.run(progress, done, total, table)

        def copy(source: Db) -> dict[str, int]:
            if os.path.realpath(request.to) == os.path.realpath(daemon.paths.database):
                raise SchemaRefused("this is the database that would be copied: choose another path")
            with open_copy(request.to, request.schema) as target:
                return copy_rows(source, target, report, stop.is_set)

        try:
            return {"rows": await daemon.store.snapshot_read(copy)}
        except CopyDiffers as error:
            advice = "what is in the target already stays as it is: copy to a new file or an empty schema"
            raise Conflict(f"{error}; {advice}") from error
        except (SchemaRefused, ServerGone) as error:
            raise Conflict(str(error)) from error
        finally:
            stop.set()

    return JobStarted(await daemon.jobs.start("engine copy", work))


def _migrated(change: MigrationRun) -> Migrated:
    return Migrated(change.before, change.after, change.applied, str(change.backup) if change.backup else None)


def table_names(db: Db) -> list[str]:
    """List all tables, including the shadow tables of virtual tables."""
    return db.engine.table_names(db)


def find_integrity_errors(db: Db, table: str) -> list[str]:
    """Return the integrity errors of a table and its indexes. Slow: run it on a snapshot."""
    return db.engine.integrity_errors(db, table)


def find_orphans(db: Db, table: str) -> list[str]:
    """Describe the rows of a table whose foreign keys refer to missing rows."""
    return [f"row {key} of {table} has no owner" for key in db.engine.orphans(db, table)]


def _bytes(db: Db) -> int:
    return db.engine.measure(db).database
