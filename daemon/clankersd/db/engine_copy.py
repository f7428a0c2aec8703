"""Copy everything that is not derived from one database to another, of any engine, and verify the copy.

Rows are inserted in batches, each in its own transaction, and a row that is there already is left alone: a copy that
was interrupted is started again and goes on. The index is not copied. Every text is put into the backlog of the copy,
so that the daemon that opens it chunks and embeds it.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from clankersd.db.commit_priority import yield_to_commits
from clankersd.db.compact_backup import (
    ADD_DOCUMENTS_TO_BACKLOG,
    ADD_TEXTS_TO_BACKLOG,
    DERIVED_TABLES,
    ROWS_PER_BATCH,
    batches,
)
from clankersd.db.connection import Db, check_is_ours
from clankersd.db.errors import SchemaRefused
from clankersd.db.migrations import migrate

SKIPPED_TABLES = frozenset({*DERIVED_TABLES, "_migrations", "jobs"})
"""Tables that a copy makes itself: the index, the applied migrations, and the jobs, of which one is the copy."""

Report = Callable[[str, int, int], None]


class CopyDiffers(Exception):
    """The copy does not equal the original."""


@contextmanager
def open_copy(target: str, schema: str) -> Iterator[Db]:
    """Open the database that everything is copied to: a SQLite file, or a schema of a PostgreSQL server."""
    if target.startswith(("postgresql://", "postgres://")):
        from clankersd.db.postgres.connection import PostgresDb, create_schema  # their driver is optional

        server = create_schema(target, schema)
        try:
            copy: Db = PostgresDb(server)
            migrate(copy, Path())
            yield copy
        finally:
            server.close()
        return
    raw = apsw.Connection(target) if target == ":memory:" else _open_file(target)
    try:
        raw.pragma("foreign_keys", 1)
        copy = Db(raw)
        migrate(copy, Path(target).parent)
        yield copy
    finally:
        raw.close()


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
            for rows in batches(_stored_rows(source, table)):
                if is_stopped():
                    raise apsw.InterruptError("the copy was cancelled")
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


def _open_file(path: str) -> apsw.Connection:
    """Open a new file, or a database of clankers; raises SchemaRefused for anything else and does not change it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    except OSError as error:
        raise SchemaRefused(f"{path} cannot be opened, links are not followed: {error.strerror}") from error
    if not is_file:
        raise SchemaRefused(f"{path} is not a regular file")
    raw = apsw.Connection(path)
    try:
        check_is_ours(raw)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raw.close()
        raise SchemaRefused(f"{path} is not a database") from error
    except SchemaRefused:
        raw.close()
        raise
    return raw


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


def _stored_rows(source: Db, table: CopiedTable) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, in the order in which they were stored where that is known."""
    order = source.engine.stored_order(source, table.name) or table.order
    return (row for _, row in source.stream(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}"))


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
