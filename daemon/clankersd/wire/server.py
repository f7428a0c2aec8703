"""The server: accepts connections, and bounds the memory that all of them use together."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import structlog

from clankers_protocol.errors import Overloaded, RpcError
from clankersd.wire.admission import Admission, peer_uid
from clankersd.wire.byte_budget import ByteBudget
from clankersd.wire.connection import Answer, ClientConnection
from clankersd.wire.outbox import MAX_UNSENT_TOTAL_BYTES
from clankersd.wire.sockets import BACKLOG

SEND_TIMEOUT_SECONDS = 30.0
WATCH_SECONDS = 1.0
"""Interval of the checks of running requests: is a deadline over, is a client gone."""

MAX_RECEIVED_BYTES = 128 * 1024 * 1024
"""Large frames that all connections together may have received and not finished."""

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""Estimated size of the large frames of all connections once decoded."""

STALL_SECONDS = 1.0
"""A connection that has read nothing for this long may be closed when others need the memory it holds."""

MAX_REFUSED_CONNECTIONS = 64
"""Refused connections that stay open until they have read the reason."""

REFUSAL_LOG_SECONDS = 10.0
DESCRIPTORS_BESIDE_CONNECTIONS = 512

log = structlog.get_logger(component="server")


class Server:
    """Accepts connections until it is drained."""

    def __init__(
        self,
        answer: Answer,
        get_max_connections: Callable[[], int],
        on_disconnect: Callable[[ClientConnection], None],
        get_request_seconds: Callable[[], float],
    ) -> None:
        self._answer = answer
        self._get_max_connections = get_max_connections
        self._on_disconnect = on_disconnect
        self._get_request_seconds = get_request_seconds
        self._connections: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self._is_draining = False
        self._drained = asyncio.Event()
        self._admission = Admission()
        self._refused: dict[ClientConnection, None] = {}
        self._refusals_logged_at = 0.0
        self._refusals_unlogged = 0
        self._stalled: dict[ClientConnection, float] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self.unsent = ByteBudget(MAX_UNSENT_TOTAL_BYTES)
        self.received = ByteBudget(MAX_RECEIVED_BYTES)
        self.decoded = ByteBudget(MAX_DECODED_BYTES)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections on this socket from now on."""
        _raise_descriptor_limit(self._get_max_connections() + DESCRIPTORS_BESIDE_CONNECTIONS)
        loop = asyncio.get_running_loop()
        self._listeners.append(
            await loop.create_server(lambda: ClientConnection(self, self._answer), sock=listener, backlog=BACKLOG)
        )

    async def drain(self, seconds: float) -> None:
        """Stop accepting and reading, and let requests in flight finish within `seconds`."""
        self._is_draining = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.stop_reading()
        self._check_drained()
        with anyio.move_on_after(seconds):
            await self._drained.wait()
        for task in self._tasks:
            task.cancel()
        for connection in [*self._connections, *self._refused]:
            connection.abort()

    def spawn(self, work: Coroutine[Any, Any, None], when_done: Callable[[], None]) -> asyncio.Task[None]:
        """Run a request as a task of its own, and call `when_done` after it."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):
                log.error("request failed", exc_info=error)
            when_done()
            self._check_drained()

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    # -- admission

    def admit(self, connection: ClientConnection) -> RpcError | None:
        """Admit a new connection, or return the reason for its refusal. Other users get no reason."""
        uid = peer_uid(connection.socket)
        if uid is not None and uid != os.getuid():
            log.warning("refused a client of another user", uid=uid)
            connection.abort()
            return None
        refusal: RpcError | None = Overloaded("overloaded: the daemon is stopping")
        if not self._is_draining:
            refusal = self._admission.admit(connection.pid, self._get_max_connections())
        if refusal is None:
            self._connections.add(connection)
            return None
        self._log_refusal(refusal)
        self._refused[connection] = None
        if len(self._refused) > MAX_REFUSED_CONNECTIONS:
            next(iter(self._refused)).abort()
        return refusal

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that was closed."""
        self._refused.pop(connection, None)
        self._stalled.pop(connection, None)
        if connection in self._connections:
            self._connections.discard(connection)
            self._admission.leave(connection.pid)
            self._on_disconnect(connection)
        self._check_drained()

    def _log_refusal(self, refusal: RpcError) -> None:
        """Log at most one refusal per interval: a client that tries again and again would fill the log."""
        now = asyncio.get_running_loop().time()
        self._refusals_unlogged += 1
        if not self._refusals_logged_at or now - self._refusals_logged_at >= REFUSAL_LOG_SECONDS:
            log.warning("refused connections", reason=refusal.message, count=self._refusals_unlogged)
            self._refusals_logged_at, self._refusals_unlogged = now, 0

    def _check_drained(self) -> None:
        if self._is_draining and not (self._connections or self._tasks):
            self._drained.set()

    # -- requests that take long

    def watch_requests(self) -> None:
        """Check deadlines and clients from time to time while requests run: one timer, since most of them are short."""
        if self._request_timer is None:
            interval = min(WATCH_SECONDS, self._get_request_seconds() / 2)
            self._request_timer = asyncio.get_running_loop().call_later(interval, self._check_requests)

    def _check_requests(self) -> None:
        self._request_timer = None
        seconds = self._get_request_seconds()
        for connection in [one for one in self._connections if one.is_serving]:
            connection.cancel_overdue(seconds)
            connection.check_peer()
            self.watch_requests()

    # -- clients that do not read

    def mark_stalled(self, connection: ClientConnection) -> None:
        """Watch a connection whose client does not read."""
        loop = asyncio.get_running_loop()
        self._stalled[connection] = loop.time()
        if self._stall_timer is None:
            self._stall_timer = loop.call_later(STALL_SECONDS, self._check_stalled)

    def unmark_stalled(self, connection: ClientConnection) -> None:
        """Stop watching a connection whose client reads again."""
        self._stalled.pop(connection, None)

    def make_room(self, size_bytes: int) -> bool:
        """Make room for a reply by closing stalled connections that hold much; False if there is none."""
        while not self.unsent.fits(size_bytes):
            if not self._close_stalled():
                return False
        return True

    def _close_stalled(self) -> bool:
        """Close the stalled connection that holds most memory; False if there is none."""
        stalled_before = asyncio.get_running_loop().time() - STALL_SECONDS
        stalled = [one for one, since in self._stalled.items() if since <= stalled_before and one.held_bytes]
        if not stalled:
            return False
        connection = max(stalled, key=lambda one: one.held_bytes)
        log.warning("closed a connection that does not read", pid=connection.pid, held_bytes=connection.held_bytes)
        connection.abort()
        return True

    def _check_stalled(self) -> None:
        loop = asyncio.get_running_loop()
        for connection, since in list(self._stalled.items()):
            if loop.time() - since >= SEND_TIMEOUT_SECONDS and connection.owes_reply:
                log.debug("reply lost", error="the client does not read")
                connection.abort()
        if self.received.is_contended or self.decoded.is_contended:
            self._close_stalled()
        self._stall_timer = loop.call_later(STALL_SECONDS, self._check_stalled) if self._stalled else None


def _raise_descriptor_limit(count: int) -> None:
    """Raise this process's limit on open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
