"""The database: one connection, one writer, migrations on open."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from clankersd.db.connection import Db, Notification, check_is_ours
from clankersd.db.engine import ServerOptions
from clankersd.db.errors import SchemaRefused
from clankersd.db.store import Store

__all__ = ["Db", "Notification", "Store", "make_store", "open_copy"]


def make_store(server: ServerOptions, path: Path, backups: Path, durability: str) -> Store:
    """Return the store in the database file, or on the server if there is a URL."""
    if not server.url:
        return Store(path, backups, durability)
    from clankersd.db.postgres.store import PostgresStore  # its driver is optional

    return PostgresStore(server, path, backups, durability)


@contextmanager
def open_copy(target: str, schema: str) -> Iterator[Db]:
    """Open the database that everything is copied to: a SQLite file, or a schema of a PostgreSQL server."""
    from clankersd.db.migrations import migrate

    if target.startswith(("postgresql://", "postgres://")):
        from clankersd.db.postgres.connection import PostgresDb, create_schema

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
