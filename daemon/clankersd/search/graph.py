"""Following the graph from what was found: neighbours of a good hit are good, less so the farther away."""

import json
from typing import TYPE_CHECKING, Any

from clankers_protocol.search import GraphOptions
from clankersd.db import Db
from clankersd.documents.edges import GraphPath, TraversalLimits, traverse
from clankersd.search.filters import Eligible
from clankersd.search.ranking import Candidate

if TYPE_CHECKING:
    from clankersd.app import Daemon

# Of a parent, which is not searched itself, its first child stands in the index.
_IN_INDEX = """
    SELECT json_each.value AS reached, min(chunks.id) AS chunk
    FROM json_each(:ids) CROSS JOIN document_chunks
      ON document_chunks.id = json_each.value OR document_chunks.parent_id = json_each.value
    CROSS JOIN chunks ON chunks.document_chunk_id = document_chunks.id
    WHERE {condition} GROUP BY 1
"""


async def reach(
    daemon: "Daemon", options: GraphOptions, allowed: Eligible, candidates: list[Candidate]
) -> dict[int, GraphPath]:
    """By their numbers in the index, the chunks that lie near the best hits in documents, with the way there."""
    seeds = _seeds(candidates, options.seeds)
    if not seeds:
        return {}
    relations = None if options.relations is None else tuple(options.relations)
    limits = TraversalLimits(options.hops, options.decay, options.direction, relations)

    def walk(db: Db) -> dict[int, GraphPath]:
        ways = {chunk: way for chunk, way in traverse(db, seeds, limits).items() if way.steps}
        params = allowed.params | {"ids": json.dumps(list(ways))}
        rows = db.fetch(_IN_INDEX.format(condition=allowed.condition), params)
        return {row["chunk"]: ways[row["reached"]] for row in rows}

    return await daemon.store.read(walk)


def _seeds(candidates: list[Candidate], most: int) -> dict[str, float]:
    """Where ways begin: a child's parent is where its child is."""
    seeds: dict[str, float] = {}
    best = [one for one in candidates if one.row["document_chunk_id"] is not None][:most]
    for one in best:
        for chunk in (one.row["document_chunk_id"], one.row["parent_id"]):
            if chunk is not None:
                seeds[chunk] = max(seeds.get(chunk, 0.0), one.score)
    return seeds


def join(candidates: list[Candidate], ways: dict[int, GraphPath], rows: dict[int, dict[str, Any]]) -> list[Candidate]:
    """What was found and what was reached; where a chunk is both, the better counts."""
    known = {one.chunk: one for one in candidates}
    for chunk, way in ways.items():
        one = known.get(chunk)
        if one is None and chunk in rows:
            known[chunk] = one = Candidate(chunk, rows[chunk])
        if one is not None and way.score > one.score:
            one.score, one.way = way.score, way.steps
            one.components["graph"] = way.score
    return list(known.values())
