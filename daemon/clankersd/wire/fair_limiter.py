"""Limit concurrency; waiting callers are served round robin by connection."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from clankers_protocol.errors import Overloaded


class FairLimiter:
    """A semaphore whose waiters are served round robin by key, so that asking more often gives no more slots."""

    def __init__(self, noun: str, slots: int, max_waiting: int) -> None:
        self._noun = noun
        self._free = slots
        self._max_waiting = max_waiting
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a slot."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def slot(self, key: object) -> AsyncIterator[None]:
        """Hold a slot inside the block; raises Overloaded when too many wait already."""
        await self._acquire(key)
        try:
            yield
        finally:
            self._release()

    @asynccontextmanager
    async def pause(self, key: object) -> AsyncIterator[None]:
        """Release the slot while the block waits for something else, and take one again after it."""
        self._release()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # the block around this one releases what it holds
                await self._wait(key)

    async def _acquire(self, key: object) -> None:
        if not self._free and self.waiting >= self._max_waiting:
            raise Overloaded(f"overloaded: {self._max_waiting} {self._noun} are waiting already, try again later")
        await self._wait(key)

    async def _wait(self, key: object) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted and cancelled at the same moment
                self._release()
            else:
                self._forget(key, granted)
            raise

    def _release(self) -> None:
        """Hand the slot to the next key in turn; its further waiters queue up behind the other keys."""
        for key in list(self._waiting):
            waiters = self._waiting.pop(key)
            granted = waiters.popleft()
            if waiters:
                self._waiting[key] = waiters
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1

    def _forget(self, key: object, granted: "asyncio.Future[None]") -> None:
        waiters = self._waiting.get(key)
        if waiters and granted in waiters:
            waiters.remove(granted)
            if not waiters:
                del self._waiting[key]
