"""Prepare what large requests store, away from the event loop, while writes of a connection keep their order.

Redacting, chunking and encoding a small event takes microseconds and happens at once. For a large request it happens
in a thread, one request at a time; later requests of the same connection start when it is done.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

LARGE_REQUEST_BYTES = 16 * 1024

current_order: ContextVar["Order | None"] = ContextVar("current_order", default=None)
"""The order of the connection whose request is being served."""

is_large: ContextVar[bool] = ContextVar("is_large", default=False)
"""Whether that request is a large one."""


class Order:
    """The order in which the requests of one connection start.

    A request is held back while an earlier one prepares. Each one that may start gets as far as its first wait, by
    which its write is queued, before the next one does.
    """

    def __init__(self) -> None:
        self._preparing = 0
        self._held_back: deque[asyncio.Future[None]] = deque()

    @property
    def blocked(self) -> bool:
        """Whether a request that comes now must wait."""
        return self._preparing > 0 or bool(self._held_back)

    async def wait(self) -> None:
        """Wait until every earlier request has started and prepared."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held_back.append(turn)
        try:
            await turn
        finally:
            self._held_back.remove(turn)
            self._start_next_soon()

    def begin_preparing(self) -> None:
        self._preparing += 1

    def end_preparing(self) -> None:
        self._preparing -= 1
        self._start_next_soon()

    def _start_next_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._start_next)

    def _start_next(self) -> None:
        if self._held_back and not self._preparing and not self._held_back[0].done():
            self._held_back[0].set_result(None)


_limiter: anyio.CapacityLimiter | None = None


def heavy_work() -> anyio.CapacityLimiter:
    """The limiter of everything that keeps a processor busy for long: several at once would starve the event loop."""
    global _limiter
    if _limiter is None:
        _limiter = anyio.CapacityLimiter(1)
    return _limiter


async def prepare(build: Callable[[], T]) -> T:
    """Call `build`: at once, or in a thread when the request being served is large. It may be abandoned."""
    order = current_order.get()
    if order is None or not is_large.get():
        return build()
    order.begin_preparing()
    try:
        return await anyio.to_thread.run_sync(build, abandon_on_cancel=True, limiter=heavy_work())
    finally:
        order.end_preparing()
