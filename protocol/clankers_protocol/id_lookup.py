"""Ids of anything: which thing an id names, and how short it may be written."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.wire import Method, Wire

IdKind = Literal[
    "session",
    "memory",
    "document",
    "skill",
    "schedule",
    "entity",
    "project",
    "message",
    "tool",
    "documentChunk",
    "chunk",
    "relation",
    "run",
    "error",
    "compaction",
]
IdPart = Annotated[str, Meta(min_length=1, max_length=1024)]


class NamedThing(Wire):
    """Something that an id names: its kind and its complete id."""

    kind: IdKind
    id: str


class IdFind(Method[list[NamedThing]]):
    """Find what an id names, given in full or as its first or last characters, at least 8 of them.

    Sessions, memories, documents, skills, schedules, entities and projects are found before their parts (messages, tool
    calls, chunks and so on), and a beginning before an end. The list is empty if there is nothing, and has up to six
    items if the id is ambiguous.
    """

    method: ClassVar[str] = "id.find"
    id: IdPart


class IdShorten(Method[list[str]]):
    """Shorten ids of one kind to parts that are unambiguous in the whole store, in the given order."""

    method: ClassVar[str] = "id.shorten"
    kind: IdKind
    ids: Annotated[list[IdPart], Meta(max_length=1000)]
