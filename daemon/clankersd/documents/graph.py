"""The graph of document chunks: store, list, prune and traverse edges."""

import json
from functools import partial
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
from clankersd.db import Db, Store
from clankersd.documents.edges import TraversalLimits, traverse
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.search.limiter import takes_search_slot
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_UPSERT_EDGE = """
    INSERT INTO chunk_edges (source_id, target_id, relation, weight, description, created_at)
    VALUES (:source_id, :target_id, :relation, :weight, :description, :now)
    ON CONFLICT (source_id, target_id, relation) DO UPDATE SET
        weight = excluded.weight, description = coalesce(excluded.description, chunk_edges.description)
"""
_SELECT_WEIGHT = """
    SELECT weight FROM chunk_edges
    WHERE source_id = :source_id AND target_id = :target_id AND relation = :relation
"""
_SELECT_EDGES = """
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
            PARTITION BY source_id ORDER BY weight DESC, target_id, relation) AS rank
        FROM chunk_edges WHERE made_at_ingest = 0 AND weight >= coalesce(:min_weight, 0)
    )
    WHERE rank > :max_per_chunk
"""


@handles(GraphStoreEdges)
async def store_edges(daemon: "Daemon", request: GraphStoreEdges) -> EdgesStored:
    for position, edge in enumerate(request.edges):
        if edge.source_id == edge.target_id:
            problem = "an edge must lead to another chunk"
            raise InvalidParams(f"invalid params: {problem} - at `$.edges[{position}].targetId`")
    request, secrets = await prepare(partial(without_secrets, request))

    def store(db: Db) -> EdgesStored:
        count_redactions(db, secrets, clock.now())
        endpoints = {}
        for position, edge in enumerate(request.edges):
            endpoints[f"$.edges[{position}].sourceId"] = edge.source_id
            endpoints[f"$.edges[{position}].targetId"] = edge.target_id
        _check_chunks_exist(db, endpoints)
        counts = EdgesStored(0, 0, 0)
        for edge in request.edges:
            row = {name: getattr(edge, name) for name in edge.__struct_fields__} | {"now": clock.now()}
            weight = db.value(_SELECT_WEIGHT, row)
            if weight is not None and weight >= edge.weight:
                counts.kept += 1
                continue
            db.execute(_UPSERT_EDGE, row)
            if weight is None:
                counts.stored += 1
            else:
                counts.strengthened += 1
        return counts

    return await daemon.store.write(store)


def _check_chunks_exist(db: Db, chunk_ids: dict[str, str]) -> None:
    """Raise InvalidParams for the first id, keyed by its place in the request, that no chunk has."""
    documents = _fetch_document_ids(db, list(set(chunk_ids.values())))
    for place, chunk_id in chunk_ids.items():
        if chunk_id not in documents:
            raise InvalidParams(f"invalid params: there is no chunk {chunk_id!r} - at `{place}`")


def _fetch_document_ids(db: Db, chunk_ids: list[str]) -> dict[str, str]:
    """Return the document id of each existing chunk."""
    sql = "SELECT id, document_id FROM document_chunks WHERE id IN (SELECT value FROM json_each(:ids))"
    rows = db.fetch(sql, {"ids": json.dumps(chunk_ids)})
    return {row["id"]: row["document_id"] for row in rows}


@handles(GraphGetEdges)
async def get_edges(daemon: "Daemon", request: GraphGetEdges) -> list[Edge]:
    return await _list_edges(daemon.store, "source_id", request)


@handles(GraphIncoming)
async def incoming(daemon: "Daemon", request: GraphIncoming) -> list[Edge]:
    return await _list_edges(daemon.store, "target_id", request)


async def _list_edges(store: Store, column: str, request: GraphGetEdges | GraphIncoming) -> list[Edge]:
    relations = None if request.relations is None else json.dumps(request.relations)
    params = {"ids": json.dumps(sorted(set(request.ids))), "relations": relations, "limit": request.limit}
    sql = _SELECT_EDGES.format(column=column)
    return await store.read(lambda db: [Edge(**row) for row in db.fetch(sql, params)])


@handles(GraphPrune)
async def prune(daemon: "Daemon", request: GraphPrune) -> Pruned:
    def delete_edges(db: Db) -> Pruned:
        weak = surplus = 0
        orphans = _delete_edges(db, _ORPHANS, {}, request.dry_run)
        if request.min_weight is not None:
            weak = _delete_edges(db, _WEAK, {"min_weight": request.min_weight}, request.dry_run)
        if request.most_per_chunk is not None:
            params = {"min_weight": request.min_weight, "max_per_chunk": request.most_per_chunk}
            surplus = _delete_edges(db, _SURPLUS, params, request.dry_run)
        return Pruned(orphans, weak, surplus, request.dry_run)

    return await (daemon.store.read(delete_edges) if request.dry_run else daemon.store.write(delete_edges))


def _delete_edges(db: Db, select: str, params: dict[str, Any], dry_run: bool) -> int:
    """Delete the edges that `select` returns, unless `dry_run`; return their number."""
    count = int(db.value(f"SELECT count(*) FROM ({select})", params))
    if count and not dry_run:
        db.execute(f"DELETE FROM chunk_edges WHERE {_KEY} IN ({select})", params)
    return count


@handles(GraphTraverse)
@takes_search_slot
async def traverse_graph(daemon: "Daemon", request: GraphTraverse) -> list[Reached]:
    relations = None if request.relations is None else tuple(request.relations)
    limits = TraversalLimits(request.hops, request.decay, request.direction, relations)
    seeds = dict.fromkeys(request.ids, 1.0)

    def walk(db: Db) -> list[Reached]:
        _check_chunks_exist(db, {f"$.ids[{position}]": chunk_id for position, chunk_id in enumerate(request.ids)})
        paths = traverse(db, seeds, limits)
        reached = [chunk_id for chunk_id in paths if chunk_id not in seeds]
        reached = [chunk_id for chunk_id in reached if paths[chunk_id].score >= request.min_score]
        reached.sort(key=lambda chunk_id: (-paths[chunk_id].score, chunk_id))
        reached = reached[: request.limit]
        documents = _fetch_document_ids(db, reached)
        results = []
        for chunk_id in reached:
            path = paths[chunk_id]
            if chunk_id in documents:
                score, steps = round(path.score, 6), list(path.steps)
                results.append(Reached(chunk_id, documents[chunk_id], score, len(steps), steps))
        return results

    return await daemon.store.read(walk)
