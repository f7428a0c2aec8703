"""JSON-RPC: dispatch of requests to handlers, and encoding of replies. The only user of jsonrpcserver."""

import secrets
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec
import structlog

import clankersd.wire.jsonrpcserver_stubs  # noqa: F401  # isort: skip  # before the next line
from jsonrpcserver import Error, Success
from jsonrpcserver.dispatcher import to_response
from jsonrpcserver.request import Request
from jsonrpcserver.response import to_serializable
from jsonrpcserver.result import ErrorResult
from jsonrpcserver.sentinels import NODATA
from oslash.either import Left

from clankers_protocol.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    RpcError,
    error_from,
)
from clankers_protocol.events import Envelope
from clankers_protocol.wire import CancelRequest, Method, Ok, result_type
from clankersd.metrics import TimedPart, metrics, request_parts
from clankersd.wire import large_json
from clankersd.wire.large_json import MAX_DEPTH
from clankersd.wire.preparation import LARGE_REQUEST_BYTES, current_order, current_request_bytes

if TYPE_CHECKING:
    from clankersd.app import Daemon
    from clankersd.wire.connection import ClientConnection

M = TypeVar("M", bound=Method[Any])
Result = TypeVar("Result")
Handler = Callable[["Daemon", M], Awaitable[Any]]
Serve = Callable[["Daemon", Any], Awaitable[Any]]

LARGE_BODY_BYTES = 128 * 1024
MAX_CANCEL_BYTES = 4096
CANCEL_METHOD = CancelRequest.method.encode()
MAX_BATCH = 1000

_MISSING = object()
_ENVELOPE = ("schemaVersion", "client")

log = structlog.get_logger(component="rpc")

current_connection: ContextVar["ClientConnection | None"] = ContextVar("current_connection", default=None)
"""The connection whose request is being served."""


EVENTS: set[str] = set()
"""Methods that store an event."""

SLOW_READS: set[str] = set()
"""Methods that end when their client is gone."""

UNCANCELLABLE: set[str] = set()
"""Methods that run to their end."""


class _Served(dict[str, Serve]):
    """Handlers by method name; unknown names get one that refuses."""

    def __missing__(self, name: str) -> Serve:
        async def refuse(_daemon: "Daemon", _params: Any) -> Any:
            return Error(MethodNotFound.code, f"method not found: {name}")

        return refuse


served = _Served()


def handles(method: type[M]) -> Callable[[Handler[M]], Handler[M]]:
    """Register the decorated function as the handler of `method`."""

    if method.is_event:
        EVENTS.add(method.method)
    if method.ends_with_client:
        SLOW_READS.add(method.method)
    if not method.is_cancellable:
        UNCANCELLABLE.add(method.method)

    def register(handler: Handler[M]) -> Handler[M]:
        async def serve(daemon: "Daemon", params: Any) -> Any:
            started = time.perf_counter()
            parts: dict[str, float] = {}
            request_parts.set(parts)  # each request runs in a task, and so in a context, of its own
            outcome = "cancelled"
            try:
                order = current_order.get()
                if order is not None and order.is_blocked:
                    with TimedPart("order"):
                        await order.wait()
                reply = Success(await handler(daemon, _parse(method, params)))
                outcome = "ok"
            except RpcError as error:
                outcome = str(error.code)
                return _error(error)
            except Exception:
                outcome = str(InternalError.code)
                error_id = secrets.token_hex(4)
                log.exception("method failed", method=method.method, error_id=error_id)
                return Error(InternalError.code, f"internal error {error_id}: see the daemon's log")
            else:
                return reply
            finally:
                seconds = time.perf_counter() - started
                metrics.observe_request(method.method, outcome, seconds)
                if seconds > daemon.config.slow_request_seconds:
                    _log_slow(method.method, outcome, seconds, parts)

        served[method.method] = serve
        return handler

    return register


class _CancelNotification(msgspec.Struct, forbid_unknown_fields=True):
    """`$/cancelRequest` without an id, as clients send it."""

    jsonrpc: Literal["2.0"]
    method: Literal["$/cancelRequest"]
    params: CancelRequest


_cancel_decoder = msgspec.json.Decoder(_CancelNotification)


@handles(CancelRequest)
async def cancel_request(daemon: "Daemon", request: CancelRequest) -> Ok:
    if connection := current_connection.get():
        connection.cancel_request(request.id)
    return Ok()


def decode(body: bytes, shape: large_json.Shape | None = None) -> Any:
    """Decode the JSON of a body, with lone surrogates replaced; raises ParseError. `shape` saves measuring it."""
    is_large = len(body) >= LARGE_BODY_BYTES
    decode_json = partial(large_json.decode_large, shape=shape) if is_large else _decode_small
    try:
        return decode_json(body)
    except ParseError as error:
        if error.__cause__ is None:  # it is JSON, but too much of it
            raise
        # JavaScript that slices a string in the middle of a character sends half a surrogate pair; that is no reason
        # to lose the event.
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
        repaired = large_json.replace_lone_surrogates(body)
        if repaired == body:
            raise
    return decode_json(repaired)


def _decode_small(body: bytes) -> Any:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"parse error: {error}") from error
    if _has_many_brackets(body):
        large_json.measure(body)
    return message


def _has_many_brackets(body: bytes) -> bool:
    """Return whether a body has more opening brackets than levels are allowed, be they in texts.

    This is a hundred times faster than walking through the message, and looking for the next one is five times faster
    than counting all.
    """
    found = 0
    for bracket in (b"{", b"["):
        position = body.find(bracket)
        while position >= 0:
            found += 1
            if found > MAX_DEPTH:
                return True
            position = body.find(bracket, position + 1)
    return False


def request_sizes(message: Any, body: bytes) -> list[int]:
    """Estimate the size in bytes of each request of a body; 0 for those that are surely small."""
    if not isinstance(message, list):
        return [len(body)]
    if len(body) < LARGE_REQUEST_BYTES or len(message) > MAX_BATCH:
        return [0] * len(message)
    return [len(msgspec.json.encode(request)) for request in message]


async def answer(daemon: "Daemon", request: Any) -> bytes | None:
    """Return the reply to one request; None for a notification, whose failure is logged."""
    if problem := _find_problem(request):
        reply_id = request.get("id") if isinstance(request, dict) else None
        return error_reply(InvalidRequest(f"invalid request: {problem}"), reply_id)
    # jsonrpcserver's `async_dispatch` would make another task of each request, for batches, which connection.py takes
    # apart; and its next steps make six objects of a result, which takes as long as to decode an event.
    outcome = await served[request["method"]](daemon, request.get("params", _MISSING))
    if "id" not in request:
        if isinstance(outcome, Left):
            log.warning("notification failed", code=outcome._error.code, error=outcome._error.message)
        return None
    if isinstance(outcome, Left):
        one = Request(request["method"], {}, request["id"])
        return msgspec.json.encode(to_serializable(to_response(one, outcome)))
    return msgspec.json.encode({"jsonrpc": "2.0", "result": outcome._value.result, "id": request["id"]})


async def call(daemon: "Daemon", request: Method[Result]) -> Result:
    """Call a method from inside the daemon; the parameters and the result are those of a request on the wire.

    Raises the RpcError that the wire would carry.
    """
    outcome = await served[request.method](daemon, msgspec.to_builtins(request))
    if isinstance(outcome, Left):
        failure: ErrorResult = outcome._error
        raise error_from(failure.code, failure.message, None if failure.data is NODATA else failure.data)
    result = msgspec.json.encode(outcome._value.result)  # a handler may return what is encoded already
    return cast(Result, msgspec.json.decode(result, type=result_type(type(request))))


def error_reply(error: RpcError, reply_id: Any = None) -> bytes:
    """Encode an error reply that no handler made."""
    failure = {"code": error.code, "message": error.message}
    if error.data is not None:
        failure["data"] = error.data
    valid_id = reply_id if isinstance(reply_id, str | int | float) else None
    return msgspec.json.encode({"jsonrpc": "2.0", "error": failure, "id": valid_id})


def cancelled_id(body: bytes) -> str | int | float | None:
    """Return the id of the request that a small body cancels; None if the body is anything else."""
    if len(body) > MAX_CANCEL_BYTES or CANCEL_METHOD not in body:
        return None
    try:
        return _cancel_decoder.decode(body).params.id
    except msgspec.MsgspecError:  # the ordinary way answers it
        return None


def notification(method: str, params: Any) -> bytes:
    """Encode a notification to a client."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def _parse(method: type[M], params: Any) -> M:
    if params is _MISSING or params is None:
        if issubclass(method, Envelope) or any(field.required for field in msgspec.structs.fields(method)):
            raise InvalidParams("missing params")
        params = {}
    if not isinstance(params, dict):
        raise InvalidParams(f"invalid params: expected an object, got {type(params).__name__}")
    if not issubclass(method, Envelope):
        params = {key: value for key, value in params.items() if key not in _ENVELOPE}
    convert = large_json.convert_large if current_request_bytes.get() >= LARGE_BODY_BYTES else msgspec.convert
    try:
        return cast(M, convert(params, method))
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {error}") from error


def _error(error: RpcError) -> Any:
    if error.data is None:
        return Error(error.code, error.message)
    return Error(error.code, error.message, error.data)


def _find_problem(request: Any) -> str | None:
    """Return the reason why this is no JSON-RPC 2.0 request; None if it is one."""
    if not isinstance(request, dict):
        return "expected an object"
    if request.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if not isinstance(request.get("method"), str):
        return "method must be a string"
    if isinstance(request.get("id"), bool | dict | list):
        return "id must be a string, a number or null"
    if not isinstance(request.get("params"), dict | list | None):
        return "params must be an object"
    return None


def _log_slow(method: str, outcome: str, seconds: float, parts: dict[str, float]) -> None:
    metrics.slow_requests += 1
    rounded = {part: round(spent, 3) for part, spent in parts.items()}
    log.warning("slow request", method=method, outcome=outcome, seconds=round(seconds, 3), parts=rounded)
