"""How strong a memory is: stored once with its time, and from then on computed, never written back decayed."""

import math
from dataclasses import dataclass

DAY_MS = 86_400_000
MIN_SALIENCE = 0.05
"""Nothing fades away altogether."""

MOST_PROTECTION = 0.1
"""What being used often adds at most."""

DECAY_PER_DAY = {"emotional": 0.003, "semantic": 0.005, "reflective": 0.008, "procedural": 0.01, "episodic": 0.02}
"""How fast each sector fades, per day."""


@dataclass(frozen=True)
class Salience:
    """What of a memory decides how strong it is at a time."""

    salience: float
    at: int
    sector: str
    importance: float
    accesses: int
    pinned: bool

    def decayed(self, now: int) -> float:
        """What is left of the stored salience."""
        if self.pinned:
            return self.salience
        days = max(0, now - self.at) / DAY_MS
        return self.salience * math.exp(-DECAY_PER_DAY[self.sector] / (self.importance + 0.1) * days)

    def effective(self, now: int) -> float:
        """What is left, and what being used adds; between the floor and 1."""
        protection = min(MOST_PROTECTION, math.log1p(self.accesses) * 0.02)
        return min(1.0, max(MIN_SALIENCE, self.decayed(now) + protection))


def reinforced(base: float, amount: float) -> float:
    """Stronger by a share of what is missing to 1."""
    return min(1.0, base + amount * (1.0 - base))


def deemphasized(base: float, amount: float) -> float:
    """Weaker by so much, but never gone."""
    return max(MIN_SALIENCE, base - amount)
