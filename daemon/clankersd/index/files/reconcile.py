"""Comparing watched files with the index: read and cut in threads, stored a file at a time."""

import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import StorageUnavailable
from clankersd import clock
from clankersd.capture.redaction import count_redactions, redact
from clankersd.db import Db
from clankersd.index.chunks import ChunkedText, Chunking, Owner, chunk_text, replace_chunks
from clankersd.index.files.scan import Scan, WatchedFile
from clankersd.index.index import Index
from clankersd.index.tokenize import other_forms
from clankersd.safe_files import UnsafeFile, open_regular, read_at_most

SOURCE = "memory"
MAX_FILE_BYTES = 10 * 1024 * 1024
SAME_MOMENT_MS = 2000
"""A file may change twice within its clock's tick: so soon after a change, the same time and size prove nothing."""

_KNOWN = """
    SELECT files.id, files.path, hash, mtime, size, indexed_at, projects.path AS project
    FROM files LEFT JOIN projects ON projects.id = project_id WHERE source = :source
"""
_PROJECT = """
    INSERT INTO projects (id, path, name, created_at, updated_at) VALUES (:id, :path, :name, :now, :now)
    ON CONFLICT (path) DO NOTHING
"""
_FILE = """
    INSERT INTO files (source, path, project_id, hash, mtime, size, indexed_at)
    VALUES (:source, :path, (SELECT id FROM projects WHERE path = :project), :hash, :mtime, :size, :now)
    ON CONFLICT (source, path) DO UPDATE SET
        project_id = excluded.project_id, hash = excluded.hash, mtime = excluded.mtime, size = excluded.size,
        indexed_at = excluded.indexed_at
    RETURNING id
"""
_TOUCH = "UPDATE files SET mtime = :mtime, size = :size, indexed_at = :now WHERE id = :id AND path = :path"
_FORGET = "DELETE FROM files WHERE id = :id AND path = :path"

_DATE = re.compile(r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)")

Progress = Callable[[int, int | None, str | None], Awaitable[None]]

log = structlog.get_logger(component="files")


@dataclass
class SyncReport:
    """What comparing the files with the index came to; `failed` says of each which and why."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    moved: int = 0
    unchanged: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0


@dataclass(frozen=True)
class IndexedFile:
    """A file as it is in the index."""

    id: int
    path: str
    hash: str
    mtime: int
    size: int
    indexed_at: int
    project: str | None

    def looks_like(self, found: WatchedFile) -> bool:
        """Whether the file need not even be read."""
        return (
            (self.mtime, self.size, self.project) == (found.mtime, found.size, found.project)
            and abs(self.indexed_at - self.mtime) > SAME_MOMENT_MS
        )  # fmt: skip


@dataclass(frozen=True)
class LoadedFile:
    """A file as it was read, cut in every way that is needed; not cut at all when it is as it was."""

    hash: str
    mtime: int
    size: int
    prepared: list[ChunkedText]
    redacted: dict[str, int]


class NotIndexable(Exception):
    """A file that is no text to be indexed; the message says why."""


class Reconciliation:
    """One comparison of what is on the disk with what is in the index."""

    def __init__(self, index: Index, seen: Scan, known: list[IndexedFile]) -> None:
        self._index = index
        self._seen = seen
        self._known = {row.path: row for row in known}
        gone = [row for row in known if row.path not in seen.files and not seen.might_hold(row.path)]
        self._gone = {row.id: row for row in gone}
        self._gone_by_hash: dict[str, list[IndexedFile]] = {}
        for row in gone:
            self._gone_by_hash.setdefault(row.hash, []).append(row)
        self._report = SyncReport(failed=list(seen.failed))

    async def settle(self, progress: Progress | None) -> SyncReport:
        """Bring the index in step, a file at a time; raises StorageUnavailable when it cannot go on."""
        files = self._seen.files.values()
        doubtful = [found for found in files if not self._is_known(found)]
        self._report.unchanged = len(files) - len(doubtful)
        for number, found in enumerate(doubtful):
            if progress:
                await progress(number, len(doubtful), found.path)
            await self._take_in(found)
        for row in list(self._gone.values()):
            await self._forget(row)
        return self._report

    def _is_known(self, found: WatchedFile) -> bool:
        row = self._known.get(found.path)
        return row is not None and row.looks_like(found)

    async def _take_in(self, found: WatchedFile) -> None:
        row = self._known.get(found.path)
        as_it_was = row.hash if row and row.project == found.project else None
        try:
            chunkings = self._index.chunkings()
            loaded = await anyio.to_thread.run_sync(load_file, found, chunkings, as_it_was, abandon_on_cancel=True)
            await self._store(found, loaded, row, as_it_was)
        except StorageUnavailable:
            raise
        except FileNotFoundError:
            return  # it went away since: the next comparison forgets it
        except NotIndexable as refusal:
            self._fail(found, str(refusal))
            if row:
                await self._forget(row)
        except OSError as error:
            self._fail(found, error.strerror or str(error))
        except Exception as error:
            log.exception("file stumbled", path=found.path)
            self._fail(found, str(error))

    async def _store(
        self, found: WatchedFile, loaded: LoadedFile, row: IndexedFile | None, as_it_was: str | None
    ) -> None:
        if row and loaded.hash == as_it_was:
            touched = {"id": row.id, "path": row.path, "mtime": loaded.mtime, "size": loaded.size, "now": clock.now()}
            await self._index.store.write(lambda db: db.execute(_TOUCH, touched), bulk=True)
            self._report.unchanged += 1
            return
        before = None if row else self._moved_from(loaded.hash)
        await self._index.store.write(lambda db: store(db, found, loaded, before), bulk=True)
        self._index.wake()
        if before:
            del self._gone[before.id]
        self._report.changed += row is not None
        self._report.moved += before is not None
        self._report.added += row is None and before is None

    def _moved_from(self, digest: str) -> IndexedFile | None:
        rows = self._gone_by_hash.get(digest)
        return rows.pop() if rows else None

    async def _forget(self, row: IndexedFile) -> None:
        own = {"id": row.id, "path": row.path}
        await self._index.store.write(lambda db: db.execute(_FORGET, own), bulk=True)
        self._report.removed += 1

    def _fail(self, found: WatchedFile, reason: str) -> None:
        self._report.failed.append(f"{found.path}: {reason}")


def load_file(found: WatchedFile, chunkings: list[Chunking], as_it_was: str | None) -> LoadedFile:
    """Read and cut a file; raises OSError, or NotIndexable when it is no text or too much of it."""
    data, status = _read(found.real)
    digest = hashlib.sha256(data).hexdigest()
    prepared: list[ChunkedText] = []
    redacted: dict[str, int] = {}
    if digest != as_it_was:
        text, redacted = redact(data.decode("utf-8-sig", "replace"))
        prepared = [chunk_text(text, chunking) for chunking in chunkings]
    return LoadedFile(digest, status.st_mtime_ns // 1_000_000, len(data), prepared, redacted)


def store(db: Db, found: WatchedFile, loaded: LoadedFile, before: IndexedFile | None) -> None:
    """Store a file and its chunks; `before` is the same file under the path it had."""
    now = clock.now()
    if before:
        db.execute("UPDATE files SET path = :path WHERE id = :id", {"path": found.path, "id": before.id})
    if found.project:
        project = {"id": clock.new_id(), "path": found.project, "name": Path(found.project).name or "/", "now": now}
        db.execute(_PROJECT, project)
    row = {
        "source": SOURCE, "path": found.path, "project": found.project, "hash": loaded.hash, "mtime": loaded.mtime,
        "size": loaded.size, "now": now,
    }  # fmt: skip
    date = date_in_name(found.name)
    created_at = round(date.timestamp() * 1000) if date else loaded.mtime
    owner = Owner("file_id", db.value(_FILE, row), SOURCE, found.path, created_at, header=file_header(found.name, date))
    for one in loaded.prepared:
        replace_chunks(db, owner, one)
    count_redactions(db, loaded.redacted, now)


def date_in_name(name: str) -> datetime | None:
    """The day that a file's name tells, if it is one."""
    given = _DATE.search(Path(name).name)
    try:
        return datetime.fromisoformat(given[0]).astimezone() if given else None
    except (ValueError, OverflowError):
        return None


def file_header(name: str, date: datetime | None) -> str:
    """What a file is also found by: its name, the words in it, and the day it tells."""
    day = f"{date:%A %d %B %Y}" if date else ""
    return " ".join(part for part in (name, other_forms(name), day) if part)


def _read(path: str) -> tuple[bytes, os.stat_result]:
    try:
        with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
            status = os.fstat(file.fileno())
            data = read_at_most(file, MAX_FILE_BYTES)
    except UnsafeFile as error:
        raise NotIndexable(str(error)) from error
    if b"\x00" in data:
        raise NotIndexable("it is not text: it holds a zero byte")
    return data, status


def read_indexed_files(db: Db) -> tuple[list[IndexedFile], list[str]]:
    """The files in the index, and the paths that were added by hand."""
    known = [IndexedFile(**row) for row in db.fetch(_KNOWN, {"source": SOURCE})]
    added = db.fetch("SELECT path FROM watched_paths ORDER BY created_at, path")
    return known, [row["path"] for row in added]
