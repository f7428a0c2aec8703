"""Blocking client of the daemon."""

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
    encode_cancel,
    encode_request,
    may_resend,
)
from clankers_protocol import VERSION
from clankers_protocol.events import BatchOutcome
from clankers_protocol.framing import Decoder
from clankers_protocol.paths import default_paths
from clankers_protocol.wire import ClientInfo, Method, Ok

OnNotification = Callable[[str, Any], None]
"""Callback for notifications of the daemon, such as `$/progress`: takes the method and the params."""


class Client:
    """Blocking client with one connection, which is opened on first use and reopened when lost. Thread-safe.

    `on_notification` is called while a call waits for its reply. It must not use the client itself.
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
        self._send_lock = threading.Lock()
        self._awaited_id: int | None = None
        self._request_ids = itertools.count(1)
        self._socket: socket.socket | None = None
        self._decoder = Decoder()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._socket:
            self._socket.close()
        self._socket = None

    @cached_property
    def events(self) -> Events[Ok, BatchOutcome]:
        """Send events with acknowledgement: each call returns after the daemon has committed the event."""
        return Events(self.call, client_info(self._name, self._version))

    @cached_property
    def fire(self) -> Events[bool, bool]:
        """Send events without acknowledgement: each call returns False if sending failed, and never raises."""
        return Events(self.notify, client_info(self._name, self._version))

    def call(self, request: Method[Result], *, timeout: float | None = None) -> Result:
        """Call a method and return its result. Raises RpcError, DaemonUnavailable, BadReply or TimeoutError.

        If the connection is lost, the request is sent once more, provided that it cannot be executed twice. A request
        that times out is cancelled, unless the daemon has begun to store something for it.
        """
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        try:
            with self._exclusive(deadline):
                reply = self._request_with_retry(request, deadline)
        except TimeoutError as error:
            raise TimeoutError(f"clankersd did not answer {request.method} within {seconds:g} s") from error
        return decode_result(request, reply)

    def cancel(self) -> bool:
        """Cancel the call that another thread waits for; return whether there is one.

        That call raises RequestCancelled, or returns as usual if the daemon has begun to store something for it.
        """
        with self._send_lock:
            if self._awaited_id is None or self._socket is None:
                return False
            try:
                self._socket.send(encode_cancel(self._awaited_id), socket.MSG_DONTWAIT)
            except OSError:  # the waiting thread learns it too
                return False
            return True

    def notify(self, request: Method[Any]) -> bool:
        """Send a request without waiting for a reply; return whether it was sent. Never raises."""
        deadline = time.monotonic() + self._timeout
        try:
            data = encode_request(request, None)
            with self._exclusive(deadline):
                if self._send(data, deadline):
                    return True
                self.close()
                return self._send(data, deadline)
        except Exception:
            return False

    @contextmanager
    def _exclusive(self, deadline: float) -> Iterator[None]:
        """Hold the connection exclusively. An exception closes it, because an exchange may be incomplete."""
        if not self._lock.acquire(timeout=_remaining(deadline)):
            raise TimeoutError
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            self._lock.release()

    def _request_with_retry(self, request: Method[Any], deadline: float) -> Incoming:
        try:
            return self._request(request, deadline)
        except ConnectionLost as lost:
            if not may_resend(request, lost):
                raise DaemonUnavailable.connection_lost(request) from lost
        self.close()
        try:
            return self._request(request, deadline)
        except ConnectionLost as lost:
            raise DaemonUnavailable.connection_lost(request) from lost

    def _request(self, request: Method[Any], deadline: float) -> Incoming:
        request_id = next(self._request_ids)
        sent = self._send(encode_request(request, request_id), deadline)
        self._awaited_id = request_id
        try:
            # Read even if sending failed: a daemon that refuses a connection sends the reason before it closes it.
            while data := self._receive(deadline):
                for message in self._replies(data):
                    if message.id in (request_id, None):
                        return message
        except BaseException:  # a timeout, or Ctrl-C
            self.cancel()
            raise
        finally:
            with self._send_lock:
                self._awaited_id = None
        raise ConnectionLost(sent)

    def _send(self, data: bytes, deadline: float) -> bool:
        """Send all data; return False if the connection is closed, which a Unix socket reports immediately."""
        if self._socket is None:
            self._socket = _connect(self._path, deadline)
            self._decoder = Decoder()
        self._socket.settimeout(_remaining(deadline))
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def _receive(self, deadline: float) -> bytes:
        """Return the next data; empty when the connection is closed."""
        assert self._socket  # for the type checker: _send has created it
        self._socket.settimeout(_remaining(deadline))
        try:
            return self._socket.recv(1 << 16)
        except ConnectionError:
            return b""

    def _replies(self, data: bytes) -> Iterator[Incoming]:
        """Iterate over the replies in the data; notifications go to `on_notification`."""
        for message in decode_messages(self._decoder, data):
            if message.method is None:
                yield message
            elif self._on_notification:
                self._on_notification(message.method, msgspec.json.decode(message.params))


def client_info(name: str, version: str | None) -> ClientInfo:
    """Describe the client to the daemon; the version defaults to that of this package."""
    return ClientInfo(name, VERSION if version is None else version)


def _connect(path: str, deadline: float) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_remaining(deadline))
        try:
            connection.connect(path)
            refuse_foreign_socket(connection, path)
        except ForeignSocket as error:
            connection.close()
            raise DaemonUnavailable.at(path, str(error)) from error
        except BlockingIOError:
            connection.close()
            time.sleep(0.01)  # the backlog of the socket is full, and there is no event to wait for
        except OSError as error:
            connection.close()
            is_absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            raise DaemonUnavailable.at(path, error.strerror or str(error), is_absent=is_absent) from error
        else:
            return connection


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
