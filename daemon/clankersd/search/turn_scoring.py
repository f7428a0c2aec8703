"""Scores of turns in a conversation: a match also counts for the messages around it.

A term that occurs in a neighbouring turn counts for a message, less the farther away it is, more when it came before
(an answer follows its question), and less when the neighbour is long, since a long message is about itself. Measured:
docs/retrieval.md.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from clankersd.db.engine import HEADER, OCCURRENCES_PER_CHUNK, OFFSET_BITS, OFFSETS
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.chunk_table import TURNS_PER_SESSION, ChunkTable
from clankersd.search.keyword_matches import KeywordMatches, Places
from clankersd.search.rows import RankingRow
from clankersd.search.sorted_arrays import find_sorted
from clankersd.search.term_index import TermMatches

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WEIGHTS_BEFORE = (0.8, 0.6, 0.4)
WEIGHTS_AFTER = (0.5, 0.4, 0.3)
"""Weight of an occurrence one, two and three turns before or after a message."""

SIMILARITY_WEIGHTS = (0.3, 0.2)
"""Weight of a neighbour's similarity, one and two turns away."""

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


MAX_MATCHES_PER_SCORED_CHUNK = 20
"""Up to this many matching chunks for each scored one, all are located; of more, each scored one is looked up."""


@dataclass(frozen=True)
class TurnScores:
    """Scores between 0 and 1 by key. A key is a turn of a session, or a chunk without a turn (negative).

    `ranked` are the keys with the highest scores, best first. `keys` and `scores` are those of every turn in or near
    which a term occurs, in the order of the keys; `matched_keys` and `chunks` the best chunk of each turn with a match
    of its own. All four are arrays where there is numpy.
    """

    ranked: list[int]
    keys: Any
    scores: Any
    matched_keys: Any
    chunks: Any
    places: Places

    def scores_at(self, keys: Sequence[int]) -> dict[int, float]:
        """Return the scores of those of the keys near which a term occurs."""
        return _look_up(self.keys, self.scores, keys)

    def best_chunks(self, keys: Sequence[int]) -> dict[int, int]:
        """Return the best chunks of those of the keys in which a term occurs."""
        return _look_up(self.matched_keys, self.chunks, keys)

    def other_parts(self, chunks: Sequence[int]) -> dict[int, int]:
        """Return the other scored chunks of the messages that these represent, in their order, with these."""
        if len(self.chunks) == len(self.places.chunks):  # no message has several
            return {}
        parts: dict[tuple[int, int], list[int]] = {}
        turns: dict[int, tuple[int, int]] = {}
        columns = [self.places.chunks, self.places.sessions, self.places.turns]
        if numpy := numpy_if_available():  # only the chunks of these messages are looked at one by one
            columns = [numpy.asarray(column, numpy.int64) for column in columns]
            keys = columns[1] * TURNS_PER_SESSION + columns[2]
            is_wanted = numpy.isin(keys, keys[numpy.isin(columns[0], chunks)])
            columns = [column[is_wanted].tolist() for column in columns]
        for chunk, session, turn in zip(*columns, strict=True):
            if session > 0 and turn >= 0:
                parts.setdefault((session, turn), []).append(chunk)
                turns[chunk] = session, turn
        return {part: chunk for chunk in chunks if chunk in turns for part in parts[turns[chunk]] if part != chunk}

    def ranked_chunks(self, table: ChunkTable, chunking: int) -> list[int]:
        """Return the chunks of the ranked turns by the table in memory; of a turn without a match, its first chunk."""
        import numpy as np

        keys = np.array(self.ranked, np.int64)
        positions, is_match = find_sorted(self.matched_keys, keys)
        chunks = np.where(is_match, self.chunks[positions], 0)
        without_match = np.flatnonzero(chunks == 0)
        chunks[without_match] = table.chunks_at(keys[without_match], chunking)
        return chunks[chunks > 0].tolist()  # type: ignore[no-any-return]

    def turns_of(self, keys: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Return the session and turn of each key that has one."""
        sessions = self.places.session_ids
        return {key: (sessions[key // TURNS_PER_SESSION], key % TURNS_PER_SESSION) for key in keys if key >= 0}

    def scores_of_rows(self, rows: Mapping[int, RankingRow]) -> dict[int, float]:
        """Return the scores of chunks.

        A score belongs to the message: its best chunk has it, or any of its chunks if that one is not among the rows.
        """
        keys = self._keys_of_rows(rows)
        distinct = list(set(keys.values()))
        scores, best_chunks = self.scores_at(distinct), self.best_chunks(distinct)
        by_chunk = {}
        for chunk, key in keys.items():
            best = best_chunks.get(key, chunk)
            if key in scores and (best == chunk or best not in rows):
                by_chunk[chunk] = scores[key]
        return by_chunk

    def matches_of_rows(self, rows: Mapping[int, RankingRow]) -> set[int]:
        """Return the chunks of messages in which a term occurs, not only near them."""
        keys = self._keys_of_rows(rows)
        matching = self.best_chunks(list(set(keys.values())))
        return {chunk for chunk, key in keys.items() if key in matching}

    def _keys_of_rows(self, rows: Mapping[int, RankingRow]) -> dict[int, int]:
        numbers = self.places.session_numbers
        keys = {}
        for chunk, row in rows.items():
            if row.session_id is None or row.turn is None:
                keys[chunk] = -chunk
            elif number := numbers.get(row.session_id):
                keys[chunk] = number * TURNS_PER_SESSION + row.turn
        return keys

    def matches_of_keys(self, keys: "Array") -> "Array":
        """Return which of the turns have a term themselves."""
        return find_sorted(self.matched_keys, keys)[1]  # type: ignore[no-any-return]

    def scores_of_chunks(self, chunks: "Array", keys: "Array") -> "Array":
        """Return the scores of chunks, an ordered array, by the same rule; 0 for none. `keys` are those of turns."""
        import numpy as np

        positions, is_scored = find_sorted(self.keys, keys)
        scores = np.where(is_scored, self.scores[positions], 0.0)
        positions, is_match = find_sorted(self.matched_keys, keys)
        best = np.where(is_match, self.chunks[positions], chunks)
        _, is_present = find_sorted(chunks, best)
        return np.where((best == chunks) | ~is_present, scores, 0.0)


def _look_up(keys: Any, values: Any, wanted: Sequence[int]) -> dict[int, Any]:
    """Return the values at those of the wanted keys that are among the ordered keys."""
    numpy = numpy_if_available()
    if numpy is None:
        found = {key: bisect_left(keys, key) for key in wanted}
        return {key: values[position] for key, position in found.items() if keys[position : position + 1] == [key]}
    given = numpy.array(wanted, numpy.int64)
    positions, is_found = find_sorted(keys, given)
    return dict(zip(given[is_found].tolist(), values[positions[is_found]].tolist(), strict=True))


def score_turns(matches: KeywordMatches, count: int) -> TurnScores | None:
    """Score each turn, or chunk without a turn, by BM25, with what its neighbours contribute; rank the best `count`."""
    if not len(matches.places.chunks):
        return None
    if numpy_if_available() is None:
        return score_turns_without_numpy(matches, count)
    import numpy as np

    places = matches.places
    chunks, sessions, turns = (np.asarray(one, np.int64) for one in (places.chunks, places.sessions, places.turns))
    keys = np.where((sessions > 0) & (turns >= 0), sessions * TURNS_PER_SESSION + turns, -chunks)
    tokens = np.maximum(np.asarray(places.tokens, np.float64), 1)
    idf = np.array([one.term.idf for one in matches.terms])
    located = _locate(matches.terms, chunks)
    counts, in_header, in_opening = _count_terms(located, (len(idf), len(chunks)))
    reference = max(MIN_AVERAGE_TOKENS, float(tokens.mean()))
    norm = K1 * (1 - B + B * np.maximum(tokens, reference) / reference)
    in_text = counts * (K1 + 1) / (counts + norm)
    own = np.maximum(in_text, in_header)
    # Of the chunks of a long message, the best one represents it.
    order = best = np.argsort(keys, kind="stable")
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)
    shared = in_text * np.minimum(1.0, FADE_TOKENS / tokens)
    if is_last.all():
        shared = shared[:, order]
    else:
        order = np.lexsort((-chunks, idf @ own, keys))
        best = order[is_last]
        shared = np.maximum.reduceat(shared[:, order], np.append(0, np.flatnonzero(is_last)[:-1] + 1), axis=1)
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
        all_keys,
        totals,
        keys[best],
        chunks[best],
        places,
    )


class _Located(NamedTuple):
    """Occurrences of terms in the scored chunks, in the order of the terms and chunks: three arrays of one length.

    A cell is `term * number of chunks + position of the chunk`.
    """

    terms: "Array"
    cells: "Array"
    offsets: "Array"


def _locate(terms: list[TermMatches], chunks: "Array") -> _Located:
    """Find the occurrences of the terms in these chunks, which are in order."""
    import numpy as np

    wanted = chunks.astype(np.int32)  # as in postings, or all of these would be converted
    places_by_chunk = np.full(int(wanted[-1]) + 2, -1, np.int32)
    places_by_chunk[chunks] = np.arange(len(chunks), dtype=np.int32)
    numbers, cells, offsets = [], [], []
    for number, one in enumerate(terms):
        postings = one.postings
        if len(one.chunks) > MAX_MATCHES_PER_SCORED_CHUNK * len(chunks):
            positions, has_term = find_sorted(postings.chunks, wanted)
            places = np.flatnonzero(has_term)
            positions = positions[places]
        else:
            places = places_by_chunk[np.minimum(one.chunks, len(places_by_chunk) - 1).astype(np.intp)]
            positions = np.flatnonzero(places >= 0)
            places = places[positions].astype(np.int64)
            positions = positions if one.positions is None else one.positions[positions]
        counts, found = postings.locate(positions)
        offsets.append(found)
        cells.append(np.repeat(places + number * len(chunks), counts))
        numbers.append(np.full(len(found), number))
    return _Located(np.concatenate(numbers), np.concatenate(cells), np.concatenate(offsets).astype(np.int64))


def _count_terms(located: _Located, shape: tuple[int, int]) -> "tuple[Array, Array, Array]":
    """Return for each term (row) and chunk (column): occurrences in the text, one in the header, one in the opening."""
    import numpy as np

    is_text = located.offsets < HEADER
    counts = np.bincount(located.cells[is_text], minlength=shape[0] * shape[1])
    in_header, in_opening = np.zeros(counts.shape), np.zeros(counts.shape)
    in_header[located.cells[~is_text]] = 1
    in_opening[located.cells[located.offsets < OPENING_OFFSETS]] = 1
    return counts.reshape(shape), in_header.reshape(shape), in_opening.reshape(shape)


def _spread(keys: "Array", own: "Array", shared: "Array", idf: "Array") -> "tuple[Array, Array]":
    """Score every turn in or near which a term occurs: for each term the best of its own score and its neighbours'."""
    import numpy as np

    first = int(np.searchsorted(keys, 0))  # keys without a turn are negative and come first
    turns, reach = keys[first:], len(WEIGHTS_BEFORE)
    # The keys within reach of a turn are a range that begins after the previous turn's range, or at the first turn.
    numbers = turns % TURNS_PER_SESSION
    begins = turns - np.minimum(numbers, reach)
    begins[1:] = np.maximum(begins[1:], turns[:-1] + reach + 1)
    lengths = turns + reach + 1 - begins
    ends = np.cumsum(lengths)
    near_turns = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
    columns = ends - 1 - reach
    by_term = np.zeros((len(idf), len(near_turns)))
    by_term[:, columns] = own[:, first:]
    # Most terms are not in most turns: only what there is to share is spread, in one array of all terms.
    scores, shared = by_term.reshape(-1), shared[:, first:]
    terms, sharing = np.nonzero(shared)
    shared, numbers, places = shared[terms, sharing], numbers[sharing], terms * len(near_turns) + columns[sharing]
    for distance, (before, after) in enumerate(zip(WEIGHTS_BEFORE, WEIGHTS_AFTER, strict=True), 1):
        later, is_late = places + distance, numbers >= distance
        scores[later] = np.maximum(scores[later], shared * before)
        earlier = places[is_late] - distance
        scores[earlier] = np.maximum(scores[earlier], shared[is_late] * after)
    return np.append(keys[:first], near_turns), np.append(idf @ own[:, :first], idf @ by_term)


def _proximity(located: _Located, size: int, idf: "Array") -> "Array":
    """Return for each chunk how near the words stand that are next to each other in the query: 1 if all adjoin."""
    import numpy as np

    weights = np.minimum(idf[:-1], idf[1:])
    if not len(weights):
        return np.zeros(size)
    is_placed = located.offsets < OFFSETS - 1
    terms, placed = located.terms[is_placed], (located.cells << OFFSET_BITS | located.offsets)[is_placed]
    # An occurrence belongs to two pairs: with the next word of the query, and with the one before, whose cell it gets.
    first, second = placed[terms < len(weights)], placed[terms > 0] - size * OCCURRENCES_PER_CHUNK
    placed = np.append(first, second)
    order = np.argsort(placed, kind="stable")
    placed, is_second = placed[order], order >= len(first)
    cells = placed >> OFFSET_BITS
    is_pair = (cells[1:] == cells[:-1]) & (is_second[1:] != is_second[:-1])
    gaps = (placed[1:] - placed[:-1])[is_pair]
    nearest = np.zeros(len(weights) * size)
    np.maximum.at(nearest, cells[1:][is_pair], 1 / (1 + np.maximum(gaps - 1, 0) / PROXIMITY_OFFSETS))
    # Not as a matrix product, in which equal columns may get sums that differ in the last bit.
    return (weights[:, None] * nearest.reshape(-1, size)).sum(axis=0) / weights.sum()  # type: ignore[no-any-return]


def score_turns_without_numpy(matches: KeywordMatches, count: int) -> TurnScores:
    """Compute the same scores in plain Python, several times slower: keyword search does not depend on numpy."""
    keys: dict[int, int] = {}
    tokens: dict[int, int] = {}
    given = matches.places
    for chunk, session, turn, length in zip(given.chunks, given.sessions, given.turns, given.tokens, strict=True):
        tokens[chunk] = max(length, 1)
        keys[chunk] = session * TURNS_PER_SESSION + turn if session and turn >= 0 else -chunk
    reference = max(MIN_AVERAGE_TOKENS, sum(tokens.values()) / len(tokens))
    idf = [one.term.idf for one in matches.terms]
    own: dict[int, list[float]] = {chunk: [0.0] * len(idf) for chunk in keys}
    in_text: dict[int, list[float]] = {chunk: [0.0] * len(idf) for chunk in keys}
    offsets: dict[int, list[list[int]]] = {chunk: [[] for _ in idf] for chunk in keys}
    for number, one in enumerate(matches.terms):
        for encoded in one.postings.occurrences:
            if encoded >> OFFSET_BITS in keys:
                offsets[encoded >> OFFSET_BITS][number].append(encoded % OCCURRENCES_PER_CHUNK)
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
                if near % TURNS_PER_SESSION < TURNS_PER_SESSION // 2:
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
        given,
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


def smooth_similarities(
    table: ChunkTable, chunking: int, own: "Array", compare: "Callable[[Array], Array]"
) -> "tuple[Array, Array]":
    """Average the similarity of each chunk with those of its neighbours, weighted by nearness and shortness.

    `compare` is given these chunks and then their neighbours, and returns the similarity of each, NaN for one without
    a vector. A turn is represented by its first chunk. Returns the averages, NaN for a chunk without a vector, and
    which of the chunks have a neighbour.
    """
    import numpy as np

    columns = table.columns
    assert columns is not None
    known = np.where(own < len(columns.partitions), own, 0)  # a newer chunk has no neighbours yet
    keys = columns.keys(known)
    steps = np.array([step for step, _ in _NEARNESS])[:, None]
    turns = columns.turns[known] + steps
    wanted = np.where((keys >= 0) & (turns >= 0), keys + steps, -1)
    near = table.chunks_at(wanted.ravel(), chunking).reshape(wanted.shape)
    similarities = compare(np.append(own, near)).reshape(len(steps) + 1, -1)
    of_own, of_near = similarities[0], similarities[1:]
    nearness = np.array([weight for _, weight in _NEARNESS])[:, None]
    weights = nearness * np.minimum(1.0, FADE_TOKENS / np.maximum(columns.tokens[near], 1))
    weights[np.isnan(of_near)] = 0.0
    smoothed = (of_own + (weights * np.nan_to_num(of_near)).sum(axis=0)) / (1 + weights.sum(axis=0))
    return smoothed, (near > 0).any(axis=0)
