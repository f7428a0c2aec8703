"""Keyword search: look up where the terms of a query occur within the scope that is searched.

Frequencies count in the scope, not in the whole index, so that a project is searched as well in a large store as alone.
Ids and places come from SQLite as JSON arrays: a row for each would take ten times as long.
"""

import json
import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import apsw
from msgspec.json import decode as decode_json

from clankersd.db import Db, Store
from clankersd.db.engine import OFFSET_BITS
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.tokenize import query_words
from clankersd.search.closeness import word_weight
from clankersd.search.filters import ChunkFilter
from clankersd.search.term_index import Occurrences, Spelling, TermIndex
from clankersd.search.vocabulary import GENERIC_WEIGHT, GENERIC_WORDS, OTHER_SPELLINGS

MAX_TERMS = 16
MAX_LISTED_SCOPE = 300_000
"""Chunks up to which the ids of a scope are listed. A larger scope is treated like the whole index."""

MAX_SCORED_CHUNKS = 4_000
"""Chunks whose place in a conversation is looked up: those with the most and rarest terms."""

CHUNKS_PER_SLICE = 1_000
SLICE_SECONDS = 0.003
"""Time for which one query may hold the connection before others get their turn."""

TIMEOUT_NOTE = "time ran out before all words were looked up"

# CROSS JOIN, here and elsewhere, fixes the join order, and the index avoids reading texts: the speed depends on both.
_PLACES = """
    SELECT json_group_array(chunks.id), json_group_array(coalesce(chunks.session_id, '')),
        json_group_array(coalesce(chunks.turn, -1)), json_group_array(chunks.tokens)
    FROM json_each(:ids) CROSS JOIN chunks {index} ON chunks.id = json_each.value WHERE {condition}
"""


@dataclass
class Places:
    """Places of chunks in conversations, as columns in the order of the chunks: thousands of rows would take longer.

    A chunk outside a conversation has an empty session or the turn -1.
    """

    chunks: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, columns: tuple[str, str, str, str]) -> None:
        """Add columns that are JSON arrays."""
        self.chunks += decode_json(columns[0], type=list[int])
        self.sessions += decode_json(columns[1], type=list[str])
        self.turns += decode_json(columns[2], type=list[int])
        self.tokens += decode_json(columns[3], type=list[int])


@dataclass(frozen=True)
class Term:
    """A word of the query with its stem and those of its other spellings; frequencies are numbers of chunks.

    `frequency` is that in the whole index until the term has been looked up, and then that in the scope.
    """

    word: str
    spellings: tuple[Spelling, ...]
    frequency: int
    chunk_count: int

    @property
    def idf(self) -> float:
        """Inverse document frequency, above zero even for a term in every chunk; less for a generic word."""
        rarity = math.log(1 + (max(0, self.chunk_count - self.frequency) + 0.5) / (self.frequency + 0.5))
        return rarity * (GENERIC_WEIGHT if self.word in GENERIC_WORDS else 1.0)


@dataclass
class KeywordMatches:
    """Occurrences by term, in the order of the query, and the places of the chunks with the best ones.

    `weights` has every stem of the query, known or not; `note` states what was left out.
    """

    occurrences: list[tuple[Term, Occurrences]] = field(default_factory=list)
    places: Places = field(default_factory=Places)
    stems: set[str] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    note: str | None = None

    @property
    def size(self) -> int:
        """Number of occurrences of all terms."""
        return sum(len(occurrences) for _, occurrences in self.occurrences)

    def indexed_coverage(self, chunk: int) -> float:
        """Return the weighted share of the query's words by which the index finds a chunk, be it in the header."""
        numpy = numpy_if_available()
        first, last = chunk << OFFSET_BITS, (chunk + 1) << OFFSET_BITS
        found = 0.0
        for term, occurrences in self.occurrences:
            if numpy is None:
                is_found = any(first <= one < last for one in occurrences)
            else:
                array = numpy.asarray(occurrences)
                is_found = bool(((array >= first) & (array < last)).any())
            if is_found:
                found += max(self.weights.get(one.stem, 0.0) for one in term.spellings)
        total = sum(self.weights.values())
        return min(1.0, found / total) if total else 0.0


@dataclass(frozen=True)
class Scope:
    """Chunks that pass a filter: their ids, or None for the whole index, which is not listed."""

    ids: Sequence[int] | None
    last: int
    mask: Any = None
    """Array that is True at the position of each id; None without numpy, or if the ids are not listed."""

    @staticmethod
    def find(db: Db, chunk_filter: ChunkFilter) -> "Scope":
        last = db.value("SELECT max(id) FROM chunks") or 0
        is_restricted = chunk_filter.is_narrow or any(
            test.project is not None or test.sources is not None for test in chunk_filter.label_tests
        )
        if is_restricted:
            sql = f"SELECT json_group_array(id) FROM ({chunk_filter.ids} LIMIT {MAX_LISTED_SCOPE + 1})"
            ids = decode_json(db.value(sql, chunk_filter.params), type=list[int])
            if len(ids) <= MAX_LISTED_SCOPE:
                numpy = numpy_if_available()
                mask = None
                if numpy is not None:
                    mask = numpy.zeros(last + 1, numpy.bool_)
                    mask[numpy.array(ids, numpy.int64)] = True
                return Scope(ids, last, mask)
        return Scope(None, last)

    def select(self, occurrences: Occurrences) -> tuple[Occurrences, int]:
        """Return the occurrences in chunks of the scope, and the number of these chunks."""
        numpy = numpy_if_available()
        if numpy is None:
            if self.ids is not None:
                within = set(self.ids)
                occurrences = [one for one in occurrences if one >> OFFSET_BITS in within]
            return occurrences, len({one >> OFFSET_BITS for one in occurrences})
        found: Any = occurrences
        if self.mask is not None:
            found = found[self.mask[found >> OFFSET_BITS]]
        return found, len(distinct_chunks(found))


async def search_keywords(
    store: Store,
    query: str,
    names: set[str],
    index: TermIndex,
    chunk_filter: ChunkFilter,
    deadline: float,
) -> KeywordMatches:
    """Find the terms of the query in the chunks that pass the filter, within the deadline.

    `names` are not searched for, unless the query has nothing else.
    """
    lookup = _Lookup(query, names, index, chunk_filter)
    while not lookup.is_done:
        seconds = deadline - anyio.current_time()
        if seconds <= 0:
            lookup.matches.note = TIMEOUT_NOTE
            break
        await store.read(lookup.run_slice, seconds)
    return lookup.matches


class _Lookup:
    """Lookup of a query's terms in slices. An interrupted slice is run again and continues where it was."""

    def __init__(self, query: str, names: set[str], index: TermIndex, chunk_filter: ChunkFilter) -> None:
        self.matches = KeywordMatches()
        self._words = query_words(query)
        self._names = names
        self._index = index
        self._filter = chunk_filter
        self._scope: Scope | None = None
        self._terms: deque[tuple[int, Term]] | None = None
        self._found: dict[int, tuple[Term, Occurrences]] = {}
        self._chunks: deque[list[int]] | None = None

    @property
    def is_done(self) -> bool:
        return self._chunks is not None and not self._chunks

    def run_slice(self, db: Db) -> None:
        """Look up terms for SLICE_SECONDS: one trip to the connection's thread for each term would cost more."""
        end = time.monotonic() + SLICE_SECONDS
        while not self.is_done and time.monotonic() < end:
            if self._scope is None:
                self._scope = Scope.find(db, self._filter)
            elif self._terms is None:
                self._terms = self._known_terms(db)
            elif self._terms:
                if self._look_up(db, *self._terms[0]):
                    self._terms.popleft()
            elif self._chunks is None:
                self._chunks = self._best_chunks()
            else:
                self.matches.places.add(self._fetch_places(db, self._chunks[0]))
                self._chunks.popleft()

    def _known_terms(self, db: Db) -> deque[tuple[int, Term]]:
        """The terms that occur anywhere, rarest first, each with its position in the query."""
        tokenize = db.engine.tokenizer(db)
        assert self._scope is not None
        chunk_count = self._scope.last
        terms: dict[str, Term] = {}
        for word in [word for word in self._words if word not in self._names] or self._words:
            for spelling in _spellings(tokenize, word):
                frequency = self._index.frequencies.get(db, spelling.stem, chunk_count)
                generic = GENERIC_WEIGHT if word in GENERIC_WORDS else 1.0
                self.matches.weights[spelling.stem] = generic * word_weight(frequency, chunk_count)
                if spelling.stem in self.matches.stems:
                    continue
                spellings = [spelling] if frequency else []
                for other_word in OTHER_SPELLINGS.get(word, ()):
                    for other in _spellings(tokenize, other_word):
                        if more := self._index.frequencies.get(db, other.stem, chunk_count):
                            spellings.append(other)
                            frequency += more
                if spellings:
                    terms[spelling.stem] = Term(word, tuple(spellings), frequency, max(chunk_count, frequency))
                    self.matches.stems.update(one.stem for one in spellings)
        ordered = sorted(enumerate(terms.values()), key=lambda term: term[1].frequency)
        if len(ordered) > MAX_TERMS:
            self._add_note(f"of {len(ordered)} words the {MAX_TERMS} rarest were looked up")
        return deque(ordered[:MAX_TERMS])

    def _look_up(self, db: Db, position: int, term: Term) -> bool:
        """Look up a term, or a part of it; return True once all of it is."""
        scope = self._scope
        assert scope is not None
        by_spelling = [self._index.occurrences.read(db, one, term.frequency, scope.last) for one in term.spellings]
        complete = [occurrences for occurrences in by_spelling if occurrences is not None]
        if len(complete) < len(by_spelling):
            return False
        occurrences, frequency = scope.select(_merge(complete))
        if scope.ids is not None:
            term = replace(term, frequency=frequency, chunk_count=len(scope.ids))
        if len(occurrences):
            self._found[position] = term, occurrences
        return True

    def _best_chunks(self) -> deque[list[int]]:
        """Choose the chunks to be scored, in slices; the occurrences of the others are dropped."""
        self.matches.occurrences = [self._found[position] for position in sorted(self._found)]
        assert self._scope is not None
        chunks = _rarest_matches(self.matches.occurrences, self._scope.last)
        chunks.sort()
        return deque(chunks[start : start + CHUNKS_PER_SLICE] for start in range(0, len(chunks), CHUNKS_PER_SLICE))

    def _fetch_places(self, db: Db, chunks: list[int]) -> tuple[str, str, str, str]:
        is_listed = self._scope is not None and self._scope.ids is not None
        condition = "true" if is_listed else self._filter.condition
        index = "" if self._filter.is_narrow and not is_listed else "INDEXED BY idx_chunks_place"
        params = {"ids": json.dumps(chunks)} | ({} if is_listed else self._filter.params)
        [columns] = db.tuples(_PLACES.format(index=index, condition=condition), params)
        return columns

    def _add_note(self, note: str) -> None:
        self.matches.note = f"{self.matches.note}; {note}" if self.matches.note else note


def distinct_chunks(occurrences: Any) -> Any:
    """Return the chunks of occurrences that are in order, each once, as an array of numpy."""
    import numpy as np

    chunks = occurrences >> OFFSET_BITS
    is_first = np.ones(len(chunks), np.bool_)
    np.not_equal(chunks[1:], chunks[:-1], out=is_first[1:])
    return chunks[is_first]


def _merge(by_spelling: list[Occurrences]) -> Occurrences:
    """Return the occurrences of all spellings in order."""
    if len(by_spelling) == 1:
        return by_spelling[0]
    numpy = numpy_if_available()
    if numpy is None:
        return sorted(one for occurrences in by_spelling for one in occurrences)
    merged: Any = numpy.sort(numpy.concatenate(by_spelling))
    return merged  # type: ignore[no-any-return]


def _rarest_matches(found: list[tuple[Term, Occurrences]], last: int) -> list[int]:
    """Return the MAX_SCORED_CHUNKS chunks whose terms are the most and the rarest."""
    numpy = numpy_if_available()
    if numpy is None:
        totals: Counter[int] = Counter()
        for term, occurrences in found:
            totals.update(dict.fromkeys({one >> OFFSET_BITS for one in occurrences}, term.idf))
        return [chunk for chunk, _ in totals.most_common(MAX_SCORED_CHUNKS)]
    rarity = numpy.zeros(last + 1)
    for term, occurrences in found:
        rarity[distinct_chunks(occurrences)] += term.idf
    chunks = numpy.flatnonzero(rarity)
    if len(chunks) > MAX_SCORED_CHUNKS:
        # Of equally good chunks, the newest.
        chunks = chunks[::-1][numpy.argsort(-rarity[chunks[::-1]], kind="stable")[:MAX_SCORED_CHUNKS]]
    result: list[int] = chunks.tolist()
    return result


def stems_by_word(db: Db, text: str, max_words: int) -> dict[str, str]:
    """Return the first distinct words of a text, each with its stem."""
    tokenize = db.engine.tokenizer(db)
    stems: dict[str, str] = {}
    for word in query_words(text)[:max_words]:
        for spelling in _spellings(tokenize, word):
            stems.setdefault(word, spelling.stem)
    return stems


def _spellings(tokenize: Any, word: str) -> list[Spelling]:
    encoded = word.encode()
    return [
        Spelling(stem, encoded[start:end].decode())
        for start, end, stem in tokenize(encoded, apsw.FTS5_TOKENIZE_QUERY, None)
    ]
