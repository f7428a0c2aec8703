"""The graph between chunks of documents: stored edge by edge, asked for, thinned out and walked along."""

import json
from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import InvalidParams
from clankers_protocol.graph import (
    Edge,
    EdgesStored,
    GraphGetEdges,
    GraphIncoming,
    GraphPrune,
    GraphStoreEdges,
    GraphTraverse,
    Pruned,
    Reached,
)
from clankersd import clock
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db
from clankersd.documents.edges import GraphPath, TraversalLimits, traverse
from clankersd.search.limiter import takes_search_turn
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_STORE = """
    INSERT INTO chunk_edges (source_id, target_id, relation, weight, description, created_at)
    VALUES (:source_id, :target_id, :relation, :weight, :description, :now)
    ON CONFLICT (source_id, target_id, relation) DO UPDATE SET
        weight = excluded.weight, description = coalesce(excluded.description, description)
"""
_WEIGHT = """
    SELECT weight FROM chunk_edges
    WHERE source_id = :source_id AND target_id = :target_id AND relation = :relation
"""
_FIND = """
    SELECT source_id, target_id, relation, weight, description
    FROM json_each(:ids) CROSS JOIN chunk_edges ON {column} = json_each.value
    WHERE (:relations IS NULL OR relation IN (SELECT value FROM json_each(:relations)))
    ORDER BY weight DESC, source_id, target_id, relation LIMIT :limit
"""
_KEY = "(source_id, target_id, relation)"
_ORPHANS = """
    SELECT source_id, target_id, relation FROM chunk_edges
    WHERE source_id NOT IN (SELECT id FROM document_chunks) OR target_id NOT IN (SELECT id FROM document_chunks)
"""
_WEAK = f"""
    SELECT source_id, target_id, relation FROM chunk_edges
    WHERE made_at_ingest = 0 AND weight < :min_weight AND {_KEY} NOT IN ({_ORPHANS})
"""
_SURPLUS = """
    SELECT source_id, target_id, relation FROM (
        SELECT source_id, target_id, relation, row_number() OVER (
            PARTITION BY source_id ORDER BY weight DESC, target_id, relation) AS place
        FROM chunk_edges WHERE made_at_ingest = 0 AND weight >= coalesce(:min_weight, 0)
    )
    WHERE place > :most
"""


@handles(GraphStoreEdges)
async def store_edges(daemon: "Daemon", request: GraphStoreEdges) -> EdgesStored:
    for place, edge in enumerate(request.edges):
        if edge.source_id == edge.target_id:
            raise InvalidParams(f"invalid params: an edge leads to another chunk - at `$.edges[{place}].targetId`")

    request, secrets = without_secrets(request)

    def store(db: Db) -> EdgesStored:
        count_redactions(db, secrets, clock.now())
        _refuse_unknown(db, request.edges)
        stored = EdgesStored(0, 0, 0)
        for edge in request.edges:
            _store(db, edge, stored)
        return stored

    return await daemon.store.write(store)


def _refuse_unknown(db: Db, edges: list[Edge]) -> None:
    named = {chunk for edge in edges for chunk in (edge.source_id, edge.target_id)}
    sql = "SELECT id FROM document_chunks WHERE id IN (SELECT value FROM json_each(:ids))"
    known = {row["id"] for row in db.fetch(sql, {"ids": json.dumps(list(named))})}
    for place, edge in enumerate(edges):
        for name, chunk in (("sourceId", edge.source_id), ("targetId", edge.target_id)):
            if chunk not in known:
                raise InvalidParams(f"invalid params: there is no chunk {chunk!r} - at `$.edges[{place}].{name}`")


def _store(db: Db, edge: Edge, stored: EdgesStored) -> None:
    row = {name: getattr(edge, name) for name in edge.__struct_fields__} | {"now": clock.now()}
    weight = db.value(_WEIGHT, row)
    if weight is not None and weight >= edge.weight:
        stored.kept += 1
        return
    db.execute(_STORE, row)
    if weight is None:
        stored.stored += 1
    else:
        stored.strengthened += 1


@handles(GraphGetEdges)
async def get_edges(daemon: "Daemon", request: GraphGetEdges) -> list[Edge]:
    return await _edges(daemon, "source_id", request)


@handles(GraphIncoming)
async def incoming(daemon: "Daemon", request: GraphIncoming) -> list[Edge]:
    return await _edges(daemon, "target_id", request)


async def _edges(daemon: "Daemon", column: str, request: GraphGetEdges | GraphIncoming) -> list[Edge]:
    relations = None if request.relations is None else json.dumps(request.relations)
    params = {"ids": json.dumps(sorted(set(request.ids))), "relations": relations, "limit": request.limit}
    return await daemon.store.read(lambda db: [Edge(**row) for row in db.fetch(_FIND.format(column=column), params)])


@handles(GraphPrune)
async def prune(daemon: "Daemon", request: GraphPrune) -> Pruned:
    def thin_out(db: Db) -> Pruned:
        params = {"min_weight": request.min_weight, "most": request.most_per_chunk}
        orphans = _prune(db, _ORPHANS, {}, request.dry_run)
        weak = 0 if request.min_weight is None else _prune(db, _WEAK, params, request.dry_run)
        surplus = 0 if request.most_per_chunk is None else _prune(db, _SURPLUS, params, request.dry_run)
        return Pruned(orphans, weak, surplus, request.dry_run)

    return await (daemon.store.read(thin_out) if request.dry_run else daemon.store.write(thin_out))


def _prune(db: Db, select: str, params: dict[str, Any], dry_run: bool) -> int:
    params = {name: value for name, value in params.items() if f":{name}" in select}
    count = int(db.value(f"SELECT count(*) FROM ({select})", params))
    if count and not dry_run:
        db.execute(f"DELETE FROM chunk_edges WHERE {_KEY} IN ({select})", params)
    return count


@handles(GraphTraverse)
@takes_search_turn
async def traverse_graph(daemon: "Daemon", request: GraphTraverse) -> list[Reached]:
    relations = None if request.relations is None else tuple(request.relations)
    limits = TraversalLimits(request.hops, request.decay, request.direction, relations)
    seeds = dict.fromkeys(request.ids, 1.0)

    def walk(db: Db) -> list[Reached]:
        _refuse_unknown_seeds(db, request.ids)
        ways = traverse(db, seeds, limits)
        found = [(chunk, way) for chunk, way in ways.items() if chunk not in seeds and way.score >= request.min_score]
        found.sort(key=lambda one: (-one[1].score, one[0]))
        return _reached(db, found[: request.limit])

    return await daemon.store.read(walk)


def _refuse_unknown_seeds(db: Db, ids: list[str]) -> None:
    sql = "SELECT id FROM document_chunks WHERE id IN (SELECT value FROM json_each(:ids))"
    known = {row["id"] for row in db.fetch(sql, {"ids": json.dumps(ids)})}
    for place, chunk in enumerate(ids):
        if chunk not in known:
            raise InvalidParams(f"invalid params: there is no chunk {chunk!r} - at `$.ids[{place}]`")


def _reached(db: Db, found: list[tuple[str, GraphPath]]) -> list[Reached]:
    sql = "SELECT id, document_id FROM document_chunks WHERE id IN (SELECT value FROM json_each(:ids))"
    rows = db.fetch(sql, {"ids": json.dumps([chunk for chunk, _ in found])})
    documents = {row["id"]: row["document_id"] for row in rows}
    return [
        Reached(chunk, documents[chunk], round(way.score, 6), len(way.steps), list(way.steps))
        for chunk, way in found
        if chunk in documents
    ]
