"""Async client of the daemon."""

import itertools
import os
from collections.abc import Awaitable
from functools import cached_property
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream, TaskGroup

from clankers.client import OnNotification, client_info
from clankers.events import Events
from clankers.hook import ForeignSocket, refuse_foreign_socket
from clankers.messages import (
    BadReply,
    ConnectionLost,
    DaemonUnavailable,
    Incoming,
    Result,
    decode_messages,
    decode_result,
    encode_cancel,
    encode_request,
    may_resend,
    raw_result,
)
from clankers_protocol.events import BatchOutcome
from clankers_protocol.framing import Decoder
from clankers_protocol.paths import default_paths
from clankers_protocol.wire import Method, Ok

CANCEL_SECONDS = 1.0
"""Time to send the cancellation of a request."""


class AsyncClient:
    """Async client with one connection for any number of concurrent tasks; replies may arrive in any order.

    Use it as `async with AsyncClient() as client`. It connects on first use, and again when the connection is lost.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        name: str = "clankers-python",
        version: str | None = None,
        timeout: float = 5.0,
        on_notification: OnNotification | None = None,
    ) -> None:
        self._path = os.fspath(socket_path or default_paths().socket)
        self._name = name
        self._version = version
        self._timeout = timeout
        self._on_notification = on_notification
        self._connect_lock = anyio.Lock()
        self._connection: _Connection | None = None
        self._readers: TaskGroup | None = None

    async def __aenter__(self) -> "AsyncClient":
        self._readers = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._readers  # for the type checker
        self._readers.cancel_scope.cancel()
        # Do not pass the exception of the block to the task group, which would wrap it.
        await self._readers.__aexit__(None, None, None)
        self._readers = None

    @property
    def is_lost(self) -> bool:
        """Return whether the last connection has ended, and with it its subscriptions."""
        return self._connection is not None and self._connection.lost

    @cached_property
    def events(self) -> Events[Awaitable[Ok], Awaitable[BatchOutcome]]:
        """Send events with acknowledgement: each call returns after the daemon has committed the event."""
        return Events(self.call, client_info(self._name, self._version))

    @cached_property
    def fire(self) -> Events[Awaitable[bool], Awaitable[bool]]:
        """Send events without acknowledgement: each call returns False if sending failed, and never raises."""
        return Events(self.notify, client_info(self._name, self._version))

    async def call(self, request: Method[Result], *, timeout: float | None = None) -> Result:  # noqa: ASYNC109  # as Client
        """Call a method and return its result. Raises RpcError, DaemonUnavailable, BadReply or TimeoutError.

        If the connection is lost, the request is sent once more, provided that it cannot be executed twice. A request
        that times out, or whose task is cancelled, is cancelled in the daemon too, unless that has begun to store
        something for it.
        """
        return decode_result(request, await self._reply_to(request, timeout))

    async def call_untyped(self, request: Method[Any]) -> Any:
        """Call a method as `call` does, and return its result as plain data, with what this version does not know."""
        return msgspec.json.decode(raw_result(await self._reply_to(request)))

    async def _reply_to(self, request: Method[Any], timeout: float | None = None) -> Incoming:  # noqa: ASYNC109  # as Client
        seconds = self._timeout if timeout is None else timeout
        try:
            with anyio.fail_after(seconds):
                return await self._request_with_retry(request)
        except TimeoutError as error:
            raise TimeoutError(f"clankersd did not answer {request.method} within {seconds:g} s") from error

    async def notify(self, request: Method[Any]) -> bool:
        """Send a request without waiting for a reply; return whether it was sent. Never raises."""
        try:
            data = encode_request(request, None)
            with anyio.fail_after(self._timeout):
                connection = await self._connect()
                if await connection.send(data):
                    return True
                connection.lost = True
                return await (await self._connect()).send(data)
        except Exception:
            return False

    async def _request_with_retry(self, request: Method[Any]) -> Incoming:
        try:
            return await (await self._connect()).request(request)
        except ConnectionLost as lost:
            if not may_resend(request, lost):
                raise DaemonUnavailable.connection_lost(request) from lost
        try:
            return await (await self._connect()).request(request)
        except ConnectionLost as lost:
            raise DaemonUnavailable.connection_lost(request) from lost

    async def _connect(self) -> "_Connection":
        if self._readers is None:
            raise RuntimeError("use AsyncClient inside `async with`")
        async with self._connect_lock:
            if self._connection is None or self._connection.lost:
                try:
                    stream = await anyio.connect_unix(self._path)
                    refuse_foreign_socket(stream.extra(anyio.abc.SocketAttribute.raw_socket), self._path)  # noqa: S610  # no Django
                except ForeignSocket as error:
                    await anyio.aclose_forcefully(stream)
                    raise DaemonUnavailable.at(self._path, str(error)) from error
                except OSError as error:
                    raise DaemonUnavailable.at(self._path, error.strerror or str(error)) from error
                self._connection = _Connection(stream, self._on_notification)
                self._readers.start_soon(self._connection.read)
            return self._connection


class _PendingRequest:
    """A request without a reply so far; `done` is set by its reply or by the end of the connection."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.reply: Incoming | None = None


class _Connection:
    """A stream and the requests that wait for replies on it."""

    def __init__(self, stream: ByteStream, on_notification: OnNotification | None) -> None:
        self.lost = False
        self._stream = stream
        self._on_notification = on_notification
        self._request_ids = itertools.count(1)
        self._send_lock = anyio.Lock()
        self._pending: dict[int, _PendingRequest] = {}

    async def request(self, request: Method[Any]) -> Incoming:
        """Send a request and return its reply; raises ConnectionLost."""
        request_id = next(self._request_ids)
        data = encode_request(request, request_id)
        pending = self._pending[request_id] = _PendingRequest()
        try:
            # Wait even if sending failed: a daemon that refuses a connection sends the reason before it closes it.
            sent = await self.send(data)
            if not self.lost:
                await pending.done.wait()
        except BaseException:
            if not self.lost:
                with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                    await self.send(encode_cancel(request_id))
            raise
        finally:
            del self._pending[request_id]
        if pending.reply is None:
            raise ConnectionLost(sent)
        return pending.reply

    async def send(self, data: bytes) -> bool:
        """Send all data; return False if the connection is closed."""
        async with self._send_lock:
            try:
                await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return False
            except BaseException:
                # Part of a frame may have been sent, so this connection cannot be used any more.
                self.lost = True
                await anyio.aclose_forcefully(self._stream)
                raise
        return True

    async def read(self) -> None:
        """Dispatch replies and notifications until the connection ends."""
        decoder = Decoder()
        try:
            while True:
                for message in decode_messages(decoder, await self._stream.receive()):
                    self._dispatch(message)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, BadReply):
            pass
        finally:
            self.lost = True
            await anyio.aclose_forcefully(self._stream)
            for pending in self._pending.values():
                pending.done.set()

    def _dispatch(self, message: Incoming) -> None:
        if message.method is not None:
            if self._on_notification:
                self._on_notification(message.method, msgspec.json.decode(message.params))
            return
        # A reply without an id concerns the connection, and therefore every request on it.
        request_ids = list(self._pending) if message.id is None else [message.id]
        for request_id in request_ids:
            if pending := self._pending.get(request_id):
                pending.reply = message
                pending.done.set()
