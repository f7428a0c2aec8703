"""Near-duplicates among the hits of a search: the same file read again, the same prompt in another session."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Set as AbstractSet
from functools import cached_property
from operator import itemgetter
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

_WORD_CHARACTERS = {
    code: chr(code).lower() if chr(code).isalnum() or chr(code) == "_" else " "
    for code in range(128)
    if chr(code) != "'"
} | {ord("'"): None}
"""Translation of ASCII text into words with single separators, several times as fast as a regular expression."""

NEGATIONS = frozenset(
    """no not never none nothing without neither nor cannot dont doesnt didnt isnt arent wont cant mustnt
    shouldnt""".split()  # noqa: SIM905  # as a text it can be read
)


class _Compared(Generic[R]):
    """A candidate that others are compared with."""

    def __init__(self, candidate: Candidate[R]) -> None:
        self.candidate = candidate

    @cached_property
    def words(self) -> set[str]:
        """The distinct words of the text's beginning."""
        beginning = self.candidate.row.text[:MAX_COMPARED_CHARACTERS]
        if beginning.isascii():
            return set(beginning.translate(_WORD_CHARACTERS).split())
        return set(WORD.findall(beginning.lower().replace("'", "").replace("’", "")))


def collapse_near_duplicates(candidates: list[Candidate[R]], wanted: int) -> list[Candidate[R]]:
    """Return the first of nearly equal messages, tool calls and files, and count the others.

    Only as many candidates are compared as the first `wanted` distinct ones need, and some more for the counts; those
    after them follow as they are. How a candidate fares depends only on those before it, so that pages fit together.
    """
    distinct: list[Candidate[R]] = []
    # By source, role and being a tool call: length, position and candidate, in the order of their lengths.
    by_kind: dict[tuple[str, str | None, bool], list[tuple[float, int, _Compared[R]]]] = {}
    for position, candidate in enumerate(candidates):
        if position >= COMPARED_PER_HIT * wanted and len(distinct) > wanted:
            return distinct + candidates[position:]
        row = candidate.row
        if row.source not in ("sessions", "memory"):
            distinct.append(candidate)
            continue
        compared, length = _Compared(candidate), len(row.text)
        others = by_kind.setdefault((row.source, row.role, row.tool_id is None), [])
        start = bisect_left(others, MIN_LENGTH_RATIO * length, key=itemgetter(0))
        end = bisect_right(others, length / MIN_LENGTH_RATIO, key=itemgetter(0))
        similar = [other for other in others[start:end] if _is_near_duplicate(other[2].words, compared.words)]
        if similar:
            _, _, first = min(similar, key=itemgetter(1))
            first.candidate.duplicates += 1 + candidate.duplicates
            continue
        distinct.append(candidate)
        insort(others, (length, position, compared))
    return distinct


def _is_near_duplicate(one: set[str], other: set[str]) -> bool:
    if len(one) < MIN_SHARED_WORDS * len(other) or len(other) < MIN_SHARED_WORDS * len(one):
        return False
    shared = len(one & other)
    every = len(one) + len(other) - shared
    if shared < MIN_SHARED_WORDS * every:
        return False
    return every > SHORT_WORDS or not changes_meaning(one ^ other)


def changes_meaning(unshared: AbstractSet[str]) -> bool:
    """Return whether one of the words that only one of two texts has is a number or a negation."""
    return any(word in NEGATIONS or any(letter.isdigit() for letter in word) for word in unshared)
