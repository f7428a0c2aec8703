"""Weight of a memory in search results: its strength, importance, age and kind."""

import math
from dataclasses import dataclass

from clankers_protocol.memories import Sector, State
from clankersd.config import Config
from clankersd.memories.classify import SECTOR_BOOST
from clankersd.memories.salience import DAY_MS, Salience
from clankersd.memories.store import STATE
from clankersd.search.ranking import Candidate
from clankersd.search.rows import ChunkRow

FADING = 0.02
"""Exponential decay per day since the last use of a memory."""


@dataclass(frozen=True)
class ScoreWeights:
    """Weights of salience, importance and recency in a score; the rest up to 1 is the same for every memory."""

    salience: float
    importance: float
    recency: float
    outdated: float
    pinned: float

    @staticmethod
    def of(config: Config) -> "ScoreWeights":
        return ScoreWeights(
            config.memory_salience_weight,
            config.memory_importance_weight,
            config.memory_recency_weight,
            config.memory_outdated_factor,
            config.memory_pinned_factor,
        )


MEMORY_COLUMNS = f"""
    memories.salience, memories.salience_at, memories.sector, memories.importance, memories.access_count,
    memories.last_accessed, memories.pinned, iif(chunks.memory_id IS NULL, NULL, {STATE}) AS state
"""
MEMORY_JOIN = "LEFT JOIN memories ON memories.id = chunks.memory_id"


@dataclass(slots=True)
class MemoryChunkRow(ChunkRow):
    """A chunk with the columns that determine the weight of its memory; all of them are NULL without a `memory_id`."""

    salience: float
    salience_at: int
    sector: Sector
    importance: float
    access_count: int
    last_accessed: int
    pinned: int
    state: State


def weigh_memory(candidate: Candidate[MemoryChunkRow], weights: ScoreWeights, now: int) -> None:
    """Multiply the score of a memory by its weight, which reorders the matches and adds none."""
    row = candidate.row
    if row.memory_id is None:
        return
    strength = Salience(
        row.salience, row.salience_at, row.sector, row.importance, row.access_count, bool(row.pinned)
    )  # fmt: skip
    days = max(0, now - row.last_accessed) / DAY_MS
    parts = {
        "salience": strength.effective(now),
        "importance": row.importance,
        "recency": math.exp(-FADING * days),
        "sector": SECTOR_BOOST[row.sector],
    }
    factor = 1.0 - weights.salience - weights.importance - weights.recency
    factor += weights.salience * parts["salience"]
    factor += weights.importance * parts["importance"]
    factor += weights.recency * parts["recency"]
    factor *= parts["sector"]
    if row.state != "current":
        parts["outdated"] = weights.outdated
        factor *= weights.outdated
    if row.pinned:
        parts["pinned"] = weights.pinned
        factor *= weights.pinned
    candidate.score *= factor
    candidate.components |= parts
