"""Row counts for status reports: SQLite counts by scanning, which takes long in a large database."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from clankersd import clock
from clankersd.db.connection import Db
from clankersd.db.store import Store

T = TypeVar("T")

CHEAP_SECONDS = 0.01
"""Counting that takes less CPU time than this is done for every report."""

REUSE_FACTOR = 100
"""A result is used for this many times as long as counting took, so that counting takes a hundredth of the time."""


@dataclass(frozen=True)
class Counted(Generic[T]):
    """A result, when it was counted (ms), and what that took."""

    result: T
    at: int
    cpu_seconds: float
    expires: float


class RowCounts(Generic[T]):
    """Result of a query that counts rows: exact while counting is cheap, up to some seconds old otherwise."""

    def __init__(self, store: Store, count: Callable[[Db], T]) -> None:
        self._store = store
        self._count = count
        self._latest: Counted[T] | None = None
        store.on_open.append(lambda _: self.clear())

    async def get(self) -> Counted[T]:
        """Return the counts of now or, if counting takes long, of a moment ago."""
        latest = self._latest
        if latest is not None and time.monotonic() < latest.expires:
            return latest
        is_cheap = latest is None or latest.cpu_seconds < CHEAP_SECONDS
        self._latest = await (self._store.read if is_cheap else self._store.snapshot_read)(self._measure)
        return self._latest

    def clear(self) -> None:
        """Forget the result."""
        self._latest = None

    def _measure(self, db: Db) -> Counted[T]:
        started = time.thread_time()  # not the time that other work takes from this thread
        result = self._count(db)
        cpu_seconds = time.thread_time() - started
        reuse_seconds = cpu_seconds * REUSE_FACTOR if cpu_seconds >= CHEAP_SECONDS else 0
        return Counted(result, clock.now(), cpu_seconds, time.monotonic() + reuse_seconds)
