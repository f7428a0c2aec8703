"""Export and import of memories with all their fields."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from clankers_protocol.entities import EntityName, EntityRole, EntityType, ExtractedBy, RelationType
from clankers_protocol.ids import NewId, NewMemoryId
from clankers_protocol.memories import Category, Content, Fraction, MemoryId, Paths, Scoped, Sector, Tier, Words
from clankers_protocol.wire import Cursor, Limit, Name, Scope, Time, Wire


class RelationRecord(Wire, forbid_unknown_fields=True):
    """An exported relation with its id and times."""

    id: NewId
    source: MemoryId
    target: MemoryId
    type: RelationType
    created_at: Time
    valid_from: Time | None = None
    valid_until: Time | None = None
    confidence: Fraction = 1.0
    extracted_by: ExtractedBy = "user"


class MentionRecord(Wire, forbid_unknown_fields=True):
    """An entity mentioned by an exported memory; `noticed` if the link was derived from a name in the text."""

    name: EntityName
    type: EntityType
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    role: EntityRole = "context"
    noticed: bool = False


class MemoryRecord(Wire, forbid_unknown_fields=True):
    """An exported memory with its id and times. Importance may also be on a scale of 1 to 5.

    An import begins the memory's decay at `salience`, at the time of the import: `salienceAt` only says when the
    exporting database had that value.

    The scope of the memory's own project (`project:<projectId>`) is mapped to the project here that has the repository
    `projectRepository` or lies at `projectPath`.
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
    project_repository: Annotated[str, Meta(max_length=500)] | None = None
    importance: Annotated[float, Meta(ge=0, le=5)] = 0.5
    confidence: Fraction = 0.5
    salience: Fraction = 1.0
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
    """Result of an import. `unchanged` ids existed already; `refused` gives the reason by id; `relations` counts the
    relations of created memories."""

    created: int
    relations: int
    unchanged: int
    refused: dict[str, str]


class MemoryImport(Scoped[Imported]):
    """Import memories with their ids and times. Existing memories stay unchanged, and one that cannot be imported does
    not affect the others. A relation is stored once both of its memories exist. Relations to missing memories are
    skipped, and so is a supersession of a memory that is still valid here.
    """

    method: ClassVar[str] = "memory.import"
    memories: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]


class RecordPage(Wire):
    """Exported memories as `memory.import` accepts them, oldest first."""

    memories: list[MemoryRecord]
    cursor: str | None = None


class MemoryExport(Scoped[RecordPage]):
    """Export every memory in every state."""

    method: ClassVar[str] = "memory.export"
    ends_with_client: ClassVar[bool] = True
    limit: Limit = 200
    cursor: Cursor | None = None
