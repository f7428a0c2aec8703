"""Closeness: a measure of whether the hits of a search have anything to do with the query.

Scores only compare the hits of one search, so they cannot tell: the best of a hundred irrelevant texts scores 1. Two
measures are absolute. Coverage is the share of the query's words that a text contains, each word weighted by how rare
it is in the index; a word that the index does not know counts most. Cosine is the similarity of the two vectors, and is
compared with that of texts taken by chance. Their sum is the strength of a match. One threshold decides whether a match
is close, for the note of a search as for recall with a prompt. Measured: docs/retrieval.md.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from clankersd.index.tokenize import CJK_CHARACTER, query_language
from clankersd.search.common_words import is_uncommon
from clankersd.search.snippets import matching_stems

MAX_EXAMINED = 10
"""Hits whose closeness is measured: if the best ones are not close, the others are not either."""

MAX_WORDS = 16
"""Words of a long query that are compared, the rarest ones."""

COSINE_WEIGHT = 1.6
"""Weight of the calibrated cosine in the strength of a match, beside 1 for its coverage."""

MARGIN_WEIGHT = 2.4
"""Weight of how much closer the best text of another project is than the best one of this project."""

PROTECTED_COVERAGE = 0.6
"""Coverage from which on less of that margin counts, down to none if a text has all words of the query."""

MIN_STRENGTH = 0.45
"""Strength from which a text is close to the query. Of questions about long conversations, nine of ten find such a text
in their own project, and two of ten in another one."""

MAX_RARE_SHARE = 0.001
FEW_CHUNKS, MAX_FEW_SHARE = 3, 0.004
"""Share of all chunks up to which a word is rare. A word in few chunks is rare also if they are a larger share, up to
the other one: in 1 of 250 chunks, 3 of 750, 5 of 5,000, or 100 of 100,000. Beyond that, it is rare in few chunks if it
is no common word."""

MIN_NAME_CHARACTERS = 3

DEFAULT_BASELINE = 0.15
"""Mean cosine of two texts where it is not measured."""

SCRIPT_BASELINES = (
    (re.compile(r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]"), 0.55),  # Han
    (re.compile(r"[\u3040-\u30ff\uff66-\uff9f]"), 0.6),  # Kana
    (re.compile(r"[\u0400-\u052f]"), 0.6),  # Cyrillic
    (re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]"), 0.68),  # Hangul
    (re.compile(r"[\u0370-\u03ff\u0530-\u10ff\u1200-\u1dff]|[\u1f00-\u1fff]"), 0.85),  # Greek, Arabic, Thai, …
)
"""Cosines that unrelated texts reach in the static model by being in one script. It has few tokens for scripts other
than Latin, so that all texts in one of them are alike."""

LANGUAGE_BASELINES = {"de": 0.45, "fr": 0.45, "es": 0.5, "it": 0.45, "pt": 0.45, "nl": 0.5, "pl": 0.6, "sv": 0.4}
"""Cosines that unrelated texts in one language other than English reach in the static model, which was trained on
English: that of a question about cooking or the weather with the most similar one of 80 passages of manual pages."""

_LATIN_LETTER = re.compile(r"[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")


@dataclass(frozen=True)
class Closeness:
    """Closeness of a text to the query: coverage, and cosine if there is a vector."""

    coverage: float
    cosine: float | None = None


@dataclass(frozen=True)
class Calibration:
    """Reference cosines of one query: `baseline` is the mean of random texts in the scope, `elsewhere` the best one in
    other projects."""

    baseline: float = DEFAULT_BASELINE
    elsewhere: float | None = None

    def strength(self, closeness: Closeness) -> float:
        """Return how strongly a text matches: its coverage, and its cosine above the baseline.

        Without a vector, coverage counts for both.
        """
        if closeness.cosine is None:
            return 1.3 * closeness.coverage
        return closeness.coverage + COSINE_WEIGHT * max(0.0, self._calibrated(closeness.cosine))

    def penalty(self, best_cosine: float | None, best_coverage: float = 0.0) -> float:
        """Return the strength demanded in addition if another project has a closer text than `best_cosine`.

        Cosines alone do not tell that a text has all words of the query, so that coverage reduces it.
        """
        if self.elsewhere is None or best_cosine is None or best_cosine >= self.elsewhere:
            return 0.0
        share = min(1.0, (1 - best_coverage) / (1 - PROTECTED_COVERAGE))
        return share * MARGIN_WEIGHT * (self._calibrated(self.elsewhere) - self._calibrated(best_cosine))

    def _calibrated(self, cosine: float) -> float:
        return (cosine - self.baseline) / (1 - self.baseline)


def language_baseline(query: str) -> float:
    """Return the cosine that unrelated texts in the language of a query reach, in the static model; 0 for English."""
    return max(_script_baseline(query), LANGUAGE_BASELINES.get(query_language(query) or "", 0.0))


def _script_baseline(query: str) -> float:
    if query.isascii():
        return 0.0
    counts = [(len(pattern.findall(query)), baseline) for pattern, baseline in SCRIPT_BASELINES]
    others = sum(count for count, _ in counts)
    if not others:
        return 0.0
    latin = len(_LATIN_LETTER.findall(query))
    total = sum(count * baseline for count, baseline in counts) + latin * DEFAULT_BASELINE
    return total / (others + latin)


def word_weight(frequency: int, chunk_count: int) -> float:
    """Return the weight of a word that occurs in `frequency` of all chunks: the rarer, the higher."""
    return math.log(1 + (chunk_count + 1) / (frequency + 0.5))


def is_rare_name(word: str, stem: str, frequency: int, chunk_count: int) -> bool:
    """Return whether a word looks like a name that hardly any of all chunks contain.

    In a small store every word is in few chunks, so that it must not be a common word of the language. Numbers and
    bigrams of CJK text are no names.
    """
    if not 0 < frequency <= max(FEW_CHUNKS, MAX_RARE_SHARE * chunk_count):
        return False
    if len(stem) < MIN_NAME_CHARACTERS or stem[0].isdigit() or CJK_CHARACTER.search(stem):
        return False
    return frequency <= MAX_FEW_SHARE * chunk_count or is_uncommon(word, stem)


def measure(text: str, weights: Mapping[str, float], cosine: float | None) -> Closeness:
    """Measure a text; `weights` are the weights of the query's words by their stems."""
    heaviest = list(weights)
    if len(heaviest) > MAX_WORDS:
        heaviest = sorted(weights, key=lambda stem: -weights[stem])[:MAX_WORDS]
    total = sum(weights[stem] for stem in heaviest)
    matching = sum(weights[stem] for stem in matching_stems(text, heaviest))
    return Closeness(matching / total if total else 0.0, cosine)


def is_weak(strengths: Iterable[float]) -> bool:
    """Return True if there are hits, and the match of none of them is strong enough to be close to the query."""
    is_empty = True
    for strength in islice(strengths, MAX_EXAMINED):
        if strength >= MIN_STRENGTH:
            return False
        is_empty = False
    return not is_empty
