"""Errors that cross the wire: an error raised in the daemon is the same class in the client.

Standard library only.
"""

from typing import Any, ClassVar


class RpcError(Exception):
    """An error reply. `code` tells programs what happened, the message tells people."""

    code: ClassVar[int] = -32000

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class ParseError(RpcError):
    """The body is not JSON."""

    code = -32700


class InvalidRequest(RpcError):
    """The JSON is not a JSON-RPC 2.0 request."""

    code = -32600


class MethodNotFound(RpcError):
    """There is no such method."""

    code = -32601


class InvalidParams(RpcError):
    """A parameter is missing, unknown, of the wrong type or out of range; the message names it."""

    code = -32602


class InternalError(RpcError):
    """A fault of the daemon; the message names the entry in its log."""

    code = -32603


class InvalidPayload(RpcError):
    """An event lacks a field it must have: `data.field`."""

    code = 4001


class NotFound(RpcError):
    """What the request names is not there."""

    code = 4004


class Conflict(RpcError):
    """The request clashes with what is there or under way."""

    code = 4009


class QueryRefused(RpcError):
    """The SQL is wrong, or would do more than read."""

    code = 4010


class StorageUnavailable(RpcError):
    """Nothing can be stored or read just now: keep the event (`data.retry` is "spool"), send it later."""

    code = 5001


class Overloaded(RpcError):
    """A limit of the daemon is reached: too many connections, a request too large, or replies not read."""

    code = 5002


class DeadlineExceeded(RpcError):
    """The answer took longer than it may."""

    code = 5003


def _with_subclasses(cls: type[RpcError]) -> list[type[RpcError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _with_subclasses(sub))]


ERRORS: dict[int, type[RpcError]] = {error.code: error for error in _with_subclasses(RpcError)}


def error_from(code: int, message: str, data: Any = None) -> RpcError:
    """The error of this code, ready to raise."""
    error = ERRORS.get(code, RpcError)(message, data)
    if error.code != code:
        error.code = code  # type: ignore[misc]  # a code of a newer daemon: kept on the instance
    return error
