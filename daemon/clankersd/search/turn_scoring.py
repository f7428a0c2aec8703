"""Scores that know a conversation: what stands next to a message tells of it too.

A word found in a neighbouring turn counts for a message, less the farther away, more when it came before (an
answer follows its question), and less when the neighbour is long, since a long message stands for itself. Measured:
docs/retrieval.md.
"""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.keyword import Keywords, Place

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BEFORE = (0.8, 0.6, 0.4)
AFTER = (0.5, 0.4, 0.3)
"""What a word is worth that stands one, two, three turns before or after."""

SIMILAR_NEAR = (0.3, 0.2)
"""What a neighbour's similarity is worth, one and two turns away."""

K1, B = 1.2, 0.75
SHORT = 50
"""Words. Below it a text is not rewarded for being short."""

FADE = 100
"""Words. Above it a message tells less and less of its neighbours."""

_TURNS = 1 << 32


@dataclass
class Scored:
    """Scores by key. A key is a turn of a session, or one chunk that has no turn."""

    keys: "Array | array[int]"
    scores: "Array | array[float]"
    chunk_of: dict[int, int] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)

    def turn_of(self, key: int) -> tuple[str, int] | None:
        """The session and turn that a key stands for."""
        return (self.sessions[key // _TURNS - 1], key % _TURNS) if key >= 0 else None


def score_words(words: Keywords, average: float) -> Scored | None:
    """How well each turn or chunk fits the words, with what its neighbours contribute; best first."""
    if numpy_if_available() is None:
        return score_words_without_numpy(words, average)
    import numpy as np

    numbers: dict[str, int] = {}
    parts: list[tuple[Array, Array]] = []
    own: dict[int, tuple[float, int]] = {}
    for term, places in words.places:
        if places:
            here = _own_scores(places, numbers, max(SHORT, average))
            _remember_best(own, here.keys, here.scores * term.rarity, here.chunks)
            parts.append(_spread(here, term.rarity))
    if not parts:
        return None
    keys, totals = _reduce(np.concatenate([k for k, _ in parts]), np.concatenate([s for _, s in parts]), np.add)
    real = (keys < 0) | (keys % _TURNS < _TURNS // 2)  # a turn before the first is none
    keys, totals = keys[real], totals[real]
    best = np.argsort(-totals, kind="stable")
    return Scored(keys[best], totals[best], {key: chunk for key, (_, chunk) in own.items()}, list(numbers))


def score_words_without_numpy(words: Keywords, average: float) -> Scored | None:
    """Compute the same scores in plain Python, several times slower: keyword search does not depend on numpy."""
    reference = max(SHORT, average)
    numbers: dict[str, int] = {}
    own: dict[int, tuple[float, int]] = {}
    totals: dict[int, float] = {}
    for term, places in words.places:
        by_chunk: dict[int, list[Place]] = {}
        for place in places:
            by_chunk.setdefault(place[0], []).append(place)
        best: dict[int, float] = {}
        for chunk in sorted(by_chunk):
            found = by_chunk[chunk]
            key, tokens = _key(found[0], numbers), found[0][4]
            times = sum(place[1] != "header" for place in found)
            norm = K1 * (1 - B + B * max(tokens, reference) / reference)
            by_text = times * (K1 + 1) / (times + norm)
            score = max(by_text, float(times < len(found)))
            if key not in own or score * term.rarity > own[key][0]:
                own[key] = score * term.rarity, chunk
            best[key] = max(best.get(key, 0.0), score)
            if key < 0:
                continue
            told = by_text * (min(1.0, FADE / tokens) if tokens else 1.0)
            for distance, (before, after) in enumerate(zip(BEFORE, AFTER, strict=True), 1):
                best[key + distance] = max(best.get(key + distance, 0.0), told * before)
                best[key - distance] = max(best.get(key - distance, 0.0), told * after)
        for key, score in best.items():
            totals[key] = totals.get(key, 0.0) + score * term.rarity
    real = [key for key in totals if key < 0 or key % _TURNS < _TURNS // 2]  # a turn before the first is none
    if not real:
        return None
    real.sort(key=lambda key: (-totals[key], key))
    scores = array("d", [totals[key] for key in real])
    return Scored(array("q", real), scores, {key: chunk for key, (_, chunk) in own.items()}, list(numbers))


def _key(place: Place, numbers: dict[str, int]) -> int:
    chunk, _, session, turn, _ = place
    if session is None or turn is None:
        return -chunk
    return numbers.setdefault(session, len(numbers) + 1) * _TURNS + turn


@dataclass(frozen=True)
class _Own:
    """One word in each chunk it stands in: the chunk, its key, its score there, and how much it tells others."""

    chunks: "Array"
    keys: "Array"
    scores: "Array"
    told: "Array"


def _own_scores(places: list[Place], numbers: dict[str, int], reference: float) -> _Own:
    """A score for each chunk a word stands in: often is better than once, long is worse than not."""
    import numpy as np

    raw = np.array([place[0] for place in places], np.int64)
    chunks, first, which = np.unique(raw, return_index=True, return_inverse=True)
    in_text = np.array([place[1] != "header" for place in places])
    times = np.bincount(which[in_text], minlength=len(chunks)).astype(np.float64)
    in_header = np.bincount(which[~in_text], minlength=len(chunks)) > 0
    keys = np.array([_key(places[at], numbers) for at in first.tolist()], np.int64)
    tokens = np.array([places[at][4] for at in first.tolist()], np.float64)
    norm = K1 * (1 - B + B * np.maximum(tokens, reference) / reference)
    by_text = times * (K1 + 1) / (times + norm)
    return _Own(chunks, keys, np.maximum(by_text, in_header), by_text * np.minimum(1.0, FADE / tokens))


def _spread(own: _Own, rarity: float) -> "tuple[Array, Array]":
    """The word's score for every turn it stands in or near: the best of its own and its neighbours'."""
    import numpy as np

    turns = own.keys >= 0
    sources, told = own.keys[turns], own.told[turns]
    all_keys, all_scores = [own.keys], [own.scores]
    for distance, (before, after) in enumerate(zip(BEFORE, AFTER, strict=True), 1):
        all_keys += [sources + distance, sources - distance]
        all_scores += [told * before, told * after]
    reduced, best = _reduce(np.concatenate(all_keys), np.concatenate(all_scores), np.maximum)
    return reduced, best * rarity


def _remember_best(own: dict[int, tuple[float, int]], keys: "Array", scores: "Array", chunks: "Array") -> None:
    """Of a long message's chunks, the one that fits best stands for its turn."""
    for key, score, chunk in zip(keys.tolist(), scores.tolist(), chunks.tolist(), strict=True):
        if key not in own or score > own[key][0]:
            own[key] = score, chunk


def _reduce(keys: "Array", values: "Array", how: Any) -> "tuple[Array, Array]":
    """The values of equal keys combined."""
    import numpy as np

    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], how.reduceat(values[order], starts)


Neighbours = dict[tuple[str, int], tuple[int, int]]
"""By session and turn: a chunk and its length in words."""


def smooth(
    own: dict[int, float], turns: dict[int, tuple[str, int]], near: Neighbours, similar: dict[int, float]
) -> dict[int, float]:
    """Each chunk's similarity averaged with its neighbours', by their nearness and shortness."""
    return {chunk: _smoothed(value, turns.get(chunk), near, similar) for chunk, value in own.items()}


def _smoothed(value: float, at: tuple[str, int] | None, near: Neighbours, similar: dict[int, float]) -> float:
    if at is None:
        return value
    total, weights = value, 1.0
    for distance, worth in enumerate(SIMILAR_NEAR, 1):
        for turn in (at[1] - distance, at[1] + distance):
            chunk, tokens = near.get((at[0], turn), (None, 1))
            if chunk in similar:
                weight = worth * min(1.0, FADE / tokens)
                total += weight * similar[chunk]
                weights += weight
    return total / weights
