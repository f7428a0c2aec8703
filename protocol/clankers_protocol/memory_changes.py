"""Changing memories: corrections, strength, forgetting and bringing back."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from clankers_protocol.memories import (
    Category,
    Content,
    Memory,
    MemoryId,
    Paths,
    Scoped,
    Sector,
    Selection,
    Share,
    Tier,
    Usage,
    Words,
)
from clankers_protocol.wire import Id, Scope, Time, Wire


class MemoryUpdate(Scoped[Memory]):
    """Correct a memory in place; what is not given stays, and what `clear` names is emptied. What it said before is in
    its history.

    Something that is no longer true is not corrected but superseded: `memory.add` with `supersedes`.
    """

    method: ClassVar[str] = "memory.update"
    id: MemoryId
    content: Content | None = None
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    importance: Share | None = None
    confidence: Share | None = None
    tags: Words | None = None
    concepts: Words | None = None
    files: Paths | None = None
    metadata: dict[str, Any] | None = None
    valid_from: Time | None = None
    valid_until: Time | None = None
    expires_at: Time | None = None
    clear: Annotated[list[Literal["summary", "validUntil", "expiresAt", "metadata"]], Meta(max_length=4)] = (
        msgspec.field(default_factory=list)
    )
    session_id: Id | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class Changed(Wire):
    """How many memories a change reached, and which."""

    count: int
    ids: list[str]


class MemoryDelete(Scoped[Changed]):
    """Forget a memory: it is found no more, and can be restored until it is purged."""

    method: ClassVar[str] = "memory.delete"
    id: MemoryId
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class MemoryRestore(Scoped[Memory]):
    """Bring a forgotten or archived memory back."""

    method: ClassVar[str] = "memory.restore"
    id: MemoryId


class MemoryPurge(Scoped[Changed]):
    """Remove a memory for good, with its history, links and index. It need not have been forgotten first."""

    method: ClassVar[str] = "memory.purge"
    id: MemoryId


class MemoryBulkDelete(Selection[Changed]):
    """Forget every memory that the conditions select; at least one is needed, and `scopes` alone counts when given,
    a `project` only beside them. `dryRun` only tells which."""

    method: ClassVar[str] = "memory.bulkDelete"
    purge: bool = False
    dry_run: bool = False


class MemoryReinforce(Scoped[Memory]):
    """Make a memory stronger: by `amount` of what is missing to 1."""

    method: ClassVar[str] = "memory.reinforce"
    id: MemoryId
    amount: Annotated[float, Meta(gt=0, le=1)] = 0.1
    session_id: Id | None = None


class MemoryDeemphasize(Scoped[Memory]):
    """Make a memory weaker by `amount`; it never quite vanishes."""

    method: ClassVar[str] = "memory.deemphasize"
    id: MemoryId
    amount: Annotated[float, Meta(gt=0, le=1)] = 0.2


class MemoryPin(Scoped[Memory]):
    """Keep a memory from fading, or no longer."""

    method: ClassVar[str] = "memory.pin"
    id: MemoryId
    pinned: bool = True


class MemoryTouch(Scoped[Changed]):
    """Record that memories were used; `recalled` and `reinforced` count as an access."""

    method: ClassVar[str] = "memory.touch"
    ids: Annotated[list[MemoryId], Meta(min_length=1, max_length=100)]
    session_id: Id
    usage: Usage = "recalled"


class MemoryPromote(Scoped[Memory]):
    """Give a memory a wider tier, and with it, when given, another scope that the caller may touch."""

    method: ClassVar[str] = "memory.promote"
    id: MemoryId
    tier: Literal["project", "global"]
    scope: Scope | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None
