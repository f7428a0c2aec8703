"""Writes that wait for their commit: single writes first, bulk writes in between, each source in its own order."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clankersd.db.connection import Db, Notification
from clankersd.db.group_commit import Outcome

T = TypeVar("T")

MAX_WRITES_PER_COMMIT = 1000
WAIT_WINDOW_SECONDS = 60.0
LONG_WAIT_SECONDS = 2.0
"""From this wait on, `health` reports a problem."""

RUSH_WRITES_PER_COMMIT = 4
RUSH_SECONDS = 0.2


@dataclass(slots=True)
class PendingWrite:
    """A write that waits for its commit. `source` is set for bulk writes only."""

    change: Callable[[Db], Any]
    future: asyncio.Future[Any]
    since: float
    source: object


@dataclass
class Batch:
    """Writes taken from the queue for one commit."""

    singles: list[PendingWrite] = field(default_factory=list)
    bulk: list[PendingWrite] = field(default_factory=list)


@dataclass
class CommitCounts:
    """Totals of the group commit since the start."""

    writes: int = 0
    commits: int = 0
    largest_commit: int = 0


@dataclass
class PendingWrites:
    """Queue of single and bulk writes.

    The event loop adds and finishes writes. `take_into` runs in the connection's thread, so that a commit includes the
    writes that arrive while it waits for that thread.
    """

    size: int = 0
    """Writes that are not yet committed."""

    counts: CommitCounts = field(default_factory=CommitCounts)
    _singles: deque[PendingWrite] = field(default_factory=deque)
    _bulk: deque[PendingWrite] = field(default_factory=deque)
    _bulk_sources: Counter[object] = field(default_factory=Counter)
    _is_bulk_turn: bool = True
    _committing_since: float | None = None
    _waits: deque[tuple[float, float]] = field(default_factory=deque)
    _last_rush: float = 0.0

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
        """Queue a write; the future is done after its commit. A source's writes stay behind its earlier bulk writes."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if bulk or source in self._bulk_sources:
            if source is not None:
                self._bulk_sources[source] += 1
            self._bulk.append(PendingWrite(change, future, time.monotonic(), source))
        else:
            self._singles.append(PendingWrite(change, future, time.monotonic(), None))
        self.size += 1
        return future

    def take_into(self, batch: Batch) -> None:
        """Move the writes of the next commit into `batch`: single writes, and every second time bulk writes too."""
        count = min(len(self._singles), MAX_WRITES_PER_COMMIT)
        batch.singles += [self._singles.popleft() for _ in range(count)]
        self._committing_since = batch.singles[0].since if batch.singles else None
        if self._is_bulk_turn or not batch.singles:  # every second commit, so that neither waits for ever
            count = min(len(self._bulk), MAX_WRITES_PER_COMMIT - len(batch.singles))
            batch.bulk += [self._bulk.popleft() for _ in range(count)]
        self._is_bulk_turn = not batch.bulk

    def finish(self, batch: Batch, outcomes: list[Outcome], publish: Callable[[Notification], None]) -> None:
        """Publish what the writes that ran have stored and resolve their futures.

        Bulk writes that did not run go back to the front of the queue.
        """
        writes = batch.singles + batch.bulk
        self._bulk.extendleft(reversed(writes[len(outcomes) :]))
        self._committing_since = None
        if batch.singles:
            self._record_wait(time.monotonic() - batch.singles[0].since)
        self.size -= len(outcomes)
        for write, outcome in zip(writes, outcomes, strict=False):
            if write.source is not None:
                self._bulk_sources[write.source] -= 1
                if not self._bulk_sources[write.source]:
                    del self._bulk_sources[write.source]
            for notification in outcome.notifications:
                publish(notification)
            outcome.resolve(write.future)

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
