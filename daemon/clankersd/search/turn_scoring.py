"""Scores of turns in a conversation: a match also counts for the messages around it.

A term that occurs in a neighbouring turn counts for a message, less the farther away it is, more when it came before
(an answer follows its question), and less when the neighbour is long, since a long message is about itself. Measured:
docs/retrieval.md.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clankersd.db.engine import HEADER, OCCURRENCES_PER_CHUNK, OFFSET_BITS, OFFSETS
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.keyword import KeywordMatches

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WEIGHTS_BEFORE = (0.8, 0.6, 0.4)
WEIGHTS_AFTER = (0.5, 0.4, 0.3)
"""Weight of an occurrence one, two and three turns before or after a message."""

SIMILARITY_WEIGHTS = (0.3, 0.2)
"""Weight of a neighbour's similarity, one and two turns away."""

SIMILARITY_REACH = len(SIMILARITY_WEIGHTS)
_NEARNESS = [(step, weight) for distance, weight in enumerate(SIMILARITY_WEIGHTS, 1) for step in (-distance, distance)]

K1, B = 0.4, 0.75
"""Parameters of BM25. A second occurrence of a word says little: long texts repeat themselves."""

MIN_AVERAGE_TOKENS = 50
"""Least average length of the matching chunks, which a length is compared with: no bonus for being short below it."""

FADE_TOKENS = 100
"""A message above this length counts less and less for its neighbours."""

OPENING_OFFSETS = 20
"""Words at the beginning of a chunk, which say what it is about: a heading, a signature, a question."""

OPENING_WEIGHT = 0.3
"""Weight of the share of the query in the opening, beside 1 for the score of the best chunk."""

PROXIMITY_WEIGHT = 0.2
"""Weight of how near to each other the words stand that are next to each other in the query."""

PROXIMITY_OFFSETS = 4
"""Words between two that make them count half."""

_TURNS_PER_SESSION = 1 << 32


@dataclass
class TurnScores:
    """Scores between 0 and 1 by key. A key is a turn of a session, or a chunk without a turn (negative).

    `ranked` are the keys with the highest scores, best first. `keys` and `scores` are those of every turn in or near
    which a term occurs, in the order of the keys; `matched_keys` and `chunks` the best chunk of each turn with a match
    of its own.
    """

    ranked: list[int]
    keys: list[int]
    scores: list[float]
    matched_keys: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    session_numbers: dict[str, int] = field(default_factory=dict)

    def score(self, key: int) -> float | None:
        """Return the score of a key; None if no term occurs near it."""
        position = bisect_left(self.keys, key)
        return self.scores[position] if self.keys[position : position + 1] == [key] else None

    def best_chunk(self, key: int) -> int | None:
        """Return the best chunk of a key; None if no term occurs in it."""
        position = bisect_left(self.matched_keys, key)
        return self.chunks[position] if self.matched_keys[position : position + 1] == [key] else None

    def turns_of(self, keys: list[int]) -> dict[int, tuple[str, int]]:
        """Return the session and turn of each key that has one."""
        sessions = list(self.session_numbers)
        return {key: (sessions[key // _TURNS_PER_SESSION - 1], key % _TURNS_PER_SESSION) for key in keys if key >= 0}

    def key_of(self, chunk: int, session: str | None, turn: int | None) -> int | None:
        """Return the key of a chunk; None if nothing in its session was found."""
        if session is None or turn is None:
            return -chunk
        number = self.session_numbers.get(session)
        return None if number is None else number * _TURNS_PER_SESSION + turn


def score_turns(matches: KeywordMatches, count: int) -> TurnScores | None:
    """Score each turn, or chunk without a turn, by BM25, with what its neighbours contribute; rank the best `count`."""
    if not matches.places.chunks:
        return None
    if numpy_if_available() is None:
        return score_turns_without_numpy(matches, count)
    import numpy as np

    sessions: dict[str, int] = {}
    chunks, keys, tokens = _places(matches, sessions)
    idf = np.array([term.idf for term, _ in matches.occurrences])
    located = [_locate(occurrences, chunks) for _, occurrences in matches.occurrences]
    counts, in_header, in_opening = _count_terms(located, len(chunks))
    reference = max(MIN_AVERAGE_TOKENS, float(tokens.mean()))
    norm = K1 * (1 - B + B * np.maximum(tokens, reference) / reference)
    in_text = counts * (K1 + 1) / (counts + norm)
    own = np.maximum(in_text, in_header)
    # Of the chunks of a long message, the best one represents it.
    order = np.lexsort((-chunks, idf @ own, keys))
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)
    best = order[is_last]
    starts = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
    shared = np.maximum.reduceat((in_text * np.minimum(1.0, FADE_TOKENS / tokens))[:, order], starts, axis=1)
    all_keys, totals = _spread(keys[best], own[:, best], shared, idf)
    totals /= totals.max()
    bonus = OPENING_WEIGHT * (idf @ in_opening[:, best]) / idf.sum()
    bonus += PROXIMITY_WEIGHT * _proximity(located, len(chunks), idf)[best]
    totals[np.searchsorted(all_keys, keys[best])] += bonus
    totals /= totals.max()
    highest = np.argpartition(-totals, count)[:count] if count < len(totals) else np.arange(len(totals))
    ranked = highest[np.lexsort((all_keys[highest], -totals[highest]))]
    return TurnScores(
        all_keys[ranked].tolist(),
        all_keys.tolist(),
        totals.tolist(),
        keys[best].tolist(),
        chunks[best].tolist(),
        sessions,
    )


def _places(matches: KeywordMatches, sessions: dict[str, int]) -> "tuple[Array, Array, Array]":
    """Return the chunks in order, with the key and the token count of each; number their sessions."""
    import numpy as np

    places = matches.places
    chunks, turns, tokens = (np.array(column, np.int64) for column in (places.chunks, places.turns, places.tokens))
    numbers = np.array(
        [
            sessions.setdefault(session, len(sessions) + 1) if session and turn >= 0 else 0
            for session, turn in zip(places.sessions, places.turns, strict=True)
        ],
        np.int64,
    )
    keys = np.where(numbers > 0, numbers * _TURNS_PER_SESSION + turns, -chunks)
    return chunks, keys, np.maximum(tokens, 1).astype(np.float64)


def _locate(occurrences: Any, chunks: "Array") -> "tuple[Array, Array]":
    """Return the position of each occurrence's chunk among the chunks, and its offset; others are left out."""
    import numpy as np

    occurrences = np.asarray(occurrences, np.int64)
    columns = np.full(int(chunks[-1]) + 2, -1, np.int32)
    columns[chunks] = np.arange(len(chunks), dtype=np.int32)
    own = columns[np.minimum(occurrences >> OFFSET_BITS, len(columns) - 1)]
    is_scored = own >= 0
    return own[is_scored], occurrences[is_scored] & (OCCURRENCES_PER_CHUNK - 1)


def _count_terms(located: "list[tuple[Array, Array]]", size: int) -> "tuple[Array, Array, Array]":
    """Return for each term (row) and chunk (column): occurrences in the text, one in the header, one in the opening."""
    import numpy as np

    shape = len(located), size
    counts, in_header, in_opening = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for number, (columns, offsets) in enumerate(located):
        is_text = offsets < HEADER
        counts[number] = np.bincount(columns[is_text], minlength=size)
        in_header[number, columns[~is_text]] = 1
        in_opening[number, columns[offsets < OPENING_OFFSETS]] = 1
    return counts, in_header, in_opening


def _spread(keys: "Array", own: "Array", shared: "Array", idf: "Array") -> "tuple[Array, Array]":
    """Score every turn in or near which a term occurs: for each term the best of its own score and its neighbours'."""
    import numpy as np

    first = int(np.searchsorted(keys, 0))  # keys without a turn are negative and come first
    turns, reach = keys[first:], len(WEIGHTS_BEFORE)
    # The keys within reach of a turn are a range that begins after the previous turn's range, or at the first turn.
    begins = turns - np.minimum(turns % _TURNS_PER_SESSION, reach)
    begins[1:] = np.maximum(begins[1:], turns[:-1] + reach + 1)
    lengths = turns + reach + 1 - begins
    ends = np.cumsum(lengths)
    near_turns = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
    rows = ends - 1 - reach
    scores = np.zeros((len(near_turns), len(idf)))
    scores[rows] = own[:, first:].T
    shared = np.ascontiguousarray(shared[:, first:].T)
    for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
        later, is_late = rows + distance, turns % _TURNS_PER_SESSION >= distance
        scores[later] = np.maximum(scores[later], shared * before)
        earlier = rows[is_late] - distance
        scores[earlier] = np.maximum(scores[earlier], shared[is_late] * after)
    return np.append(keys[:first], near_turns), np.append(idf @ own[:, :first], scores @ idf)


def _proximity(located: "list[tuple[Array, Array]]", size: int, idf: "Array") -> "Array":
    """Return for each chunk how near the words stand that are next to each other in the query: 1 if all adjoin."""
    import numpy as np

    proximity, total = np.zeros(size), 0.0
    for number in range(len(located) - 1):
        weight = min(idf[number], idf[number + 1])
        total += weight
        pair = located[number : number + 2]
        columns, offsets = (np.concatenate(parts) for parts in zip(*pair, strict=True))
        is_second = np.repeat([False, True], [len(part[0]) for part in pair])
        is_placed = offsets < OFFSETS - 1
        placed = columns[is_placed].astype(np.int64) * OCCURRENCES_PER_CHUNK + offsets[is_placed]
        order = np.argsort(placed, kind="stable")
        placed, is_second = placed[order], is_second[is_placed][order]
        columns = placed >> OFFSET_BITS
        is_pair = (columns[1:] == columns[:-1]) & (is_second[1:] != is_second[:-1])
        gaps = (placed[1:] - placed[:-1])[is_pair]
        nearest = np.zeros(size)
        np.maximum.at(nearest, columns[1:][is_pair], 1 / (1 + np.maximum(gaps - 1, 0) / PROXIMITY_OFFSETS))
        proximity += weight * nearest
    return proximity / total if total else proximity


def score_turns_without_numpy(matches: KeywordMatches, count: int) -> TurnScores:
    """Compute the same scores in plain Python, several times slower: keyword search does not depend on numpy."""
    sessions: dict[str, int] = {}
    keys: dict[int, int] = {}
    tokens: dict[int, int] = {}
    given = matches.places
    for chunk, session, turn, length in zip(given.chunks, given.sessions, given.turns, given.tokens, strict=True):
        tokens[chunk] = max(length, 1)
        keys[chunk] = -chunk
        if session and turn >= 0:
            keys[chunk] = sessions.setdefault(session, len(sessions) + 1) * _TURNS_PER_SESSION + turn
    reference = max(MIN_AVERAGE_TOKENS, sum(tokens.values()) / len(tokens))
    idf = [term.idf for term, _ in matches.occurrences]
    own: dict[int, list[float]] = {chunk: [0.0] * len(idf) for chunk in keys}
    in_text: dict[int, list[float]] = {chunk: [0.0] * len(idf) for chunk in keys}
    offsets: dict[int, list[list[int]]] = {chunk: [[] for _ in idf] for chunk in keys}
    for number, (_, occurrences) in enumerate(matches.occurrences):
        for one in occurrences:
            if one >> OFFSET_BITS in keys:
                offsets[one >> OFFSET_BITS][number].append(int(one) % OCCURRENCES_PER_CHUNK)
    for chunk, length in tokens.items():
        norm = K1 * (1 - B + B * max(length, reference) / reference)
        for number, found in enumerate(offsets[chunk]):
            times = sum(offset < HEADER for offset in found)
            in_text[chunk][number] = times * (K1 + 1) / (times + norm)
            own[chunk][number] = max(in_text[chunk][number], float(times < len(found)))
    best: dict[int, tuple[float, int]] = {}
    by_term: dict[int, list[float]] = {}
    for chunk, key in keys.items():
        total = sum(weight * score for weight, score in zip(idf, own[chunk], strict=True))
        if key not in best or total > best[key][0]:
            best[key] = total, chunk
    for key, (_, chunk) in best.items():
        by_term[key] = own[chunk][:]
    for chunk, key in keys.items():
        if key < 0:
            continue
        fade = min(1.0, FADE_TOKENS / tokens[chunk])
        for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
            for near, weight in ((key + distance, before), (key - distance, after)):
                if near % _TURNS_PER_SESSION < _TURNS_PER_SESSION // 2:
                    stored = by_term.setdefault(near, [0.0] * len(idf))
                    by_term[near] = [max(a, b * fade * weight) for a, b in zip(stored, in_text[chunk], strict=True)]
    totals = {key: sum(map(float.__mul__, idf, scores)) for key, scores in by_term.items()}
    highest = max(totals.values())
    totals = {key: total / highest for key, total in totals.items()}
    for key, (_, chunk) in best.items():
        opening = sum(idf[n] for n, found in enumerate(offsets[chunk]) if any(at < OPENING_OFFSETS for at in found))
        totals[key] += OPENING_WEIGHT * opening / sum(idf)
        totals[key] += PROXIMITY_WEIGHT * _proximity_in_chunk(offsets[chunk], idf)
    highest = max(totals.values())
    ordered = sorted(totals)
    return TurnScores(
        sorted(totals, key=lambda key: (-totals[key], key))[:count],
        ordered,
        [totals[key] / highest for key in ordered],
        sorted(best),
        [best[key][1] for key in sorted(best)],
        sessions,
    )


def _proximity_in_chunk(offsets: list[list[int]], idf: list[float]) -> float:
    proximity = total = 0.0
    for number in range(len(offsets) - 1):
        weight = min(idf[number], idf[number + 1])
        total += weight
        pairs = [
            abs(one - other)
            for one in offsets[number]
            for other in offsets[number + 1]
            if max(one, other) < OFFSETS - 1
        ]
        if pairs:
            proximity += weight / (1 + max(min(pairs) - 1, 0) / PROXIMITY_OFFSETS)
    return proximity / total if total else 0.0


TurnChunks = dict[tuple[str, int], tuple[int, int]]
"""A chunk and its token count, by session and turn."""


def conversation_windows(turns: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Return the ranges of turns that are within SIMILARITY_REACH of one of these: session, first and last turn."""
    by_session: dict[str, list[int]] = {}
    for session, turn in turns:
        by_session.setdefault(session, []).append(turn)
    windows: list[tuple[str, int, int]] = []
    for session, own in by_session.items():
        own.sort()
        first = last = own[0]
        for turn in own:
            if turn > last + 2 * SIMILARITY_REACH + 1:
                windows.append((session, first - SIMILARITY_REACH, last + SIMILARITY_REACH))
                first = turn
            last = turn
        windows.append((session, first - SIMILARITY_REACH, last + SIMILARITY_REACH))
    return windows


def smooth_similarities(
    chunks: Iterable[int],
    turns: dict[int, tuple[str, int]],
    neighbours: TurnChunks,
    similarities: dict[int, float],
) -> tuple[dict[int, float], set[int]]:
    """Average the similarity of each of the chunks with those of its neighbours, weighted by nearness and shortness.

    Returns the averages, and the chunks that have a neighbour. A chunk without a vector has no average.
    """
    smoothed = {}
    in_conversation = set()
    for chunk in chunks:
        total, weights = similarities.get(chunk), 1.0
        if chunk in turns:
            session, turn = turns[chunk]
            for step, nearness in _NEARNESS:
                if neighbour := neighbours.get((session, turn + step)):
                    in_conversation.add(chunk)
                    similarity = similarities.get(neighbour[0])
                    if total is not None and similarity is not None:
                        weight = nearness if neighbour[1] <= FADE_TOKENS else nearness * FADE_TOKENS / neighbour[1]
                        total += weight * similarity
                        weights += weight
        if total is not None:
            smoothed[chunk] = total / weights
    return smoothed, in_conversation
