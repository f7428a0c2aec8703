"""Near-duplicates among the hits of a search: the same file read again, the same prompt in another session."""

import sys
from collections import Counter
from collections.abc import Set as AbstractSet
from itertools import chain

from clankersd.db.commit_priority import yield_to_commits
from clankersd.index.tokenize import WORD
from clankersd.search.ranking import COLLAPSED_SOURCES, Candidate
from clankersd.search.rows import R

MIN_SHARED_WORDS = 0.8
"""Share of distinct words that near-duplicates have in common (Jaccard index)."""

SHORT_WORDS = 30
"""Distinct words up to which a differing number or negation makes two texts different: the rest is too little."""

MIN_LENGTH_RATIO = 0.8
"""Least ratio of the lengths of two near-duplicates."""

MAX_COMPARED_CHARACTERS = 1_000
"""Beginning of a text that is compared; beyond it, length and end have to agree."""

COMPARED_PER_HIT = 4
"""Candidates that are compared for each hit of the pages up to the wanted one."""

MAX_PAIRWISE = 64
"""Candidates up to which every pair is compared; of more, only pairs with a rare word in common."""

NO_WORD = sys.maxsize
"""Stands for the rarest words of a text without any, and of every text while all pairs are compared."""

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


def collapse_near_duplicates(candidates: list[Candidate[R]], wanted: int) -> list[Candidate[R]]:
    """Return the first of nearly equal messages, tool calls, files and documents, and count the others.

    Only as many candidates are compared as the first `wanted` distinct ones need, and some more for the counts; those
    after them follow as they are. How a candidate fares depends only on those before it, so that pages fit together.
    The ends of texts are compared first, since they are short and tell most texts apart.
    """
    first_ends = [_distinct_words(one.row.shown_end) for one in candidates[: COMPARED_PER_HIT * wanted]]
    # Prefix filtering: near-duplicates have one of their rarest words in common, so only such texts are compared.
    is_filtered = len(first_ends) > MAX_PAIRWISE
    frequency = Counter(chain.from_iterable(first_ends) if is_filtered else ())
    ranks = {word: rank for rank, word in enumerate(sorted(frequency, key=frequency.__getitem__))}
    distinct: list[Candidate[R]] = []
    compared: list[tuple[Candidate[R], int, set[str]]] = []
    # By source, role and being a tool call, then by the rank of a word: positions in `compared`.
    by_kind: dict[tuple[str, str | None, bool], dict[int, list[int]]] = {}
    for position, candidate in enumerate(candidates):
        yield_to_commits()
        if position >= COMPARED_PER_HIT * wanted and len(distinct) > wanted:
            return distinct + candidates[position:]
        row = candidate.row
        if row.source not in COLLAPSED_SOURCES:
            distinct.append(candidate)
            continue
        end = first_ends[position] if position < len(first_ends) else _distinct_words(row.shown_end)
        length = row.shown_length
        by_word = by_kind.setdefault((row.source, row.role, row.tool_id is None), {})
        prefix = [NO_WORD]
        if is_filtered and end:
            # One word more than a near-duplicate may lack. A word that no text before had is as rare as can be.
            rarest = sorted([ranks.setdefault(word, -len(ranks)) for word in end])
            prefix = rarest[: int((1 - MIN_SHARED_WORDS) * len(end) + 1e-9) + 1]
        shortest, longest = MIN_LENGTH_RATIO * length, length / MIN_LENGTH_RATIO
        with_prefix = [by_word.get(word, []) for word in prefix]
        for other in with_prefix[0] if len(prefix) == 1 else sorted(set().union(*with_prefix)):
            first, other_length, other_end = compared[other]
            if (
                shortest <= other_length <= longest
                and _share_most_words(other_end, end)
                and _begin_alike(_first_words(first), _first_words(candidate))
            ):
                first.duplicates += 1 + candidate.duplicates
                break
        else:
            for word in prefix:
                by_word.setdefault(word, []).append(len(compared))
            compared.append((candidate, length, end))
            distinct.append(candidate)
    return distinct


def _first_words(candidate: Candidate[R]) -> set[str]:
    """Return the distinct words of the text's beginning."""
    return _distinct_words(candidate.row.shown_text[:MAX_COMPARED_CHARACTERS])


def _distinct_words(text: str) -> set[str]:
    if text.isascii():
        return set(text.translate(_WORD_CHARACTERS).split())
    return set(WORD.findall(text.lower().replace("'", "").replace("’", "")))


def _share_most_words(one: set[str], other: set[str]) -> bool:
    """Return whether the Jaccard index of two sets of words is at least MIN_SHARED_WORDS."""
    fewer, more = (one, other) if len(one) <= len(other) else (other, one)
    # Texts that have nothing in common run out of words that may be missing long before all words are compared.
    missing = len(fewer) - (len(one) + len(other)) * MIN_SHARED_WORDS / (1 + MIN_SHARED_WORDS) + 1e-9
    if missing < 0:
        return False
    for word in fewer:
        if word not in more:
            missing -= 1
            if missing < 0:
                return False
    return True


def _begin_alike(one: set[str], other: set[str]) -> bool:
    """Return whether two beginnings have nearly the same words, and short ones the same numbers and negations."""
    if not _share_most_words(one, other):
        return False
    return len(one | other) > SHORT_WORDS or not changes_meaning(one ^ other)


def changes_meaning(unshared: AbstractSet[str]) -> bool:
    """Return whether one of the words that only one of two texts has is a number or a negation."""
    return any(word in NEGATIONS or any(letter.isdigit() for letter in word) for word in unshared)
