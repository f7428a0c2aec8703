"""The service that syncs watched markdown files with the index."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import InvalidParams, NotFound, StorageUnavailable
from clankersd import clock
from clankersd.db import Db
from clankersd.index.files.reconcile import SOURCE, Progress, Reconciliation, SyncReport, read_indexed_files
from clankersd.index.files.scan import Scan, WatchSettings, file_id_of, project_workspaces, scan
from clankersd.index.files.watcher import Watcher, WatchUnavailable
from clankersd.index.index import Index

__all__ = ["FileSync", "SyncReport", "WatchSettings"]

CHECK_SECONDS = 2.0
POLL_SECONDS = 2.0
POLL_PAUSE_FACTOR = 10
"""Polling pauses for this many times as long as the last scan took, so that it uses the disk a tenth of the time."""

RETRY_SECONDS = 5.0
IDLE_SECONDS = 30.0
WATCH_RETRY_SECONDS = 300.0
MAX_PROJECTS = 200
"""Folders of the newest sessions whose memory files are indexed."""

_FORGET_HASHES = "UPDATE files SET hash = '', mtime = -1 WHERE source = :source"
_PROJECT_PATHS = f"""
    SELECT project_path FROM sessions WHERE project_path LIKE '/%'
    GROUP BY project_path ORDER BY max(updated_at) DESC LIMIT {MAX_PROJECTS}
"""
_ADD = "INSERT INTO watched_paths (path, created_at) VALUES (:path, :now) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM watched_paths WHERE path = :path RETURNING path"

log = structlog.get_logger(component="files")


class FileSync:
    """Syncs watched files with the index, one comparison at a time."""

    def __init__(
        self, index: Index, settings: WatchSettings, is_excluded: Callable[[str], bool] = lambda path: False
    ) -> None:
        self.settings = settings
        self._is_excluded = is_excluded
        self._project_paths: set[str] = set()
        self.watched: list[str] = []
        self.last_sync: int | None = None
        self.report = SyncReport()
        self._index = index
        self._scan = Scan()
        self._synced_at = 0.0
        self._error: str | None = None
        self._watch_problem: str | None = None
        self._watch_retry_at = 0.0
        self._lock = anyio.Lock()
        # Number of scans, and the number of the scan that the last completed comparison used.
        self._scans = self._compared_scan = 0
        # Number of changes, and of those that are indexed; at first everything may have changed.
        self._changes, self._indexed_changes = 1, 0
        self._interrupted = anyio.Event()
        index.store.on_open.append(self._count_change)

    # -- for status

    @property
    def mode(self) -> Literal["watching", "polling", "off"]:
        """The way changes are detected; "off" when there is nothing to watch."""
        if not self._scan.tops:
            return "off"
        return "polling" if self.settings.poll or self._watch_problem else "watching"

    @property
    def problem(self) -> str | None:
        """The reason why the index of files may be incomplete, as a sentence."""
        if self._error or self._watch_problem:
            return self._error or self._watch_problem
        failed = self.report.failed
        return f"{len(failed)} not indexed: {failed[0]}" if failed else None

    @property
    def dirty(self) -> bool:
        """True while a detected change is not indexed yet."""
        return self._changes > self._indexed_changes

    # -- for requests

    async def sync(self, progress: Progress | None = None) -> SyncReport:
        """Compare all files with the index: files as they are at the call are indexed at the return.

        Concurrent callers share one comparison; those who call after its scan has begun share the next one.
        """
        scans_before = self._scans
        async with self._lock:
            if self._compared_scan > scans_before:
                return self.report
            return await self._compare(progress)

    async def rechunk(self, progress: Progress | None = None) -> None:
        """Read every file again and chunk it for every generation."""
        async with self._lock:  # files that an earlier comparison chunked for fewer generations are read again, too
            await self._index.store.write(lambda db: db.execute(_FORGET_HASHES, {"source": SOURCE}))
        await self.sync(progress)

    async def add(self, path: Path) -> SyncReport:
        """Watch one more file or folder, and index it."""
        absolute = _to_absolute(path)
        # unlike Path.is_file and is_dir, these raise nothing for a path that is too long or may not be looked at
        is_file = absolute.endswith(".md") and await anyio.to_thread.run_sync(os.path.isfile, absolute)
        if not is_file and not await anyio.to_thread.run_sync(os.path.isdir, absolute):
            raise InvalidParams(f"invalid params: path {path} is no folder or markdown file", {"field": "path"})
        row = {"path": absolute, "now": clock.now()}
        async with self._lock:
            await self._index.store.write(lambda db: db.execute(_ADD, row))
            self._interrupted.set()
            return await self._compare()

    async def remove(self, path: Path) -> SyncReport:
        """Stop watching a path that was added, and remove its files from the index."""
        row = {"path": _to_absolute(path)}
        async with self._lock:
            if await self._index.store.write(lambda db: db.value(_REMOVE, row)) is None:
                raise NotFound(f"{path} is not among the paths that were added")
            self._interrupted.set()
            return await self._compare()

    async def apply_settings(self, settings: WatchSettings) -> None:
        """Apply changed settings."""
        self.settings, self._watch_problem = settings, None
        self._interrupted.set()

    def add_project(self, path: str | None) -> None:
        """Have the memory files of a session's folder indexed, unless they are already."""
        if path and self.settings.projects and path.startswith("/") and path not in self._project_paths:
            self._project_paths.add(path)
            self._changes += 1
            self._interrupted.set()

    # -- the service

    async def run(self) -> None:
        """Sync for as long as the daemon runs."""
        while True:
            self._interrupted = anyio.Event()
            try:
                await self._sync_and_wait()
            except WatchUnavailable as error:
                self._watch_problem = f"polling, since the system does not report changes: {error}"
                self._watch_retry_at = time.monotonic() + WATCH_RETRY_SECONDS
                log.warning("file watching unavailable", reason=str(error))
            except StorageUnavailable as error:
                self._error = f"the file sync is waiting: {error.message}"
                await self._pause_after_error()
            except Exception as error:
                log.exception("file sync failed")
                self._error = f"the file sync failed: {error}"
                await self._pause_after_error()

    async def _sync_and_wait(self) -> None:
        """Compare once, then wait for a reason to compare again.

        Watching begins before the comparison, so that no change in between is missed.
        """
        watcher = None if self._should_poll() else await self._start_watcher()
        try:
            await self.sync()
            self._error = None
            if not self._scan.tops:
                await self._pause(IDLE_SECONDS)
            elif watcher is None:
                await self._pause(max(POLL_SECONDS, self.report.seconds * POLL_PAUSE_FACTOR))
            elif watcher.folders == self._scan.folders:
                await self._wait_for_change(watcher)
            else:  # there are new folders to watch
                await self._pause(self.settings.debounce_ms / 1000)
        finally:
            if watcher is not None:
                watcher.close()

    def _should_poll(self) -> bool:
        if self._watch_problem and time.monotonic() > self._watch_retry_at:
            self._watch_problem = None
        return self.settings.poll or self._watch_problem is not None

    async def _start_watcher(self) -> Watcher:
        try:
            return await anyio.to_thread.run_sync(Watcher, self._scan.folders, self._interrupted)
        except FileNotFoundError:  # a folder was deleted since the scan: the comparison updates the list
            return Watcher({}, self._interrupted)

    async def _wait_for_change(self, watcher: Watcher) -> None:
        while not await watcher.wait_for_change(CHECK_SECONDS):
            if self._interrupted.is_set() or self.dirty or self._is_due() or watcher.folders != self._scan.folders:
                return
            if await anyio.to_thread.run_sync(self._is_top_replaced):
                return
        self._changes += 1
        await watcher.wait_until_quiet(self.settings.debounce_ms)

    def _is_top_replaced(self) -> bool:
        """Tell whether another file or folder is now at a watched path, which the system does not report."""
        return any(file_id_of(path) != file_id for path, file_id in self._scan.tops.items())

    def _is_due(self) -> bool:
        """Tell whether it is time for a periodic comparison."""
        if not self.settings.sync_minutes or self.last_sync is None:
            return False
        return time.monotonic() - self._synced_at > self.settings.sync_minutes * 60

    async def _pause_after_error(self) -> None:
        self._interrupted = anyio.Event()  # closing the watcher has set the last one, and there would be no pause
        await self._pause(RETRY_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._interrupted.wait()

    def _count_change(self, _db: Db) -> None:
        """Compare again after each new connection: the database file may have been replaced."""
        self._changes += 1

    # -- the comparison

    async def _compare(self, progress: Progress | None = None) -> SyncReport:
        started = time.monotonic()
        try:
            report = await self._scan_and_reconcile(progress)
        except BaseException:
            self._changes += 1  # those that the comparison did not store
            raise
        report.seconds = round(time.monotonic() - started, 3)
        self._log_report(report)
        self.report, self.last_sync, self._synced_at = report, clock.now(), time.monotonic()
        return report

    async def _scan_and_reconcile(self, progress: Progress | None) -> SyncReport:
        if self._index.live is None:
            raise StorageUnavailable("the database is not open")
        indexed, added = await self._index.store.read(read_indexed_files)
        self._scans += 1
        scan_number, changes = self._scans, self._changes
        settings = await self._with_projects()
        self._scan = current = await anyio.to_thread.run_sync(scan, settings, added, abandon_on_cancel=True)
        configured = [str(path) for path in (*self.settings.roots, *self.settings.extra)]
        found = sorted({file.workspace for file in current.files.values() if file.workspace})
        self.watched = list(dict.fromkeys([*configured, *added, *found]))
        report = await Reconciliation(self._index, current, indexed).run(progress)
        self._compared_scan, self._indexed_changes = scan_number, changes
        return report

    async def _with_projects(self) -> WatchSettings:
        """Return the settings with the folders of the sessions' projects as further workspaces."""
        if not self.settings.projects:
            return self.settings
        rows = await self._index.store.read(lambda db: db.tuples(_PROJECT_PATHS))
        paths = [row[0] for row in rows]
        self._project_paths.update(paths)
        workspaces = await anyio.to_thread.run_sync(project_workspaces, paths, self._is_excluded)
        return replace(self.settings, roots=tuple(dict.fromkeys([*self.settings.roots, *workspaces])))

    def _log_report(self, report: SyncReport) -> None:
        for failure in set(report.failed) - set(self.report.failed):
            log.warning("file not indexed", failure=failure)
        if report.added or report.changed or report.removed or report.moved:
            log.info(
                "files synced", added=report.added, changed=report.changed, removed=report.removed, moved=report.moved,
                seconds=report.seconds,
            )  # fmt: skip


def _to_absolute(path: Path) -> str:
    expanded = os.path.expanduser(path)  # noqa: PTH111 - pathlib's raises for an unknown user
    if not expanded.startswith("/"):
        raise InvalidParams(f"invalid params: path {path} must begin with / or ~", {"field": "path"})
    return os.path.normpath(expanded)
