"""Memories on their way from one store to another: everything about them, as it was."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from clankers_protocol.entities import EntityName, EntityRole, EntityType, ExtractedBy, RelationType
from clankers_protocol.ids import NewId, NewMemoryId
from clankers_protocol.memories import Category, Content, MemoryId, Paths, Scoped, Sector, Share, Tier, Words
from clankers_protocol.wire import Cursor, Limit, Name, Scope, Time, Wire


class RelationRecord(Wire, forbid_unknown_fields=True):
    """A relation of a memory from elsewhere, with its id and times."""

    id: NewId
    source: MemoryId
    target: MemoryId
    type: RelationType
    created_at: Time
    valid_from: Time | None = None
    valid_until: Time | None = None
    confidence: Share = 1.0
    extracted_by: ExtractedBy = "user"


class MentionRecord(Wire, forbid_unknown_fields=True):
    """An entity that a memory from elsewhere speaks of; `noticed` when a name in its text made the link."""

    name: EntityName
    type: EntityType
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    role: EntityRole = "context"
    noticed: bool = False


class MemoryRecord(Wire, forbid_unknown_fields=True):
    """A memory from elsewhere, with its id and times. Importance may come on a scale of 1 to 5.

    A scope that is the one of its project (`project:<projectId>`) becomes that of the project at `projectPath` here.
    """

    id: NewMemoryId
    content: Content
    created_at: Time
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    scope: Scope = "global"
    project_id: Name | None = None
    project_path: Annotated[str, Meta(max_length=4096)] | None = None
    importance: Annotated[float, Meta(ge=0, le=5)] = 0.5
    confidence: Share = 0.5
    salience: Share = 1.0
    salience_at: Time | None = None
    access_count: Annotated[int, Meta(ge=0, le=10**9)] = 0
    pinned: bool = False
    tags: Words = msgspec.field(default_factory=list)
    concepts: Words | None = None
    files: Paths = msgspec.field(default_factory=list)
    metadata: dict[str, Any] | None = None
    updated_at: Time | None = None
    last_accessed: Time | None = None
    valid_from: Time | None = None
    valid_until: Time | None = None
    expires_at: Time | None = None
    archived_at: Time | None = None
    deleted_at: Time | None = None
    source_session_id: NewId | None = None
    source_message_id: NewId | None = None
    relations: list[RelationRecord] = msgspec.field(default_factory=list)
    entities: list[MentionRecord] = msgspec.field(default_factory=list)


class Imported(Wire):
    """`unchanged` were there with the same id; `refused` says why, by id; `relations` came with those created."""

    created: int
    relations: int
    unchanged: int
    refused: dict[str, str]


class MemoryImport(Scoped[Imported]):
    """Take memories over as they are: ids and times are kept, and what is there stays as it is. One that cannot be
    taken fails alone. A relation comes with the second of its memories: one to a memory that is not here is left out,
    as is a supersession of what still holds here.
    """

    method: ClassVar[str] = "memory.import"
    memories: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]


class RecordPage(Wire):
    """Everything `memory.import` wants to know, oldest first."""

    memories: list[MemoryRecord]
    cursor: str | None = None


class MemoryExport(Scoped[RecordPage]):
    """Every memory in every state, to be imported elsewhere."""

    method: ClassVar[str] = "memory.export"
    limit: Limit = 200
    cursor: Cursor | None = None
