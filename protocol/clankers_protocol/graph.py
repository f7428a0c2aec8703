"""The graph between chunks of documents: edges, and what they lead to."""

from typing import Annotated, ClassVar

from msgspec import Meta

from clankers_protocol.documents import ChunkId, ChunkIds
from clankers_protocol.search import Direction, Hops, Relation, Relations, Step, Weight
from clankers_protocol.wire import Limit, Method, Wire


class Edge(Wire, forbid_unknown_fields=True):
    """How one chunk relates to another, and how strongly."""

    source_id: ChunkId
    target_id: ChunkId
    relation: Relation
    weight: Weight = 1.0
    description: Annotated[str, Meta(max_length=1000)] | None = None


class EdgesStored(Wire):
    """`kept` were there already, at least as strong."""

    stored: int
    strengthened: int
    kept: int


class GraphStoreEdges(Method[EdgesStored]):
    """Store edges between chunks of documents, all or none. Of the same pair and relation the strongest is kept."""

    method: ClassVar[str] = "graph.storeEdges"
    edges: Annotated[list[Edge], Meta(min_length=1, max_length=10_000)]


class GraphGetEdges(Method[list[Edge]]):
    """The edges that lead away from chunks, strongest first."""

    method: ClassVar[str] = "graph.getEdges"
    ids: ChunkIds
    relations: Relations | None = None
    limit: Limit = 100


class GraphIncoming(Method[list[Edge]]):
    """The edges that lead to chunks, strongest first."""

    method: ClassVar[str] = "graph.incoming"
    ids: ChunkIds
    relations: Relations | None = None
    limit: Limit = 100


class Pruned(Wire):
    """How many edges went, or would go: those of which a chunk is gone, those too weak, those too many."""

    orphans: int
    weak: int
    surplus: int
    dry_run: bool


class GraphPrune(Method[Pruned]):
    """Remove edges of which a chunk is gone and, where asked for, those below `minWeight` and all but the
    strongest `mostPerChunk` of each chunk. Edges made by ingesting stay as long as their chunks."""

    method: ClassVar[str] = "graph.prune"
    min_weight: Weight | None = None
    most_per_chunk: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    dry_run: bool = False


class Reached(Wire):
    """A chunk and the best way to it. `score` is the product of the weights and of `decay` for each hop."""

    chunk_id: str
    document_id: str
    score: float
    hops: int
    way: list[Step]


class GraphTraverse(Method[list[Reached]]):
    """What can be reached from chunks along edges, best first; the chunks themselves are left out."""

    method: ClassVar[str] = "graph.traverse"
    ids: Annotated[list[ChunkId], Meta(min_length=1, max_length=100)]
    hops: Hops = 2
    decay: Weight = 0.7
    relations: Relations | None = None
    direction: Direction = "both"
    min_score: Annotated[float, Meta(ge=0, le=1)] = 0.0
    limit: Limit = 50
