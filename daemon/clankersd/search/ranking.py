"""Ranking: fuse the scores of keyword and vector search into one list, best first."""

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Generic

from clankers_protocol.search import Step
from clankersd.search.rows import AnyRow, R, RankingRow
from clankersd.search.speakers import SPEAKER_WEIGHT, Speakers

ASSISTANT_FACTOR = 0.6
"""Least factor on the score of an assistant's text: there is much of it, and the user's states the intent."""

TOOL_FACTOR = 0.8
"""Factor on the score of a tool call: its command and error repeat words of the messages that explain them."""

SHORT_TOKENS, LONG_TOKENS = 50, 150
"""An assistant's text up to the first length counts fully, from the second on by ASSISTANT_FACTOR."""

BEGINNING_WORDS = 8
"""Words at the beginning of texts that tell most of them apart."""

COLLAPSED_SOURCES = frozenset({"sessions", "memory", "documents"})
"""Sources whose results are one with a count if they have the same or nearly the same words."""

_DAY_MS = 86_400_000


@dataclass(eq=False, slots=True)
class Candidate(Generic[AnyRow]):
    """A chunk that was found, with its score and the parts the score is made of."""

    row: AnyRow
    score: float = 0.0
    is_keyword_match: bool = False
    components: dict[str, float] = field(default_factory=dict)
    path: tuple[Step, ...] = ()
    cosine: float | None = None
    duplicates: int = 0

    @property
    def wire_score(self) -> float:
        """The score as results report it: rounded, and between 0 and 1."""
        return round(min(1.0, max(0.0, self.score)), 6)

    @property
    def rounded_components(self) -> dict[str, float]:
        """The components as results report them."""
        return {name: round(value, 6) for name, value in self.components.items()}

    @property
    def sort_key(self) -> tuple[float, int, int]:
        """Best first, then newest first."""
        return -self.score, -self.row.created_at, self.row.id


AGREEMENT_DEPTH = 5
"""The most similar texts, whose keyword scores tell how much keyword search agrees with the vectors."""


def fusion_weight(
    low: float, high: float, keyword_scores: dict[int, float], similarities: dict[int, float], in_conversation: set[int]
) -> float:
    """Return the weight of the vectors in a query: `high` if keyword search agrees with them, else towards `low`.

    The most similar texts decide. One outside a conversation says all that there is in its own words, so that its
    vector is trusted as if keyword search agreed.
    """
    nearest = nsmallest(AGREEMENT_DEPTH, similarities, key=lambda chunk: (-similarities[chunk], chunk))
    best = max(keyword_scores.values(), default=0.0)
    if not nearest or not best:
        return high
    agreement = [keyword_scores.get(chunk, 0.0) / best if chunk in in_conversation else 1.0 for chunk in nearest]
    return low + (high - low) * sum(agreement) / len(nearest)


def rank(
    rows: Mapping[int, AnyRow],
    keyword_scores: dict[int, float],
    chunks_with_term: AbstractSet[int],
    similarities: dict[int, float],
    vector_weight: float,
    speakers: Speakers,
) -> list[Candidate[AnyRow]]:
    """Score every message, file, memory and document chunk between 0 and 1: a weighted mean of both scores, and priors.

    A keyword score may come from a neighbour; `chunks_with_term` are those of messages that have a term of the query
    themselves. Keyword scores are scaled by the best of them, similarities between the lowest and the highest. Both are
    those of the message: of its chunks, the one that matches best represents it.
    """
    # Tool calls do not set the scale: they are many, short, and have the words of the messages around them.
    scaling = [chunk for chunk, row in rows.items() if row.role != "tool"] or list(rows)
    best = max((keyword_scores.get(chunk, 0.0) for chunk in scaling), default=0.0)
    best = best or max(keyword_scores.values(), default=0.0) or 1.0
    known = [similarities[chunk] for chunk in scaling if chunk in similarities] or list(similarities.values())
    low, high = min(known, default=0.0), max(known, default=1.0)
    scale = 1 / (high - low) if high > low else 0.0
    keyword_weight = (1 - vector_weight) / best
    by_message: dict[tuple[str, int] | int, tuple[float, float, bool, float, AnyRow]] = {}
    for chunk, row in rows.items():
        keyword, similarity = keyword_scores.get(chunk, 0.0), similarities.get(chunk)
        is_known = similarity is not None
        if similarity is None:  # such as a text that was just stored: it is judged by its words alone
            vector = min(1.0, keyword / best)
        else:
            vector = min(1.0, max(0.0, (similarity - low) * scale)) if scale else 1.0
        score = keyword_weight * keyword + vector_weight * vector
        message = chunk if row.session_id is None or row.turn is None else (row.session_id, row.turn)
        if other := by_message.get(message):
            keyword, vector, is_known = max(keyword, other[0]), max(vector, other[1]), is_known or other[2]
            if score < other[3] or (score == other[3] and chunk > other[4].id):
                score, row = other[3:]
        by_message[message] = keyword, vector, is_known, score, row
    candidates = []
    for keyword, vector, is_known, _, row in by_message.values():
        components = {"keyword": min(1.0, keyword / best)}
        score = keyword_weight * keyword
        if vector_weight:
            score += vector_weight * vector
            if is_known:
                components["vector"] = vector
        if speakers.names:
            components["speaker"] = 1.0 if speakers.have_said(row.role, row.id) else 0.0
            score = (score + SPEAKER_WEIGHT * components["speaker"]) / (1 + SPEAKER_WEIGHT)
        if row.role in ("assistant", "tool"):
            components["role"] = assistant_factor(row) * (TOOL_FACTOR if row.role == "tool" else 1.0)
            score *= components["role"]
        candidates.append(Candidate(row, score, row.id in chunks_with_term, components))
    highest = max((candidate.score for candidate in candidates), default=0.0)
    if highest > 1:  # a tool call with more words of the query than any message
        for candidate in candidates:
            candidate.score /= highest
    return candidates


def assistant_factor(row: RankingRow) -> float:
    """Return the factor on the score of an assistant's text: the longer it is, the more of it matches by chance."""
    tokens = row.tokens if row.position == 0 else max(row.tokens, LONG_TOKENS)
    if tokens <= SHORT_TOKENS or tokens >= LONG_TOKENS:
        return 1.0 if tokens <= SHORT_TOKENS else ASSISTANT_FACTOR
    share = math.log(tokens / SHORT_TOKENS) / math.log(LONG_TOKENS / SHORT_TOKENS)
    return 1 - (1 - ASSISTANT_FACTOR) * share


def apply_recency(candidates: list[Candidate[AnyRow]], now: int, half_life_days: float) -> None:
    """Halve each score for every half-life of the candidate's age."""
    for candidate in candidates:
        age_days = max(0, now - candidate.row.created_at) / _DAY_MS
        candidate.components["recency"] = math.exp(-math.log(2) * age_days / half_life_days)
        candidate.score *= candidate.components["recency"]


def best_per_group(candidates: list[Candidate[R]], group_of: Callable[[R], str | None]) -> list[Candidate[R]]:
    """Return the first candidate of each group, and all that belong to none."""
    seen: set[str] = set()
    best = []
    for candidate in candidates:
        group = group_of(candidate.row)
        if group is None:
            best.append(candidate)
        elif group not in seen:
            seen.add(group)
            best.append(candidate)
    return best


def collapse_duplicates(candidates: list[Candidate[R]]) -> list[Candidate[R]]:
    """Return the first of the messages, tool calls, files and documents with the same words, and count the others.

    A document counts as a duplicate of documents only: it was ingested to be found.
    """
    by_beginning: dict[tuple[str, ...], list[Candidate[R]]] = {}
    for candidate in candidates:
        candidate.duplicates = 0  # of an earlier call with fewer candidates
        if candidate.row.source in COLLAPSED_SOURCES:
            beginning = candidate.row.shown_text.split(maxsplit=BEGINNING_WORDS)[:BEGINNING_WORDS]
            by_beginning.setdefault(tuple(map(str.lower, beginning)), []).append(candidate)
    repeated: set[Candidate[R]] = set()
    for alike in by_beginning.values():
        if len(alike) == 1:  # most texts, which need not be compared
            continue
        first: dict[tuple[bool, int, str], Candidate[R]] = {}
        for candidate in alike:
            row = candidate.row
            text = " ".join(row.shown_text.lower().split())
            unseen = row.shown_length - len(row.shown_text)
            if unseen:
                text += row.shown_end.lower()
            same = first.setdefault((row.source == "documents", unseen, text), candidate)
            if same is not candidate:
                same.duplicates += 1
                repeated.add(candidate)
    return [candidate for candidate in candidates if candidate not in repeated]
