"""Near-duplicates among the hits of a search: the same file read again, the same prompt in another session."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic

from clankersd.index.tokenize import WORD
from clankersd.search.ranking import Candidate
from clankersd.search.rows import R

MIN_SHARED_WORDS = 0.8
"""Share of distinct words that near-duplicates have in common (Jaccard index)."""

SHORT_WORDS = 30
"""Distinct words up to which a differing number or negation makes two texts different: the rest is too little."""

MIN_LENGTH_RATIO = 0.8
"""Least ratio of the lengths of two near-duplicates."""

MAX_COMPARED_CHARACTERS = 1_000
"""Beginning of a text that is compared; beyond it, the length has to agree."""

COMPARED_PER_HIT = 4
"""Candidates that are compared for each hit of the pages up to the wanted one."""

SKETCH_SIZE = 6
"""Smallest hashes of a text's words; texts with at least MIN_SHARED_WORDS share one of them, but for one in 10,000."""

NEGATIONS = frozenset(
    """no not never none nothing without neither nor cannot dont doesnt didnt isnt arent wont cant mustnt
    shouldnt""".split()  # noqa: SIM905  # as a text it can be read
)


@dataclass(frozen=True)
class _Compared(Generic[R]):
    """A candidate, and the distinct words of its beginning."""

    candidate: Candidate[R]
    words: set[str]

    @staticmethod
    def of(candidate: Candidate[R]) -> "_Compared[R]":
        beginning = candidate.row.text[:MAX_COMPARED_CHARACTERS].lower().replace("'", "").replace("’", "")
        return _Compared(candidate, set(WORD.findall(beginning)))


def collapse_near_duplicates(candidates: list[Candidate[R]], wanted: int) -> list[Candidate[R]]:
    """Return the first of nearly equal messages, tool calls and files, and count the others.

    Only as many candidates are compared as the first `wanted` distinct ones need, and some more for the counts; those
    after them follow as they are. How a candidate fares depends only on those before it, so that pages fit together.
    """
    distinct: list[Candidate[R]] = []
    by_hash: dict[int, list[_Compared[R]]] = {}
    for position, candidate in enumerate(candidates):
        if position >= COMPARED_PER_HIT * wanted and len(distinct) > wanted:
            return distinct + candidates[position:]
        if candidate.row.source not in ("sessions", "memory"):
            distinct.append(candidate)
            continue
        compared = _Compared.of(candidate)
        sketch = sorted(map(hash, compared.words))[:SKETCH_SIZE]
        others = {id(one): one for key in sketch for one in by_hash.get(key, ())}.values()
        similar = next((one for one in others if _is_near_duplicate(one, compared)), None)
        if similar is not None:
            similar.candidate.duplicates += 1 + candidate.duplicates
            continue
        distinct.append(candidate)
        for key in sketch:
            by_hash.setdefault(key, []).append(compared)
    return distinct


def _is_near_duplicate(one: _Compared[R], other: _Compared[R]) -> bool:
    fewer, more = sorted((len(one.words), len(other.words)))
    if fewer < MIN_SHARED_WORDS * more:
        return False
    first, second = one.candidate.row, other.candidate.row
    if (first.source, first.role, first.tool_id is None) != (second.source, second.role, second.tool_id is None):
        return False
    shorter, longer = sorted((len(first.text), len(second.text)))
    if shorter < MIN_LENGTH_RATIO * longer:
        return False
    every = one.words | other.words
    if len(one.words & other.words) < MIN_SHARED_WORDS * len(every):
        return False
    return len(every) > SHORT_WORDS or not changes_meaning(one.words ^ other.words)


def changes_meaning(unshared: AbstractSet[str]) -> bool:
    """Return whether one of the words that only one of two texts has is a number or a negation."""
    return any(word in NEGATIONS or any(letter.isdigit() for letter in word) for word in unshared)
