"""The graph: what lies around a memory or an entity, and what else belongs to a memory.

Nothing outside the caller's scopes is in it, so no way leads through such a thing either.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from clankers_protocol.entities import Graph, GraphEdge, GraphNeighbors, GraphNode
from clankers_protocol.errors import Conflict, NotFound
from clankers_protocol.memories import Memory, MemoryRelated, Related
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
from clankersd.search.limiter import takes_search_turn
from clankersd.search.vector import PENDING_SECONDS
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

Kind = Literal["memory", "entity"]
Place = tuple[Kind, str]
"""Where one is in the graph: a memory or an entity, and its id."""

Via = Literal["relation", "entity", "similarity"]
Way = tuple[str, Via, float, str]
"""A memory, what leads to it, how surely, and in words."""

LABEL_CHARACTERS = 80
SIMILAR = 0.5
"""From here on memories are near in meaning."""

LOOK_FURTHER = 5
"""How many times as many similar chunks are looked at as memories are wanted: some hold no more, some are of one."""

_NEXT = """
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
    SELECT source_memory_id, target_memory_id, relationship_type, max(confidence) FROM memory_relationships
    WHERE source_memory_id IN (SELECT value FROM json_each(:memories))
      AND target_memory_id IN (SELECT value FROM json_each(:memories)) AND {relations}
    GROUP BY 1, 2, 3
    UNION ALL SELECT link.memory_id, link.entity_id, link.role, 1.0 FROM memory_entities AS link
    WHERE link.memory_id IN (SELECT value FROM json_each(:memories))
      AND +link.entity_id IN (SELECT value FROM json_each(:entities)) AND {links}
    ORDER BY 1, 2, 3
"""
_RELATED = f"""
    SELECT memories.id, 'relation' AS via, memory_relationships.confidence AS score,
           iif(source_memory_id = :id, 'this ' || relationship_type || ' that', 'that ' || relationship_type || ' this')
    FROM memory_relationships
    JOIN memories ON memories.id = iif(source_memory_id = :id, target_memory_id, source_memory_id)
    WHERE (source_memory_id = :id OR target_memory_id = :id) AND {HOLDS} AND {IN_SCOPE} AND {CURRENT}
    ORDER BY score DESC, memory_relationships.id LIMIT :limit
"""
# The more memories speak of an entity, the less it says that two of them do.
_SHARING = f"""
    WITH own (id, name, name_key, spoken_of) AS MATERIALIZED (
        SELECT entities.id, name, name_key, (
            SELECT count(*) FROM memory_entities AS other JOIN memories ON memories.id = other.memory_id
            WHERE other.entity_id = entities.id AND {IN_SCOPE} AND {CURRENT}
        )
        FROM memory_entities AS link JOIN entities ON entities.id = link.entity_id WHERE link.memory_id = :id
    )
    SELECT memories.id, 'entity' AS via, 1 - exp(sum(ln(1 - 0.5 / log2(1 + spoken_of)))) AS score,
           group_concat(name, ', ' ORDER BY name_key)
    FROM own JOIN memory_entities AS link ON link.entity_id = own.id JOIN memories ON memories.id = link.memory_id
    WHERE memories.id <> :id AND {IN_SCOPE} AND {CURRENT}
    GROUP BY memories.id ORDER BY score DESC, memories.id LIMIT :limit
"""
_OWN_VECTORS = """
    SELECT {vector_table}.embedding FROM chunks CROSS JOIN {vector_table} ON {vector_table}.rowid = chunks.id
    WHERE chunks.memory_id = :id AND chunks.chunking = :chunking
"""
_OWNERS = """
    SELECT chunks.id, chunks.memory_id FROM json_each(:chunks) CROSS JOIN chunks ON chunks.id = json_each.value
    WHERE chunks.memory_id <> :id
"""


@dataclass(frozen=True)
class _Rules:
    """What there is of the graph for one call: conditions on relations, links and memories, and their parameters."""

    conditions: dict[str, str]
    params: dict[str, Any]


@dataclass(frozen=True)
class _Around:
    """A memory, what leads to others, and its vector when it has one."""

    id: str
    permitted: AllowedScopes
    ways: list[Way]
    vector: Vector | None


@handles(GraphNeighbors)
async def neighbors(daemon: "Daemon", request: GraphNeighbors) -> Graph:
    def look_around(db: Db) -> Graph:
        now, permitted = clock.now(), allowed_scopes(db, request)
        rules = _rules(request, permitted, now)
        hops, truncated = _walk(db, _start(db, request.id, permitted), request, rules)
        nodes = _nodes(db, hops, permitted, now, clock.to_ms(request.as_of))
        return Graph(nodes, _edges(db, nodes, rules), truncated or len(nodes) < len(hops))

    return await daemon.store.read(look_around)


@handles(MemoryRelated)
@takes_search_turn
async def related_memories(daemon: "Daemon", request: MemoryRelated) -> list[Related]:
    await daemon.queue.finish_pending(PENDING_SECONDS)
    live = daemon.index.live if daemon.store.vec.version else None
    around = await daemon.store.read(lambda db: _linked(db, request, live))
    ways = around.ways
    if around.vector is not None and live is not None:
        ways = ways + await _similar(daemon, around, around.vector, request.limit)
    return await daemon.store.read(lambda db: _strongest(db, ways, around.permitted, request.limit))


# -- what lies around


def _rules(request: GraphNeighbors, permitted: AllowedScopes, now: int) -> _Rules:
    as_of = clock.to_ms(request.as_of)
    relations = [KNOWN_AS_OF] if as_of is not None else ["1"]
    memories = AS_OF if as_of is not None else CURRENT
    if not request.include_closed:
        relations.append(HOLDS)
    elif as_of is None:
        memories = "memories.is_deleted = 0"
    else:
        memories = "memories.is_deleted = 0 AND memories.created_at <= :as_of"
    if request.types is not None:
        relations.append(OF_TYPES)
    conditions = {
        "relations": " AND ".join(relations),
        "links": "link.created_at <= :as_of" if as_of is not None else "1",
        "memories": f"{IN_SCOPE} AND {memories}",
    }
    params = permitted.params | {"now": now, "at": as_of or now, "as_of": as_of, "types": json.dumps(request.types)}
    return _Rules(conditions, params | {"through": request.through_entities})


def _start(db: Db, given: str, permitted: AllowedScopes) -> Place:
    """The memory or the entity that is or uniquely begins with `given`."""
    found: list[Place] = []
    with at_field("id"):
        with suppress(NotFound):
            found.append(("memory", _memory(db, given, permitted)))
        with suppress(NotFound):
            found.append(("entity", visible_entity(db, given, permitted)))
        if not found:
            raise NotFound(f"memory or entity not found: {given}")
        whole = [place for place in found if place[1] == given]
        if len(found) > 1 and not whole:
            raise Conflict(f"{given} is the beginning of a memory and an entity", {"ids": [id_ for _, id_ in found]})
    return (whole or found)[0]


def _memory(db: Db, given: str, permitted: AllowedScopes) -> str:
    return str(find_memory(db, given, permitted).id)


def _walk(db: Db, start: Place, request: GraphNeighbors, rules: _Rules) -> tuple[dict[Place, int], bool]:
    """How far everything within reach is, nearest first; and whether there is more than the limit."""
    sql = _NEXT.format(**rules.conditions)
    hops = {start: 0}
    border = [start]
    for hop in range(1, request.hops + 1):
        room = request.limit - len(hops)
        seen = json.dumps([f"{kind} {id_}" for kind, id_ in hops])
        found: list[Any] = db.tuples(sql, rules.params | _ids(border) | {"seen": seen, "room": room + 1})
        border = found[:room]
        hops |= dict.fromkeys(border, hop)
        if not border or len(found) > room:
            return hops, len(found) > room
    return hops, False


def _ids(places: list[Place]) -> dict[str, str]:
    return {
        "memories": json.dumps([id_ for kind, id_ in places if kind == "memory"]),
        "entities": json.dumps([id_ for kind, id_ in places if kind == "entity"]),
    }


def _nodes(db: Db, hops: dict[Place, int], permitted: AllowedScopes, now: int, as_of: int | None) -> list[GraphNode]:
    """The places as nodes, nearest first; without memories that the reply cannot hold."""
    memories = _memories(db, [id_ for kind, id_ in hops if kind == "memory"], now, as_of)
    entities = entities_by_id(db, [id_ for kind, id_ in hops if kind == "entity"], permitted, now)
    nodes = []
    for (kind, id_), hop in hops.items():
        if kind == "entity":
            nodes.append(GraphNode(id_, kind, entities[id_].name, hop, entity=entities[id_]))
        elif id_ in memories:
            nodes.append(GraphNode(id_, kind, _label(memories[id_]), hop, memory=memories[id_]))
    return nodes


def _memories(db: Db, ids: list[str], now: int, as_of: int | None) -> dict[str, Memory]:
    sql = f"{SELECT_MEMORIES} JOIN json_each(:ids) ON memories.id = json_each.value ORDER BY json_each.key"
    rows = [MemoryRow(**row) for row in fit_reply(db.fetch(sql, {"ids": json.dumps(ids), "now": now}))]
    return {memory.id: memory for memory in to_memories(db, rows, now, as_of)}


def _label(memory: Memory) -> str:
    line = " ".join((memory.summary or memory.content).split())
    return line if len(line) <= LABEL_CHARACTERS else f"{line[: LABEL_CHARACTERS - 1]}…"


def _edges(db: Db, nodes: list[GraphNode], rules: _Rules) -> list[GraphEdge]:
    """Everything that joins two of the nodes."""
    rows = db.tuples(_EDGES.format(**rules.conditions), rules.params | _ids([(node.kind, node.id) for node in nodes]))
    return [GraphEdge(*row) for row in rows]


# -- what belongs to a memory


def _linked(db: Db, request: MemoryRelated, live: Generation | None) -> _Around:
    now, permitted = clock.now(), allowed_scopes(db, request)
    with at_field("id"):
        memory_id = _memory(db, request.id, permitted)
    params = permitted.params | {"id": memory_id, "now": now, "at": now, "limit": request.limit}
    ways: list[Any] = db.tuples(_RELATED, params) + db.tuples(_SHARING, params)
    return _Around(memory_id, permitted, ways, _own_vector(db, memory_id, live))


def _own_vector(db: Db, memory_id: str, live: Generation | None) -> Vector | None:
    """What the memory means as a whole."""
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


async def _similar(daemon: "Daemon", around: _Around, vector: Vector, limit: int) -> list[Way]:
    """Memories near in meaning."""
    engine = daemon.search_engine
    visibility = memory_visibility(around.permitted, CURRENT, {"now": clock.now()})
    others = engine.build_filter(Criteria(sources=["memories"]), visibility)
    found = dict(await engine.vectors.nearest(vector, others, (limit + 1) * LOOK_FURTHER))
    params = {"chunks": json.dumps(list(found)), "id": around.id}
    owners = await daemon.store.read(lambda db: db.tuples(_OWNERS, params))
    return [
        (memory_id, "similarity", min(1.0, found[chunk]), f"{found[chunk]:.2f} alike")
        for chunk, memory_id in owners
        if found[chunk] >= SIMILAR
    ]


def _strongest(db: Db, ways: list[Way], permitted: AllowedScopes, limit: int) -> list[Related]:
    """The memories that the ways lead to, each once, by its best way; those that the caller may see and that hold."""
    now = clock.now()
    best: dict[str, Way] = {}
    for way in sorted(ways, key=lambda way: (-way[2], get_args(Via).index(way[1]), way[0])):
        best.setdefault(way[0], way)
    sql = f"""
        {SELECT_MEMORIES} JOIN json_each(:ids) ON memories.id = json_each.value WHERE {IN_SCOPE} AND {CURRENT}
        ORDER BY json_each.key LIMIT :limit
    """
    params = permitted.params | {"ids": json.dumps(list(best)), "now": now, "limit": limit}
    memories = to_memories(db, [MemoryRow(**row) for row in fit_reply(db.fetch(sql, params))], now)
    return [
        Related(memory, via, detail, round(score, 6))
        for memory in memories
        for _, via, score, detail in (best[memory.id],)
    ]
