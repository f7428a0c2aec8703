"""The blocking client."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec

from clankers.events import Events
from clankers.hook import ForeignSocket, refuse_foreign_socket
from clankers.messages import (
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
from clankers_protocol.wire import ClientInfo, Method, Ok

OnNotification = Callable[[str, Any], None]
"""Takes the method and the params of what the daemon sends unasked, `$/progress` above all."""


class Client:
    """One connection to the daemon, opened when first needed and again when lost; threads take turns.

    `on_notification` is called while a call waits for its reply, and must not call the client itself.
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
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._decoder = Decoder()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next call opens another."""
        if self._socket:
            self._socket.close()
        self._socket = None

    @cached_property
    def events(self) -> Events[Ok, BatchOutcome]:
        """Events, each acknowledged once it is committed."""
        return Events(self.call, client_info(self._name, self._version))

    @cached_property
    def fire(self) -> Events[bool, bool]:
        """Events, fired and forgotten: False when one could not be handed over, and never an exception."""
        return Events(self.notify, client_info(self._name, self._version))

    def call(self, request: Method[Result], *, timeout: float | None = None) -> Result:
        """The daemon's answer. Raises its RpcError, DaemonUnavailable, BadReply or TimeoutError.

        A request lost on the way is sent once more, if that cannot do its work twice.
        """
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        try:
            with self._turn(deadline):
                reply = self._ask_twice(request, deadline)
        except TimeoutError as error:
            raise TimeoutError(f"clankersd did not answer {request.method} within {seconds:g} s") from error
        return decode_result(request, reply)

    def notify(self, request: Method[Any]) -> bool:
        """Send the request without waiting for an answer: whether it was handed over. Never raises."""
        deadline = time.monotonic() + self._timeout
        try:
            data = encode_request(request, None)
            with self._turn(deadline):
                if self._send(data, deadline):
                    return True
                self.close()
                return self._send(data, deadline)
        except Exception:
            return False

    @contextmanager
    def _turn(self, deadline: float) -> Iterator[None]:
        """The connection to oneself. What interrupts also ends it: nobody can go on with half an exchange."""
        if not self._lock.acquire(timeout=_left(deadline)):
            raise TimeoutError
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            self._lock.release()

    def _ask_twice(self, request: Method[Any], deadline: float) -> Incoming:
        try:
            return self._ask(request, deadline)
        except ConnectionLost as lost:
            if not may_resend(request, lost):
                raise DaemonUnavailable.connection_lost(request) from lost
        self.close()
        try:
            return self._ask(request, deadline)
        except ConnectionLost as lost:
            raise DaemonUnavailable.connection_lost(request) from lost

    def _ask(self, request: Method[Any], deadline: float) -> Incoming:
        number = next(self._numbers)
        sent = self._send(encode_request(request, number), deadline)
        # Read even if sending failed: a daemon that refuses a connection says why before it hangs up.
        while data := self._receive(deadline):
            for message in self._taken(data):
                if message.id in (number, None):
                    return message
        raise ConnectionLost(sent)

    def _send(self, data: bytes, deadline: float) -> bool:
        """Whether all of it was handed over: a Unix socket tells at once when the other end has hung up."""
        if self._socket is None:
            self._socket = _connected(self._path, deadline)
            self._decoder = Decoder()
        self._socket.settimeout(_left(deadline))
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def _receive(self, deadline: float) -> bytes:
        """What arrives next; nothing at the end of the connection."""
        assert self._socket  # for the type checker: _send has made it
        self._socket.settimeout(_left(deadline))
        try:
            return self._socket.recv(1 << 16)
        except ConnectionError:
            return b""

    def _taken(self, data: bytes) -> Iterator[Incoming]:
        """The replies among what arrived; notifications go where they belong."""
        for message in decode_messages(self._decoder, data):
            if message.method is None:
                yield message
            elif self._on_notification:
                self._on_notification(message.method, msgspec.json.decode(message.params))


def client_info(name: str, version: str | None) -> ClientInfo:
    """Who sends; the version is that of this package unless the caller has one."""
    if version is None:
        from importlib.metadata import version as installed  # slow, and only events need it

        version = installed("clankers")
    return ClientInfo(name, version)


def _connected(path: str, deadline: float) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_left(deadline))
        try:
            connection.connect(path)
            refuse_foreign_socket(connection, path)
        except ForeignSocket as error:
            connection.close()
            raise DaemonUnavailable.at(path, str(error)) from error
        except BlockingIOError:
            connection.close()
            time.sleep(0.01)  # too many others are connecting just now, and there is nothing to wait on
        except OSError as error:
            connection.close()
            raise DaemonUnavailable.at(path, error.strerror or str(error)) from error
        else:
            return connection


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
