"""The gate of recall: select the matches that are worth putting into a prompt.

A search always finds something. What decides is how strongly the best matches are about the prompt: the share of its
words that they contain, weighted by rarity, and how much more similar they are than texts taken by chance. If another
project has closer texts, the prompt is about something else, and more strength is needed, unless a passage has nearly
all words of the prompt. Measured: docs/retrieval.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clankersd.memories.scoring import MemoryChunkRow
from clankersd.search.closeness import MIN_STRENGTH, Closeness, measure
from clankersd.search.plan import SearchOutcome
from clankersd.search.ranking import Candidate
from clankersd.search.snippets import matching_stems

Match = Candidate[MemoryChunkRow]

MIN_MEMORY_STRENGTH = 0.65
"""Strength that a memory of middle importance needs. There is no other project to compare a memory with."""

IMPORTANCE_DISCOUNT = 0.6
"""Reduction of the strength that a memory needs, for each point of importance above the middle."""

MIN_IMPORTANCE = 0.8
"""Importance from which on one rare word in common is enough for a memory."""

MAX_WORD_SHARE = 0.8
"""Share of the weight of all words of a prompt above which one of them is the only one that counts."""

MIN_PASSAGE_SHARE = 0.3
"""Share of the strength of the best passage that a passage must reach."""


@dataclass(frozen=True)
class Verdict:
    """A match with its strength, the strength needed, and whether and why it is chosen."""

    candidate: Match
    closeness: Closeness
    strength: float
    needed: float
    chosen: bool
    why: str


def judge_memories(outcome: SearchOutcome[MemoryChunkRow], matches: Sequence[Match]) -> list[Verdict]:
    """Judge each memory by itself; an important one needs less, and nothing if it has a rare name of the prompt."""
    verdicts = []
    for candidate in matches:
        closeness, strength = _measure(outcome, candidate)
        needed = MIN_MEMORY_STRENGTH - IMPORTANCE_DISCOUNT * max(0.0, candidate.row.importance - 0.5)
        if candidate.row.pinned:
            needed = min(needed, MIN_MEMORY_STRENGTH - IMPORTANCE_DISCOUNT / 2)
        chosen = strength >= needed
        why = "close to the prompt" if chosen else "not close enough to the prompt"
        is_important = candidate.row.pinned or candidate.row.importance >= MIN_IMPORTANCE
        if not chosen and is_important and matching_stems(candidate.row.text, outcome.rare_names):
            # Each further word of a prompt lowers the coverage, but the memory is about this one.
            needed, chosen, why = 0.0, True, "has a rare word of the prompt"
        verdicts.append(Verdict(candidate, closeness, strength, needed, chosen, why))
    return verdicts


def judge_passages(outcome: SearchOutcome[MemoryChunkRow], matches: Sequence[Match]) -> list[Verdict]:
    """Judge passages together: the strongest decides whether any is chosen, then each must not be much weaker."""
    measured = [(candidate, *_measure(outcome, candidate)) for candidate in matches]
    best = max((strength for _, _, strength in measured), default=0.0)
    cosines = [closeness.cosine for _, closeness, _ in measured if closeness.cosine is not None]
    coverage = max((closeness.coverage for _, closeness, _ in measured), default=0.0)
    if _has_one_word(outcome.weights) and not outcome.rare_names:
        coverage = 0.0
    needed = MIN_STRENGTH + outcome.calibration.penalty(max(cosines, default=None), coverage)
    verdicts = []
    for candidate, closeness, strength in measured:
        chosen = False
        if best < needed:
            why = "another project has closer texts" if best >= MIN_STRENGTH else "no passage is close to the prompt"
        elif strength < MIN_PASSAGE_SHARE * best:
            why = "much weaker than the best one"
        else:
            chosen = True
            why = "close to the prompt" if strength >= needed else "beside one that is close to the prompt"
        verdicts.append(Verdict(candidate, closeness, strength, needed, chosen, why))
    return verdicts


def _has_one_word(weights: Mapping[str, float]) -> bool:
    """Return whether hardly anything but one word of a prompt counts, which many texts may contain by chance."""
    return not weights or max(weights.values()) > MAX_WORD_SHARE * sum(weights.values())


def _measure(outcome: SearchOutcome[MemoryChunkRow], candidate: Match) -> tuple[Closeness, float]:
    closeness = measure(candidate.row.text, outcome.weights, candidate.cosine)
    return closeness, outcome.calibration.strength(closeness)
