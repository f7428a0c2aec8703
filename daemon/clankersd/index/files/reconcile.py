"""Reconciliation of watched files with the index: read and chunked in worker threads, stored one file at a time."""

import hashlib
import json
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
from clankersd.db import Db
from clankersd.index.chunks import ChunkedText, Chunking, Owner, chunk_text, replace_chunks
from clankersd.index.files.scan import Scan, WatchedFile
from clankersd.index.index import Index
from clankersd.index.tokenize import other_forms
from clankersd.projects import ensure_project
from clankersd.redaction.engine import count_redactions, redact
from clankersd.safe_files import UnsafeFile, open_regular, read_at_most

SOURCE = "memory"
MAX_FILE_BYTES = 10 * 1024 * 1024
MTIME_RESOLUTION_MS = 2000
"""A file may change twice within one tick of its clock: this soon after a change, equal time and size prove nothing."""

_INDEXED_FILES = """
    SELECT files.id, files.path, hash, mtime, size, indexed_at, (
        SELECT json_group_array(project_folders.path) FROM project_folders
        WHERE project_folders.project_id = files.project_id
    ) AS projects
    FROM files WHERE source = :source
"""
_STORE = """
    INSERT INTO files (source, path, project_id, hash, mtime, size, indexed_at)
    VALUES (:source, :path, :project_id, :hash, :mtime, :size, :now)
    ON CONFLICT (source, path) DO UPDATE SET
        project_id = excluded.project_id, hash = excluded.hash, mtime = excluded.mtime, size = excluded.size,
        indexed_at = excluded.indexed_at
    RETURNING id
"""
_UPDATE_MTIME = "UPDATE files SET mtime = :mtime, size = :size, indexed_at = :now WHERE id = :id AND path = :path"
_DELETE = "DELETE FROM files WHERE id = :id AND path = :path"

_DATE = re.compile(r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)")

Progress = Callable[[int, int | None, str | None], Awaitable[None]]

log = structlog.get_logger(component="files")


@dataclass
class SyncReport:
    """The result of a sync: numbers of files, and path and reason of each failure."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    moved: int = 0
    unchanged: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0


@dataclass(frozen=True)
class IndexedFile:
    """A file as it is in the index; `mtime` and `indexed_at` are in milliseconds.

    `projects` lists the folders of its project as JSON; an empty list if it has none.
    """

    id: int
    path: str
    hash: str
    mtime: int
    size: int
    indexed_at: int
    projects: str

    def is_of_project(self, file: WatchedFile) -> bool:
        """Tell whether the index has the file in the project that it belongs to."""
        folders = json.loads(self.projects)
        return file.project.path in folders if file.project else not folders

    def is_up_to_date(self, file: WatchedFile) -> bool:
        """Tell whether the file is unchanged by its metadata, so that it need not be read."""
        return (
            (self.mtime, self.size) == (file.mtime, file.size)
            and self.is_of_project(file)
            and abs(self.indexed_at - self.mtime) > MTIME_RESOLUTION_MS
        )  # fmt: skip


@dataclass(frozen=True)
class LoadedFile:
    """A file's content, chunked for every generation; `chunked` is empty when the content is unchanged."""

    hash: str
    mtime: int
    size: int
    chunked: list[ChunkedText]
    redacted: dict[str, int]


class NotIndexable(Exception):
    """The file is not text that can be indexed; the message says why."""


class Reconciliation:
    """One comparison of the files on disk with those in the index."""

    def __init__(self, index: Index, scan: Scan, indexed: list[IndexedFile]) -> None:
        self._index = index
        self._scan = scan
        self._indexed = {row.path: row for row in indexed}
        gone = [row for row in indexed if row.path not in scan.files and not scan.might_hold(row.path)]
        self._gone = {row.id: row for row in gone}
        self._gone_by_hash: dict[str, list[IndexedFile]] = {}
        for row in gone:
            self._gone_by_hash.setdefault(row.hash, []).append(row)
        self._report = SyncReport(failed=list(scan.failed))

    async def run(self, progress: Progress | None) -> SyncReport:
        """Update the index, one file at a time; raises StorageUnavailable when it cannot continue."""
        changed = []
        for file in self._scan.files.values():
            row = self._indexed.get(file.path)
            if row is not None and row.is_up_to_date(file):
                self._report.unchanged += 1
            else:
                changed.append(file)
        for number, file in enumerate(changed):
            if progress:
                await progress(number, len(changed), file.path)
            await self._index_file(file)
        for row in list(self._gone.values()):
            await self._remove(row)
        return self._report

    async def _index_file(self, file: WatchedFile) -> None:
        row = self._indexed.get(file.path)
        known_hash = row.hash if row and row.is_of_project(file) else None
        try:
            chunkings = self._index.chunkings("memory")
            loaded = await anyio.to_thread.run_sync(load_file, file, chunkings, known_hash, abandon_on_cancel=True)
            if row and loaded.hash == known_hash:
                await self._update_mtime(row, loaded)
            else:
                await self._store(file, loaded, row)
        except StorageUnavailable:
            raise
        except FileNotFoundError:
            return  # it was deleted since the scan: the next comparison removes it
        except NotIndexable as error:
            self._add_failure(file, str(error))
            if row:
                await self._remove(row)
        except OSError as error:
            self._add_failure(file, error.strerror or str(error))
        except Exception as error:
            log.exception("file index failed", path=file.path)
            self._add_failure(file, str(error))

    async def _update_mtime(self, row: IndexedFile, loaded: LoadedFile) -> None:
        params = {"id": row.id, "path": row.path, "mtime": loaded.mtime, "size": loaded.size, "now": clock.now()}
        await self._index.store.write(lambda db: db.execute(_UPDATE_MTIME, params), bulk=True)
        self._report.unchanged += 1

    async def _store(self, file: WatchedFile, loaded: LoadedFile, row: IndexedFile | None) -> None:
        same_content = self._gone_by_hash.get(loaded.hash)
        moved_from = same_content.pop() if same_content and row is None else None
        await self._index.store.write(lambda db: store_file(db, file, loaded, moved_from), bulk=True)
        self._index.wake()
        if moved_from:
            del self._gone[moved_from.id]
            self._report.moved += 1
        elif row:
            self._report.changed += 1
        else:
            self._report.added += 1

    async def _remove(self, row: IndexedFile) -> None:
        params = {"id": row.id, "path": row.path}
        await self._index.store.write(lambda db: db.execute(_DELETE, params), bulk=True)
        self._report.removed += 1

    def _add_failure(self, file: WatchedFile, reason: str) -> None:
        self._report.failed.append(f"{file.path}: {reason}")


def load_file(file: WatchedFile, chunkings: list[Chunking], known_hash: str | None) -> LoadedFile:
    """Read and chunk a file; raises OSError, or NotIndexable when it is not text or too large."""
    try:
        with open_regular(file.real, max_bytes=MAX_FILE_BYTES) as opened:
            status = os.fstat(opened.fileno())
            data = read_at_most(opened, MAX_FILE_BYTES)
    except UnsafeFile as error:
        raise NotIndexable(str(error)) from error
    if b"\x00" in data:
        raise NotIndexable("it is not text: it holds a zero byte")
    digest = hashlib.sha256(data).hexdigest()
    chunked: list[ChunkedText] = []
    redacted: dict[str, int] = {}
    if digest != known_hash:
        text, redacted = redact(data.decode("utf-8-sig", "replace"))
        chunked = [chunk_text(text, chunking) for chunking in chunkings]
    return LoadedFile(digest, status.st_mtime_ns // 1_000_000, len(data), chunked, redacted)


def store_file(db: Db, file: WatchedFile, loaded: LoadedFile, moved_from: IndexedFile | None) -> None:
    """Store a file and its chunks; `moved_from` is the same file under its previous path."""
    now = clock.now()
    if moved_from:
        db.execute("UPDATE files SET path = :path WHERE id = :id", {"path": file.path, "id": moved_from.id})
    row = {
        "source": SOURCE, "path": file.path, "project_id": file.project and ensure_project(db, file.project),
        "hash": loaded.hash, "mtime": loaded.mtime, "size": loaded.size, "now": now,
    }  # fmt: skip
    date = date_in_name(file.name)
    created_at = round(date.timestamp() * 1000) if date else loaded.mtime
    owner = Owner("file_id", db.value(_STORE, row), SOURCE, file.path, created_at, header=file_header(file.name, date))
    for chunked in loaded.chunked:
        replace_chunks(db, owner, chunked)
    count_redactions(db, loaded.redacted, now)


def date_in_name(name: str) -> datetime | None:
    """Parse the date in a file's name, if it has a valid one."""
    match = _DATE.search(Path(name).name)
    try:
        return datetime.fromisoformat(match[0]).astimezone() if match else None
    except (ValueError, OverflowError):
        return None


def file_header(name: str, date: datetime | None) -> str:
    """Return text that a search for the file also matches: its name, the words in it, and its date."""
    day = f"{date:%A %d %B %Y}" if date else ""
    return " ".join(part for part in (name, other_forms(name), day) if part)


def read_indexed_files(db: Db) -> tuple[list[IndexedFile], list[str]]:
    """Read the files in the index, and the paths that were added at run time."""
    indexed = [IndexedFile(**row) for row in db.fetch(_INDEXED_FILES, {"source": SOURCE})]
    added = db.fetch("SELECT path FROM watched_paths ORDER BY created_at, path")
    return indexed, [row["path"] for row in added]
