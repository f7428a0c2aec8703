"""FTS5 tables that mirror another table: merge them, and rebuild damaged ones."""

from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog

from clankers_protocol.errors import StorageUnavailable
from clankersd.db.engine import CHUNK_TEXTS

if TYPE_CHECKING:
    from clankersd.db.connection import Db
    from clankersd.db.store import Store

FIRST_MERGE_SECONDS = 60.0
MERGE_INTERVAL_SECONDS = 3600.0
"""To rewrite the index of a million chunks takes about a minute, so it is not done after each deletion."""

MERGE_UNFINISHED_CHANGES = 2
"""Changes that FTS5 counts for a merge that wrote something."""

PAGES_PER_STEP = 32
"""Pages that a step of a merge writes, which events wait for."""

MAX_TOMBSTONE_BYTES = 4_000
"""Size of the hash tables of deleted rows, 8 bytes a row, above which a table is merged. Every row that is read is
looked up there, in a list that is as long as a run of deleted ids: after a session of 1,000 messages was deleted, to
look up a word took thirty times as long."""

_FIRST_TOMBSTONE = 65_537 << 37
"""Least id of a page of deleted rows in the data of an FTS5 table: the number of the segment, from 1 on, and 2^16 are
above 37 bits for the page."""

log = structlog.get_logger(component="index")


async def merge_periodically(store: "Store") -> None:
    """Rewrite full-text indexes that deleted texts have made slow, for as long as the daemon runs."""
    wait = FIRST_MERGE_SECONDS
    while True:
        await anyio.sleep(wait)
        wait = MERGE_INTERVAL_SECONDS
        try:
            if merged := await store.engine.merge_full_text(store):
                log.info("full-text index merged", tables=merged)
        except StorageUnavailable as error:
            log.debug("full-text merge postponed", problem=error.message)


def list_tables(db: "Db") -> list[str]:
    """List the FTS5 tables of the database."""
    fts = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%USING fts5 (%'"
    return [row["name"] for row in db.fetch(fts)]


async def merge_segments(store: "Store", name: str) -> None:
    """Merge all segments of a table into one, which drops the words of deleted texts; events are stored in between."""
    await store.write(partial(_merge, name=name, pages=-1), bulk=True)  # marks all segments for the merge
    while await store.write(partial(_merge, name=name, pages=PAGES_PER_STEP), bulk=True):
        pass


def list_slow_tables(db: "Db") -> list[str]:
    """List the tables in which so many rows were deleted that searches are slow."""
    return [name for name in list_tables(db) if _has_many_tombstones(db, name)]


def _merge(db: "Db", name: str, pages: int) -> bool:
    """Write about `pages` pages of the merged segment; return True if there is more to do."""
    before = db.raw.total_changes()
    db.execute(f"INSERT INTO {name} ({name}, rank) VALUES ('merge', :pages)", {"pages": pages})
    return db.raw.total_changes() - before >= MERGE_UNFINISHED_CHANGES


def _has_many_tombstones(db: "Db", name: str) -> bool:
    size = db.value(f"SELECT total(length(block)) FROM {name}_data WHERE id >= :first", {"first": _FIRST_TOMBSTONE})
    return bool(size > MAX_TOMBSTONE_BYTES)


def rebuild_damaged(db: "Db") -> list[str]:
    """Rebuild damaged tables, which hold nothing that the texts do not; return their names."""
    damaged = [name for name in list_tables(db) if db.value(f'PRAGMA quick_check("{name}")') != "ok"]
    for name in damaged:
        rebuild(db, name)
    return damaged


def rebuild(db: "Db", name: str) -> None:
    """Index all texts of a table again. That of chunks is contentless: FTS5 does not know where its texts are."""
    if name == "chunks_fts":
        clear(db, name)
        columns = "text, header, extra"
        db.execute(f"INSERT INTO {name} (rowid, {columns}) SELECT id, {columns} FROM {CHUNK_TEXTS} ORDER BY id")
    else:
        db.execute(f"INSERT INTO {name} ({name}) VALUES ('rebuild')")


def clear(db: "Db", name: str) -> None:
    """Remove all words of a table."""
    db.execute(f"INSERT INTO {name} ({name}) VALUES ('delete-all')")


def quote_phrase(text: str) -> str:
    """Quote a text for MATCH, so that nothing in it is read as query syntax."""
    return '"' + text.replace('"', '""') + '"'
