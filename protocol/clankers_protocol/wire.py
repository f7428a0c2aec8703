"""What a method is: a typed struct whose fields are its parameters and whose type argument is its result."""

from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import msgspec
from msgspec import Meta

Result = TypeVar("Result")

MAX_INTEGER = 2**53 - 1
"""The largest whole number that JavaScript, JSON and SQLite all keep exactly."""

Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[float, Meta(ge=0, le=1e15)]
Time = Annotated[int, Meta(ge=0, le=10**15)] | Annotated[float, Meta(ge=0, le=1e15)]
"""A moment: milliseconds since 1970 UTC, or seconds (anything below 1e12)."""

Duration = Time
"""Milliseconds."""

Id = Annotated[str, Meta(max_length=1024)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9._:-]{1,100}\Z")]
Scope = Annotated[str, Meta(max_length=120, pattern=r"^(global|(agent|project|user|custom):[A-Za-z0-9._:-]{1,100})\Z")]
"""Who a memory is for: `global`, or `agent:`, `project:`, `user:` or `custom:` and a name."""

Reach = Annotated[
    str, Meta(max_length=120, pattern=r"^(\*|global|(agent|project|user|custom):[A-Za-z0-9._:-]{1,100})\Z")
]
"""A scope that a caller may touch; `*` is all of them, for the owner's own tools."""


class Wire(msgspec.Struct, rename="camel", omit_defaults=False):
    """Anything that travels: snake_case here, camelCase on the wire."""


class Method(Wire, Generic[Result], forbid_unknown_fields=True):
    """A call of one method. An unknown parameter is an error that names it."""

    method: ClassVar[str]


class ClientInfo(Wire):
    """Who sends: part of the envelope that the original plugins put around every event."""

    name: str = ""
    version: str = ""


class Ok(Wire):
    """Done, and committed."""

    ok: bool = True


def methods() -> dict[str, type[Method[Any]]]:
    """Every declared method by its name on the wire."""
    from clankers_protocol import (  # noqa: F401  # declaring is importing
        admin,
        capture,
        client_config,
        documents,
        entities,
        events,
        graph,
        memories,
        memory_changes,
        memory_transfer,
        memory_upkeep,
        recall,
        schedules,
        search,
        sessions,
        skills,
        subscriptions,
        threads,
    )

    return {declared.method: declared for declared in _leaves(Method)}


def result_type(declared: type[Method[Any]]) -> Any:
    """What the method answers with."""
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
