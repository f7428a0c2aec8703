"""Scores of turns in a conversation: a match also counts for the messages around it.

A term that occurs in a neighbouring turn counts for a message, less the farther away it is, more when it came before
(an answer follows its question), and less when the neighbour is long, since a long message is about itself. Measured:
docs/retrieval.md.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.keyword import HEADER, OCCURRENCES_PER_CHUNK, OFFSETS, KeywordMatches, Place

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WEIGHTS_BEFORE = (0.8, 0.6, 0.4)
WEIGHTS_AFTER = (0.5, 0.4, 0.3)
"""Weight of an occurrence one, two and three turns before or after a message."""

SIMILARITY_WEIGHTS = (0.3, 0.2)
"""Weight of a neighbour's similarity, one and two turns away."""

SIMILARITY_REACH = len(SIMILARITY_WEIGHTS)

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
    """Scores between 0 and 1 by key, best first. A key is a turn of a session, or a chunk without a turn (negative).

    `chunk_by_key` has the best chunk of each turn with matches of its own, `coverage` the share of the query's terms in
    that chunk, weighted by their rarity.
    """

    scores: dict[int, float]
    chunk_by_key: dict[int, int] = field(default_factory=dict)
    coverage: dict[int, float] = field(default_factory=dict)
    session_numbers: dict[str, int] = field(default_factory=dict)

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


def score_turns(matches: KeywordMatches) -> TurnScores | None:
    """Score each turn, or chunk without a turn, by BM25, with what its neighbours contribute."""
    if numpy_if_available() is None:
        return score_turns_without_numpy(matches)
    import numpy as np

    places = sorted(matches.places)
    if not places:
        return None
    sessions: dict[str, int] = {}
    chunks = np.array([place[0] for place in places], np.int64)
    keys = np.array([_key(place, sessions) for place in places], np.int64)
    tokens = np.maximum(np.array([place[3] for place in places], np.float64), 1)
    idf = np.array([term.idf for term, _ in matches.occurrences])
    found = _find_terms(matches, chunks)
    reference = max(MIN_AVERAGE_TOKENS, float(tokens.mean()))
    norm = K1 * (1 - B + B * np.maximum(tokens, reference) / reference)
    in_text = found.counts * (K1 + 1) / (found.counts + norm)
    own = np.maximum(in_text, found.in_header)
    # Of the chunks of a long message, the best one represents it.
    order = np.lexsort((-chunks, idf @ own, keys))
    best = order[np.flatnonzero(np.append(keys[order][1:] != keys[order][:-1], True))]
    all_keys, totals = _spread(keys, best, own, in_text * np.minimum(1.0, FADE_TOKENS / tokens), idf)
    totals /= totals.max()
    total_idf = idf.sum()
    coverage = (idf @ (own[:, best] > 0)) / total_idf
    bonus = OPENING_WEIGHT * (idf @ found.in_opening[:, best]) / total_idf
    bonus += PROXIMITY_WEIGHT * _proximity(matches, chunks, idf)[best]
    totals[np.searchsorted(all_keys, keys[best])] += bonus
    totals /= totals.max()
    ranked = np.lexsort((all_keys, -totals))
    best_keys = keys[best].tolist()
    return TurnScores(
        dict(zip(all_keys[ranked].tolist(), totals[ranked].tolist(), strict=True)),
        dict(zip(best_keys, chunks[best].tolist(), strict=True)),
        dict(zip(best_keys, coverage.tolist(), strict=True)),
        sessions,
    )


@dataclass(frozen=True)
class _TermsInChunks:
    """For each term (row) and chunk (column): occurrences in the text, one in the header, one in the opening."""

    counts: "Array"
    in_header: "Array"
    in_opening: "Array"


def _find_terms(matches: KeywordMatches, chunks: "Array") -> _TermsInChunks:
    import numpy as np

    shape = len(matches.occurrences), len(chunks)
    counts, in_header, in_opening = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for number, (_, occurrences) in enumerate(matches.occurrences):
        columns, offsets = _columns(np.asarray(occurrences, np.int64), chunks)
        is_text = offsets < HEADER
        counts[number] = np.bincount(columns[is_text], minlength=len(chunks))
        in_header[number, columns[~is_text]] = 1
        in_opening[number, columns[offsets < OPENING_OFFSETS]] = 1
    return _TermsInChunks(counts, in_header, in_opening)


def _columns(occurrences: "Array", chunks: "Array") -> "tuple[Array, Array]":
    """Return the position of each occurrence's chunk among the chunks, and its offset; others are left out."""
    import numpy as np

    ids = occurrences // OCCURRENCES_PER_CHUNK
    columns = np.minimum(np.searchsorted(chunks, ids), len(chunks) - 1)
    is_scored = chunks[columns] == ids
    return columns[is_scored], occurrences[is_scored] % OCCURRENCES_PER_CHUNK


def _spread(keys: "Array", best: "Array", own: "Array", shared: "Array", idf: "Array") -> "tuple[Array, Array]":
    """Score every turn in or near which a term occurs: for each term the best of its own score and its neighbours'."""
    import numpy as np

    has_turn = keys >= 0
    turns, shared = keys[has_turn], shared[:, has_turn]
    parts = [(keys[best], own[:, best])]
    for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
        parts += [(turns + distance, shared * before), (turns - distance, shared * after)]
    unordered, scores = np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts], axis=1)
    order = np.argsort(unordered, kind="stable")
    ordered = unordered[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    totals = idf @ np.maximum.reduceat(scores[:, order], starts, axis=1)
    all_keys = ordered[starts]
    exists = (all_keys < 0) | (all_keys % _TURNS_PER_SESSION < _TURNS_PER_SESSION // 2)  # no turn before the first
    return all_keys[exists], totals[exists]


def _proximity(matches: KeywordMatches, chunks: "Array", idf: "Array") -> "Array":
    """Return for each chunk how near the words stand that are next to each other in the query: 1 if all adjoin."""
    import numpy as np

    proximity, total = np.zeros(len(chunks)), 0.0
    for number in range(len(matches.occurrences) - 1):
        weight = min(idf[number], idf[number + 1])
        total += weight
        pair = [_columns(np.asarray(matches.occurrences[one][1], np.int64), chunks) for one in (number, number + 1)]
        columns, offsets = (np.concatenate(parts) for parts in zip(*pair, strict=True))
        is_second = np.repeat([False, True], [len(part[0]) for part in pair])
        is_placed = offsets < OFFSETS - 1
        order = np.flatnonzero(is_placed)[np.lexsort((offsets[is_placed], columns[is_placed]))]
        columns, offsets, is_second = columns[order], offsets[order], is_second[order]
        is_pair = (columns[1:] == columns[:-1]) & (is_second[1:] != is_second[:-1])
        gaps = (offsets[1:] - offsets[:-1])[is_pair]
        nearest = np.zeros(len(chunks))
        np.maximum.at(nearest, columns[1:][is_pair], 1 / (1 + np.maximum(gaps - 1, 0) / PROXIMITY_OFFSETS))
        proximity += weight * nearest
    return proximity / total if total else proximity


def score_turns_without_numpy(matches: KeywordMatches) -> TurnScores | None:
    """Compute the same scores in plain Python, several times slower: keyword search does not depend on numpy."""
    sessions: dict[str, int] = {}
    places = {place[0]: place for place in sorted(matches.places)}
    keys = {chunk: _key(place, sessions) for chunk, place in places.items()}
    if not places:
        return None
    reference = max(MIN_AVERAGE_TOKENS, sum(max(place[3], 1) for place in places.values()) / len(places))
    idf = [term.idf for term, _ in matches.occurrences]
    own: dict[int, list[float]] = {chunk: [0.0] * len(idf) for chunk in places}
    in_text: dict[int, list[float]] = {chunk: [0.0] * len(idf) for chunk in places}
    offsets: dict[int, list[list[int]]] = {chunk: [[] for _ in idf] for chunk in places}
    for number, (_, occurrences) in enumerate(matches.occurrences):
        for one in occurrences:
            if one // OCCURRENCES_PER_CHUNK in places:
                offsets[one // OCCURRENCES_PER_CHUNK][number].append(int(one) % OCCURRENCES_PER_CHUNK)
    for chunk, (_, _, _, tokens) in places.items():
        norm = K1 * (1 - B + B * max(tokens, reference) / reference)
        for number, found in enumerate(offsets[chunk]):
            count = sum(offset < HEADER for offset in found)
            in_text[chunk][number] = count * (K1 + 1) / (count + norm)
            own[chunk][number] = max(in_text[chunk][number], float(count < len(found)))
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
        fade = min(1.0, FADE_TOKENS / max(places[chunk][3], 1))
        for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
            for near, weight in ((key + distance, before), (key - distance, after)):
                if near % _TURNS_PER_SESSION < _TURNS_PER_SESSION // 2:
                    stored = by_term.setdefault(near, [0.0] * len(idf))
                    by_term[near] = [max(a, b * fade * weight) for a, b in zip(stored, in_text[chunk], strict=True)]
    totals = {key: sum(map(float.__mul__, idf, scores)) for key, scores in by_term.items()}
    highest = max(totals.values())
    totals = {key: total / highest for key, total in totals.items()}
    coverage = {}
    for key, (_, chunk) in best.items():
        opening = sum(idf[n] for n, found in enumerate(offsets[chunk]) if any(at < OPENING_OFFSETS for at in found))
        totals[key] += OPENING_WEIGHT * opening / sum(idf)
        totals[key] += PROXIMITY_WEIGHT * _proximity_in_chunk(offsets[chunk], idf)
        coverage[key] = sum(weight for weight, score in zip(idf, own[chunk], strict=True) if score > 0) / sum(idf)
    highest = max(totals.values())
    ranked = sorted(totals, key=lambda key: (-totals[key], key))
    return TurnScores(
        {key: totals[key] / highest for key in ranked},
        {key: chunk for key, (_, chunk) in best.items()},
        coverage,
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


def _key(place: Place, session_numbers: dict[str, int]) -> int:
    chunk, session, turn, _ = place
    if session is None or turn is None:
        return -chunk
    return session_numbers.setdefault(session, len(session_numbers) + 1) * _TURNS_PER_SESSION + turn


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
