"""Cache whose entries expire."""

import time
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Values by key, each for a number of seconds. A full cache is emptied: its values are cheap to compute again."""

    def __init__(self, seconds: float, max_entries: int) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._entries: dict[K, tuple[V, float]] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if there is none or it has expired."""
        entry = self._entries.get(key)
        return entry[0] if entry and entry[1] > time.monotonic() else None

    def put(self, key: K, value: V) -> V:
        """Store a value and return it."""
        if len(self._entries) >= self._max_entries:
            self._entries.clear()
        self._entries[key] = value, time.monotonic() + self._seconds
        return value

    def clear(self) -> None:
        """Forget all values."""
        self._entries.clear()
