"""Writes that wait for their commit: single writes first, bulk writes in between, each source in its own order."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from clankersd.cancellation import Cancellation, current_cancellation
from clankersd.db.connection import Db, Notification
from clankersd.db.group_commit import Change, ChangeResult

T = TypeVar("T")

MAX_WRITES_PER_COMMIT = 1000
WAIT_WINDOW_SECONDS = 60.0
LONG_WAIT_SECONDS = 2.0
"""From this wait on, `health` reports a problem."""

MAX_BULK_SECONDS = 0.1
BULK_SHARE = 1 / 20
"""Bulk writes of one commit may take this share of the time since the last single write, up to MAX_BULK_SECONDS. A
larger commit costs less per write; the longer no single write has come, the less likely is one that has to wait."""

RUSH_WRITES_PER_COMMIT = 4
RUSH_SECONDS = 0.2


class PendingWrite(msgspec.Struct, eq=False):
    """A write that waits for its commit: one change, or a batch of bulk changes that are awaited together.

    An entry for each change of a batch would cost more than most of their statements. They are taken and resolved in
    order, over as many commits as it takes; the first `taken` are no longer waiting. `source` is set for bulk writes
    only, `cancellation` for a request's.
    """

    changes: list[Change]
    future: "asyncio.Future[Any]"
    since: float
    is_bulk: bool
    cancellation: Cancellation | None
    source: object = None
    is_batch: bool = False
    taken: int = 0
    results: list[ChangeResult] = []

    def resolve(self, result: ChangeResult) -> bool:
        """Hand the result of the next change to the caller that waits for it; returns True after the last one."""
        if not self.is_batch:
            result.resolve(self.future)
            return True
        self.results.append(result)
        is_complete = len(self.results) == len(self.changes)
        if is_complete and not self.future.done():
            self.future.set_result(self.results)
        return is_complete


@dataclass
class CommitCounts:
    """Totals of the group commit since the start."""

    writes: int = 0
    commits: int = 0
    largest_commit: int = 0


@dataclass
class PendingWrites:
    """Queue of single and bulk writes.

    The event loop adds and finishes writes. `select` runs in the connection's thread, so that a commit includes the
    writes that arrive while it waits for that thread, or while its bulk writes run.
    """

    size: int = 0
    """Writes that are not yet committed."""

    counts: CommitCounts = field(default_factory=CommitCounts)
    _singles: deque[PendingWrite] = field(default_factory=deque)
    _bulk: deque[PendingWrite] = field(default_factory=deque)
    _withdrawn: list[PendingWrite] = field(default_factory=list)
    _bulk_sources: Counter[object] = field(default_factory=Counter)
    _is_bulk_turn: bool = True
    _committing_since: float | None = None
    _waits: deque[tuple[float, float]] = field(default_factory=deque)
    _last_rush: float = 0.0
    _last_single: float = 0.0

    @property
    def has_single_writes(self) -> bool:
        """True while single writes wait or are being committed."""
        return bool(self._singles) or self._committing_since is not None

    @property
    def wait_seconds(self) -> float:
        """Time that the oldest single write has been waiting."""
        try:
            since = self._singles[0].since
        except IndexError:
            return time.monotonic() - self._committing_since if self._committing_since else 0.0
        return time.monotonic() - min(since, self._committing_since or since)

    @property
    def longest_wait_seconds(self) -> float:
        """Longest wait of a single write within the last minute, up to now."""
        oldest = time.monotonic() - WAIT_WINDOW_SECONDS
        return max([self.wait_seconds, *(wait for at, wait in self._waits if at > oldest)])

    @property
    def problem(self) -> str | None:
        """Sentence for `health` if a single write waits long now."""
        if (seconds := self.wait_seconds) > LONG_WAIT_SECONDS:
            return (
                f"events wait to be stored: the oldest for {seconds:.1f} s; see clankers-ctl jobs and clankers-ctl logs"
            )
        return None

    @property
    def is_busy(self) -> bool:
        """True while writes wait, and shortly after a commit of several."""
        return self.size > 0 or self._last_rush > time.monotonic() - RUSH_SECONDS

    def add(self, change: Callable[[Db], T], source: object, bulk: bool) -> "asyncio.Future[T]":
        """Queue a write; the future is done after its commit. A source's writes stay behind its earlier bulk writes.

        If the request that it belongs to is cancelled before the write begins, it never runs.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        cancellation = _open_cancellation()
        if bulk or source in self._bulk_sources:
            if source is not None:
                self._bulk_sources[source] += 1
            self._bulk.append(PendingWrite([change], future, time.monotonic(), True, cancellation, source))
        else:
            self._last_single = time.monotonic()
            self._singles.append(PendingWrite([change], future, self._last_single, False, cancellation))
        self.size += 1
        return future

    def add_own(self, change: Callable[[Db], T]) -> "asyncio.Future[T]":
        """Queue a write of the daemon itself, which belongs to no request. Nobody has to wait for it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve_error)
        self._singles.append(PendingWrite([change], future, time.monotonic(), False, None))
        self.size += 1
        return future

    def add_all(self, changes: Iterable[Change], source: object) -> "asyncio.Future[list[ChangeResult]]":
        """Queue bulk writes; the future is done after the commit of the last, with the result of each."""
        future: asyncio.Future[list[ChangeResult]] = asyncio.get_running_loop().create_future()
        batch = PendingWrite(list(changes), future, time.monotonic(), True, _open_cancellation(), source, is_batch=True)
        if not batch.changes:
            future.set_result([])
            return future
        if source is not None:
            self._bulk_sources[source] += 1
        self._bulk.append(batch)
        self.size += len(batch.changes)
        return future

    def select(self, taken: list[PendingWrite], bulk_seconds: float) -> Iterator[Callable[[Db], Any]]:
        """Yield the changes of the next commit one by one, and move their writes from the queue into `taken`.

        Single writes come first. Every second time bulk writes follow, as many as start within `bulk_seconds`, at least
        one; more of them if no single write has come for a while. After them follow the single writes that arrived
        meanwhile, which need not wait for another commit.
        """
        is_bulk_turn = self._is_bulk_turn or not self._singles  # every second commit, so that neither waits for ever
        self._is_bulk_turn = not (is_bulk_turn and self._bulk)
        yield from self._take_singles(taken)
        if is_bulk_turn:
            started = time.monotonic()
            while self._bulk and len(taken) < MAX_WRITES_PER_COMMIT:
                if change := self._take_change(self._bulk, taken):
                    yield change
                now = time.monotonic()
                share_seconds = min(MAX_BULK_SECONDS, BULK_SHARE * (now - self._last_single))
                if now - started > max(bulk_seconds, share_seconds):
                    break
            yield from self._take_singles(taken)

    def _take_singles(self, taken: list[PendingWrite]) -> Iterator[Callable[[Db], Any]]:
        if self._singles and self._committing_since is None:
            self._committing_since = self._singles[0].since
        while self._singles and len(taken) < MAX_WRITES_PER_COMMIT:
            if change := self._take_change(self._singles, taken):
                yield change

    def _take_change(self, waiting: deque[PendingWrite], taken: list[PendingWrite]) -> Change | None:
        """Take the next change of the first write; None if its request is cancelled, which withdraws the write."""
        write = waiting[0]
        if not write.taken and write.cancellation is not None and not write.cancellation.begin_write():
            self._withdrawn.append(waiting.popleft())
            return None
        write.taken += 1
        if write.taken == len(write.changes):
            waiting.popleft()
        taken.append(write)
        return write.changes[write.taken - 1]

    def take_all(self) -> list[PendingWrite]:
        """Remove every write from the queue; a batch is listed once for each of its changes that waits."""
        taken = [write for write in (*self._singles, *self._bulk) for _ in write.changes[write.taken :]]
        self._singles.clear()
        self._bulk.clear()
        return taken

    def finish(
        self, writes: list[PendingWrite], results: list[ChangeResult], publish: Callable[[Notification], None]
    ) -> None:
        """Publish what the writes of a commit have stored and resolve their futures."""
        self._committing_since = None
        if since := [write.since for write in writes if not write.is_bulk]:
            self._record_wait(time.monotonic() - min(since))
        withdrawn, self._withdrawn = self._withdrawn, []
        for write in withdrawn:
            assert write.cancellation is not None
            for _ in write.changes:
                self._resolve(write, ChangeResult(error=write.cancellation.reason))
        for write, result in zip(writes, results, strict=True):
            for notification in result.notifications:
                publish(notification)
            self._resolve(write, result)

    def _resolve(self, write: PendingWrite, result: ChangeResult) -> None:
        self.size -= 1
        if write.resolve(result) and write.source is not None:
            self._bulk_sources[write.source] -= 1
            if not self._bulk_sources[write.source]:
                del self._bulk_sources[write.source]

    def count_commit(self, writes: int) -> None:
        """Count a successful commit."""
        self.counts.writes += writes
        self.counts.commits += 1
        self.counts.largest_commit = max(self.counts.largest_commit, writes)
        if writes > RUSH_WRITES_PER_COMMIT:
            self._last_rush = time.monotonic()

    def _record_wait(self, seconds: float) -> None:
        """Remember the wait of a commit's oldest write; the deque holds only decreasing waits, so it stays short."""
        now = time.monotonic()
        while self._waits and self._waits[-1][1] <= seconds:
            self._waits.pop()
        self._waits.append((now, seconds))
        while self._waits[0][0] < now - WAIT_WINDOW_SECONDS:
            self._waits.popleft()


def _retrieve_error(future: "asyncio.Future[Any]") -> None:
    """Have asyncio not log an error that the store has handled and that nobody waits for."""
    if not future.cancelled():
        future.exception()


def _open_cancellation() -> Cancellation | None:
    """Return the cancellation of the running request; None once it is cancelled, for what cleans up after it."""
    cancellation = current_cancellation.get()
    return cancellation if cancellation is None or cancellation.reason is None else None
