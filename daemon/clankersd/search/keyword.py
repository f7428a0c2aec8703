"""Keyword search: look up where the terms of a query occur, rarest first, so that no query is expensive."""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import anyio
import apsw

from clankersd.db import Db, Store
from clankersd.db.fts import quote_phrase
from clankersd.index.tokenize import query_words
from clankersd.search.closeness import word_weight
from clankersd.search.filters import ChunkFilter

MAX_TERMS = 12
MAX_OCCURRENCES = 3_000
"""Occurrences read for one query, all terms together: tens of thousands would hold the connection too long."""

SLICE_SECONDS = 0.003
"""Time for which one query may hold the connection before others get their turn."""

MAX_CACHED_TERMS = 20_000
MIN_CACHED_FREQUENCY = 200
"""The frequency of a rarer term is counted each time: that is fast, and the term may have just been stored."""

TIMEOUT_NOTE = "time ran out before all words were looked up"

_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])
# CROSS JOIN, here and elsewhere, fixes the join order, on which the speed depends.
_COLUMNS = "chunks.id, {column}, chunks.session_id, chunks.turn, chunks.tokens"
_ALL_OCCURRENCES = f"""
    SELECT {_COLUMNS.format(column="chunks_instances.col")}
    FROM chunks_instances CROSS JOIN chunks {{index}} ON chunks.id = chunks_instances.doc
    WHERE chunks_instances.term = :stem AND {{condition}}
"""
_NEWEST_OCCURRENCES = f"""
    SELECT {_COLUMNS.format(column="'text'")}
    FROM chunks_fts CROSS JOIN chunks ON chunks.id = chunks_fts.rowid
    WHERE chunks_fts MATCH :phrase AND {{condition}} ORDER BY chunks_fts.rowid DESC LIMIT :limit
"""

Occurrence = tuple[int, str, str | None, int | None, int]
"""One occurrence of a term: chunk id, column ("text" or "header"), and the chunk's session, turn and token count.

A plain tuple, since a query reads thousands of them.
"""


@dataclass(frozen=True)
class Term:
    """A word of the query with its stem, and the number of chunks that contain it."""

    word: str
    stem: str
    frequency: int
    chunk_count: int

    @property
    def idf(self) -> float:
        """Inverse document frequency, above zero even for a term in nearly every chunk."""
        return max(math.log((self.chunk_count - self.frequency + 0.5) / (self.frequency + 0.5)), 1e-6)


@dataclass
class KeywordMatches:
    """Occurrences by term; `weights` has every stem of the query, known or not; `note` states what was left out."""

    occurrences: list[tuple[Term, list[Occurrence]]] = field(default_factory=list)
    stems: set[str] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    note: str | None = None

    @property
    def size(self) -> int:
        """Number of occurrences of all terms."""
        return sum(len(occurrences) for _, occurrences in self.occurrences)


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
    """Find the rarest terms of the query in the chunks that pass the filter, within the deadline.

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
        self._remaining: deque[Term] | None = None
        self._room = MAX_OCCURRENCES

    @property
    def is_done(self) -> bool:
        """Terms come rarest first: those for which no room is left would cost the most and tell the least."""
        if self._remaining is None:
            return False
        if not self._remaining:
            return True
        return bool(self.matches.occurrences) and self._remaining[0].frequency > self._room

    def run_slice(self, db: Db) -> None:
        """Look up terms for SLICE_SECONDS: one trip to the connection's thread for each term would cost more."""
        if self._remaining is None:
            terms = self._known_terms(db)
            self.matches.stems.update(term.stem for term in terms)
            self._remaining = deque(terms[:MAX_TERMS])
        end = time.monotonic() + SLICE_SECONDS
        while not self.is_done and time.monotonic() < end:
            term = self._remaining[0]
            self.matches.occurrences.append((term, self._occurrences(db, term)))
            if term.frequency > MAX_OCCURRENCES:
                self.matches.note = (
                    f"of {term.frequency:,} matches of {term.word!r} only the newest {MAX_OCCURRENCES:,} were ranked"
                )
            self._room -= term.frequency
            self._remaining.popleft()

    def _known_terms(self, db: Db) -> list[Term]:
        """The terms that occur anywhere, rarest first."""
        tokenize = db.raw.fts5_tokenizer(*_TOKENIZER)
        chunk_count = db.value("SELECT max(id) FROM chunks") or 0
        terms: dict[str, Term] = {}
        for word in [word for word in self._words if word not in self._names] or self._words:
            for stem in _stems(tokenize, word):
                frequency = self._frequencies.get(db, stem, chunk_count)
                self.matches.weights[stem] = word_weight(frequency, chunk_count)
                if frequency:
                    terms.setdefault(stem, Term(word, stem, frequency, max(chunk_count, frequency)))
        return sorted(terms.values(), key=lambda term: term.frequency)

    def _occurrences(self, db: Db, term: Term) -> list[Occurrence]:
        chunk_filter = self._filter
        if term.frequency <= MAX_OCCURRENCES:
            # By itself the planner would look up rows by id and read their texts.
            index = "" if chunk_filter.is_narrow else "INDEXED BY idx_chunks_place"
            sql = _ALL_OCCURRENCES.format(index=index, condition=chunk_filter.condition)
            return db.tuples(sql, chunk_filter.params | {"stem": term.stem})
        params = chunk_filter.params | {"phrase": quote_phrase(term.word), "limit": MAX_OCCURRENCES}
        return db.tuples(_NEWEST_OCCURRENCES.format(condition=chunk_filter.condition), params)


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
