"""Replace the database file so that every moment leaves a usable database."""

import os
from datetime import UTC, datetime
from pathlib import Path

COMPANIONS = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside a database; those of one database must never lie beside another."""


def replace_database(database: Path, new: Path, why: str) -> Path | None:
    """Put `new` in the place of the database and keep the old one, with its WAL, as `DATABASE.WHY-TIME`.

    Return the path of the old database, None when there was none. Nobody may have the database open. If the process
    ends halfway, the old WAL lies beside the new database: the daemon recognises that and moves it aside.
    """
    database = database.resolve()  # SQLite keeps the WAL beside the file that a link points to
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = database.with_name(f"{database.name}.{why}-{stamp}")
    had_database = database.exists()
    if had_database:
        os.link(database, aside)
    new.replace(database)
    for suffix in COMPANIONS:
        companion = database.with_name(f"{database.name}{suffix}")
        if companion.exists():
            companion.rename(f"{aside}{suffix}")
    sync(database.parent)
    return aside if had_database else None


def sync(path: Path) -> None:
    """Make the contents of a file, or the renames in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
