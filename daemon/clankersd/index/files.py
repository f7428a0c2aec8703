"""Watched markdown files in the index: read and cut in threads, stored a file at a time, in step with the disk."""

import hashlib
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import InvalidParams, NotFound, StorageUnavailable
from clankersd import clock
from clankersd.db import Db
from clankersd.index.chunks import Chunking, Owner, Prepared, prepare, replace
from clankersd.index.index import Index
from clankersd.index.survey import Found, Survey, WatchSettings, identity_of, survey
from clankersd.index.watcher import Blind, Watch
from clankersd.index.words import other_forms

__all__ = ["FileSync", "SyncReport", "WatchSettings"]

SOURCE = "memory"
LARGEST = 10 * 1024 * 1024
SAME_MOMENT_MS = 2000
"""A file may change twice within its clock's tick: so soon after a change, the same time and size prove nothing."""

LOOK_SECONDS = 2.0
POLL_SECONDS = 2.0
POLL_SHARE = 10
"""Polling may keep the disk busy for a tenth of the time."""

RETRY_SECONDS = 5.0
LISTEN_AGAIN_SECONDS = 300.0

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
_TOUCH = "UPDATE files SET mtime = :mtime, size = :size, indexed_at = :now WHERE id = :id"
_DOUBT_ALL = "UPDATE files SET hash = '', mtime = -1 WHERE source = :source"
_ADD = "INSERT INTO watched_paths (path, created_at) VALUES (:path, :now) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM watched_paths WHERE path = :path RETURNING path"

_DATE = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)(?!\d)")

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
class Known:
    """A file as it is in the index."""

    id: int
    path: str
    hash: str
    mtime: int
    size: int
    indexed_at: int
    project: str | None

    def looks_like(self, found: Found) -> bool:
        """Whether the file need not even be read."""
        return (
            (self.mtime, self.size, self.project) == (found.mtime, found.size, found.project)
            and abs(self.indexed_at - self.mtime) > SAME_MOMENT_MS
        )  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """A file as it was read, cut in every way that is needed; not cut at all when it is as it was."""

    hash: str
    mtime: int
    size: int
    prepared: list[Prepared]


class Refused(Exception):
    """A file that is no text to be indexed; the message says why."""


class FileSync:
    """Keeps the index in step with the files; one comparison at a time."""

    def __init__(self, index: Index, settings: WatchSettings) -> None:
        self.settings = settings
        self.watched: list[str] = []
        self.last_sync: int | None = None
        self.report = SyncReport()
        self._index = index
        self._seen = Survey()
        self._trouble: str | None = None
        self._blind: str | None = None
        self._listen_again = 0.0
        self._lock = anyio.Lock()
        self._looked = self._compared = 0  # how often; a comparison has the number of the look at the disk before it
        self._noticed, self._indexed = 1, 0  # changes: at first everything may have changed
        self._again = anyio.Event()

    # -- for status

    @property
    def mode(self) -> str:
        """How changes are noticed: "watching", "polling", or "off" when there is nothing to watch."""
        if not self._seen.tops:
            return "off"
        return "polling" if self.settings.poll or self._blind else "watching"

    @property
    def problem(self) -> str | None:
        """What is in the way of a complete index, in a sentence."""
        if self._trouble or self._blind:
            return self._trouble or self._blind
        failed = self.report.failed
        return f"{len(failed)} not indexed: {failed[0]}" if failed else None

    @property
    def dirty(self) -> bool:
        """Whether something changed that is not indexed yet."""
        return self._noticed > self._indexed

    # -- for requests

    async def sync(self, progress: Progress | None = None) -> SyncReport:
        """Compare all files with the index: what lay on the disk at the call is indexed at the return.

        Callers who come together share one comparison; those who come when it has begun share the next.
        """
        asked = self._looked
        async with self._lock:
            if self._compared > asked:
                return self.report
            return await self._compare(progress)

    async def recut(self, progress: Progress | None = None) -> None:
        """Read every file again and cut it in every way that the index needs now."""
        async with self._lock:  # what a comparison before this one cut for fewer indexes is doubted too
            await self._index.store.write(lambda db: db.execute(_DOUBT_ALL, {"source": SOURCE}))
        await self.sync(progress)

    async def add(self, path: Path) -> None:
        """Watch one more file or folder; the next sync takes it in."""
        row = {"path": _absolute(path), "now": clock.now()}
        if not await anyio.to_thread.run_sync(_can_be_watched, row["path"]):
            raise InvalidParams(f"invalid params: path {path} is no folder or markdown file", {"field": "path"})
        await self._index.store.write(lambda db: db.execute(_ADD, row))
        self._again.set()

    async def remove(self, path: Path) -> None:
        """No longer watch what was added; the next sync forgets its files."""
        row = {"path": _absolute(path)}
        if await self._index.store.write(lambda db: db.value(_REMOVE, row)) is None:
            raise NotFound(f"{path} is not among the paths that were added")
        self._again.set()

    async def change(self, settings: WatchSettings) -> None:
        """Apply changed settings."""
        self.settings, self._blind = settings, None
        self._again.set()

    # -- the service

    async def run(self) -> None:
        """Keep in step for as long as the daemon lives."""
        while True:
            self._again = anyio.Event()
            try:
                await self._keep_in_step()
                self._trouble = None
            except Blind as error:
                self._poll_for_a_while(str(error))
            except StorageUnavailable as error:
                self._trouble = f"the files wait: {error.message}"
                await self._pause(RETRY_SECONDS)
            except Exception as error:
                log.exception("file sync stumbled")
                self._trouble = f"the file sync stumbled: {error}"
                await self._pause(RETRY_SECONDS)

    async def _keep_in_step(self) -> None:
        """One comparison, and the wait for a reason to make another.

        It listens before it compares, so that nothing happens unnoticed in between.
        """
        watch = None if self._polls() else await self._listen()
        try:
            await self.sync()
            self._trouble = None
            if not self._seen.tops:
                await self._pause(self._until_due())
            elif watch is None:
                await self._pause(max(POLL_SECONDS, self.report.seconds * POLL_SHARE))
            elif watch.folders == self._seen.folders:
                await self._wait_for_change(watch)
            else:  # there are new folders to listen to, soon
                await self._pause(self.settings.debounce_ms / 1000)
        finally:
            if watch is not None:
                watch.close()

    def _polls(self) -> bool:
        if self._blind and time.monotonic() > self._listen_again:
            self._blind = None
        return self.settings.poll or self._blind is not None

    def _poll_for_a_while(self, reason: str) -> None:
        self._blind = f"polling, as changes are not told of: {reason}"
        self._listen_again = time.monotonic() + LISTEN_AGAIN_SECONDS
        log.warning("polling", reason=reason)

    async def _listen(self) -> Watch:
        try:
            return await anyio.to_thread.run_sync(Watch, self._seen.folders, self._again)
        except FileNotFoundError:  # a folder went away since: the comparison will tell which there are
            return Watch({}, self._again)

    async def _wait_for_change(self, watch: Watch) -> None:
        while not await watch.changed(LOOK_SECONDS):
            due = self._until_due()
            if self._again.is_set() or (due is not None and due <= 0) or await anyio.to_thread.run_sync(self._moved):
                return
        self._noticed += 1
        await watch.rest(self.settings.debounce_ms)

    def _moved(self) -> bool:
        """Whether something else lies at one of the watched paths than when we looked: nothing tells of that."""
        try:
            return any(identity_of(path) != identity for path, identity in self._seen.tops.items())
        except OSError:
            return False

    def _until_due(self) -> float | None:
        """Seconds until the next comparison that is made without a reason."""
        if not self.settings.sync_minutes or self.last_sync is None:
            return None
        return self.settings.sync_minutes * 60 - (clock.now() - self.last_sync) / 1000

    async def _pause(self, seconds: float | None) -> None:
        with anyio.move_on_after(seconds):
            await self._again.wait()

    # -- the comparison

    async def _compare(self, progress: Progress | None) -> SyncReport:
        started = time.monotonic()
        known, added = await self._index.store.read(_read_known)
        self._looked += 1
        looked, noticed = self._looked, self._noticed
        seen = await anyio.to_thread.run_sync(survey, self.settings, added, abandon_on_cancel=True)
        self._seen, self.watched = seen, _watched(self.settings, added)
        report = await Comparison(self._index, seen, known).settle(progress)
        report.seconds = round(time.monotonic() - started, 3)
        self._tell(report)
        self.report, self.last_sync = report, clock.now()
        self._compared, self._indexed = looked, noticed
        return report

    def _tell(self, report: SyncReport) -> None:
        for failure in set(report.failed) - set(self.report.failed):
            log.warning("file not indexed", failure=failure)
        if report.added or report.changed or report.removed or report.moved:
            log.info(
                "synced", added=report.added, changed=report.changed, removed=report.removed, moved=report.moved,
                seconds=report.seconds,
            )  # fmt: skip


class Comparison:
    """One comparison of what is on the disk with what is in the index."""

    def __init__(self, index: Index, seen: Survey, known: list[Known]) -> None:
        self._index = index
        self._seen = seen
        self._known = {row.path: row for row in known}
        self._gone = {row.id: row for row in known if row.path not in seen.files and not seen.might_hold(row.path)}
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

    def _is_known(self, found: Found) -> bool:
        row = self._known.get(found.path)
        return row is not None and row.looks_like(found)

    async def _take_in(self, found: Found) -> None:
        row = self._known.get(found.path)
        as_it_was = row.hash if row and row.project == found.project else None
        try:
            chunkings = self._index.chunkings()
            loaded = await anyio.to_thread.run_sync(load, found, chunkings, as_it_was, abandon_on_cancel=True)
            await self._store(found, loaded, row, as_it_was)
        except StorageUnavailable:
            raise
        except FileNotFoundError:
            return  # it went away since: the next comparison forgets it
        except Refused as refusal:
            self._fail(found, str(refusal))
            if row:
                await self._forget(row)
        except OSError as error:
            self._fail(found, error.strerror or str(error))
        except Exception as error:
            log.exception("file stumbled", path=found.path)
            self._fail(found, str(error))

    async def _store(self, found: Found, loaded: Loaded, row: Known | None, as_it_was: str | None) -> None:
        if row and loaded.hash == as_it_was:
            touched = {"id": row.id, "mtime": loaded.mtime, "size": loaded.size, "now": clock.now()}
            await self._index.store.write(lambda db: db.execute(_TOUCH, touched))
            self._report.unchanged += 1
            return
        before = None if row else self._moved_from(loaded.hash)
        await self._index.store.write(lambda db: store(db, found, loaded, before))
        self._index.wake()
        if before:
            del self._gone[before.id]
        self._report.changed += row is not None
        self._report.moved += before is not None
        self._report.added += row is None and before is None

    def _moved_from(self, digest: str) -> Known | None:
        return next((row for row in self._gone.values() if row.hash == digest), None)

    async def _forget(self, row: Known) -> None:
        await self._index.store.write(lambda db: db.execute("DELETE FROM files WHERE id = :id", {"id": row.id}))
        self._report.removed += 1

    def _fail(self, found: Found, reason: str) -> None:
        self._report.failed.append(f"{found.path}: {reason}")


def load(found: Found, chunkings: list[Chunking], as_it_was: str | None) -> Loaded:
    """Read and cut a file; raises OSError, or Refused when it is no text or too much of it."""
    data, status = _read(found.real)
    digest = hashlib.sha256(data).hexdigest()
    prepared: list[Prepared] = []
    if digest != as_it_was:
        text = data.decode("utf-8-sig", "replace")
        prepared = [prepare(text, chunking) for chunking in chunkings]
    return Loaded(digest, status.st_mtime_ns // 1_000_000, len(data), prepared)


def store(db: Db, found: Found, loaded: Loaded, before: Known | None) -> None:
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
    date = date_in(found.name)
    created_at = round(date.timestamp() * 1000) if date else loaded.mtime
    owner = Owner("file_id", db.value(_FILE, row), SOURCE, found.path, created_at, header=header(found.name, date))
    for one in loaded.prepared:
        replace(db, owner, one)


def date_in(name: str) -> datetime | None:
    """The day that a file's name tells, if it is one."""
    given = _DATE.search(Path(name).name)
    try:
        return datetime(*map(int, given.groups())).astimezone() if given else None  # type: ignore[arg-type]  # noqa: DTZ001
    except (ValueError, OverflowError):
        return None


def header(name: str, date: datetime | None) -> str:
    """What a file is also found by: its name, the words in it, and the day it tells."""
    day = f"{date:%A %d %B %Y}" if date else ""
    return " ".join(part for part in (name, other_forms(name), day) if part)


def _read(path: str) -> tuple[bytes, os.stat_result]:
    # Neither a link nor a pipe that was put in the file's place may lead away or hold up the thread.
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("it is not a regular file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise Refused(f"it is larger than {LARGEST // 1024 // 1024} MiB")
    if b"\x00" in data:
        raise Refused("it is not text: it holds a zero byte")
    return data, status


def _read_known(db: Db) -> tuple[list[Known], list[str]]:
    known = [Known(**row) for row in db.fetch(_KNOWN, {"source": SOURCE})]
    added = db.fetch("SELECT path FROM watched_paths ORDER BY created_at, path")
    return known, [row["path"] for row in added]


def _absolute(path: Path) -> str:
    whole = path.expanduser()
    if not whole.is_absolute():
        raise InvalidParams(f"invalid params: path {path} must begin with / or ~", {"field": "path"})
    return os.path.normpath(whole)


def _can_be_watched(path: str) -> bool:
    return Path(path).is_dir() or (path.endswith(".md") and Path(path).is_file())


def _watched(settings: WatchSettings, added: list[str]) -> list[str]:
    return list(dict.fromkeys([*map(str, settings.roots), *map(str, settings.extra), *added]))
