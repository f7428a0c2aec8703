"""Changes of memories: update, delete, restore, reinforce, pin, promote."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from clankers_protocol.memories import (
    Category,
    Content,
    Fraction,
    Memory,
    MemoryId,
    Paths,
    Scoped,
    Sector,
    Selection,
    Tier,
    Usage,
    Words,
)
from clankers_protocol.wire import Id, Scope, Time, Wire


class MemoryUpdate(Scoped[Memory]):
    """Correct a memory in place. Omitted fields stay unchanged, and the fields listed in `clear` are emptied. The
    previous values go to its history.

    To replace a memory that is no longer true, use `memory.add` with `supersedes` instead.
    """

    method: ClassVar[str] = "memory.update"
    id: MemoryId
    content: Content | None = None
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    importance: Fraction | None = None
    confidence: Fraction | None = None
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
    """Number and ids of the changed memories."""

    count: int
    ids: list[str]


class MemoryDelete(Scoped[Changed]):
    """Delete a memory. Searches no longer return it; it can be restored until it is purged."""

    method: ClassVar[str] = "memory.delete"
    id: MemoryId
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class MemoryRestore(Scoped[Memory]):
    """Restore a deleted or archived memory. Restoring a superseded memory takes the supersession back: then both are
    valid."""

    method: ClassVar[str] = "memory.restore"
    id: MemoryId


class MemoryPurge(Scoped[Changed]):
    """Remove a memory permanently, with its history, links and index entries. It need not be deleted first."""

    method: ClassVar[str] = "memory.purge"
    id: MemoryId


class MemoryBulkDelete(Selection[Changed]):
    """Delete every selected memory. At least one condition is required; explicit `scopes` count as one, `project` only
    together with them. `dryRun` only lists the memories."""

    method: ClassVar[str] = "memory.bulkDelete"
    purge: bool = False
    dry_run: bool = False


class MemoryReinforce(Scoped[Memory]):
    """Reinforce a memory: raise its salience by `amount` of the distance to 1."""

    method: ClassVar[str] = "memory.reinforce"
    id: MemoryId
    amount: Annotated[float, Meta(gt=0, le=1)] = 0.1
    session_id: Id | None = None


class MemoryDeemphasize(Scoped[Memory]):
    """Lower the salience of a memory by `amount`. It never reaches zero."""

    method: ClassVar[str] = "memory.deemphasize"
    id: MemoryId
    amount: Annotated[float, Meta(gt=0, le=1)] = 0.2


class MemoryPin(Scoped[Memory]):
    """Pin or unpin a memory. A pinned memory does not decay."""

    method: ClassVar[str] = "memory.pin"
    id: MemoryId
    pinned: bool = True


class MemoryTouch(Scoped[Changed]):
    """Record the use of memories. `recalled` and `reinforced` count as an access."""

    method: ClassVar[str] = "memory.touch"
    ids: Annotated[list[MemoryId], Meta(min_length=1, max_length=100)]
    session_id: Id
    usage: Usage = "recalled"


class MemoryPromote(Scoped[Memory]):
    """Move a memory to a wider tier and, if given, to another scope that the caller may write."""

    method: ClassVar[str] = "memory.promote"
    id: MemoryId
    tier: Literal["project", "global"]
    scope: Scope | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None
