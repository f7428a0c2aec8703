"""Full-text tables that mirror another table: whether they still do, and how to make them anew."""

from dataclasses import dataclass

import apsw

from clankersd.db.connection import Db

HASH_BYTES = 16 * 1024 * 1024
"""How many words are gathered before they are written out: the more, the sooner all of them are compared."""

MERGE_UNFINISHED_CHANGES = 2
"""FTS5 tells by its number of changes whether a merge did anything."""


@dataclass(frozen=True)
class FullText:
    """An FTS5 table, and the table with the texts: its key, and the columns that are searched."""

    name: str
    content: str
    key: str
    columns: str

    @property
    def unlike(self) -> str:
        """How many rows are in one of the two and not in the other."""
        texts, found = f"SELECT {self.key} FROM {self.content}", f"SELECT id FROM {self.name}_docsize"
        return f"SELECT count(*) FROM ({_in_one_only(texts, found)})"


def find_fault(db: Db, table: FullText) -> str | None:
    """Why a search in this table cannot be trusted; None when it can.

    FTS5's own check of that takes the write lock for as long as it runs. So all texts are taken apart again into a
    temporary table, and the words of both are compared: on a connection that only reads, nobody waits for it.
    """
    try:
        verdict = db.value(f'PRAGMA integrity_check("{table.name}")')
        if verdict != "ok":
            return "it is damaged"
        if unlike := db.value(table.unlike):
            return f"{unlike:,} texts are not in it, or no longer there"
        if unlike := _count_unlike_words(db, table):
            return f"{unlike:,} words in it are not those of the texts"
    except apsw.CorruptError:
        return "it is damaged"
    return None


def list_tables(db: Db) -> list[str]:
    """The FTS5 tables of the database."""
    fts = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%USING fts5 (%'"
    return [row["name"] for row in db.fetch(fts)]


def begin_merge(db: Db, name: str) -> None:
    """Mark all segments of a table to be merged into one, which leaves out the words of deleted texts."""
    merge(db, name, -1)


def merge(db: Db, name: str, pages: int) -> bool:
    """Write about so many pages of the merged segment; return whether there is more to do."""
    before = db.raw.total_changes()
    db.execute(f"INSERT INTO {name} ({name}, rank) VALUES ('merge', :pages)", {"pages": pages})
    return db.raw.total_changes() - before >= MERGE_UNFINISHED_CHANGES


def rebuild(db: Db, name: str) -> None:
    """Make all of a table anew from its texts, in the caller's transaction."""
    db.execute(f"INSERT INTO {name} ({name}) VALUES ('rebuild')")


def rebuild_damaged(db: Db) -> list[str]:
    """Rebuild the tables that are damaged inside: they hold nothing that the texts do not. Tells which they were."""
    damaged = [name for name in list_tables(db) if db.value(f'PRAGMA quick_check("{name}")') != "ok"]
    for name in damaged:
        rebuild(db, name)
    return damaged


def _count_unlike_words(db: Db, table: FullText) -> int:
    # How the table cuts words is the last thing that its SQL says.
    tokenizer = db.value(
        "SELECT substr(sql, instr(sql, 'tokenize')) FROM sqlite_master WHERE name = :name", {"name": table.name}
    )
    db.execute(f"CREATE VIRTUAL TABLE temp.again USING fts5 ({table.columns}, content = '', {tokenizer}")
    db.execute("INSERT INTO temp.again (again, rank) VALUES ('hashsize', :bytes)", {"bytes": HASH_BYTES})
    db.execute(
        f"INSERT INTO temp.again (rowid, {table.columns}) SELECT {table.key}, {table.columns} FROM {table.content}"
    )
    db.execute("CREATE VIRTUAL TABLE temp.again_words USING fts5vocab (temp, again, row)")
    db.execute(f"CREATE VIRTUAL TABLE temp.found_words USING fts5vocab (main, {table.name}, row)")
    unlike = _in_one_only("SELECT term, doc, cnt FROM temp.again_words", "SELECT term, doc, cnt FROM temp.found_words")
    return int(db.value(f"SELECT count(DISTINCT term) FROM ({unlike})"))


def _in_one_only(one: str, other: str) -> str:
    return f"SELECT * FROM ({one} EXCEPT {other}) UNION ALL SELECT * FROM ({other} EXCEPT {one})"


def quote_phrase(text: str) -> str:
    """Quote a text for MATCH, so that nothing in it is read as query syntax."""
    return '"' + text.replace('"', '""') + '"'
