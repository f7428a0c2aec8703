"""Base types of the protocol. A method is a struct: its fields are the parameters, its type argument the result."""

from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

Result = TypeVar("Result")

MAX_INTEGER = 2**53 - 1
"""The largest whole number that JavaScript, JSON and SQLite all represent exactly."""

Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[float, Meta(ge=0, le=1e15)]
Time = Annotated[int, Meta(ge=0, le=10**15)] | Annotated[float, Meta(ge=0, le=1e15)]
"""A point in time: milliseconds since 1970 UTC, or seconds (any value below 1e12)."""

Duration = Time
"""Milliseconds."""

Id = Annotated[str, Meta(max_length=1024)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9._:-]{1,100}\Z")]
_SCOPES = r"global|(agent|user|custom):[A-Za-z0-9._:-]{1,100}|project:[^\x00-\x1f\x7f]{1,1000}"
Scope = Annotated[str, Meta(max_length=1010, pattern=rf"^({_SCOPES})\Z")]
"""Scope of a memory: `global`, or `agent:`, `project:`, `user:` or `custom:` followed by a name.

The scope of a project has its id, name or folder; it is stored with the id."""

ScopeSelector = Annotated[str, Meta(max_length=1010, pattern=rf"^(\*|{_SCOPES})\Z")]
"""A scope that a caller may read and write. `*` selects every scope and is meant for the owner's own tools."""


class Wire(msgspec.Struct, rename="camel", omit_defaults=False):
    """Base of everything sent over the wire: snake_case in Python, camelCase in JSON."""


class Method(Wire, Generic[Result], forbid_unknown_fields=True):
    """Call of one method. An unknown parameter is rejected with an error that names it."""

    method: ClassVar[str]
    is_event: ClassVar[bool] = False
    """True for a method that stores what a harness reports."""

    ends_with_client: ClassVar[bool] = False
    """True for a read that may take long: it ends when its client closes the connection. All else runs to its end."""

    is_cancellable: ClassVar[bool] = True
    """False for a method that changes more than the database, and must not stop halfway."""


class ClientInfo(Wire):
    """Name and version of the sending client, part of the envelope around every event."""

    name: str = ""
    version: str = ""


class Ok(Wire):
    """The request was executed and committed.

    `paused` is there only if an event was not stored, because capture was paused when it happened.
    """

    ok: bool = True
    paused: str | UnsetType = UNSET


class CancelRequest(Method[Ok]):
    """Cancel the request with this `id` on the same connection. Send it as a notification, without an id of its own.

    If the request has stored nothing yet, it is answered with error -32800 (RequestCancelled) and will store nothing.
    Otherwise it is answered as usual. An id that is unknown, or answered already, is ignored.
    """

    method: ClassVar[str] = "$/cancelRequest"
    id: str | int | float


def methods() -> dict[str, type[Method[Any]]]:
    """Return every declared method by its name on the wire."""
    from clankers_protocol import (  # noqa: F401  # importing a module declares its methods
        admin,
        backups,
        capture,
        client_config,
        documents,
        entities,
        events,
        exports,
        forgetting,
        graph,
        id_lookup,
        mcp,
        memories,
        memory_changes,
        memory_maintenance,
        memory_transfer,
        metrics,
        projects,
        recall,
        retention,
        schedules,
        search,
        sessions,
        skills,
        subscriptions,
        threads,
        transcripts,
    )

    return {declared.method: declared for declared in _leaves(Method)}


def result_type(declared: type[Method[Any]]) -> Any:
    """Return the result type of a method."""
    for ancestor in declared.__mro__:
        for base in ancestor.__dict__.get("__orig_bases__", ()):
            if arguments := get_args(base):
                return arguments[0]
    raise TypeError(f"{declared.__name__} names no result: declare it as Method[…]")


def _leaves(cls: type[Any]) -> list[type[Any]]:
    return [
        leaf
        for sub in cls.__subclasses__()
        for leaf in ([sub] if "method" in sub.__dict__ else _leaves(sub))
        if leaf.__module__.startswith("clankers_protocol.")
    ]
