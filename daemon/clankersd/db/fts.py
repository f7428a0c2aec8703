"""FTS5 tables that mirror another table: merge them, and rebuild damaged ones."""

from typing import TYPE_CHECKING

from clankersd.db.engine import CHUNK_TEXTS

if TYPE_CHECKING:
    from clankersd.db.connection import Db

MERGE_UNFINISHED_CHANGES = 2
"""Changes that FTS5 counts for a merge that wrote something."""


def list_tables(db: "Db") -> list[str]:
    """List the FTS5 tables of the database."""
    fts = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%USING fts5 (%'"
    return [row["name"] for row in db.fetch(fts)]


def begin_merge(db: "Db", name: str) -> None:
    """Start merging all segments of a table into one, which drops the words of deleted texts."""
    merge(db, name, -1)


def merge(db: "Db", name: str, pages: int) -> bool:
    """Write about `pages` pages of the merged segment; return True if there is more to do."""
    before = db.raw.total_changes()
    db.execute(f"INSERT INTO {name} ({name}, rank) VALUES ('merge', :pages)", {"pages": pages})
    return db.raw.total_changes() - before >= MERGE_UNFINISHED_CHANGES


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
