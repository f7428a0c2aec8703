"""The async client."""

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
    encode_request,
    may_resend,
)
from clankers_protocol.events import BatchOutcome
from clankers_protocol.framing import Decoder
from clankers_protocol.paths import default_paths
from clankers_protocol.wire import Method, Ok


class AsyncClient:
    """One connection for any number of tasks: requests go out at once, replies come in any order.

    Use it as `async with AsyncClient() as client`. It connects when first needed, and again when lost.
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
        self._connecting = anyio.Lock()
        self._connection: _Connection | None = None
        self._readers: TaskGroup | None = None

    async def __aenter__(self) -> "AsyncClient":
        self._readers = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._readers  # for the type checker
        self._readers.cancel_scope.cancel()
        # The block's own exception is not the group's business: it would come out wrapped.
        await self._readers.__aexit__(None, None, None)
        self._readers = None

    @cached_property
    def events(self) -> Events[Awaitable[Ok], Awaitable[BatchOutcome]]:
        """Events, each acknowledged once it is committed."""
        return Events(self.call, client_info(self._name, self._version))

    @cached_property
    def fire(self) -> Events[Awaitable[bool], Awaitable[bool]]:
        """Events, fired and forgotten: False when one could not be handed over, and never an exception."""
        return Events(self.notify, client_info(self._name, self._version))

    async def call(self, request: Method[Result], *, timeout: float | None = None) -> Result:  # noqa: ASYNC109  # as Client
        """The daemon's answer. Raises its RpcError, DaemonUnavailable, BadReply or TimeoutError.

        A request lost on the way is sent once more, if that cannot do its work twice.
        """
        seconds = self._timeout if timeout is None else timeout
        try:
            with anyio.fail_after(seconds):
                reply = await self._ask_twice(request)
        except TimeoutError as error:
            raise TimeoutError(f"clankersd did not answer {request.method} within {seconds:g} s") from error
        return decode_result(request, reply)

    async def notify(self, request: Method[Any]) -> bool:
        """Send the request without waiting for an answer: whether it was handed over. Never raises."""
        try:
            data = encode_request(request, None)
            with anyio.fail_after(self._timeout):
                connection = await self._connected()
                if await connection.send(data):
                    return True
                connection.lost = True
                return await (await self._connected()).send(data)
        except Exception:
            return False

    async def _ask_twice(self, request: Method[Any]) -> Incoming:
        try:
            return await (await self._connected()).ask(request)
        except ConnectionLost as lost:
            if not may_resend(request, lost):
                raise DaemonUnavailable.connection_lost(request) from lost
        try:
            return await (await self._connected()).ask(request)
        except ConnectionLost as lost:
            raise DaemonUnavailable.connection_lost(request) from lost

    async def _connected(self) -> "_Connection":
        if self._readers is None:
            raise RuntimeError("an AsyncClient is used inside `async with`")
        async with self._connecting:
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


class _Waiting:
    """A request whose reply has not come."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.reply: Incoming | None = None


class _Connection:
    """One stream, and the requests that wait for their replies on it."""

    def __init__(self, stream: ByteStream, on_notification: OnNotification | None) -> None:
        self.lost = False
        self._stream = stream
        self._on_notification = on_notification
        self._numbers = itertools.count(1)
        self._sending = anyio.Lock()
        self._waiting: dict[int, _Waiting] = {}

    async def ask(self, request: Method[Any]) -> Incoming:
        """The reply; ConnectionLost when there will be none."""
        number = next(self._numbers)
        data = encode_request(request, number)
        waiting = self._waiting[number] = _Waiting()
        try:
            # Wait even if sending failed: a daemon that refuses a connection says why before it hangs up.
            sent = await self.send(data)
            if not self.lost:
                await waiting.over.wait()
        finally:
            del self._waiting[number]
        if waiting.reply is None:
            raise ConnectionLost(sent)
        return waiting.reply

    async def send(self, data: bytes) -> bool:
        """Whether all of it was handed over."""
        async with self._sending:
            try:
                await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return False
            except BaseException:
                # Half a frame may stand on the wire, so nobody can go on with this connection.
                self.lost = True
                await anyio.aclose_forcefully(self._stream)
                raise
        return True

    async def read(self) -> None:
        """Hand each reply to whoever waits for it, until the connection ends."""
        decoder = Decoder()
        try:
            while True:
                for message in decode_messages(decoder, await self._stream.receive()):
                    self._take(message)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, BadReply):
            pass
        finally:
            self.lost = True
            await anyio.aclose_forcefully(self._stream)
            for waiting in self._waiting.values():
                waiting.over.set()

    def _take(self, message: Incoming) -> None:
        if message.method is not None:
            if self._on_notification:
                self._on_notification(message.method, msgspec.json.decode(message.params))
            return
        # A reply without an id concerns the connection, and so everyone on it.
        concerned = list(self._waiting) if message.id is None else [message.id]
        for number in concerned:
            if waiting := self._waiting.get(number):
                waiting.reply = message
                waiting.over.set()
