"""The graph over memories: entities they speak of, relations between them."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.memories import Memory, MemoryId, Scoped, Share
from clankers_protocol.wire import Cursor, Id, Limit, Time, Wire

EntityType = Literal["person", "project", "technology", "concept", "file", "error"]
EntityRole = Literal["subject", "object", "context"]
RelationType = Literal[
    "SUPERSEDES", "CONTRADICTS", "RELATED_TO", "BUILDS_ON", "CONFIRMS", "APPLIES_TO", "DEPENDS_ON", "ALTERNATIVE_TO"
]
ExtractedBy = Literal["user", "llm", "system"]
EntityName = Annotated[str, Meta(min_length=1, max_length=500)]


class Entity(Wire):
    """A person, project, technology, concept, file or error; `memories` counts those the caller may see.

    An entity of which only memories outside the caller's scopes speak is not there; one of which they speak too hides
    its summary.
    """

    id: str
    name: str
    type: EntityType
    summary: str | None
    memories: int
    created_at: int
    updated_at: int


class EntityUpsert(Scoped[Entity]):
    """Name an entity. One of that name and type is brought up to date: names are the same whatever their case."""

    method: ClassVar[str] = "entity.upsert"
    name: EntityName
    type: EntityType
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    id: Id | None = None


class EntityDetail(Wire):
    """An entity with the memories that speak of it, newest first."""

    entity: Entity
    memories: list[Memory]


class EntityGet(Scoped[EntityDetail]):
    """One entity, by id or unique prefix of 8 or more characters, or by name."""

    method: ClassVar[str] = "entity.get"
    id: Id | None = None
    name: EntityName | None = None
    type: EntityType | None = None
    limit: Limit = 20


class EntityPage(Wire):
    entities: list[Entity]
    cursor: str | None = None


class EntityList(Scoped[EntityPage]):
    """Entities that memories of the caller's scopes speak of, and those nothing speaks of yet; by name. `query` is
    part of the name."""

    method: ClassVar[str] = "entity.list"
    type: EntityType | None = None
    query: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class EntityMerge(Scoped[Entity]):
    """Make two entities one: `into` gets the links of `id`, which is gone. Refused when memories outside the
    caller's scopes speak of `id`."""

    method: ClassVar[str] = "entity.merge"
    id: Id
    into: Id


class EntityDeleted(Wire):
    deleted: bool
    links: int


class EntityDelete(Scoped[EntityDeleted]):
    """Remove an entity and its links; the memories stay. Refused when memories outside the caller's scopes speak of
    it."""

    method: ClassVar[str] = "entity.delete"
    id: Id


class EntityLinked(Wire):
    """The entities a memory speaks of."""

    memory_id: str
    entities: list[Entity]


class EntityLink(Scoped[EntityLinked]):
    """Say that a memory speaks of an entity, or with `remove` that it does not."""

    method: ClassVar[str] = "entity.link"
    memory_id: MemoryId
    entity_id: Id
    role: EntityRole = "context"
    remove: bool = False


class Relation(Wire):
    """How one memory stands to another, since when, how surely, and who says so."""

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
    """Relate two memories. The same relation is held once: adding it again keeps the surer confidence.

    `SUPERSEDES` ends the target's truth: both must be of one scope, it takes no window of its own, and it cannot be
    closed.
    """

    method: ClassVar[str] = "relation.add"
    source: MemoryId
    target: MemoryId
    type: RelationType
    confidence: Share = 1.0
    extracted_by: ExtractedBy = "user"
    valid_from: Time | None = None
    valid_until: Time | None = None


class RelationPage(Wire):
    relations: list[Relation]
    cursor: str | None = None


class RelationList(Scoped[RelationPage]):
    """Relations between memories the caller may see, newest first; with `asOf` those that held then."""

    method: ClassVar[str] = "relation.list"
    memory_id: MemoryId | None = None
    direction: Literal["out", "in", "both"] = "both"
    types: Annotated[list[RelationType], Meta(min_length=1)] | None = None
    include_closed: bool = False
    as_of: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class RelationClose(Scoped[Relation]):
    """Say that a relation holds no longer, since `at` or now."""

    method: ClassVar[str] = "relation.close"
    id: Id
    at: Time | None = None


class GraphNode(Wire):
    """A memory or an entity, and how far it is from where the search began."""

    id: str
    kind: Literal["memory", "entity"]
    label: str
    hops: int
    memory: Memory | None = None
    entity: Entity | None = None


class GraphEdge(Wire):
    """A relation between two memories, or a link from a memory to an entity (its type is then the role)."""

    source: str
    target: str
    type: str
    confidence: float


class Graph(Wire):
    """`truncated` when there was more than the limit."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    truncated: bool


class GraphNeighbors(Scoped[Graph]):
    """What lies around a memory or an entity, up to so many hops, nearest first."""

    method: ClassVar[str] = "graph.neighbors"
    id: Id
    hops: Annotated[int, Meta(ge=1, le=6)] = 1
    types: Annotated[list[RelationType], Meta(min_length=1)] | None = None
    through_entities: bool = True
    as_of: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    include_closed: bool = False
