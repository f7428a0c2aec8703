"""Retry policy for requests to a provider: exponential backoff that respects Retry-After."""

import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import anyio


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, so that clients do not all retry at the same moment."""

    retries: int = 3
    query_retries: int = 1  # a user is waiting for the search result
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 8
    max_retry_after_seconds: float = 60
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    now: Callable[[], float] = time.time

    def wait(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds before the next attempt, no fewer than the provider asked for."""
        backoff = min(self.first_wait_seconds * 2.0**attempt, self.max_wait_seconds)
        return max(backoff * random.uniform(1, 1.2), retry_after or 0)  # noqa: S311 - not a secret

    def retry_after(self, header: str | None) -> float | None:
        """Parse a Retry-After header, which holds a number of seconds or a date; return seconds."""
        if not header:
            return None
        try:
            seconds = float(header)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(header).timestamp() - self.now()
            except (ValueError, OverflowError):
                return None
        return max(0.0, seconds) if math.isfinite(seconds) else None
