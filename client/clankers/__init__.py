"""Python client of the clankers daemon: `Client`, `AsyncClient` and the errors they raise.

Names are imported on first use, so that `clankers.hook` loads only the standard library.
"""

TYPE_CHECKING = False  # type checkers know this name; importing it from typing would take longer than sending an event

if TYPE_CHECKING:
    from clankers.aio import AsyncClient
    from clankers.client import Client
    from clankers.messages import BadReply, DaemonUnavailable
    from clankers_protocol.errors import (
        Conflict,
        DeadlineExceeded,
        InternalError,
        InvalidParams,
        InvalidPayload,
        InvalidRequest,
        MethodNotFound,
        NotFound,
        Overloaded,
        ParseError,
        QueryRefused,
        RequestCancelled,
        RpcError,
        StorageUnavailable,
    )

__all__ = [
    "AsyncClient",
    "BadReply",
    "Client",
    "Conflict",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "InternalError",
    "InvalidParams",
    "InvalidPayload",
    "InvalidRequest",
    "MethodNotFound",
    "NotFound",
    "Overloaded",
    "ParseError",
    "QueryRefused",
    "RequestCancelled",
    "RpcError",
    "StorageUnavailable",
]

_MODULES = {
    "AsyncClient": "clankers.aio",
    "BadReply": "clankers.messages",
    "Client": "clankers.client",
    "DaemonUnavailable": "clankers.messages",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "clankers_protocol.errors")), name)
