"""Errors that cross the wire: the client raises the same class that the daemon raised.

Standard library only.
"""

from typing import Any, ClassVar


class RpcError(Exception):
    """Error reply: `code` is for programs, the message is for people."""

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
    """The method does not exist."""

    code = -32601


class InvalidParams(RpcError):
    """A parameter is missing, unknown, of the wrong type or out of range; the message names it."""

    code = -32602


class InternalError(RpcError):
    """Unexpected failure inside the daemon. The message names the log entry with the details."""

    code = -32603


class RequestCancelled(RpcError):
    """The request was cancelled before it stored anything: with `$/cancelRequest`."""

    code = -32800


class InvalidPayload(RpcError):
    """An event lacks a required field, named in `data.field`."""

    code = 4001


class NotFound(RpcError):
    """The object named by the request does not exist."""

    code = 4004


class Conflict(RpcError):
    """The request conflicts with stored data or with work in progress."""

    code = 4009


class QueryRefused(RpcError):
    """The SQL statement is invalid, or would do more than read."""

    code = 4010


class StorageUnavailable(RpcError):
    """The database cannot be used right now. Spool the event (`data.retry` is "spool") and send it again later."""

    code = 5001


class Overloaded(RpcError):
    """A limit of the daemon was reached: too many connections, a request that is too large, or unread replies."""

    code = 5002


class DeadlineExceeded(RpcError):
    """The request took longer than its deadline, and stored nothing."""

    code = 5003


def _with_subclasses(cls: type[RpcError]) -> list[type[RpcError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _with_subclasses(sub))]


ERRORS: dict[int, type[RpcError]] = {error.code: error for error in _with_subclasses(RpcError)}


def error_from(code: int, message: str, data: Any = None) -> RpcError:
    """Build the error class that belongs to a code."""
    error = ERRORS.get(code, RpcError)(message, data)
    if error.code != code:
        error.code = code  # type: ignore[misc]  # a code from a newer daemon: set on the instance
    return error
