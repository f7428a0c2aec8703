"""How long to wait before asking a provider again."""

import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import anyio


@dataclass(frozen=True)
class Patience:
    """Waits that double, with jitter so that clients do not come back all at once."""

    retries: int = 3
    query_retries: int = 1  # somebody waits for a search
    first_wait: float = 0.5
    longest_wait: float = 8
    longest_retry_after: float = 60
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    now: Callable[[], float] = time.time

    def wait(self, attempt: int, retry_after: float | None) -> float:
        """Seconds before the next attempt, no fewer than the provider asked for."""
        doubled = min(self.first_wait * 2.0**attempt, self.longest_wait)
        return max(doubled * random.uniform(1, 1.2), retry_after or 0)  # noqa: S311 - not a secret

    def retry_after(self, header: str | None) -> float | None:
        """The seconds a Retry-After header asks for, as a number or as a date."""
        if not header:
            return None
        try:
            seconds = float(header)
        except ValueError:
            seconds = self._until(header)
        return max(0.0, seconds) if math.isfinite(seconds) else None

    def _until(self, date: str) -> float:
        try:
            return parsedate_to_datetime(date).timestamp() - self.now()
        except (ValueError, OverflowError):
            return math.nan
