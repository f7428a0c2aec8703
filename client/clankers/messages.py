"""Requests made into bytes and replies read from them: what the blocking and the async client share."""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec

from clankers_protocol.errors import Overloaded, error_from
from clankers_protocol.events import Envelope, EventsBatch, Failure
from clankers_protocol.framing import MAX_FRAME, Decoder, FramingError, frame
from clankers_protocol.wire import Method, result_type

Result = TypeVar("Result")

_NULL = msgspec.Raw(b"null")


class DaemonUnavailable(ConnectionError):
    """Nothing listens on the socket, or what listened went away before it answered."""

    @classmethod
    def at(cls, path: str, reason: str | None) -> "DaemonUnavailable":
        """Nobody could be reached at this path."""
        return cls(
            f"clankersd does not answer on {path} ({reason}). "
            "Start it with `clankersd`, or let it start by itself: `clankers-ctl service install`."
        )

    @classmethod
    def connection_lost(cls, request: Method[Any]) -> "DaemonUnavailable":
        """The connection was lost with the request under way."""
        return cls(f"clankersd hung up before it answered {request.method}: it may or may not have been done.")


class BadReply(Exception):
    """The daemon said something this client does not understand: they may be of different versions."""


class ConnectionLost(Exception):
    """The connection ended with a request under way; unless `sent`, the daemon has not seen all of it."""

    def __init__(self, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class Incoming(msgspec.Struct):
    """A reply or a notification. A reply without an id concerns the connection and ends it."""

    id: int | None = None
    method: str | None = None
    params: msgspec.Raw = _NULL
    result: msgspec.Raw = _NULL
    error: Failure | None = None


def encode_request(request: Method[Any], number: int | None) -> bytes:
    """The request as it stands on the wire; without a number it is a notification and gets no reply."""
    message = {"jsonrpc": "2.0", "method": request.method, "params": request}
    body = msgspec.json.encode(message if number is None else message | {"id": number})
    if len(body) > MAX_FRAME:
        raise Overloaded(f"a request may take {MAX_FRAME} bytes, this {request.method} takes {len(body)}")
    return frame(body)


def decode_messages(decoder: Decoder, data: bytes) -> Iterator[Incoming]:
    """The messages that `data` completes."""
    try:
        for body in decoder.feed(data):
            yield msgspec.json.decode(body, type=Incoming)
    except (FramingError, msgspec.MsgspecError) as error:
        raise BadReply(f"not a JSON-RPC message: {error}") from error


def decode_result(request: Method[Result], reply: Incoming) -> Result:
    """What the reply holds; an error reply is raised as the error it names."""
    if reply.error:
        raise error_from(reply.error.code, reply.error.message, reply.error.data)
    try:
        result: Result = _results(type(request)).decode(reply.result)
    except msgspec.MsgspecError as error:
        raise BadReply(f"the answer to {request.method} is not what this version expects: {error}") from error
    return result


def may_resend(request: Method[Any], lost: ConnectionLost) -> bool:
    """Whether it may be sent again: it never arrived whole, or doing it twice is doing it once."""
    return not lost.sent or isinstance(request, Envelope | EventsBatch)


@cache
def _results(declared: type[Method[Any]]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(result_type(declared))
