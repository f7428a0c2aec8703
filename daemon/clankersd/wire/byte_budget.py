"""Byte budgets that several connections share."""

import asyncio
from collections import deque


class ByteBudget:
    """A number of bytes to reserve and release; callers that find too few left wait in a queue."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_contended(self) -> bool:
        """True if a caller waits for bytes."""
        return any(not granted.done() for _, granted in self._waiting)

    def fits(self, size_bytes: int) -> bool:
        """Return True if enough bytes are left. A reservation larger than the limit fits when nothing is reserved."""
        return not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes

    def add(self, size_bytes: int) -> None:
        """Count bytes that exist already, even beyond the limit."""
        self.used_bytes += size_bytes

    def reserve(self, size_bytes: int) -> "asyncio.Future[None] | None":
        """Reserve bytes now (None), or return a future that is done once they are reserved.

        Cancel the future to leave the queue.
        """
        if not self.is_contended and self.fits(size_bytes):
            self.used_bytes += size_bytes
            return None
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, granted))
        return granted

    def release(self, size_bytes: int) -> None:
        """Release reserved bytes, and grant waiting reservations."""
        self.used_bytes -= size_bytes
        while self._waiting:
            wanted_bytes, granted = self._waiting[0]
            if granted.done():  # cancelled
                self._waiting.popleft()
            elif self.fits(wanted_bytes):
                self._waiting.popleft()
                self.used_bytes += wanted_bytes
                granted.set_result(None)
            else:
                return
