"""Score adjustment of memories in search results: salience, importance, recency and sector."""

import math
from dataclasses import dataclass
from typing import Any

from clankersd.config import Config
from clankersd.memories.classify import SECTOR_BOOST
from clankersd.memories.salience import DAY_MS
from clankersd.memories.store import salience_of

RECENCY_DECAY_PER_DAY = 0.02
"""Decay of the recency component since the last access."""


@dataclass(frozen=True)
class ScoreWeights:
    """Share of each component in the factor. The rest of the factor, up to 1, is the same for every memory."""

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


def score_components(row: dict[str, Any], now: int) -> dict[str, float]:
    """Return the properties of a memory that adjust its score, each between 0 and about 1."""
    days = max(0, now - row["last_accessed"]) / DAY_MS
    return {
        "salience": salience_of(row).effective(now),
        "importance": row["importance"],
        "recency": math.exp(-RECENCY_DECAY_PER_DAY * days),
        "sector": SECTOR_BOOST[row["sector"]],
    }


def score_factor(row: dict[str, Any], components: dict[str, float], weights: ScoreWeights) -> float:
    """Return the factor for a score, and add to the components what else went into it.

    Multiplying reorders results that match the query and never lifts one that does not.
    """
    weighted = (
        weights.salience * components["salience"]
        + weights.importance * components["importance"]
        + weights.recency * components["recency"]
    )
    constant = 1.0 - (weights.salience + weights.importance + weights.recency)
    factor = (constant + weighted) * components["sector"]
    if row["state"] != "current":
        components["outdated"] = weights.outdated
        factor *= weights.outdated
    if row["pinned"]:
        components["pinned"] = weights.pinned
        factor *= weights.pinned
    return factor
