"""The database: one connection, one writer, migrations on open."""

from pathlib import Path

from clankersd.db.connection import Db, Notification
from clankersd.db.engine import ServerOptions
from clankersd.db.store import Store

__all__ = ["Db", "Notification", "Store", "make_store"]


def make_store(server: ServerOptions, path: Path, backups: Path, durability: str) -> Store:
    """Return the store in the database file, or on the server if there is a URL."""
    if not server.url:
        return Store(path, backups, durability)
    from clankersd.db.postgres.store import PostgresStore  # its driver is optional

    return PostgresStore(server, path, backups, durability)
