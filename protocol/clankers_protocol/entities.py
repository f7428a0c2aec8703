"""Entity graph over memories: entities they mention and relations between them."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.memories import Fraction, Memory, MemoryId, Scoped
from clankers_protocol.wire import Cursor, Id, Limit, Time, Wire

EntityType = Literal["person", "project", "technology", "concept", "file", "error"]
EntityRole = Literal["subject", "object", "context"]
RelationType = Literal[
    "SUPERSEDES", "CONTRADICTS", "RELATED_TO", "BUILDS_ON", "CONFIRMS", "APPLIES_TO", "DEPENDS_ON", "ALTERNATIVE_TO"
]
ExtractedBy = Literal["user", "llm", "system"]
EntityName = Annotated[str, Meta(min_length=1, max_length=500)]


class Entity(Wire):
    """A person, project, technology, concept, file or error; `memories` counts those visible to the caller.

    An entity mentioned only by memories outside the caller's scopes does not exist for the caller. If such memories
    mention it as well, its summary is hidden.
    """

    id: str
    name: str
    type: EntityType
    summary: str | None
    memories: int
    created_at: int
    updated_at: int


class EntityUpsert(Scoped[Entity]):
    """Create an entity, or update the one with this name and type. Names ignore case."""

    method: ClassVar[str] = "entity.upsert"
    name: EntityName
    type: EntityType
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    id: Id | None = None


class EntityDetail(Wire):
    """An entity with the memories that mention it, newest first."""

    entity: Entity
    memories: list[Memory]


class EntityGet(Scoped[EntityDetail]):
    """Return one entity by id, unique id prefix of at least 8 characters, or name."""

    method: ClassVar[str] = "entity.get"
    id: Id | None = None
    name: EntityName | None = None
    type: EntityType | None = None
    limit: Limit = 20


class EntityPage(Wire):
    entities: list[Entity]
    cursor: str | None = None


class EntityList(Scoped[EntityPage]):
    """List entities by name: those mentioned by memories visible to the caller, and those not mentioned yet. `query`
    matches a part of the name."""

    method: ClassVar[str] = "entity.list"
    type: EntityType | None = None
    query: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class EntityMerge(Scoped[Entity]):
    """Merge the entity `id` into `into`, which takes over its links. Refused if memories outside the caller's scopes
    mention `id`."""

    method: ClassVar[str] = "entity.merge"
    id: Id
    into: Id


class EntityDeleted(Wire):
    deleted: bool
    links: int


class EntityDelete(Scoped[EntityDeleted]):
    """Delete an entity and its links; the memories stay. Refused if memories outside the caller's scopes mention it."""

    method: ClassVar[str] = "entity.delete"
    id: Id


class EntityLinked(Wire):
    """Entities mentioned by a memory."""

    memory_id: str
    entities: list[Entity]


class EntityLink(Scoped[EntityLinked]):
    """Link a memory to an entity, or with `remove` unlink it."""

    method: ClassVar[str] = "entity.link"
    memory_id: MemoryId
    entity_id: Id
    role: EntityRole = "context"
    remove: bool = False


class Relation(Wire):
    """A relation between two memories with its validity, confidence and author."""

    id: str
    source: str
    target: str
    type: RelationType
    confidence: float
    extracted_by: ExtractedBy
    created_at: int
    valid_from: int
    valid_until: int | None


class RelationAdd(Scoped[Relation]):
    """Add a relation between two memories. Adding the same relation again updates the confidence to the higher value.

    `SUPERSEDES` ends the validity of the target. Both memories must have the same scope; it takes no validity window of
    its own and cannot be closed.
    """

    method: ClassVar[str] = "relation.add"
    source: MemoryId
    target: MemoryId
    type: RelationType
    confidence: Fraction = 1.0
    extracted_by: ExtractedBy = "user"
    valid_from: Time | None = None
    valid_until: Time | None = None


class RelationPage(Wire):
    relations: list[Relation]
    cursor: str | None = None


class RelationList(Scoped[RelationPage]):
    """List relations between visible memories, newest first; with `asOf`, those that were valid at that time."""

    method: ClassVar[str] = "relation.list"
    memory_id: MemoryId | None = None
    direction: Literal["out", "in", "both"] = "both"
    types: Annotated[list[RelationType], Meta(min_length=1)] | None = None
    include_closed: bool = False
    as_of: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class RelationClose(Scoped[Relation]):
    """End the validity of a relation at the time `at` or now."""

    method: ClassVar[str] = "relation.close"
    id: Id
    at: Time | None = None


class GraphNode(Wire):
    """A memory or an entity with its distance from the start node."""

    id: str
    kind: Literal["memory", "entity"]
    label: str
    hops: int
    memory: Memory | None = None
    entity: Entity | None = None


class GraphEdge(Wire):
    """A relation between two memories, or a link from a memory to an entity, whose type is the role.

    `closed` relations do not hold any more, at the time that was asked about.
    """

    source: str
    target: str
    type: str
    confidence: float
    closed: bool = False


class Graph(Wire):
    """Part of the graph; `truncated` if it exceeded the limit."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    truncated: bool


class GraphNeighbors(Scoped[Graph]):
    """Return the neighbourhood of a memory or an entity up to `hops` steps, nearest first."""

    method: ClassVar[str] = "graph.neighbors"
    ends_with_client: ClassVar[bool] = True
    id: Id
    hops: Annotated[int, Meta(ge=1, le=6)] = 1
    types: Annotated[list[RelationType], Meta(min_length=1)] | None = None
    through_entities: bool = True
    as_of: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    include_closed: bool = False
