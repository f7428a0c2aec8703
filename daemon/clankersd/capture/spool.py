"""Replay of the events that hooks spooled, oldest first. A file that cannot be replayed never delays the others."""

import heapq
import os
import stat
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog

from clankers_protocol.capture import SkippedEvent
from clankers_protocol.errors import RpcError, StorageUnavailable
from clankers_protocol.events import HookEvent
from clankersd.capture.hooks import PreparedHook, apply_hook, prepare_hook
from clankersd.index.index import Index
from clankersd.safe_files import UnsafeFile, printable_name, read_regular
from clankersd.wire import rpc
from clankersd.wire.large_json import convert_large

if TYPE_CHECKING:
    from clankersd.app import Daemon

REPLAY_SECONDS = 5.0
MAX_EVENTS_PER_BATCH = 200
MAX_BATCH_BYTES = 32 * 1024 * 1024
MAX_EVENT_BYTES = 200 * 1024 * 1024
"""More than a hook spools: a larger file is no event."""

MAX_LISTED = 20_000
"""File names remembered from one listing of the directory, so that a huge spool is not listed for every batch."""

SETTLED_NS = 100_000_000
"""Age from which a directory's modification time proves that nothing was added since it was listed."""

RETRY_SECONDS = 60.0
"""Interval between attempts at a file that can be neither replayed nor moved."""

MAX_SKIPPED = 100_000
UNFINISHED_SECONDS = 60.0
"""Age from which an unfinished file belongs to a hook that was killed."""

MAX_REJECTED = 1000
MAX_REJECTED_BYTES = 256 * 1024 * 1024
"""Limits for events that can never be stored, which the owner may want to see; the oldest are removed."""

log = structlog.get_logger(component="spool")


@dataclass(frozen=True)
class Skipped:
    """A file that could be neither replayed nor moved."""

    problem: str
    retry_at: float


class Spool:
    """The directory that hooks write events to while the daemon is unavailable.

    `problem` says why the directory cannot be read. `skipped` holds the files that stay where they are. `rejected` is
    the number of files in the directory `rejected`, `reasons` says why this process moved them there.
    """

    def __init__(self, daemon: "Daemon", folder: Path) -> None:
        self.problem: str | None = None
        self.skipped: dict[str, Skipped] = {}
        self.rejected = 0
        self.reasons: dict[str, str] = {}
        self._daemon = daemon
        self._folder = folder
        self._lock = anyio.Lock()
        self._listed: deque[str] = deque()
        self._settled: tuple[int, int] | None = None

    async def run(self) -> None:
        """Replay what was spooled while the daemon was away: now, and whenever something appears."""
        while True:
            async with self._lock:
                await anyio.to_thread.run_sync(self._tidy)
            await self.catch_up()
            await anyio.sleep(REPLAY_SECONDS)

    async def catch_up(self) -> None:
        """Replay everything that can be stored: before a later event, so that an old one does not undo it."""
        if self._is_settled() and not self._lock.locked():  # nearly always: every event calls this
            return
        async with self._lock:
            while replayed := await self._replay_batch():
                log.info("spool replayed", events=replayed)

    def count_rejected(self) -> None:
        """Count the rejected files again: after a start, or because some were deleted."""
        self.rejected = _count(self._folder / "rejected")

    def warnings(self) -> list[str]:
        """Describe the events that cannot be replayed, each with what to do."""
        warnings = []
        if skipped := list(self.skipped.items()):  # a copy: a thread may add to them
            name, first = skipped[0]
            more = f" (and {len(skipped) - 1:,} more)" if len(skipped) > 1 else ""
            warnings.append(
                f"spooled event {printable_name(name)} is skipped: {first.problem}{more}; "
                f"repair or remove it in {self._folder}"
            )
        if self.rejected:
            warnings.append(
                f"{self.rejected:,} spooled event{'s' if self.rejected > 1 else ''} could not be stored: "
                "clankers-ctl capture status"
            )
        return warnings

    def skipped_events(self) -> list[SkippedEvent]:
        return [SkippedEvent(printable_name(name), skipped.problem) for name, skipped in list(self.skipped.items())]

    def _is_settled(self) -> bool:
        """Tell whether the directory is as it was when a listing found nothing to replay."""
        try:
            status = os.stat(self._folder)  # noqa: PTH116  # once for every event
        except FileNotFoundError:
            return self.problem is None and not self._folder.is_symlink()
        except OSError:
            return self.problem is not None
        return self._settled == (status.st_ino, status.st_mtime_ns)

    def _tidy(self) -> None:
        """Retry skipped files, complete what killed hooks left, and count the rejected files."""
        now = time.monotonic()
        due = [name for name, skipped in list(self.skipped.items()) if skipped.retry_at <= now]
        for name in due:
            self.skipped.pop(name, None)
        if due:
            self._settled = None
        _finish_unfinished(self._folder)
        self.count_rejected()

    async def _replay_batch(self) -> int:
        """Store the oldest events in order and remove their files; returns the number of files dealt with."""
        events = await anyio.to_thread.run_sync(self._read_batch)
        done: list[str] = []
        failed: dict[str, str] = {}
        waiting: list[str] = []
        async with anyio.create_task_group() as tasks:  # each its own change, all in one commit
            for name, event in events:
                tasks.start_soon(self._replay, name, event, done, failed, waiting)
        if done or failed:
            await anyio.to_thread.run_sync(self._clear, done, failed)
        self._listed.extendleft(sorted(waiting, reverse=True))
        self._daemon.index.wake()
        self._daemon.transcripts.wake()
        return 0 if waiting else len(events)

    async def _replay(
        self, name: str, event: PreparedHook | Exception, done: list[str], failed: dict[str, str], waiting: list[str]
    ) -> None:
        try:
            if isinstance(event, Exception):
                raise event
            await self._daemon.store.write(partial(apply_hook, hook=event, pauses=self._daemon.pauses), bulk=True)
        except StorageUnavailable as error:
            log.debug("spool waits for storage", problem=error.message)
            waiting.append(name)
        except FileNotFoundError:
            pass  # it was removed by another program
        except (OSError, MemoryError) as error:
            if isinstance(error, PermissionError):
                failed[name] = f"it cannot be read: {error.strerror}"
            else:  # it may be readable later
                self._skip(name, f"it cannot be read: {str(error) or type(error).__name__}")
        except UnsafeFile as error:
            failed[name] = str(error)
        except RpcError as error:
            failed[name] = error.message
        except Exception as error:
            failed[name] = repr(error)
        else:
            done.append(name)

    def _read_batch(self) -> list[tuple[str, PreparedHook | Exception]]:
        """Read the next files of the listing, at most MAX_EVENTS_PER_BATCH and about MAX_BATCH_BYTES."""
        if not self._listed:
            self._list()
        events: list[tuple[str, PreparedHook | Exception]] = []
        length = 0
        while self._listed and len(events) < MAX_EVENTS_PER_BATCH:
            name = self._listed[0]
            with suppress(OSError):
                length += min(os.lstat(self._folder / name).st_size, MAX_EVENT_BYTES)
            if events and length > MAX_BATCH_BYTES:
                break
            self._listed.popleft()
            events.append((name, _read(self._daemon.index, self._folder / name)))
        return events

    def _list(self) -> None:
        """List the oldest files; sets `problem` where the directory cannot be read."""
        try:
            status = os.stat(self._folder)  # noqa: PTH116
            if stat.S_ISDIR(status.st_mode) and status.st_uid != os.geteuid():
                raise UnsafeFile(f"it belongs to another user (uid {status.st_uid})")
            with os.scandir(self._folder) as entries:
                names = (entry.name for entry in entries if entry.name.endswith(".json"))
                known = self.skipped if len(self.skipped) < MAX_SKIPPED else None
                oldest = [] if known is None else heapq.nsmallest(MAX_LISTED, (n for n in names if n not in known))
        except FileNotFoundError:
            dangling = self._folder.is_symlink()
            self._set_problem("it is a link that leads nowhere" if dangling else None, f"rm {self._folder}")
        except UnsafeFile as error:
            self._set_problem(str(error), f"sudo chown -R {os.geteuid()} {self._folder}")
        except NotADirectoryError:
            self._set_problem("it is not a directory", "move it away")
        except OSError as error:
            self._set_problem(f"it cannot be read: {error.strerror}", f"chmod 700 {self._folder}")
        else:
            self._set_problem(None)
            self._listed.extend(oldest)
            if not oldest and time.time_ns() - status.st_mtime_ns > SETTLED_NS:
                self._settled = status.st_ino, status.st_mtime_ns

    def _set_problem(self, reason: str | None, advice: str = "") -> None:
        problem = reason and f"the spool directory {self._folder} cannot be used: {reason}; {advice}"
        if problem and problem != self.problem:
            log.error("spool directory unusable", problem=problem)
        self.problem = problem or None

    def _clear(self, done: list[str], failed: dict[str, str]) -> None:
        """Remove the files of stored events, and move those of events that can never be stored to `rejected`."""
        for name in done:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                self._skip(name, f"it is stored, but cannot be removed: {error.strerror}")
        for name, reason in failed.items():
            try:
                self._reject(name, reason)
            except FileNotFoundError:
                pass  # it vanished
            except OSError as error:
                self._skip(name, f"{reason}; it cannot be moved to rejected: {error.strerror}")
        if failed:
            with suppress(OSError):
                make_room(self._folder / "rejected")
            self.rejected = _count(self._folder / "rejected")

    def _reject(self, name: str, reason: str) -> None:
        rejected = self._folder / "rejected"
        rejected.mkdir(mode=0o700, exist_ok=True)
        if rejected.is_symlink():
            raise NotADirectoryError(0, "it is a symbolic link")
        target = rejected / name
        if os.path.lexists(target):
            target = rejected / f"{name.removesuffix('.json')}-{time.time_ns()}.json"
        (self._folder / name).rename(target)
        while len(self.reasons) >= MAX_REJECTED:
            del self.reasons[next(iter(self.reasons))]
        self.reasons[printable_name(target)] = reason
        log.error("spooled event rejected", file=printable_name(name), problem=reason)

    def _skip(self, name: str, problem: str) -> None:
        log.error("spooled event skipped", file=printable_name(name), problem=problem)
        self.skipped[name] = Skipped(problem, time.monotonic() + RETRY_SECONDS)


def _read(index: Index, path: Path) -> PreparedHook | Exception:
    """Read and prepare a spooled event; returns the error if that fails."""
    try:
        data = read_regular(path, max_bytes=MAX_EVENT_BYTES, owner=os.geteuid(), single_link=True)
        return prepare_hook(index, convert_large(rpc.decode(data), HookEvent))
    except Exception as error:
        return error


def _finish_unfinished(folder: Path) -> None:
    """Treat the temporary file of a hook that was killed as complete; parsing decides whether it is."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".unfinished"):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    path = Path(entry.path)
                    if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > UNFINISHED_SECONDS:
                        path.rename(path.with_suffix(".json"))


def make_room(rejected: Path) -> None:
    """Remove the oldest rejected files, by name, which begins with the time of the event.

    A file that exceeds the size limit alone goes before all others, which it would otherwise displace. Folders are left
    alone: no hook wrote them.
    """
    sizes: dict[Path, int] = {}
    for path in sorted(rejected.iterdir(), reverse=True):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                sizes[path] = status.st_size
    total = 0
    for count, (path, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1] > MAX_REJECTED_BYTES), 1):
        total += size
        if count > MAX_REJECTED or (count > 1 and total > MAX_REJECTED_BYTES):
            path.unlink(missing_ok=True)


def _count(rejected: Path) -> int:
    try:
        with os.scandir(rejected) as entries:
            return sum(entry.name.endswith(".json") for entry in entries)
    except OSError:
        return 0
