"""A copy of the database that is whole or not there."""

import os
from datetime import UTC, datetime
from pathlib import Path

import apsw

from clankersd.db.sqlite import Db


def back_up(db: Db, folder: Path, why: str) -> Path:
    """A verified copy of the open database in `folder`, named for the moment and the reason."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    target = folder / f"clankers-{stamp}-{why}.db"
    unfinished = target.with_suffix(".unfinished")
    try:
        _copy(db.raw, unfinished)
        _sync(unfinished)
        unfinished.rename(target)
        _sync(folder)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _copy(source: apsw.Connection, target: Path) -> None:
    copy = apsw.Connection(str(target))
    try:
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(4096)
        copy.pragma("journal_mode", "delete")  # one file, nothing beside it
        verdict = copy.pragma("quick_check")
        if verdict != "ok":
            raise apsw.CorruptError(f"the copy is damaged: {verdict}")
    finally:
        copy.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
