"""Prepare the rows of large requests in a thread, while the writes of a connection stay in order.

Redacting, chunking and encoding a small event takes microseconds and happens on the event loop. For a large request it
happens in a thread, one ordinary and one huge request at a time; later requests of the same connection start after it.
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
HUGE_REQUEST_BYTES = 1024 * 1024

current_order: ContextVar["RequestOrder | None"] = ContextVar("current_order", default=None)
"""The order of the connection whose request is being served."""

current_request_bytes: ContextVar[int] = ContextVar("current_request_bytes", default=0)
"""Approximate size of that request."""


class RequestOrder:
    """The order in which the requests of one connection start.

    A request is held back while an earlier one prepares. Each request runs to its first wait, and by then has queued
    its write, before the next one starts.
    """

    def __init__(self) -> None:
        self._preparing = 0
        self._held_back: deque[asyncio.Future[None]] = deque()

    @property
    def is_blocked(self) -> bool:
        """True if a new request must wait."""
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


_limiters: dict[bool, anyio.CapacityLimiter] = {}


def thread_limiter(size: int) -> anyio.CapacityLimiter:
    """Return the limiter for work on `size` bytes.

    Many busy threads would starve the event loop, so there are two: one for requests of ordinary size, and one for
    huge ones, which the others do not wait for.
    """
    is_huge = size >= HUGE_REQUEST_BYTES
    if is_huge not in _limiters:
        _limiters[is_huge] = anyio.CapacityLimiter(1)
    return _limiters[is_huge]


def is_request_beyond(value_bytes: int) -> bool:
    """Tell whether the current request is too large for a value of `value_bytes`, without encoding the value again.

    Escapes make JSON up to six times as long as the text itself.
    """
    return current_request_bytes.get() > 8 * value_bytes + LARGE_REQUEST_BYTES


async def prepare(build: Callable[[], T]) -> T:
    """Call `build` directly, or in a thread if the current request is large; cancellation abandons the thread."""
    order = current_order.get()
    size = current_request_bytes.get()
    if order is None or size < LARGE_REQUEST_BYTES:
        return build()
    order.begin_preparing()
    try:
        return await anyio.to_thread.run_sync(build, abandon_on_cancel=True, limiter=thread_limiter(size))
    finally:
        order.end_preparing()
