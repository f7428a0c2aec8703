"""Counters and histograms of the running daemon, kept in memory."""

import time
from bisect import bisect_left
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field

SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)

request_parts: ContextVar[dict[str, float] | None] = ContextVar("request_parts", default=None)
"""Seconds that the current request has spent in each part of its work."""


class Histogram:
    """Counts of observed values up to each bound, and their sum. The last count is of values above every bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass
class Metrics:
    """Everything that is counted while the daemon runs."""

    requests: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    """Latency by method and outcome: "ok", or the code of the error."""

    commit_seconds: Histogram = field(default_factory=Histogram)
    sync_seconds: Histogram = field(default_factory=Histogram)
    commit_writes: Histogram = field(default_factory=lambda: Histogram(SIZE_BOUNDS))
    service_restarts: Counter[str] = field(default_factory=Counter)
    slow_requests: int = 0

    def observe_request(self, method: str, outcome: str, seconds: float) -> None:
        histogram = self.requests.get((method, outcome))
        if histogram is None:
            histogram = self.requests[method, outcome] = Histogram()
        histogram.observe(seconds)


metrics = Metrics()
"""The metrics of this process."""


class TimedPart:
    """Context manager: add the time that the block takes to this part of the current request.

    A class, since every event passes it, and a generator takes several times as long.
    """

    __slots__ = ("_name", "_parts", "_started")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._parts = request_parts.get()
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._parts is not None:
            self._parts[self._name] = self._parts.get(self._name, 0.0) + time.perf_counter() - self._started
