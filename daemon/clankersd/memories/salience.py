"""Salience: how strongly a memory counts. It is stored with a time and decays by formula, never by updates."""

import math
from dataclasses import dataclass

DAY_MS = 86_400_000
MIN_SALIENCE = 0.05
"""Lower bound: no memory decays to nothing."""

MAX_ACCESS_BONUS = 0.1
"""Upper bound of what frequent access adds."""

DECAY_PER_DAY = {"emotional": 0.003, "semantic": 0.005, "reflective": 0.008, "procedural": 0.01, "episodic": 0.02}
"""Decay rate of each sector, before it is divided by the importance."""


@dataclass(frozen=True)
class Salience:
    """The columns of a memory from which its salience at any time is computed."""

    stored: float
    stored_at: int
    sector: str
    importance: float
    access_count: int
    pinned: bool

    def decayed(self, now: int) -> float:
        """Return what is left of the stored salience; a pinned memory does not decay."""
        if self.pinned:
            return self.stored
        days = max(0, now - self.stored_at) / DAY_MS
        return self.stored * math.exp(-DECAY_PER_DAY[self.sector] / (self.importance + 0.1) * days)

    def effective(self, now: int) -> float:
        """Return the decayed salience plus the bonus for access, between the lower bound and 1."""
        bonus = min(MAX_ACCESS_BONUS, math.log1p(self.access_count) * 0.02)
        return min(1.0, max(MIN_SALIENCE, self.decayed(now) + bonus))


def reinforced(salience: float, amount: float) -> float:
    """Raise a salience by a share of its distance to 1."""
    return min(1.0, salience + amount * (1.0 - salience))


def deemphasized(salience: float, amount: float) -> float:
    """Lower a salience by an amount, but not below the lower bound."""
    return max(MIN_SALIENCE, salience - amount)
