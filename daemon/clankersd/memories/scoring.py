"""What a memory's strength, importance, age and kind make of how well it fits a question."""

import math
from dataclasses import dataclass
from typing import Any

from clankersd.config import Config
from clankersd.memories.classify import SECTOR_BOOST
from clankersd.memories.salience import DAY_MS
from clankersd.memories.store import salience_of

FADING = 0.02
"""How fast what was used last long ago counts less, per day."""


@dataclass(frozen=True)
class ScoreWeights:
    """How much each of these moves a score; what they leave of 1 is the same for every memory."""

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
    """What of a memory moves its score, each between 0 and about 1."""
    days = max(0, now - row["last_accessed"]) / DAY_MS
    return {
        "salience": salience_of(row).effective(now),
        "importance": row["importance"],
        "recency": math.exp(-FADING * days),
        "sector": SECTOR_BOOST[row["sector"]],
    }


def score_factor(row: dict[str, Any], parts: dict[str, float], weights: ScoreWeights) -> float:
    """What the score is multiplied by: nothing that does not fit is lifted, what fits is put in order."""
    told = ("salience", "importance", "recency")
    rest = 1.0 - sum(getattr(weights, name) for name in told)
    result: float = (rest + sum(getattr(weights, name) * parts[name] for name in told)) * parts["sector"]
    if row["state"] != "current":
        parts["outdated"] = weights.outdated
        result *= weights.outdated
    if row["pinned"]:
        parts["pinned"] = weights.pinned
        result *= weights.pinned
    return result
