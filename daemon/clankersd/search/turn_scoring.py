"""Scores of turns in a conversation: a match also counts for the messages around it.

A term that occurs in a neighbouring turn counts for a message, less the farther away it is, more when it came before
(an answer follows its question), and less when the neighbour is long, since a long message is about itself. Measured:
docs/retrieval.md.
"""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.keyword import KeywordMatches, Occurrence

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WEIGHTS_BEFORE = (0.8, 0.6, 0.4)
WEIGHTS_AFTER = (0.5, 0.4, 0.3)
"""Weight of an occurrence one, two and three turns before or after a message."""

SIMILARITY_WEIGHTS = (0.3, 0.2)
"""Weight of a neighbour's similarity, one and two turns away."""

SIMILARITY_REACH = len(SIMILARITY_WEIGHTS)

K1, B = 1.2, 0.75
"""Parameters of BM25."""

MIN_AVERAGE_TOKENS = 50
"""A chunk below this length is not rewarded for being short."""

FADE_TOKENS = 100
"""A message above this length counts less and less for its neighbours."""

_TURNS_PER_SESSION = 1 << 32


@dataclass
class TurnScores:
    """Scores by key, best first. A key is a turn of a session (0 or more) or a chunk without a turn (negative)."""

    keys: "Array | array[int]"
    scores: "Array | array[float]"
    chunk_by_key: dict[int, int] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)

    def turn_of(self, key: int) -> tuple[str, int] | None:
        """Return the session and turn of a key; None for a chunk without a turn."""
        if key < 0:
            return None
        return self.sessions[key // _TURNS_PER_SESSION - 1], key % _TURNS_PER_SESSION


def score_turns(matches: KeywordMatches, average_tokens: float) -> TurnScores | None:
    """Score each turn, or chunk without a turn, by BM25, with what its neighbours contribute."""
    if numpy_if_available() is None:
        return score_turns_without_numpy(matches, average_tokens)
    import numpy as np

    session_numbers: dict[str, int] = {}
    parts: list[tuple[Array, Array]] = []
    best_chunks: dict[int, tuple[float, int]] = {}
    for term, occurrences in matches.occurrences:
        if occurrences:
            scores = _score_chunks(occurrences, session_numbers, max(MIN_AVERAGE_TOKENS, average_tokens))
            # Of the chunks of a long message, the best one represents its turn.
            own = (scores.own * term.idf).tolist()
            for key, score, chunk in zip(scores.keys.tolist(), own, scores.chunks.tolist(), strict=True):
                if key not in best_chunks or score > best_chunks[key][0]:
                    best_chunks[key] = score, chunk
            parts.append(_spread_to_neighbours(scores, term.idf))
    if not parts:
        return None
    keys, totals = _combine(np.concatenate([k for k, _ in parts]), np.concatenate([s for _, s in parts]), np.add)
    exists = (keys < 0) | (keys % _TURNS_PER_SESSION < _TURNS_PER_SESSION // 2)  # there is no turn before the first
    keys, totals = keys[exists], totals[exists]
    order = np.argsort(-totals, kind="stable")
    chunk_by_key = {key: chunk for key, (_, chunk) in best_chunks.items()}
    return TurnScores(keys[order], totals[order], chunk_by_key, list(session_numbers))


def score_turns_without_numpy(matches: KeywordMatches, average_tokens: float) -> TurnScores | None:
    """Compute the same scores in plain Python, several times slower: keyword search does not depend on numpy."""
    reference = max(MIN_AVERAGE_TOKENS, average_tokens)
    session_numbers: dict[str, int] = {}
    best_chunks: dict[int, tuple[float, int]] = {}
    totals: dict[int, float] = {}
    for term, occurrences in matches.occurrences:
        by_chunk: dict[int, list[Occurrence]] = {}
        for occurrence in occurrences:
            by_chunk.setdefault(occurrence[0], []).append(occurrence)
        best: dict[int, float] = {}
        for chunk in sorted(by_chunk):
            in_chunk = by_chunk[chunk]
            key, tokens = _key(in_chunk[0], session_numbers), in_chunk[0][4]
            count = sum(column != "header" for _, column, *_ in in_chunk)
            norm = K1 * (1 - B + B * max(tokens, reference) / reference)
            by_text = count * (K1 + 1) / (count + norm)
            score = max(by_text, float(count < len(in_chunk)))
            if key not in best_chunks or score * term.idf > best_chunks[key][0]:
                best_chunks[key] = score * term.idf, chunk
            best[key] = max(best.get(key, 0.0), score)
            if key < 0:
                continue
            shared = by_text * (min(1.0, FADE_TOKENS / tokens) if tokens else 1.0)
            for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
                best[key + distance] = max(best.get(key + distance, 0.0), shared * before)
                best[key - distance] = max(best.get(key - distance, 0.0), shared * after)
        for key, score in best.items():
            totals[key] = totals.get(key, 0.0) + score * term.idf
    keys = [key for key in totals if key < 0 or key % _TURNS_PER_SESSION < _TURNS_PER_SESSION // 2]
    if not keys:
        return None
    keys.sort(key=lambda key: (-totals[key], key))
    scores = array("d", [totals[key] for key in keys])
    chunk_by_key = {key: chunk for key, (_, chunk) in best_chunks.items()}
    return TurnScores(array("q", keys), scores, chunk_by_key, list(session_numbers))


def _key(occurrence: Occurrence, session_numbers: dict[str, int]) -> int:
    chunk, _, session, turn, _ = occurrence
    if session is None or turn is None:
        return -chunk
    return session_numbers.setdefault(session, len(session_numbers) + 1) * _TURNS_PER_SESSION + turn


@dataclass(frozen=True)
class _ChunkScores:
    """One term's chunks: their ids and keys, their own scores, and the scores that they share with neighbours."""

    chunks: "Array"
    keys: "Array"
    own: "Array"
    shared: "Array"


def _score_chunks(occurrences: list[Occurrence], session_numbers: dict[str, int], reference: float) -> _ChunkScores:
    """Score each chunk with the term by BM25: more occurrences raise a score, length lowers it."""
    import numpy as np

    raw = np.array([chunk for chunk, *_ in occurrences], np.int64)
    chunks, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
    in_text = np.array([column != "header" for _, column, *_ in occurrences])
    counts = np.bincount(inverse[in_text], minlength=len(chunks)).astype(np.float64)
    in_header = np.bincount(inverse[~in_text], minlength=len(chunks)) > 0
    keys = np.array([_key(occurrences[at], session_numbers) for at in first.tolist()], np.int64)
    tokens = np.array([occurrences[at][4] for at in first.tolist()], np.float64)
    norm = K1 * (1 - B + B * np.maximum(tokens, reference) / reference)
    by_text = counts * (K1 + 1) / (counts + norm)
    shared = by_text * np.minimum(1.0, FADE_TOKENS / tokens)
    return _ChunkScores(chunks, keys, np.maximum(by_text, in_header), shared)


def _spread_to_neighbours(scores: _ChunkScores, idf: float) -> "tuple[Array, Array]":
    """Score every turn in or near which the term occurs, by the best of its own score and its neighbours'."""
    import numpy as np

    has_turn = scores.keys >= 0
    turns, shared = scores.keys[has_turn], scores.shared[has_turn]
    all_keys, all_scores = [scores.keys], [scores.own]
    for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
        all_keys += [turns + distance, turns - distance]
        all_scores += [shared * before, shared * after]
    keys, best = _combine(np.concatenate(all_keys), np.concatenate(all_scores), np.maximum)
    return keys, best * idf


def _combine(keys: "Array", values: "Array", ufunc: Any) -> "tuple[Array, Array]":
    """Reduce the values of equal keys to one."""
    import numpy as np

    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], ufunc.reduceat(values[order], starts)


TurnChunks = dict[tuple[str, int], tuple[int, int]]
"""A chunk and its token count, by session and turn."""


def smooth_similarities(
    own: dict[int, float],
    turns: dict[int, tuple[str, int]],
    neighbours: TurnChunks,
    similarities: dict[int, float],
) -> dict[int, float]:
    """Average each chunk's similarity with those of its neighbours, weighted by nearness and shortness."""
    smoothed = {}
    for chunk, similarity in own.items():
        total, weights = similarity, 1.0
        if chunk in turns:
            session, turn = turns[chunk]
            for distance, nearness in enumerate(SIMILARITY_WEIGHTS, 1):
                for near in (turn - distance, turn + distance):
                    neighbour, tokens = neighbours.get((session, near), (None, 1))
                    if neighbour in similarities:
                        weight = nearness * min(1.0, FADE_TOKENS / tokens)
                        total += weight * similarities[neighbour]
                        weights += weight
        smoothed[chunk] = total / weights
    return smoothed
