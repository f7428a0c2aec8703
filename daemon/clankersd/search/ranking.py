"""From what the two halves found to one list, best first."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from clankers_protocol.search import Step

SPEAKER = 0.4
"""What it adds that a message is by somebody the query names."""

GENERIC_ROLES = {"user", "assistant", "system", "tool"}
ANSWERS = 1 / 1.3
"""What an assistant's words count beside its user's: they are many, and the user's say what was wanted."""

_DAY_MS = 86_400_000
_WORD = re.compile(r"\w+")


@dataclass
class Candidate:
    """A chunk on its way to becoming a hit."""

    chunk: int
    row: dict[str, Any]
    score: float = 0.0
    by_words: bool = False
    components: dict[str, float] = field(default_factory=dict)
    way: tuple[Step, ...] = ()


def rank(
    rows: dict[int, dict[str, Any]], words: dict[int, float], similar: dict[int, float], weight: float, names: set[str]
) -> list[Candidate]:
    """Every row with its score between 0 and 1: `words` and `similar` weighed against each other, and priors.

    Both parts are scaled to 0…1: words by the best score there is, similarity between the worst and the best.
    """
    best = max(words.values(), default=0.0) or 1.0
    low, high = min(similar.values(), default=0.0), max(similar.values(), default=1.0)
    candidates = []
    for chunk, row in rows.items():
        parts = {"keyword": words.get(chunk, 0.0) / best}
        if weight:
            parts["vector"] = _scaled(similar.get(chunk), low, high)
        candidates.append(_candidate(chunk, row, parts, weight, names))
    return candidates


def _scaled(value: float | None, low: float, high: float) -> float:
    if value is None:
        return 0.0
    return (value - low) / (high - low) if high > low else 1.0


def _candidate(chunk: int, row: dict[str, Any], parts: dict[str, float], weight: float, names: set[str]) -> Candidate:
    score = (1 - weight) * parts["keyword"] + weight * parts.get("vector", 0.0)
    if names:
        parts["speaker"] = 1.0 if set(_WORD.findall((row["role"] or "").lower())) & names else 0.0
        score = (score + SPEAKER * parts["speaker"]) / (1 + SPEAKER)
    if row["role"] in ("assistant", "tool"):
        parts["role"] = ANSWERS
        score *= ANSWERS
    return Candidate(chunk, row, score, parts["keyword"] > 0, parts)


def named(query: str, speakers: set[str]) -> set[str]:
    """The words of the query that are names of people who speak in the sessions."""
    known = {word for speaker in speakers - GENERIC_ROLES for word in _WORD.findall(speaker.lower())}
    return known & set(_WORD.findall(query.lower()))


def without_names(query: str, names: set[str]) -> str:
    """The query without the names in it: they say who, not what. All of it when nothing is left."""
    if not names:
        return query
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b(['’]s)?", re.IGNORECASE)
    return " ".join(pattern.sub(" ", query).split()) or query


def recency(candidates: list[Candidate], now: int, half_life_days: float) -> None:
    """Let what is old count less: half for each half-life."""
    for candidate in candidates:
        age = max(0, now - candidate.row["created_at"]) / _DAY_MS
        candidate.components["recency"] = math.exp(-math.log(2) * age / half_life_days)
        candidate.score *= candidate.components["recency"]


def diversify(candidates: list[Candidate], diversity: float) -> list[Candidate]:
    """Maximal marginal relevance: each next one is good, and unlike those before it."""
    left = candidates[:]
    words = {one.chunk: set(_WORD.findall(one.row["text"].lower())) for one in left}
    likest = dict.fromkeys(words, 0.0)
    chosen: list[Candidate] = []
    while left:
        best = max(left, key=lambda one: ((1 - diversity) * one.score - diversity * likest[one.chunk], one.score))
        left.remove(best)
        best.components["likeness"] = likest[best.chunk]
        chosen.append(best)
        for one in left:
            likest[one.chunk] = max(likest[one.chunk], _jaccard(words[one.chunk], words[best.chunk]))
    return chosen


def without_siblings(candidates: list[Candidate]) -> list[Candidate]:
    """Of the children of one parent only the first: they all answer with the same text."""
    first: dict[str, int] = {}
    for one in candidates:
        first.setdefault(one.row["parent_id"] or "", one.chunk)
    return [one for one in candidates if one.row["parent_id"] is None or first[one.row["parent_id"]] == one.chunk]


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
