"""Traverse the edges between document chunks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from clankers_protocol.search import Direction, Step
from clankersd.db import Db

MAX_EDGES_PER_HOP = 5_000
"""Only the strongest edges are followed if a hop has more."""

MAX_FRONTIER_CHUNKS = 500
"""Only the best chunks are expanded if a hop reaches more."""

_OUT = """
    SELECT source_id AS from_id, target_id AS to_id, relation, weight, 0 AS backwards
    FROM json_each(:ids) CROSS JOIN chunk_edges ON source_id = json_each.value
    WHERE (:relations IS NULL OR relation IN (SELECT value FROM json_each(:relations)))
"""
_IN = """
    SELECT target_id AS from_id, source_id AS to_id, relation, weight, 1 AS backwards
    FROM json_each(:ids) CROSS JOIN chunk_edges ON target_id = json_each.value
    WHERE (:relations IS NULL OR relation IN (SELECT value FROM json_each(:relations)))
"""
_EDGES: dict[Direction, str] = {"out": _OUT, "in": _IN, "both": f"{_OUT} UNION ALL {_IN}"}


@dataclass(frozen=True)
class TraversalLimits:
    """Options of a traversal; `relations` None follows every relation."""

    hops: int
    decay: float
    direction: Direction
    relations: tuple[str, ...] | None = None


@dataclass(frozen=True)
class GraphPath:
    """The best path to a chunk and the score it gives the chunk; a seed has no steps."""

    score: float
    steps: tuple[Step, ...] = ()


def traverse(db: Db, seeds: Mapping[str, float], limits: TraversalLimits) -> dict[str, GraphPath]:
    """Find the best path to every reachable chunk, starting from the seeds and their scores.

    A chunk is expanded again only if a better path to it is found, so cycles end by themselves.
    """
    select = f"SELECT * FROM ({_EDGES[limits.direction]}) ORDER BY weight DESC, from_id, to_id, relation LIMIT :limit"
    relations = None if limits.relations is None else json.dumps(limits.relations)
    best = {chunk: GraphPath(score) for chunk, score in seeds.items()}
    frontier = dict(best)
    for _ in range(limits.hops):
        improved: dict[str, GraphPath] = {}
        params = {"ids": json.dumps(list(frontier)), "relations": relations, "limit": MAX_EDGES_PER_HOP}
        for row in db.fetch(select, params):
            step = Step(**row | {"backwards": bool(row["backwards"])})
            path = frontier[step.from_id]
            score = path.score * step.weight * limits.decay
            if step.to_id not in best or score > best[step.to_id].score:
                best[step.to_id] = improved[step.to_id] = GraphPath(score, (*path.steps, step))
        ranked = sorted(improved.items(), key=lambda item: -item[1].score)
        frontier = dict(ranked[:MAX_FRONTIER_CHUNKS])
        if not frontier:
            break
    return best
