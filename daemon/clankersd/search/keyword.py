"""Keyword search: look up where the terms of a query occur within the scope that is searched.

Frequencies count in the scope, not in the whole index, so that a project is searched as well in a large store as alone.
The occurrences of a term come from SQLite as one JSON array of integers: a row for each would take ten times as long.
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
import msgspec

from clankersd.db import Db, Store
from clankersd.db.fts import quote_phrase
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.tokenize import query_words
from clankersd.search.closeness import word_weight
from clankersd.search.filters import ChunkFilter
from clankersd.search.vocabulary import GENERIC_WEIGHT, GENERIC_WORDS, OTHER_SPELLINGS

MAX_TERMS = 16
MAX_FREQUENCY = 100_000
"""Chunks read for one term. Of a more frequent term, which tells little, the newest count."""

MAX_LISTED_SCOPE = 300_000
"""Chunks up to which the ids of a scope are listed. A larger scope is treated like the whole index."""

MAX_SCORED_CHUNKS = 4_000
"""Chunks whose place in a conversation is looked up: those with the most and rarest terms."""

CHUNKS_PER_SLICE = 1_000
SLICE_SECONDS = 0.003
"""Time for which one query may hold the connection before others get their turn."""

MAX_CACHED_TERMS = 20_000
MIN_CACHED_FREQUENCY = 200
"""The frequency of a rarer term is counted each time: that is fast, and the term may have just been stored."""

TIMEOUT_NOTE = "time ran out before all words were looked up"

OFFSETS = 4096
"""Offsets that an occurrence can have; words farther back all have the last one."""

HEADER = OFFSETS
"""Bit of an occurrence in the header."""

OCCURRENCES_PER_CHUNK = 2 * OFFSETS

_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])
_OCCURRENCES = f"""
    SELECT json_group_array(
        doc * {OCCURRENCES_PER_CHUNK} + iif(col = 'header', {HEADER}, 0)
        + iif(col = 'text', min(offset, {OFFSETS - 1}), {OFFSETS - 1})
    ) FROM chunks_instances WHERE term = :stem AND doc BETWEEN :first AND :last
"""
_NEWEST = f"""
    SELECT json_group_array(id * {OCCURRENCES_PER_CHUNK} + {OFFSETS - 1}) FROM (
        SELECT rowid AS id FROM chunks_fts WHERE chunks_fts MATCH :phrase AND rowid BETWEEN :first AND :last
        ORDER BY rowid DESC LIMIT {MAX_FREQUENCY}
    )
"""
# CROSS JOIN, here and elsewhere, fixes the join order, and the index avoids reading texts: the speed depends on both.
_PLACES = """
    SELECT chunks.id, chunks.session_id, chunks.turn, chunks.tokens
    FROM json_each(:ids) CROSS JOIN chunks {index} ON chunks.id = json_each.value WHERE {condition}
"""

Place = tuple[int, str | None, int | None, int]
"""A chunk's id, session, turn and token count. A plain tuple, since a query reads thousands of them."""


Occurrences = Sequence[int]
"""Occurrences of a term, each as `chunk * OCCURRENCES_PER_CHUNK + offset`, plus HEADER in the header.

An array of numpy where there is numpy.
"""


@dataclass(frozen=True)
class Term:
    """A word of the query with its stem and those of its other spellings; frequencies are numbers of chunks.

    `frequency` is that in the whole index until the term has been looked up, and then that in the scope.
    """

    word: str
    stems: tuple[str, ...]
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
    places: list[Place] = field(default_factory=list)
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
        first, last = chunk * OCCURRENCES_PER_CHUNK, (chunk + 1) * OCCURRENCES_PER_CHUNK
        found = 0.0
        for term, occurrences in self.occurrences:
            if numpy is None:
                is_found = any(first <= one < last for one in occurrences)
            else:
                array = numpy.asarray(occurrences)
                is_found = bool(((array >= first) & (array < last)).any())
            if is_found:
                found += max((self.weights.get(stem, 0.0) for stem in term.stems), default=0.0)
        total = sum(self.weights.values())
        return min(1.0, found / total) if total else 0.0


@dataclass(frozen=True)
class Scope:
    """Chunks that pass a filter: their ids in order, or None for the whole index, which is not listed."""

    ids: Sequence[int] | None
    first: int
    last: int

    @staticmethod
    def find(db: Db, chunk_filter: ChunkFilter) -> "Scope":
        is_restricted = chunk_filter.is_narrow or any(
            test.project is not None or test.sources is not None for test in chunk_filter.label_tests
        )
        if is_restricted:
            sql = f"SELECT json_group_array(id) FROM ({chunk_filter.ids} LIMIT {MAX_LISTED_SCOPE + 1})"
            ids = sorted(_decode(db.value(sql, chunk_filter.params)))
            if len(ids) <= MAX_LISTED_SCOPE:
                return Scope(ids, ids[0] if ids else 0, ids[-1] if ids else -1)
        return Scope(None, 0, db.value("SELECT max(id) FROM chunks") or 0)

    def select(self, occurrences: list[int]) -> tuple[Occurrences, int]:
        """Return the occurrences in chunks of the scope, and the number of these chunks."""
        numpy = numpy_if_available()
        if numpy is None:
            if self.ids is not None:
                within = set(self.ids)
                occurrences = [one for one in occurrences if one // OCCURRENCES_PER_CHUNK in within]
            return occurrences, len({one // OCCURRENCES_PER_CHUNK for one in occurrences})
        found = numpy.array(occurrences, numpy.int64)
        chunks = found // OCCURRENCES_PER_CHUNK
        if self.ids is not None:
            is_within = numpy.isin(chunks, numpy.array(self.ids, numpy.int64))
            found, chunks = found[is_within], chunks[is_within]
        return found, len(numpy.unique(chunks))


class TermFrequencies:
    """Number of chunks that contain a term, cached until the index has grown: counting reads all occurrences."""

    def __init__(self, vocabulary: str = "chunks_vocabulary") -> None:
        self._sql = f"SELECT doc FROM {vocabulary} WHERE term = :stem"
        self._cached: dict[str, int] = {}
        self._cached_at_count = 0

    def get(self, db: Db, stem: str, chunk_count: int) -> int:
        """Return the number of chunks with the stem. The cache is dropped when `chunk_count` has changed by 2 %."""
        is_outdated = abs(chunk_count - self._cached_at_count) > max(100, self._cached_at_count // 50)
        if is_outdated or len(self._cached) > MAX_CACHED_TERMS:
            self._cached, self._cached_at_count = {}, chunk_count
        frequency = self._cached.get(stem, 0)
        if frequency < MIN_CACHED_FREQUENCY:
            frequency = db.value(self._sql, {"stem": stem}) or 0
            self._cached[stem] = frequency
        return frequency


async def search_keywords(
    store: Store,
    query: str,
    names: set[str],
    frequencies: TermFrequencies,
    chunk_filter: ChunkFilter,
    deadline: float,
) -> KeywordMatches:
    """Find the terms of the query in the chunks that pass the filter, within the deadline.

    `names` are not searched for, unless the query has nothing else.
    """
    lookup = _Lookup(query, names, frequencies, chunk_filter)
    while not lookup.is_done:
        seconds = deadline - anyio.current_time()
        if seconds <= 0:
            lookup.matches.note = TIMEOUT_NOTE
            break
        await store.read(lookup.run_slice, seconds)
    return lookup.matches


class _Lookup:
    """Lookup of a query's terms in slices. An interrupted slice is run again and continues where it was."""

    def __init__(self, query: str, names: set[str], frequencies: TermFrequencies, chunk_filter: ChunkFilter) -> None:
        self.matches = KeywordMatches()
        self._words = query_words(query)
        self._names = names
        self._frequencies = frequencies
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
                self._look_up(db, *self._terms[0])
                self._terms.popleft()
            elif self._chunks is None:
                self._chunks = self._best_chunks()
            else:
                self.matches.places += self._fetch_places(db, self._chunks[0])
                self._chunks.popleft()

    def _known_terms(self, db: Db) -> deque[tuple[int, Term]]:
        """The terms that occur anywhere, rarest first, each with its position in the query."""
        tokenize = db.raw.fts5_tokenizer(*_TOKENIZER)
        chunk_count = db.value("SELECT max(id) FROM chunks") or 0
        terms: dict[str, Term] = {}
        for word in [word for word in self._words if word not in self._names] or self._words:
            for stem in _stems(tokenize, word):
                frequency = self._frequencies.get(db, stem, chunk_count)
                generic = GENERIC_WEIGHT if word in GENERIC_WORDS else 1.0
                self.matches.weights[stem] = generic * word_weight(frequency, chunk_count)
                if any(stem in term.stems for term in terms.values()):
                    continue
                stems = [stem] if frequency else []
                for spelling in OTHER_SPELLINGS.get(word, ()):
                    for other in _stems(tokenize, spelling):
                        if more := self._frequencies.get(db, other, chunk_count):
                            stems.append(other)
                            frequency += more
                if stems:
                    terms[stem] = Term(word, tuple(stems), frequency, max(chunk_count, frequency))
        self.matches.stems.update(stem for term in terms.values() for stem in term.stems)
        ordered = sorted(enumerate(terms.values()), key=lambda term: term[1].frequency)
        if len(ordered) > MAX_TERMS:
            self._add_note(f"of {len(ordered)} words the {MAX_TERMS} rarest were looked up")
        return deque(ordered[:MAX_TERMS])

    def _look_up(self, db: Db, position: int, term: Term) -> None:
        scope = self._scope
        assert scope is not None
        between = {"first": scope.first, "last": scope.last}
        if term.frequency <= MAX_FREQUENCY:
            arrays = [db.value(_OCCURRENCES, between | {"stem": stem}) for stem in term.stems]
        else:
            arrays = [db.value(_NEWEST, between | {"phrase": quote_phrase(term.word)})]
        occurrences, frequency = scope.select([one for array in arrays for one in _decode(array)])
        if term.frequency > MAX_FREQUENCY and (scope.ids is None or frequency >= MAX_FREQUENCY):
            self._add_note(f"of {term.frequency:,} matches of {term.word!r} the newest {MAX_FREQUENCY:,} were ranked")
        if scope.ids is not None:
            term = replace(term, frequency=frequency, chunk_count=len(scope.ids))
        if len(occurrences):
            self._found[position] = term, occurrences

    def _best_chunks(self) -> deque[list[int]]:
        """Choose the chunks to be scored, in slices; the occurrences of the others are dropped."""
        self.matches.occurrences = [self._found[position] for position in sorted(self._found)]
        chunks = _rarest_matches(self.matches.occurrences)
        chunks.sort()
        return deque(chunks[start : start + CHUNKS_PER_SLICE] for start in range(0, len(chunks), CHUNKS_PER_SLICE))

    def _fetch_places(self, db: Db, chunks: list[int]) -> list[Place]:
        is_listed = self._scope is not None and self._scope.ids is not None
        condition = "true" if is_listed else self._filter.condition
        index = "" if self._filter.is_narrow and not is_listed else "INDEXED BY idx_chunks_place"
        params = {"ids": json.dumps(chunks)} | ({} if is_listed else self._filter.params)
        return db.tuples(_PLACES.format(index=index, condition=condition), params)

    def _add_note(self, note: str) -> None:
        self.matches.note = f"{self.matches.note}; {note}" if self.matches.note else note


def _rarest_matches(found: list[tuple[Term, Occurrences]]) -> list[int]:
    """Return the MAX_SCORED_CHUNKS chunks whose terms are the most and the rarest."""
    numpy = numpy_if_available()
    if numpy is None:
        totals: Counter[int] = Counter()
        for term, occurrences in found:
            totals.update(dict.fromkeys({one // OCCURRENCES_PER_CHUNK for one in occurrences}, term.idf))
        return [chunk for chunk, _ in totals.most_common(MAX_SCORED_CHUNKS)]
    if not found:
        return []
    by_term = [numpy.unique(occurrences // OCCURRENCES_PER_CHUNK) for _, occurrences in found]  # type: ignore[operator]
    idf = numpy.repeat([term.idf for term, _ in found], [len(chunks) for chunks in by_term])
    chunks, position = numpy.unique(numpy.concatenate(by_term), return_inverse=True)
    if len(chunks) > MAX_SCORED_CHUNKS:
        rarity = numpy.bincount(position, idf)
        # Of equally good chunks, the newest.
        chunks = chunks[::-1][numpy.argsort(-rarity[::-1], kind="stable")[:MAX_SCORED_CHUNKS]]
    result: list[int] = chunks.tolist()
    return result


def _decode(array: str) -> list[int]:
    return msgspec.json.decode(array, type=list[int])


def stems_by_word(db: Db, text: str, max_words: int) -> dict[str, str]:
    """Return the first distinct words of a text, each with its stem."""
    tokenize = db.raw.fts5_tokenizer(*_TOKENIZER)
    stems: dict[str, str] = {}
    for word in query_words(text)[:max_words]:
        for stem in _stems(tokenize, word):
            stems.setdefault(word, stem)
    return stems


def _stems(tokenize: Any, word: str) -> list[str]:
    return [token[2] for token in tokenize(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None)]
