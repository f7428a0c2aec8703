"""The database: one connection, one writer, migrations on open."""

from clankersd.db.connection import Db, Notification
from clankersd.db.store import Store

__all__ = ["Db", "Notification", "Store"]
