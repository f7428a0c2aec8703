"""Erase what deleting leaves behind in the files of the database."""

from functools import partial

from clankersd.db import Db, Store, fts
from clankersd.wire.jobs import Progress

PAGES_PER_STEP = 256
_INCREMENTAL = 2


async def erase_free_space(store: Store, progress: Progress) -> None:
    """Erase what deleting leaves behind: words in full-text segments, free pages, and old pages in the WAL."""
    for name in await store.read(fts.list_tables):
        await progress(0, None, f"rewriting {name}")
        await store.write(partial(fts.begin_merge, name=name))
        while await store.write(partial(fts.merge, name=name, pages=PAGES_PER_STEP)):
            pass
    await store.run_exclusive(_enable_incremental_vacuum)
    total = free = await store.read(_free_pages)
    while free:
        await progress(total - free, total, "freeing pages")
        await store.run_exclusive(lambda db: db.fetch(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})"))
        free = await store.read(_free_pages)
    await progress(total, total)
    await store.truncate_wal()  # it still holds old versions of the pages


def _enable_incremental_vacuum(db: Db) -> None:
    """Run one full VACUUM on a database that was created without incremental vacuum."""
    if db.value("PRAGMA auto_vacuum") != _INCREMENTAL:
        db.execute("PRAGMA auto_vacuum = incremental")
        db.execute("VACUUM")


def _free_pages(db: Db) -> int:
    return int(db.value("PRAGMA freelist_count"))
