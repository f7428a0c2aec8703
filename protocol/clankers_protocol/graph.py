"""Graph of document chunks: edges and traversal."""

from typing import Annotated, ClassVar

from msgspec import Meta

from clankers_protocol.documents import ChunkId, ChunkIds
from clankers_protocol.search import Direction, Hops, Relation, Relations, Step, Weight
from clankers_protocol.wire import Limit, Method, Wire


class Edge(Wire, forbid_unknown_fields=True):
    """A weighted relation from one chunk to another."""

    source_id: ChunkId
    target_id: ChunkId
    relation: Relation
    weight: Weight = 1.0
    description: Annotated[str, Meta(max_length=1000)] | None = None


class EdgesStored(Wire):
    """Counts of stored edges; `kept` existed already with at least this weight."""

    stored: int
    strengthened: int
    kept: int


class GraphStoreEdges(Method[EdgesStored]):
    """Store edges between document chunks, all or none. For the same pair and relation the highest weight wins."""

    method: ClassVar[str] = "graph.storeEdges"
    edges: Annotated[list[Edge], Meta(min_length=1, max_length=10_000)]


class GraphGetEdges(Method[list[Edge]]):
    """List outgoing edges of chunks, strongest first."""

    method: ClassVar[str] = "graph.getEdges"
    ids: ChunkIds
    relations: Relations | None = None
    limit: Limit = 100


class GraphIncoming(Method[list[Edge]]):
    """List incoming edges of chunks, strongest first."""

    method: ClassVar[str] = "graph.incoming"
    ids: ChunkIds
    relations: Relations | None = None
    limit: Limit = 100


class Pruned(Wire):
    """Counts of removed edges, or with `dryRun` of those that would be removed."""

    orphans: int
    weak: int
    surplus: int
    dry_run: bool


class GraphPrune(Method[Pruned]):
    """Remove edges of deleted chunks and, if given, edges below `minWeight` and all but the strongest `mostPerChunk` of
    each chunk. Edges created by ingestion stay as long as their chunks."""

    method: ClassVar[str] = "graph.prune"
    min_weight: Weight | None = None
    most_per_chunk: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    dry_run: bool = False


class Reached(Wire):
    """A reachable chunk and the best path to it. `score` is the product of the weights and of `decay` per hop."""

    chunk_id: str
    document_id: str
    score: float
    hops: int
    way: list[Step]


class GraphTraverse(Method[list[Reached]]):
    """List chunks reachable from the given chunks along edges, best first, without the given chunks."""

    method: ClassVar[str] = "graph.traverse"
    ids: Annotated[list[ChunkId], Meta(min_length=1, max_length=100)]
    hops: Hops = 2
    decay: Weight = 0.7
    relations: Relations | None = None
    direction: Direction = "both"
    min_score: Annotated[float, Meta(ge=0, le=1)] = 0.0
    limit: Limit = 50
