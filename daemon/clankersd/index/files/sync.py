"""Watched markdown files: the service that keeps the index in step with them."""

import os
import time
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.errors import InvalidParams, NotFound, StorageUnavailable
from clankersd import clock
from clankersd.db import Db
from clankersd.index.files.reconcile import SOURCE, Progress, Reconciliation, SyncReport, read_indexed_files
from clankersd.index.files.scan import Scan, WatchSettings, identity_of, scan
from clankersd.index.files.watcher import Watch, WatchUnavailable
from clankersd.index.index import Index

__all__ = ["FileSync", "SyncReport", "WatchSettings"]

LOOK_SECONDS = 2.0
POLL_SECONDS = 2.0
POLL_SHARE = 10
"""Polling may keep the disk busy for a tenth of the time."""

RETRY_SECONDS = 5.0
IDLE_SECONDS = 30.0
LISTEN_AGAIN_SECONDS = 300.0

_DOUBT_ALL = "UPDATE files SET hash = '', mtime = -1 WHERE source = :source"
_ADD = "INSERT INTO watched_paths (path, created_at) VALUES (:path, :now) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM watched_paths WHERE path = :path RETURNING path"

log = structlog.get_logger(component="files")


class FileSync:
    """Keeps the index in step with the files; one comparison at a time."""

    def __init__(self, index: Index, settings: WatchSettings) -> None:
        self.settings = settings
        self.watched: list[str] = []
        self.last_sync: int | None = None
        self._synced = 0.0
        self.report = SyncReport()
        self._index = index
        self._seen = Scan()
        self._trouble: str | None = None
        self._blind: str | None = None
        self._listen_again = 0.0
        self._lock = anyio.Lock()
        self._looked = self._compared = 0  # how often; a comparison has the number of the look at the disk before it
        self._noticed, self._indexed = 1, 0  # changes: at first everything may have changed
        self._again = anyio.Event()
        index.store.on_open.append(self._doubt)

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

    async def rechunk(self, progress: Progress | None = None) -> None:
        """Read every file again and cut it in every way that the index needs now."""
        async with self._lock:  # what a comparison before this one cut for fewer indexes is doubted too
            await self._index.store.write(lambda db: db.execute(_DOUBT_ALL, {"source": SOURCE}))
        await self.sync(progress)

    async def add(self, path: Path) -> SyncReport:
        """Watch one more file or folder, and take it in."""
        whole = _absolute(path)
        if not await anyio.to_thread.run_sync(_can_be_watched, whole):
            raise InvalidParams(f"invalid params: path {path} is no folder or markdown file", {"field": "path"})
        row = {"path": whole, "now": clock.now()}
        async with self._lock:
            await self._index.store.write(lambda db: db.execute(_ADD, row))
            self._again.set()
            return await self._compare()

    async def remove(self, path: Path) -> SyncReport:
        """No longer watch what was added, and forget its files."""
        row = {"path": _absolute(path)}
        async with self._lock:
            if await self._index.store.write(lambda db: db.value(_REMOVE, row)) is None:
                raise NotFound(f"{path} is not among the paths that were added")
            self._again.set()
            return await self._compare()

    async def apply_settings(self, settings: WatchSettings) -> None:
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
            except WatchUnavailable as error:
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
                await self._pause(IDLE_SECONDS)
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
            if self._again.is_set() or self.dirty or self._is_due() or watch.folders != self._seen.folders:
                return
            if await anyio.to_thread.run_sync(self._lies_elsewhere):
                return
        self._noticed += 1
        await watch.rest(self.settings.debounce_ms)

    def _lies_elsewhere(self) -> bool:
        """Whether something else lies at a watched path than when we looked: nothing tells of that."""
        return any(identity_of(path) != identity for path, identity in self._seen.tops.items())

    def _is_due(self) -> bool:
        """Whether it is time for a comparison that has no other reason."""
        if not self.settings.sync_minutes or self.last_sync is None:
            return False
        return time.monotonic() - self._synced > self.settings.sync_minutes * 60

    async def _pause(self, seconds: float | None) -> None:
        with anyio.move_on_after(seconds):
            await self._again.wait()

    def _doubt(self, _db: Db) -> None:
        """Called with every connection: another file may have been put in the database's place."""
        self._noticed += 1

    # -- the comparison

    async def _compare(self, progress: Progress | None = None) -> SyncReport:
        started = time.monotonic()
        try:
            report = await self._look_and_settle(progress)
        except BaseException:
            self._noticed += 1  # whatever it was about to store
            raise
        report.seconds = round(time.monotonic() - started, 3)
        self._tell(report)
        self.report, self.last_sync, self._synced = report, clock.now(), time.monotonic()
        return report

    async def _look_and_settle(self, progress: Progress | None) -> SyncReport:
        if self._index.live is None:
            raise StorageUnavailable("the database is not open")
        known, added = await self._index.store.read(read_indexed_files)
        self._looked += 1
        looked, noticed = self._looked, self._noticed
        seen = await anyio.to_thread.run_sync(scan, self.settings, added, abandon_on_cancel=True)
        self._seen, self.watched = seen, _watched(self.settings, added)
        report = await Reconciliation(self._index, seen, known).settle(progress)
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


def _absolute(path: Path) -> str:
    whole = path.expanduser()
    if not whole.is_absolute():
        raise InvalidParams(f"invalid params: path {path} must begin with / or ~", {"field": "path"})
    return os.path.normpath(whole)


def _can_be_watched(path: str) -> bool:
    return Path(path).is_dir() or (path.endswith(".md") and Path(path).is_file())


def _watched(settings: WatchSettings, added: list[str]) -> list[str]:
    return list(dict.fromkeys([*map(str, settings.roots), *map(str, settings.extra), *added]))
