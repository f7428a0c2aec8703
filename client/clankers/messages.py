"""Encoding of requests and decoding of replies, for both the blocking and the async client."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec

from clankers_protocol.errors import Overloaded, error_from
from clankers_protocol.events import Envelope, EventsBatch, Failure
from clankers_protocol.framing import MAX_FRAME, Decoder, FramingError, frame
from clankers_protocol.paths import MAX_SOCKET_PATH_BYTES
from clankers_protocol.wire import CancelRequest, Method, result_type

Result = TypeVar("Result")

_NULL = msgspec.Raw(b"null")


class DaemonUnavailable(ConnectionError):
    """No daemon listens on the socket, or the connection was lost before it replied.

    `is_absent` is True if nobody listens at all, so that a daemon may be started.
    """

    is_absent = False

    @classmethod
    def at(cls, path: str, reason: str | None, *, is_absent: bool = False) -> "DaemonUnavailable":
        """Make the error for a socket that cannot be connected to."""
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            return cls(f"{path} is too long for a socket; set CLANKERS_SOCKET_PATH to a shorter one")
        error = cls(
            f"clankersd does not answer on {path} ({reason}). Start it with `clankers-ctl daemon start` (or run "
            "`clankersd`), or install it as a service: `clankers-ctl service install`."
        )
        error.is_absent = is_absent
        return error

    @classmethod
    def connection_lost(cls, request: Method[Any]) -> "DaemonUnavailable":
        """Make the error for a connection that was lost while a request was pending."""
        return cls(
            f"clankersd closed the connection before replying to {request.method}: "
            "the request may or may not have been executed."
        )


class BadReply(Exception):
    """The daemon sent a reply that this client cannot decode; their versions may differ."""


class ConnectionLost(Exception):
    """The connection ended while a request was pending. Unless `sent`, the daemon has not received all of it."""

    def __init__(self, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class Incoming(msgspec.Struct):
    """A reply or a notification. A reply without an id concerns the connection, which ends with it."""

    id: int | None = None
    method: str | None = None
    params: msgspec.Raw = _NULL
    result: msgspec.Raw = _NULL
    error: Failure | None = None


def encode_request(request: Method[Any], number: int | None) -> bytes:
    """Encode a request as a frame. Without a number it is a notification, which gets no reply."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": request.method, "params": request}
    if number is not None:
        message["id"] = number
    body = msgspec.json.encode(message)
    if len(body) > MAX_FRAME:
        raise Overloaded(f"a request can have at most {MAX_FRAME} bytes, but this {request.method} has {len(body)}")
    return frame(body)


def encode_cancel(number: int) -> bytes:
    """Encode the notification that cancels the request with this number."""
    return encode_request(CancelRequest(number), None)


def decode_messages(decoder: Decoder, data: bytes) -> Iterator[Incoming]:
    """Iterate over the messages that `data` completes."""
    try:
        for body in decoder.feed(data):
            yield msgspec.json.decode(body, type=Incoming)
    except (FramingError, msgspec.MsgspecError) as error:
        raise BadReply(f"not a JSON-RPC message: {error}") from error


def raw_result(reply: Incoming) -> msgspec.Raw:
    """Return the JSON of the result in a reply, or raise the error in it."""
    if reply.error:
        raise error_from(reply.error.code, reply.error.message, reply.error.data)
    return reply.result


def decode_result(request: Method[Result], reply: Incoming) -> Result:
    """Return the result in a reply, or raise the error in it."""
    try:
        result: Result = _result_decoder(type(request)).decode(raw_result(reply))
    except msgspec.MsgspecError as error:
        raise BadReply(f"the reply to {request.method} does not have the expected form: {error}") from error
    return result


def may_resend(request: Method[Any], lost: ConnectionLost) -> bool:
    """Return whether to send the request again: it did not arrive completely, or it is idempotent, as events are."""
    return not lost.sent or isinstance(request, Envelope | EventsBatch)


@cache
def _result_decoder(method: type[Method[Any]]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(result_type(method))
