"""Closeness: does the best hit of a search have anything to do with the query?

Scores only compare the hits of one search, so they cannot tell: the best of a hundred irrelevant texts scores 1. Two
measures are absolute. Coverage is the share of the query's words that a text contains, each word weighted by how rare
it is in the index; a word that the index does not know counts most. Cosine is the similarity of the two vectors.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from clankersd.search.snippets import matching_stems

MAX_EXAMINED = 10
"""Hits whose closeness is measured: if the best ones are not close, the others are not either."""

MAX_WORDS = 16
"""Words of a long query that are compared, the rarest ones."""

MIN_COVERAGE = 0.5
"""Coverage from which a text is close, whatever its vector says."""

MIN_SUM = 0.6
"""Sum of coverage and cosine from which a text is close. Measured with the built-in model: nine of ten questions about
long conversations reach it, and one in twenty questions about something else does."""


@dataclass(frozen=True)
class Closeness:
    """How close a text is to the query: coverage, and cosine if there is a vector."""

    coverage: float
    cosine: float | None = None

    @property
    def is_close(self) -> bool:
        return self.coverage >= MIN_COVERAGE or self.coverage + max(self.cosine or 0.0, 0.0) >= MIN_SUM


def word_weight(frequency: int, chunk_count: int) -> float:
    """Return how much a word says that occurs in `frequency` of all chunks."""
    return math.log(1 + (chunk_count + 1) / (frequency + 0.5))


def measure(text: str, weights: Mapping[str, float], cosine: float | None) -> Closeness:
    """Measure a text; `weights` are the weights of the query's words by their stems."""
    heaviest = sorted(weights, key=lambda stem: -weights[stem])[:MAX_WORDS]
    total = sum(weights[stem] for stem in heaviest)
    matching = sum(weights[stem] for stem in matching_stems(text, heaviest))
    return Closeness(matching / total if total else 0.0, cosine)


def is_weak(hits: Iterable[Closeness]) -> bool:
    """Return True if there are hits, and none of them is close to the query."""
    is_empty = True
    for hit in islice(hits, MAX_EXAMINED):
        if hit.is_close:
            return False
        is_empty = False
    return not is_empty
