"""Limiter of searches: a bounded share of the daemon, divided fairly between connections."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from clankersd.wire.fair_limiter import FairLimiter
from clankersd.wire.rpc import current_connection

if TYPE_CHECKING:
    from clankersd.app import Daemon

R = TypeVar("R")
T = TypeVar("T")

MAX_SEARCHES = 1
"""Concurrent searches. They compute under the interpreter lock: more of them are no faster and delay events."""

MAX_WAITING = 1000

_has_slot: ContextVar[bool] = ContextVar("has_slot", default=False)


def search_slots() -> FairLimiter:
    """Return the limiter that all searches share."""
    return FairLimiter("searches", MAX_SEARCHES, MAX_WAITING)


@asynccontextmanager
async def search_slot_released(daemon: "Daemon") -> AsyncIterator[None]:
    """Let others search while the block waits for something outside the daemon."""
    if not _has_slot.get():
        yield
        return
    async with daemon.searches.pause(current_connection.get()):
        yield


def takes_search_slot(handler: "Callable[[Daemon, R], Awaitable[T]]") -> "Callable[[Daemon, R], Awaitable[T]]":
    """Make a handler wait for a slot; connections are served round robin."""

    @wraps(handler)
    async def limited(daemon: "Daemon", request: R) -> T:
        if _has_slot.get():  # a search within another search
            return await handler(daemon, request)
        async with daemon.searches.slot(current_connection.get()):
            _has_slot.set(True)
            return await handler(daemon, request)

    return limited
