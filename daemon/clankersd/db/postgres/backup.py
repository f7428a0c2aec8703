"""Backups of a database on a server: a SQLite file with everything but the index, as `backup create` makes them too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import apsw
from psycopg.pq import TransactionStatus

from clankers_protocol.database_files import sync
from clankersd.db.backup import UNFINISHED_SUFFIX
from clankersd.db.connection import Db
from clankersd.db.engine_copy import copy_rows
from clankersd.db.migrations import migrate
from clankersd.db.postgres.connection import PostgresDb


@contextmanager
def snapshot(db: Db) -> Iterator[None]:
    """Read one state of the database in the block; a transaction that is open already does so."""
    assert isinstance(db, PostgresDb)
    if db.server.info.transaction_status != TransactionStatus.IDLE:
        yield
        return
    db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def back_up(db: Db, folder: Path, reason: str, is_stopped: Callable[[], bool]) -> Path:
    """Copy the committed data into `folder`, verify the copy, and name it after the time and the reason."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    target = folder / f"clankers-{stamp}-{reason}.db"
    unfinished = target.with_suffix(UNFINISHED_SUFFIX)
    try:
        raw = apsw.Connection(str(unfinished))
        try:
            raw.pragma("synchronous", "off")  # synced when it is complete
            raw.pragma("foreign_keys", 1)
            copy = Db(raw)
            migrate(copy, folder)
            with snapshot(db):
                copy_rows(db, copy, is_stopped=is_stopped)
        finally:
            raw.close()
        sync(unfinished)
        unfinished.rename(target)
        sync(folder)
    finally:
        unfinished.unlink(missing_ok=True)
    return target
