"""The client of clankers: `Client`, `AsyncClient`, and the errors they raise.

Everything is loaded on first use, so that `clankers.hook` pays for nothing but the standard library.
"""

TYPE_CHECKING = False  # type checkers know the name; importing it from typing takes longer than sending an event

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
    "RpcError",
    "StorageUnavailable",
]

_HOMES = {
    "AsyncClient": "clankers.aio",
    "BadReply": "clankers.messages",
    "Client": "clankers.client",
    "DaemonUnavailable": "clankers.messages",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "clankers_protocol.errors")), name)
