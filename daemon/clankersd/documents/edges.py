"""Edges between chunks of documents, and the ways along them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from clankers_protocol.search import Direction, Step
from clankersd.db import Db

MOST_EDGES = 5_000
"""Edges that are looked at for one hop; the strongest, where there are more."""

WIDEST = 500
"""Chunks from which a hop goes on; the best, where there are more."""

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
    """How far to go, and where."""

    hops: int
    decay: float
    direction: Direction
    relations: tuple[str, ...] | None = None


@dataclass(frozen=True)
class GraphPath:
    """How a chunk was reached, and what it is worth then."""

    score: float
    steps: tuple[Step, ...] = ()


def traverse(db: Db, seeds: Mapping[str, float], limits: TraversalLimits) -> dict[str, GraphPath]:
    """The best way to each chunk that can be reached, with the seeds' own scores to begin with.

    A chunk is gone on from again only when a better way to it was found: circles end by themselves.
    """
    best = {chunk: GraphPath(score) for chunk, score in seeds.items()}
    frontier = dict(best)
    for _ in range(limits.hops):
        reached: dict[str, GraphPath] = {}
        for step in _steps(db, list(frontier), limits):
            before = frontier[step.from_id]
            score = before.score * step.weight * limits.decay
            if step.to_id not in best or score > best[step.to_id].score:
                best[step.to_id] = reached[step.to_id] = GraphPath(score, (*before.steps, step))
        frontier = dict(sorted(reached.items(), key=lambda one: -one[1].score)[:WIDEST])
        if not frontier:
            break
    return best


def _steps(db: Db, ids: list[str], limits: TraversalLimits) -> list[Step]:
    params = {
        "ids": json.dumps(ids),
        "relations": None if limits.relations is None else json.dumps(limits.relations),
        "most": MOST_EDGES,
    }
    sql = f"SELECT * FROM ({_EDGES[limits.direction]}) ORDER BY weight DESC, from_id, to_id, relation LIMIT :most"
    return [Step(**row | {"backwards": bool(row["backwards"])}) for row in db.fetch(sql, params)]
