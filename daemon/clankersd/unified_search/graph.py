"""Graph expansion: chunks near a good hit in the graph of documents are good as well, less so the farther away."""

import json
from typing import TYPE_CHECKING

from clankers_protocol.search import GraphOptions
from clankersd.db import Db, Store
from clankersd.documents.edges import TraversalLimits, traverse
from clankersd.search.filters import ChunkFilter
from clankersd.search.plan import ScoredPath
from clankersd.search.ranking import Candidate

if TYPE_CHECKING:
    from clankersd.unified_search.search import HitRow

# A parent is not indexed itself: its first child represents it.
_INDEXED = """
    SELECT json_each.value AS reached, min(chunks.id) AS chunk
    FROM json_each(:ids) CROSS JOIN document_chunks
      ON document_chunks.id = json_each.value OR document_chunks.parent_id = json_each.value
    CROSS JOIN chunks ON chunks.document_chunk_id = document_chunks.id
    WHERE {condition} GROUP BY 1
"""


async def expand_through_graph(
    store: Store, options: GraphOptions, chunk_filter: ChunkFilter, candidates: "list[Candidate[HitRow]]"
) -> dict[int, ScoredPath]:
    """Return the indexed chunks near the best candidates from documents, with the path to each."""
    # A child's parent is a seed as well: edges may begin at either.
    seeds: dict[str, float] = {}
    from_documents = [one for one in candidates if one.row.document_chunk_id is not None]
    for candidate in from_documents[: options.seeds]:
        for chunk in (candidate.row.document_chunk_id, candidate.row.parent_id):
            if chunk is not None:
                seeds[chunk] = max(seeds.get(chunk, 0.0), candidate.score)
    if not seeds:
        return {}
    relations = None if options.relations is None else tuple(options.relations)
    limits = TraversalLimits(options.hops, options.decay, options.direction, relations)

    def walk(db: Db) -> dict[int, ScoredPath]:
        reached = traverse(db, seeds, limits)
        paths = {chunk: ScoredPath(way.score, way.steps) for chunk, way in reached.items() if way.steps}
        params = chunk_filter.params | {"ids": json.dumps(list(paths))}
        rows = db.fetch(_INDEXED.format(condition=chunk_filter.condition), params)
        return {row["chunk"]: paths[row["reached"]] for row in rows}

    return await store.read(walk)
