"""The graph of memories and entities: neighbours of a node, and memories related to a memory.

Nodes outside the caller's scopes are not part of it, so no path leads through them.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from clankers_protocol.entities import Graph, GraphEdge, GraphNeighbors, GraphNode
from clankers_protocol.errors import Conflict, NotFound
from clankers_protocol.memories import MemoryRelated, Related
from clankersd import clock
from clankersd.db import Db
from clankersd.db.paging import fit_reply
from clankersd.embedders.base import Vector
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.generations import Generation
from clankersd.memories.entities import at_field, entities_by_id, visible_entity
from clankersd.memories.filters import memory_visibility
from clankersd.memories.relations import HOLDS, KNOWN_AS_OF, OF_TYPES
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes, allowed_scopes
from clankersd.memories.store import AS_OF, CURRENT, SELECT_MEMORIES, MemoryRow, find_memory, to_memories
from clankersd.search.filters import Criteria
from clankersd.search.limiter import takes_search_slot
from clankersd.search.vector_search import PENDING_SECONDS
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

Kind = Literal["memory", "entity"]
Via = Literal["relation", "entity", "similarity"]

MAX_LABEL_CHARS = 80
MIN_SIMILARITY = 0.5
"""Cosine similarity from which memories count as related."""

OVERSAMPLING = 5
"""Similar chunks fetched per requested memory: some are of outdated memories, several may be of one."""

_NEIGHBORS = """
    SELECT DISTINCT next.kind, next.id FROM (
        SELECT 'memory' AS kind, target_memory_id AS id FROM json_each(:memories)
            CROSS JOIN memory_relationships ON source_memory_id = json_each.value WHERE {relations}
        UNION ALL SELECT 'memory', source_memory_id FROM json_each(:memories)
            CROSS JOIN memory_relationships ON target_memory_id = json_each.value WHERE {relations}
        UNION ALL SELECT 'memory', link.memory_id FROM json_each(:entities)
            CROSS JOIN memory_entities AS link ON link.entity_id = json_each.value WHERE {links}
        UNION ALL SELECT 'entity', link.entity_id FROM json_each(:memories)
            CROSS JOIN memory_entities AS link ON link.memory_id = json_each.value WHERE {links} AND :through
    ) AS next LEFT JOIN memories ON next.kind = 'memory' AND memories.id = next.id
    WHERE (next.kind = 'entity' OR ({memories}))
      AND next.kind || ' ' || next.id NOT IN (SELECT value FROM json_each(:seen))
    ORDER BY next.kind DESC, next.id LIMIT :room
"""
_EDGES = """
    SELECT source_memory_id, target_memory_id, relationship_type, max(confidence), NOT max({holds})
    FROM memory_relationships
    WHERE source_memory_id IN (SELECT value FROM json_each(:memories))
      AND target_memory_id IN (SELECT value FROM json_each(:memories)) AND {relations}
    GROUP BY 1, 2, 3
    UNION ALL SELECT link.memory_id, link.entity_id, link.role, 1.0, false FROM memory_entities AS link
    WHERE link.memory_id IN (SELECT value FROM json_each(:memories))
      AND +link.entity_id IN (SELECT value FROM json_each(:entities)) AND {links}
    ORDER BY 1, 2, 3
"""
_BY_RELATION = f"""
    SELECT memories.id, 'relation' AS via, memory_relationships.confidence AS score,
           iif(source_memory_id = :id, 'this ' || relationship_type || ' that', 'that ' || relationship_type || ' this')
    FROM memory_relationships
    JOIN memories ON memories.id = iif(source_memory_id = :id, target_memory_id, source_memory_id)
    WHERE (source_memory_id = :id OR target_memory_id = :id) AND {HOLDS} AND {IN_SCOPE} AND {CURRENT}
    ORDER BY score DESC, memory_relationships.id LIMIT :limit
"""
# The more memories mention an entity, the less it counts that two of them do.
_BY_SHARED_ENTITY = f"""
    WITH own (id, name, name_key, mention_count) AS MATERIALIZED (
        SELECT entities.id, name, name_key, (
            SELECT count(*) FROM memory_entities AS other JOIN memories ON memories.id = other.memory_id
            WHERE other.entity_id = entities.id AND {IN_SCOPE} AND {CURRENT}
        )
        FROM memory_entities AS link JOIN entities ON entities.id = link.entity_id WHERE link.memory_id = :id
    )
    SELECT memories.id, 'entity' AS via, 1 - exp(sum(ln(1 - 0.5 / log2(1 + mention_count)))) AS score,
           group_concat(name, ', ' ORDER BY name_key)
    FROM own JOIN memory_entities AS link ON link.entity_id = own.id JOIN memories ON memories.id = link.memory_id
    WHERE memories.id <> :id AND {IN_SCOPE} AND {CURRENT}
    GROUP BY memories.id ORDER BY score DESC, memories.id LIMIT :limit
"""
_OWN_VECTORS = """
    SELECT {vector_table}.embedding FROM chunks CROSS JOIN {vector_table} ON {vector_table}.rowid = chunks.id
    WHERE chunks.memory_id = :id AND chunks.chunking = :chunking
"""
_MEMORIES_OF_CHUNKS = """
    SELECT chunks.id, chunks.memory_id FROM json_each(:chunks) CROSS JOIN chunks ON chunks.id = json_each.value
    WHERE chunks.memory_id <> :id
"""


class _Node(NamedTuple):
    """A memory or an entity in the graph."""

    kind: Kind
    id: str


class _Path(NamedTuple):
    """A way from the given memory to a related one."""

    memory_id: str
    via: Via
    score: float
    detail: str


@dataclass(frozen=True)
class _Visibility:
    """SQL conditions on the relations, links and memories that one call may see, and their parameters."""

    conditions: dict[str, str]
    params: dict[str, Any]

    @classmethod
    def of(cls, request: GraphNeighbors, scopes: AllowedScopes, now: int) -> "_Visibility":
        as_of = clock.to_ms(request.as_of)
        relations = ["true"]
        links = "true"
        if as_of is not None:
            relations = [KNOWN_AS_OF]
            links = "link.created_at <= :as_of"
        if not request.include_closed:
            relations.append(HOLDS)
            memories = CURRENT if as_of is None else AS_OF
        else:
            memories = "memories.is_deleted = 0"
            if as_of is not None:
                memories += " AND memories.created_at <= :as_of"
        if request.types is not None:
            relations.append(OF_TYPES)
        conditions = {
            "relations": " AND ".join(relations),
            "links": links,
            "memories": f"{IN_SCOPE} AND {memories}",
            "holds": HOLDS,
        }
        params = scopes.params | {
            "now": now,
            "at": as_of or now,
            "as_of": as_of,
            "valid_at": as_of,
            "types": json.dumps(request.types),
            "through": request.through_entities,
        }
        return cls(conditions, params)


@dataclass(frozen=True)
class _Links:
    """The paths from a memory to others by relations and entities, and the memory's vector."""

    memory_id: str
    scopes: AllowedScopes
    paths: list[_Path]
    vector: Vector | None


# -- neighbours


@handles(GraphNeighbors)
async def neighbors(daemon: "Daemon", request: GraphNeighbors) -> Graph:
    def find_neighbors(db: Db) -> Graph:
        now, scopes = clock.now(), allowed_scopes(db, request)
        visibility = _Visibility.of(request, scopes, now)
        hops, truncated = _walk(db, _find_start(db, request.id, scopes), request, visibility)
        nodes = _to_graph_nodes(db, hops, scopes, now, clock.to_ms(request.as_of))
        params = visibility.params | _id_params([_Node(node.kind, node.id) for node in nodes])
        rows = db.tuples(_EDGES.format(**visibility.conditions), params)
        edges = [
            GraphEdge(source, target, kind, weight, closed=bool(closed))
            for source, target, kind, weight, closed in rows
        ]
        return Graph(nodes, edges, truncated or len(nodes) < len(hops))

    return await daemon.store.read(find_neighbors)


def _find_start(db: Db, id_or_prefix: str, scopes: AllowedScopes) -> _Node:
    """Return the memory or entity with this id or unique id prefix; raises NotFound or Conflict."""
    nodes: list[_Node] = []
    with at_field("id"):
        with suppress(NotFound):
            nodes.append(_Node("memory", find_memory(db, id_or_prefix, scopes).id))
        with suppress(NotFound):
            nodes.append(_Node("entity", visible_entity(db, id_or_prefix, scopes)))
        for node in nodes:
            if node.id == id_or_prefix or len(nodes) == 1:
                return node
        if not nodes:
            raise NotFound(f"memory or entity not found: {id_or_prefix}")
        ids = [node.id for node in nodes]
        raise Conflict(f"{id_or_prefix} is the beginning of a memory and an entity", {"ids": ids})


def _walk(
    db: Db, start: _Node, request: GraphNeighbors, visibility: _Visibility
) -> tuple[dict[_Node, int], bool]:  # fmt: skip
    """Search breadth first; returns the distance of each node, nearest first, and whether the limit cut off some."""
    sql = _NEIGHBORS.format(**visibility.conditions)
    hops = {start: 0}
    frontier = [start]
    for hop in range(1, request.hops + 1):
        room = request.limit - len(hops)
        seen = json.dumps([f"{node.kind} {node.id}" for node in hops])
        rows = db.tuples(sql, visibility.params | _id_params(frontier) | {"seen": seen, "room": room + 1})
        frontier = [_Node(*row) for row in rows[:room]]
        hops |= dict.fromkeys(frontier, hop)
        if not frontier or len(rows) > room:
            return hops, len(rows) > room
    return hops, False


def _id_params(nodes: list[_Node]) -> dict[str, str]:
    return {
        "memories": json.dumps([node.id for node in nodes if node.kind == "memory"]),
        "entities": json.dumps([node.id for node in nodes if node.kind == "entity"]),
    }


def _to_graph_nodes(
    db: Db, hops: dict[_Node, int], scopes: AllowedScopes, now: int, as_of: int | None
) -> list[GraphNode]:  # fmt: skip
    """Convert nodes to their wire form, nearest first, without memories that the reply cannot hold."""
    sql = f"{SELECT_MEMORIES} JOIN json_each(:ids) ON memories.id = json_each.value ORDER BY json_each.key"
    ids = json.dumps([node.id for node in hops if node.kind == "memory"])
    rows = [MemoryRow(**row) for row in fit_reply(db.fetch(sql, {"ids": ids, "now": now}))]
    memories = {memory.id: memory for memory in to_memories(db, rows, now, as_of)}
    entities = entities_by_id(db, [node.id for node in hops if node.kind == "entity"], scopes, now)
    nodes = []
    for (kind, id_), hop in hops.items():
        if kind == "entity":
            nodes.append(GraphNode(id_, kind, entities[id_].name, hop, entity=entities[id_]))
        elif id_ in memories:
            memory = memories[id_]
            label = " ".join((memory.summary or memory.content).split())
            if len(label) > MAX_LABEL_CHARS:
                label = f"{label[: MAX_LABEL_CHARS - 1]}…"
            nodes.append(GraphNode(id_, kind, label, hop, memory=memory))
    return nodes


# -- related memories


@handles(MemoryRelated)
@takes_search_slot
async def related_memories(daemon: "Daemon", request: MemoryRelated) -> list[Related]:
    await daemon.queue.finish_pending(PENDING_SECONDS)
    live = daemon.index.live if daemon.store.vec.version else None

    def find_links(db: Db) -> _Links:
        now, scopes = clock.now(), allowed_scopes(db, request)
        with at_field("id"):
            memory_id = find_memory(db, request.id, scopes).id
        params = scopes.params | {"id": memory_id, "now": now, "at": now, "limit": request.limit}
        rows = db.tuples(_BY_RELATION, params) + db.tuples(_BY_SHARED_ENTITY, params)
        return _Links(memory_id, scopes, [_Path(*row) for row in rows], _mean_vector(db, memory_id, live))

    links = await daemon.store.read(find_links)
    paths = links.paths
    if links.vector is not None:
        paths = paths + await _find_similar(daemon, links, links.vector, request.limit)
    return await daemon.store.read(lambda db: _best_related(db, paths, links.scopes, request.limit))


def _mean_vector(db: Db, memory_id: str, live: Generation | None) -> Vector | None:
    """Return the normalized mean of the vectors of a memory's chunks; None without vectors."""
    if live is None or live.identity.dims is None:
        return None
    sql = _OWN_VECTORS.format(vector_table=live.vector_table)
    blobs = [row[0] for row in db.tuples(sql, {"id": memory_id, "chunking": live.chunking.number})]
    np = numpy_if_available()
    if not blobs or np is None:
        return None

    mean = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1).mean(axis=0)
    length = float(np.linalg.norm(mean))
    return mean / length if length else None


async def _find_similar(daemon: "Daemon", links: _Links, vector: Vector, limit: int) -> list[_Path]:
    """Find memories with similar vectors."""
    engine = daemon.search_engine
    visibility = memory_visibility(links.scopes, CURRENT, {"now": clock.now()})
    others = engine.build_filter(Criteria(sources=["memories"]), visibility)
    similarities = dict(await engine.vectors.nearest(vector, others, (limit + 1) * OVERSAMPLING))
    params = {"chunks": json.dumps(list(similarities)), "id": links.memory_id}
    rows = await daemon.store.read(lambda db: db.tuples(_MEMORIES_OF_CHUNKS, params))
    paths = []
    for chunk, memory_id in rows:
        similarity = similarities[chunk]
        if similarity >= MIN_SIMILARITY:
            paths.append(_Path(memory_id, "similarity", min(1.0, similarity), f"{similarity:.2f} similar"))
    return paths


def _best_related(db: Db, paths: list[_Path], scopes: AllowedScopes, limit: int) -> list[Related]:
    """Return each visible, current memory once, with its best path."""
    now = clock.now()
    preference = get_args(Via)
    best: dict[str, _Path] = {}
    for path in sorted(paths, key=lambda path: (-path.score, preference.index(path.via), path.memory_id)):
        best.setdefault(path.memory_id, path)
    sql = f"""
        {SELECT_MEMORIES} JOIN json_each(:ids) ON memories.id = json_each.value WHERE {IN_SCOPE} AND {CURRENT}
        ORDER BY json_each.key LIMIT :limit
    """
    params = scopes.params | {"ids": json.dumps(list(best)), "now": now, "limit": limit}
    rows = [MemoryRow(**row) for row in fit_reply(db.fetch(sql, params))]
    related = []
    for memory in to_memories(db, rows, now):
        path = best[memory.id]
        related.append(Related(memory, path.via, path.detail, round(path.score, 6)))
    return related
