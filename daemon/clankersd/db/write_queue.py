"""Writes that wait for their commit: single writes first, bulk writes in between, each source in its own order."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clankersd.cancellation import Cancellation, current_cancellation
from clankersd.db.connection import Db, Notification
from clankersd.db.group_commit import Outcome

T = TypeVar("T")

MAX_WRITES_PER_COMMIT = 1000
WAIT_WINDOW_SECONDS = 60.0
LONG_WAIT_SECONDS = 2.0
"""From this wait on, `health` reports a problem."""

UNDISTURBED_BULK_FACTOR = 8
"""How much longer bulk writes may take while there are no single writes: a larger commit costs less per write."""

UNDISTURBED_SECONDS = 1.0
"""Time after the last single write from which there are none."""

RUSH_WRITES_PER_COMMIT = 4
RUSH_SECONDS = 0.2


@dataclass(slots=True)
class PendingBatch:
    """Bulk writes that are awaited together: a future for each would cost more than most of their statements."""

    future: "asyncio.Future[list[Outcome]]"
    outcomes: list[Outcome]
    remaining: int


@dataclass(slots=True)
class PendingWrite:
    """A write that waits for its commit. `source` is set for bulk writes only, `cancellation` for a request's.

    Its outcome goes to `future`, or to the place `position` of `batch`.
    """

    change: Callable[[Db], Any]
    future: "asyncio.Future[Any] | None"
    since: float
    is_bulk: bool
    cancellation: Cancellation | None
    source: object = None
    batch: PendingBatch | None = None
    position: int = 0

    def resolve(self, outcome: Outcome) -> None:
        """Hand the outcome to the caller that waits for it."""
        if self.future is not None:
            outcome.resolve(self.future)
        elif self.batch is not None:
            self.batch.outcomes[self.position] = outcome
            self.batch.remaining -= 1
            if not self.batch.remaining and not self.batch.future.done():
                self.batch.future.set_result(self.batch.outcomes)


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
            self._bulk.append(PendingWrite(change, future, time.monotonic(), True, cancellation, source))
        else:
            self._last_single = time.monotonic()
            self._singles.append(PendingWrite(change, future, self._last_single, False, cancellation))
        self.size += 1
        return future

    def add_all(self, changes: Iterable[Callable[[Db], Any]], source: object) -> "asyncio.Future[list[Outcome]]":
        """Queue bulk writes; the future is done after the commit of the last, with the outcome of each."""
        batch = PendingBatch(asyncio.get_running_loop().create_future(), [], 0)
        cancellation, now = _open_cancellation(), time.monotonic()
        writes = [
            PendingWrite(change, None, now, True, cancellation, source, batch, position)
            for position, change in enumerate(changes)
        ]
        batch.outcomes, batch.remaining = [Outcome()] * len(writes), len(writes)
        if not writes:
            batch.future.set_result([])
        if source is not None and writes:
            self._bulk_sources[source] += len(writes)
        self._bulk.extend(writes)
        self.size += len(writes)
        return batch.future

    def select(self, taken: list[PendingWrite], bulk_seconds: float) -> Iterator[Callable[[Db], Any]]:
        """Yield the changes of the next commit one by one, and move their writes from the queue into `taken`.

        Single writes come first. Every second time bulk writes follow, as many as start within `bulk_seconds`, at least
        one, and several times as many while there are no single writes; and after them the single writes that arrived
        meanwhile, which need not wait for another commit.
        """
        is_bulk_turn = self._is_bulk_turn or not self._singles  # every second commit, so that neither waits for ever
        self._is_bulk_turn = not (is_bulk_turn and self._bulk)
        yield from self._take_singles(taken)
        if is_bulk_turn:
            started = time.monotonic()
            while self._bulk and len(taken) < MAX_WRITES_PER_COMMIT:
                yield from self._take_first(self._bulk, taken)
                now = time.monotonic()
                is_undisturbed = now - self._last_single > UNDISTURBED_SECONDS
                if now - started > bulk_seconds * (UNDISTURBED_BULK_FACTOR if is_undisturbed else 1):
                    break
            yield from self._take_singles(taken)

    def _take_singles(self, taken: list[PendingWrite]) -> Iterator[Callable[[Db], Any]]:
        if self._singles and self._committing_since is None:
            self._committing_since = self._singles[0].since
        while self._singles and len(taken) < MAX_WRITES_PER_COMMIT:
            yield from self._take_first(self._singles, taken)

    def _take_first(self, waiting: deque[PendingWrite], taken: list[PendingWrite]) -> Iterator[Callable[[Db], Any]]:
        """Yield the change of the first write, unless its request is cancelled."""
        write = waiting.popleft()
        if write.cancellation is None or write.cancellation.begin_write():
            taken.append(write)
            yield write.change
        else:
            self._withdrawn.append(write)

    def take_all(self) -> list[PendingWrite]:
        """Remove every write from the queue."""
        taken = [*self._singles, *self._bulk]
        self._singles.clear()
        self._bulk.clear()
        return taken

    def finish(
        self, writes: list[PendingWrite], outcomes: list[Outcome], publish: Callable[[Notification], None]
    ) -> None:
        """Publish what the writes of a commit have stored and resolve their futures."""
        self._committing_since = None
        if since := [write.since for write in writes if not write.is_bulk]:
            self._record_wait(time.monotonic() - min(since))
        withdrawn, self._withdrawn = self._withdrawn, []
        for write in withdrawn:
            assert write.cancellation is not None
            self._leave(write)
            write.resolve(Outcome(error=write.cancellation.reason))
        for write, outcome in zip(writes, outcomes, strict=True):
            self._leave(write)
            for notification in outcome.notifications:
                publish(notification)
            write.resolve(outcome)

    def _leave(self, write: PendingWrite) -> None:
        self.size -= 1
        if write.source is not None:
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


def _open_cancellation() -> Cancellation | None:
    """Return the cancellation of the running request; None once it is cancelled, for what cleans up after it."""
    cancellation = current_cancellation.get()
    return cancellation if cancellation is None or cancellation.reason is None else None
