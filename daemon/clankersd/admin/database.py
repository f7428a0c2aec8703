"""Database maintenance: manual migrations, integrity checks, vacuum."""

from functools import partial
from typing import TYPE_CHECKING, Any

from clankers_protocol.admin import DbCheck, DbMigrate, DbRollback, DbVacuum, JobStarted, Migrated
from clankers_protocol.errors import Conflict
from clankersd.db import Db, Store, fts
from clankersd.db.errors import SchemaRefused
from clankersd.db.migrations import MigrationRun
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

PAGES_PER_STEP = 256
_INCREMENTAL = 2


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
    async def work(progress: Progress) -> dict[str, int]:
        before = await daemon.store.read(_bytes)
        await erase_free_space(daemon.store, progress)
        return {"freedBytes": before - await daemon.store.read(_bytes)}

    return JobStarted(await daemon.jobs.start("vacuum", work))


async def erase_free_space(store: Store, progress: Progress) -> None:
    """Erase what deleting leaves behind: words in full-text segments, free pages, and old pages in the WAL."""

    def enable_incremental_vacuum(db: Db) -> None:
        if db.value("PRAGMA auto_vacuum") != _INCREMENTAL:  # created without it: one full VACUUM changes that
            db.execute("PRAGMA auto_vacuum = incremental")
            db.execute("VACUUM")

    for name in await store.read(fts.list_tables):
        await progress(0, None, f"rewriting {name}")
        await store.write(partial(fts.begin_merge, name=name))
        while await store.write(partial(fts.merge, name=name, pages=PAGES_PER_STEP)):
            pass
    await store.run_exclusive(enable_incremental_vacuum)
    total = free = await store.read(_free_pages)
    while free:
        await progress(total - free, total, "freeing pages")
        await store.run_exclusive(lambda db: db.fetch(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})"))
        free = await store.read(_free_pages)
    await progress(total, total)
    await store.truncate_wal()  # it still holds old versions of the pages


def _migrated(change: MigrationRun) -> Migrated:
    return Migrated(change.before, change.after, change.applied, str(change.backup) if change.backup else None)


def table_names(db: Db) -> list[str]:
    """List all tables, including the shadow tables of virtual tables."""
    return [row["name"] for row in db.fetch("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def find_integrity_errors(db: Db, table: str) -> list[str]:
    """Return the integrity errors of a table and its indexes. Slow: run it on a snapshot."""
    verdicts = [row["integrity_check"] for row in db.fetch(f'PRAGMA integrity_check("{table}")')]
    return [text for text in verdicts if text != "ok"]


def find_orphans(db: Db, table: str) -> list[str]:
    """Describe the rows of a table whose foreign keys refer to missing rows."""
    orphans = db.fetch(f'PRAGMA foreign_key_check("{table}")')
    return [f"row {row['rowid']} of {table} has no owner" for row in orphans]


def _free_pages(db: Db) -> int:
    return int(db.value("PRAGMA freelist_count"))


def _bytes(db: Db) -> int:
    return int(db.value("PRAGMA page_count") * db.value("PRAGMA page_size"))
