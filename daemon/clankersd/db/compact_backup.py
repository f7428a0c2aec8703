"""Backups without what can be derived: the chunks with their full text and vectors, which are most of a database.

The tables of the copy are filled row by row, in the order of the original. Every text is put into the backlog of the
copy, so that the daemon that opens it makes the index again by itself.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from clankersd.db.backup import verify_copy
from clankersd.db.commit_priority import yield_to_commits
from clankersd.db.connection import Db
from clankersd.db.wal import new_generation

Row = tuple[Any, ...]

ROWS_PER_BATCH = 500

DERIVED_TABLES = (
    "chunks", "index_queue", "index_generations", "index_backlog", "embedding_cache", "embedding_models", "files",
)  # fmt: skip
"""Tables that are empty in the copy. Watched files are read again, because their chunks are not there."""

ADD_TEXTS_TO_BACKLOG = """
    INSERT INTO index_backlog (kind, owner)
    SELECT kind, id FROM (
        SELECT 'message' AS kind, id, created_at FROM messages WHERE text_content IS NOT NULL
        UNION ALL SELECT 'tool', id, created_at FROM tools
        UNION ALL SELECT 'session title', id, created_at FROM sessions WHERE title <> ''
        UNION ALL SELECT 'memory', id, created_at FROM memories
        UNION ALL SELECT 'skill', id, created_at FROM skills
    ) AS texts
    ORDER BY created_at, id
    ON CONFLICT DO NOTHING
"""
ADD_DOCUMENTS_TO_BACKLOG = """
    INSERT INTO index_backlog (kind, owner)
    SELECT 'document chunk', id FROM document_chunks WHERE searchable = 1 ORDER BY document_id, chunk_index
    ON CONFLICT DO NOTHING
"""


def copy_without_index(source: Db, target: Path, is_stopped: Callable[[], bool]) -> None:
    """Copy a database without its index, and verify the copy."""
    copy = apsw.Connection(str(target))
    descriptor = os.open(target, os.O_RDWR)
    try:
        copy.set_progress_handler(is_stopped, 5000)
        copy.pragma("page_size", source.value("PRAGMA page_size"))
        copy.pragma("auto_vacuum", "incremental")
        copy.pragma("synchronous", "off")  # synced here, and once more when it is complete
        tables = _create_tables(source, copy)
        for table in tables:
            for rows in batches(source.raw.execute(f'SELECT * FROM "{table}"')):
                if is_stopped():
                    raise apsw.InterruptError("the backup was cancelled")
                with copy:
                    places = ", ".join("?" * len(rows[0]))
                    copy.executemany(f'INSERT INTO "{table}" VALUES ({places})', rows)
                os.fsync(descriptor)
        with copy:
            _create_rest(source, copy)
            copy.execute("INSERT INTO memories_fts (memories_fts) VALUES ('rebuild')")
            copy.execute(ADD_TEXTS_TO_BACKLOG)
            copy.execute(ADD_DOCUMENTS_TO_BACKLOG)
        new_generation(Db(copy))
        verify_copy(source, copy, tables)
    finally:
        copy.close()
        os.close(descriptor)  # after SQLite's: closing a descriptor releases the locks of all others in the process


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of a table in batches, each after the statements of a commit that is running."""
    remaining = iter(rows)
    while batch := list(islice(remaining, ROWS_PER_BATCH)):
        yield_to_commits()
        yield batch


def _create_tables(source: Db, copy: apsw.Connection) -> list[str]:
    """Create all ordinary tables, and return the names of those whose rows are copied."""
    statements = dict(source.tuples("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    tables = source.engine.copied_tables(source)
    for name in tables:
        copy.execute(statements[name])
    return [name for name in tables if name not in DERIVED_TABLES]


def _create_rest(source: Db, copy: apsw.Connection) -> None:
    """Create virtual tables, indexes and triggers. The tables of vectors are made with the index."""
    sql = """
        SELECT sql FROM sqlite_master
        WHERE sql IS NOT NULL AND (type IN ('index', 'trigger', 'view') OR sql LIKE 'CREATE VIRTUAL TABLE%')
          AND sql NOT LIKE '%USING vec0%'
        ORDER BY type = 'trigger', type = 'index', rowid
    """
    for (statement,) in source.tuples(sql):
        copy.execute(statement)
