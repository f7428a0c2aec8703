"""Full-text tables that mirror another table: check, merge and rebuild them."""

from dataclasses import dataclass

import apsw

from clankersd.db.connection import Db

HASH_BYTES = 16 * 1024 * 1024
"""Memory for words before they are written out; more makes the comparison faster."""

MERGE_UNFINISHED_CHANGES = 2
"""Changes that FTS5 counts for a merge that wrote something."""


@dataclass(frozen=True)
class FullText:
    """An FTS5 table, and the table with its texts: key and indexed columns."""

    name: str
    content: str
    key: str
    columns: str

    @property
    def mismatch_sql(self) -> str:
        """SQL that counts the rows which are in only one of the two tables."""
        texts, indexed = f"SELECT {self.key} FROM {self.content}", f"SELECT id FROM {self.name}_docsize"
        return f"SELECT count(*) FROM ({_symmetric_difference(texts, indexed)})"


def find_fault(db: Db, table: FullText) -> str | None:
    """Return the reason why a search in this table cannot be trusted; None if it can.

    FTS5's own check takes the write lock for as long as it runs. So all texts are tokenized again into a temporary
    table, and the words of both are compared: on a read-only connection this delays no write.
    """
    try:
        verdict = db.value(f'PRAGMA integrity_check("{table.name}")')
        if verdict != "ok":
            return "it is damaged"
        if count := db.value(table.mismatch_sql):
            return f"{count:,} texts are not in it, or no longer there"
        if count := _count_wrong_words(db, table):
            return f"{count:,} words in it are not those of the texts"
    except apsw.CorruptError:
        return "it is damaged"
    return None


def list_tables(db: Db) -> list[str]:
    """List the FTS5 tables of the database."""
    fts = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%USING fts5 (%'"
    return [row["name"] for row in db.fetch(fts)]


def begin_merge(db: Db, name: str) -> None:
    """Start merging all segments of a table into one, which drops the words of deleted texts."""
    merge(db, name, -1)


def merge(db: Db, name: str, pages: int) -> bool:
    """Write about `pages` pages of the merged segment; return True if there is more to do."""
    before = db.raw.total_changes()
    db.execute(f"INSERT INTO {name} ({name}, rank) VALUES ('merge', :pages)", {"pages": pages})
    return db.raw.total_changes() - before >= MERGE_UNFINISHED_CHANGES


def rebuild(db: Db, name: str) -> None:
    """Rebuild a table from its texts, in the caller's transaction."""
    db.execute(f"INSERT INTO {name} ({name}) VALUES ('rebuild')")


def rebuild_damaged(db: Db) -> list[str]:
    """Rebuild damaged tables, which hold nothing that the texts do not; return their names."""
    damaged = [name for name in list_tables(db) if db.value(f'PRAGMA quick_check("{name}")') != "ok"]
    for name in damaged:
        rebuild(db, name)
    return damaged


def _count_wrong_words(db: Db, table: FullText) -> int:
    # The tokenizer is the last option in the table's SQL.
    tokenizer = db.value(
        "SELECT substr(sql, instr(sql, 'tokenize')) FROM sqlite_master WHERE name = :name", {"name": table.name}
    )
    db.execute(f"CREATE VIRTUAL TABLE temp.expected USING fts5 ({table.columns}, content = '', {tokenizer}")
    db.execute("INSERT INTO temp.expected (expected, rank) VALUES ('hashsize', :bytes)", {"bytes": HASH_BYTES})
    db.execute(
        f"INSERT INTO temp.expected (rowid, {table.columns}) SELECT {table.key}, {table.columns} FROM {table.content}"
    )
    db.execute("CREATE VIRTUAL TABLE temp.expected_words USING fts5vocab (temp, expected, row)")
    db.execute(f"CREATE VIRTUAL TABLE temp.indexed_words USING fts5vocab (main, {table.name}, row)")
    difference = _symmetric_difference(
        "SELECT term, doc, cnt FROM temp.expected_words", "SELECT term, doc, cnt FROM temp.indexed_words"
    )
    return int(db.value(f"SELECT count(DISTINCT term) FROM ({difference})"))


def _symmetric_difference(one: str, other: str) -> str:
    return f"SELECT * FROM ({one} EXCEPT {other}) UNION ALL SELECT * FROM ({other} EXCEPT {one})"


def quote_phrase(text: str) -> str:
    """Quote a text for MATCH, so that nothing in it is read as query syntax."""
    return '"' + text.replace('"', '""') + '"'
