"""Copy everything that is not derived from one database to another, of any engine, and verify the copy.

Rows are inserted in batches, each in its own transaction, and a row that is there already is left alone: a copy that
was interrupted is started again and goes on. The index is not copied. Every text is put into the backlog of the copy,
so that the daemon that opens it chunks and embeds it.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import apsw
import msgspec

from clankersd.db.commit_priority import yield_to_commits
from clankersd.db.compact_backup import ADD_DOCUMENTS_TO_BACKLOG, ADD_TEXTS_TO_BACKLOG, DERIVED_TABLES
from clankersd.db.connection import Db

ROWS_PER_BATCH = 500
SKIPPED_TABLES = frozenset({*DERIVED_TABLES, "_migrations", "jobs"})
"""Tables that a copy makes itself: the index, the applied migrations, and the jobs, of which one is the copy."""

Report = Callable[[str, int, int], None]


class CopyDiffers(Exception):
    """The copy does not equal the original."""


def copy_rows(
    source: Db, target: Db, report: Report = lambda *_: None, is_stopped: Callable[[], bool] = lambda: False
) -> dict[str, int]:
    """Copy all rows into a database with the same or a newer schema, and return their number by table.

    Raises CopyDiffers if a table differs afterwards, and apsw.InterruptError once `is_stopped` returns True.
    """
    tables = _ordered_tables(source, target)
    total = sum(int(source.value(f"SELECT count(*) FROM {table.name}")) for table in tables)
    done = 0
    with target.engine.triggers_disabled(target):
        for table in tables:
            report(table.name, done, total)
            for rows in _batches(source, table):
                if is_stopped():
                    raise apsw.InterruptError("the copy was cancelled")
                yield_to_commits()
                with target.transaction():
                    target.engine.insert_rows(target, table.name, table.columns, rows)
                done += len(rows)
                report(table.name, done, total)
        with target.transaction():
            target.engine.set_sequences(target)
            if not target.value("SELECT 1 FROM chunks LIMIT 1"):
                target.execute(ADD_TEXTS_TO_BACKLOG)
                target.execute(ADD_DOCUMENTS_TO_BACKLOG)
    report("verifying", done, total)
    copied: dict[str, int] = {}
    with target.transaction():
        for table in tables:
            original, copy = _checksum(source, table), _checksum(target, table)
            if original != copy:
                has_same_count = original[0] == copy[0]
                found = (
                    "some rows have other values" if has_same_count else f"{copy[0]:,} rows instead of {original[0]:,}"
                )
                raise CopyDiffers(f"table {table.name} differs: {found}")
            copied[table.name] = copy[0]
    return copied


class CopiedTable(msgspec.Struct, frozen=True):
    """A table to copy, its columns, and SQL for the order in which rows come before those that refer to them."""

    name: str
    columns: list[str]
    order: str


def _ordered_tables(source: Db, target: Db) -> list[CopiedTable]:
    """Return the tables and columns that both databases have, each table after those that it refers to."""
    references = target.engine.references(target)
    pending = {*source.engine.copied_tables(source)} & {*target.engine.copied_tables(target)} - SKIPPED_TABLES
    ordered: list[CopiedTable] = []
    while pending:
        ready = sorted(name for name in pending if not references.get(name, set()) & (pending - {name}))
        for name in ready:
            keys = target.engine.primary_key(target, name)
            own = ["parent_id IS NOT NULL"] if name in references.get(name, set()) else []
            known = source.engine.column_names(source, name)
            columns = [column for column in target.engine.column_names(target, name) if column in known]
            ordered.append(CopiedTable(name, columns, ", ".join([*own, *keys])))
        pending -= set(ready)
    return ordered


def _batches(source: Db, table: CopiedTable) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table, in the order in which they were stored where that is known."""
    order = source.engine.stored_order(source, table.name) or table.order
    rows: list[tuple[Any, ...]] = []
    for _, row in source.stream(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}"):
        rows.append(row)
        if len(rows) == ROWS_PER_BATCH:
            yield rows
            rows = []
    if rows:
        yield rows


def _checksum(db: Db, table: CopiedTable) -> tuple[int, str]:
    """Return the number of rows and a hash of all of them in the order of their key."""
    digest, count = hashlib.sha256(), 0
    for _, row in db.stream(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {table.order}"):
        # PostgreSQL has no U+0000 in texts.
        digest.update(
            msgspec.msgpack.encode([one.replace("\0", "\ufffd") if isinstance(one, str) else one for one in row])
        )
        count += 1
        if count % ROWS_PER_BATCH == 0:
            yield_to_commits()
    return count, digest.hexdigest()
