"""Backups of a schema on a server, and putting one in its place.

A full backup is a dump by pg_dump. Without that program, or on request, a backup is a SQLite file with everything but
the index, which every clankers can open. Both are restored into a schema of their own, which then takes the place of
the one in use.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psycopg

from clankers_protocol.database_files import DUMP_SUFFIX, check_database, copy_database, manifest_path, sync
from clankers_protocol.safe_writes import write_file
from clankersd.db.backup import UNFINISHED_SUFFIX
from clankersd.db.connection import Db
from clankersd.db.engine_copy import CopyDiffers, copy_rows, open_copy
from clankersd.db.migrations import migrate
from clankersd.db.postgres.connection import PostgresDb, connect
from clankersd.db.postgres.dump import find_problem, make_dump, restore_dump

_RESTRICTED = """
    SELECT restored.id, member FROM {old}.project_members JOIN {old}.projects ON projects.id = project_id
    JOIN {new}.projects AS restored ON restored.id = projects.id OR restored.path = projects.path
"""
_KEEP_RESTRICTIONS = (
    f"DELETE FROM {{new}}.project_members WHERE project_id IN (SELECT id FROM ({_RESTRICTED}) AS restricted)",
    f"INSERT INTO {{new}}.project_members {_RESTRICTED} ON CONFLICT DO NOTHING",
)
"""SQL that restricts the projects of a restored schema as they are in the one in use."""


@contextmanager
def snapshot(db: Db) -> Iterator[None]:
    """Read one state of the database in the block; a transaction that is open already does so."""
    assert isinstance(db, PostgresDb)
    if db.server.in_transaction:
        yield
        return
    db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def back_up(db: Db, folder: Path, reason: str, is_stopped: Callable[[], bool], without_index: bool) -> Path:
    """Make a verified backup in `folder`, named after the time and the reason."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_dump = not without_index and find_problem(db) is None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    target = folder / f"clankers-{stamp}-{reason}{DUMP_SUFFIX if is_dump else '.db'}"
    unfinished = target.with_suffix(UNFINISHED_SUFFIX)
    try:
        with snapshot(db):
            if is_dump:
                manifest = make_dump(db, db.value("SELECT current_schema()"), unfinished, is_stopped)
                write_file(manifest_path(target), msgspec.json.encode(manifest), mode=0o600)
            else:
                _copy_to_file(db, unfinished, is_stopped)
        sync(unfinished)
        unfinished.rename(target)
        sync(folder)
    finally:
        if not target.exists():
            manifest_path(target).unlink(missing_ok=True)
        for leftover in folder.glob(f"{unfinished.name}*"):
            leftover.unlink(missing_ok=True)
    return target


def restore_aside(url: str, schema: str, source: Path, folder: Path) -> dict[str, int]:
    """Restore a backup into the schema `SCHEMA_restoring`; return the rows of each table. `folder` is for a copy.

    Raises ValueError if it is damaged, and SchemaRefused if it was made by a later clankers.
    """
    target = f"{schema}_restoring"
    server = connect(url, schema)
    try:
        server.execute(f'DROP SCHEMA IF EXISTS "{target}" CASCADE')
        if source.suffix == DUMP_SUFFIX:
            return restore_dump(source, server, target)
    finally:
        server.close()
    problems, _ = check_database(source)
    if problems:
        raise ValueError(f"it is damaged: {problems[0]}")
    copied = folder / f"{source.name}.restoring"
    try:
        counts = copy_database(source, copied)
        # Opening a backup of an older version migrates it, so it is a copy that is opened.
        with open_copy(str(copied), "") as original, open_copy(url, target) as new:
            copy_rows(original, new)
            return counts | {"index_backlog": int(new.value("SELECT count(*) FROM index_backlog")), "chunks": 0}
    except CopyDiffers as error:
        raise ValueError(str(error)) from error
    finally:
        for leftover in copied.parent.glob(f"{copied.name}*"):
            leftover.unlink(missing_ok=True)


def swap_schemas(server: "psycopg.Connection[Any]", schema: str) -> str:
    """Put the restored schema in the place of the one in use, in one transaction; return the name that this has now.

    Projects that are restricted now stay so: the backup may be older, and a SQLite file has no restrictions.
    """
    replaced = f"{schema}_replaced_{datetime.now(UTC).strftime('%Y%m%dt%H%M%S')}"
    with server.transaction():
        for statement in _KEEP_RESTRICTIONS:
            server.execute(statement.format(old=f'"{schema}"', new=f'"{schema}_restoring"'))
        server.execute(f'ALTER SCHEMA "{schema}" RENAME TO "{replaced}"')
        server.execute(f'ALTER SCHEMA "{schema}_restoring" RENAME TO "{schema}"')
    return replaced


def _copy_to_file(db: Db, target: Path, is_stopped: Callable[[], bool]) -> None:
    raw = apsw.Connection(str(target))
    try:
        target.chmod(0o600)
        raw.pragma("synchronous", "off")  # synced when it is complete
        raw.pragma("foreign_keys", 1)
        copy = Db(raw)
        migrate(copy, target.parent)
        copy_rows(db, copy, is_stopped=is_stopped)
    finally:
        raw.close()
