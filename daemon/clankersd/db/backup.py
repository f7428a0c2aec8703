"""Backups: a copy of the database is complete and verified, or does not exist."""

import itertools
import os
import shutil
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import apsw

from clankers_protocol.database_files import count_rows, sync
from clankersd.db.connection import Db
from clankersd.db.wal import new_generation

PAGES_PER_STEP = 64
"""Pages copied and synced at a time. A commit's sync waits for what other files have unwritten: a copy that is synced
only at its end would stop events for as long as writing all of it takes."""

UNFINISHED_SUFFIX = ".unfinished"
SPARE_BYTES = 64 * 1024 * 1024
"""Disk space that a backup leaves free for events."""

Copy = Callable[[Db, Path, Callable[[], bool]], None]


@dataclass(frozen=True)
class Restoration:
    """A restored backup: the database, the rows of each table, and the file or schema with the replaced database."""

    database: str
    rows: dict[str, int]
    replaced: str | None


_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


def back_up(
    db: Db, folder: Path, reason: str, is_stopped: Callable[[], bool] = lambda: False, copy: Copy | None = None
) -> Path:
    """Copy the open database into `folder`, verify the copy, and name the copy after the time and the reason.

    `copy` writes and verifies the copy; by default it is one of all pages.

    While events are stored, use `Store.back_up`, which copies from a read-only connection in another thread.
    Raises InterruptError once `is_stopped` returns True.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    needed_bytes = db.value("PRAGMA page_count") * db.value("PRAGMA page_size")
    if (free_bytes := shutil.disk_usage(folder).free) < needed_bytes + SPARE_BYTES:
        raise apsw.FullError(f"a backup needs {needed_bytes:,} bytes, but only {free_bytes:,} are free")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    target = folder / f"clankers-{stamp}-{reason}.db"
    unfinished = target.with_suffix(UNFINISHED_SUFFIX)
    try:
        (copy or _copy)(db, unfinished, is_stopped)
        sync(unfinished)
        unfinished.rename(target)
        sync(folder)
    finally:
        for leftover in folder.glob(f"{unfinished.name}*"):  # with the journal of a copy that failed
            leftover.unlink(missing_ok=True)
    return target


def remove_unfinished(folder: Path) -> list[Path]:
    """Remove the files of interrupted backups; the caller must be the only daemon of this folder."""
    unfinished = sorted(folder.glob(f"clankers-*{UNFINISHED_SUFFIX}*"))
    for path in unfinished:
        path.unlink(missing_ok=True)
    return unfinished


def has_empty_pages(database: Path, after_page: int) -> bool:
    """Return True if a used page after this one is all zeros, as SQLite reads pages beyond the end of a file."""
    with database.open("rb") as file:
        header = file.read(100)
        size = int.from_bytes(header[16:18]) if header[16:18] != b"\0\1" else 65536
        unused: set[int] = set()
        trunk = int.from_bytes(header[32:36])
        while trunk and trunk not in unused:
            unused.add(trunk)
            file.seek((trunk - 1) * size)
            words = struct.unpack(f">{size // 4}I", file.read(size))
            trunk, count = words[:2]
            unused.update(words[2 : 2 + count])
        file.seek(after_page * size)
        for number in itertools.count(after_page + 1):
            page = file.read(size)
            if not page:
                return False
            if not any(page) and number not in unused:
                return True
    return False


def verify_copy(source: Db, copy: apsw.Connection, tables: Collection[str] | None = None) -> None:
    """Raise CorruptError if the copy is damaged or lacks rows of one of these tables, by default of any."""
    verdict = copy.pragma("integrity_check")
    if verdict != "ok":
        raise apsw.CorruptError(f"the copy is damaged: {verdict}")
    copied, rows = count_rows(copy), count_rows(source.raw)
    compared = {*rows, *copied} if tables is None else tables
    if different := sorted(name for name in compared if rows.get(name) != copied.get(name)):
        raise apsw.CorruptError(f"the copy lacks rows of {', '.join(different)}")


def _copy(source: Db, target: Path, is_stopped: Callable[[], bool]) -> None:
    copy = apsw.Connection(str(target))
    descriptor = os.open(target, os.O_RDWR)
    try:
        copy.set_progress_handler(is_stopped, 5000)
        copy.pragma("synchronous", "off")  # synced here, and once more when it is complete
        copy.pragma("cache_size", PAGES_PER_STEP)  # pages beyond are written at once
        # Inside a transaction the first read fixes the snapshot; without one, each commit would restart the copy.
        source.value("SELECT count(*) FROM sqlite_master")
        with copy.backup("main", source.raw, "main") as backup:
            while not backup.done:
                if is_stopped():
                    raise apsw.InterruptError("the backup was cancelled")
                backup.step(PAGES_PER_STEP)
                _sync_data(descriptor)
        copy.pragma("journal_mode", "delete")  # a single file without a WAL
        new_generation(Db(copy))  # the WAL of the original does not belong to the copy
        verify_copy(source, copy)
    finally:
        copy.close()
        os.close(descriptor)  # after SQLite's: closing a descriptor releases the locks of all others in the process
