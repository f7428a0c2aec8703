"""The database: one connection, one writer, migrations on open."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from clankersd.db.connection import Db, Notification
from clankersd.db.engine import ServerOptions
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
    raw = apsw.Connection(target)
    try:
        if raw.filename:
            Path(target).chmod(0o600)
        raw.pragma("foreign_keys", 1)
        copy = Db(raw)
        migrate(copy, Path(target).parent)
        yield copy
    finally:
        raw.close()
