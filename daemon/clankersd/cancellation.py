"""Cancellation of a request: by its client, by the end of its connection, or at its deadline.

A request can be cancelled until its first write has begun. From then on it runs to its end, so that what is stored
and what the daemon holds in memory stay the same, and what is committed is acknowledged.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio

from clankers_protocol.errors import RpcError

T = TypeVar("T")

current_cancellation: ContextVar["Cancellation | None"] = ContextVar("current_cancellation", default=None)
"""The cancellation of the request that is being served."""

_lock = threading.Lock()


class Cancellation:
    """The state of one request: running, cancelled for a reason, or past the point where it can be cancelled."""

    __slots__ = ("_has_begun_writing", "_interrupt", "reason")

    def __init__(self) -> None:
        self.reason: RpcError | None = None
        self._has_begun_writing = False
        self._interrupt: Callable[[], object] | None = None

    def cancel(self, reason: RpcError) -> bool:
        """End the request with this error; returns False if it is too late."""
        with _lock:
            if self._has_begun_writing or self.reason is not None:
                return False
            self.reason = reason
        if self._interrupt is not None:
            self._interrupt()
        return True

    def begin_write(self) -> bool:
        """Rule out a later cancellation; returns False if the request is cancelled already. Safe in any thread."""
        with _lock:
            self._has_begun_writing = self.reason is None
            return self._has_begun_writing

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, or raise the reason if it is cancelled. `work` may shield parts of itself."""
        if self.reason is None:
            with anyio.CancelScope() as scope:
                self._interrupt = scope.cancel
                try:
                    return await work()
                finally:
                    self._interrupt = None
        assert self.reason is not None  # only `cancel` cancels the scope
        raise self.reason

    async def run_event(self, work: Callable[[], Awaitable[T]], task: asyncio.Task[Any]) -> T:
        """Like `run`, for work that shields nothing, in the current task.

        It saves the cancel scope, a twentieth of a small event's time.
        """
        if self.reason is not None:
            raise self.reason
        self._interrupt = task.cancel
        try:
            return await work()
        except asyncio.CancelledError:
            if self.reason is None:  # the daemon stops
                raise
            task.uncancel()
            raise self.reason from None
        finally:
            self._interrupt = None
