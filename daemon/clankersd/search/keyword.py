"""Keyword search: look up where the terms of a query occur in the eligible chunks.

Frequencies count in these, not in the whole index, so that a project is searched as well in a large store as alone.
Ids and places come from SQLite as JSON arrays: a row for each would take ten times as long.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import anyio
import apsw
from msgspec.json import decode as decode_json

from clankersd.db import Db, Store
from clankersd.db.engine import CHUNK_TEXT
from clankersd.index.tokenize import query_words
from clankersd.search.chunk_selection import rarest_matches
from clankersd.search.chunk_table import ChunkColumns, ChunkTable
from clankersd.search.closeness import is_rare_name, word_weight
from clankersd.search.eligible_chunks import EligibleChunks
from clankersd.search.filters import MATCHING_CHUNKS, ChunkFilter
from clankersd.search.keyword_matches import KeywordMatches, Places
from clankersd.search.speakers import MAX_NAME_CHARACTERS, begins_with_name
from clankersd.search.term_index import MAX_LOCATED_FREQUENCY, Postings, Spelling, Term, TermIndex, TermMatches
from clankersd.search.vocabulary import GENERIC_WEIGHT, GENERIC_WORDS, OTHER_SPELLINGS

MAX_TERMS = 16
"""Terms that are scored: the rarest ones that occur in eligible chunks."""

MAX_LOOKUPS = 32
"""Terms that are looked up to find them: one that is rare in the store may be absent from the eligible chunks."""

MIN_PREFIXED_MESSAGES = 20
MIN_PREFIXED_SHARE = 0.5
"""Eligible messages that begin with a word, and their share of all with it, from which on it is a prefix: others
mention the name of a speaker as well, and a few messages begin with any word."""

SAMPLED_PREFIXES = 20
MIN_NAME_SHARE = 0.8
"""Messages that begin with a word whose texts are read, and the share of them with a colon after it, as after the name
of a speaker: prompts begin with "Fix" or "Please", and the index has no punctuation."""

MAX_SCOPE_SHARE = 0.9
"""Share of the eligible chunks above which messages with a prefix cannot be told from others by it."""

CHUNKS_PER_SLICE = 1_000
SLICE_SECONDS = 0.003
BRIEF_SLICE_SECONDS = 0.0005
"""Time for which one query may hold the connection before others get their turn; the second if a commit waits."""

MAX_CHOSEN_IN_SLICE = 20_000
"""Matches of all terms up to which the chunks to be scored are chosen in a slice, and else in a thread of their own."""

MAX_DELETED_SHARE = 0.1
"""Share of deleted chunks among those that are chosen above which the words are read again: cached occurrences still
have them, and they take the places of others."""

TIMEOUT_NOTE = "time ran out before all words were looked up"

# CROSS JOIN, here and elsewhere, fixes the join order, which the speed depends on.
_PLACES = """
    SELECT json_group_array(chunks.id), json_group_array(coalesce(chunks.session_id, '')),
        json_group_array(coalesce(chunks.turn, -1)), json_group_array(chunks.tokens)
    FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value WHERE {condition}
"""

_COUNT_EXISTING = "SELECT count(*) FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value"
_BEGINNINGS = f"""
    SELECT substr({CHUNK_TEXT}, 1, {MAX_NAME_CHARACTERS})
    FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value
"""


class KeywordLookup:
    """Lookup of a query's terms in the chunks that pass a filter, in slices.

    `names` are not searched for, unless the query has nothing else. An interrupted slice is run again and continues
    where it was.
    """

    def __init__(self, query: str, index: TermIndex, chunk_filter: ChunkFilter) -> None:
        self.matches = KeywordMatches()
        self.names: AbstractSet[str] = frozenset()
        self._words = query_words(query)
        self._index = index
        self._filter = chunk_filter
        self._eligible: EligibleChunks | None = None
        self._unknown: deque[str] | None = None
        self._known: dict[str, Term] = {}
        self._stems: set[str] = set()
        self._terms: deque[tuple[int, Term]] | None = None
        self._term_count = 0
        self._found: dict[int, TermMatches] = {}
        self._chunks: deque[Any] | None = None
        self._deleted_count = 0
        self._is_repeated = False

    @property
    def is_done(self) -> bool:
        return self._chunks is not None and not self._chunks

    async def run(
        self, store: Store, deadline: float, read_first: Callable[[Db], None], read_done: anyio.Event
    ) -> None:  # fmt: skip
        """Look up everything within the deadline.

        `read_first` is called in the first trip to the connection's thread, and `read_done` is set after that trip.
        """

        def begin(db: Db) -> None:
            read_first(db)
            self.run_slice(db)

        await store.read_for_search(begin, max(0.0, deadline - anyio.current_time()))
        read_done.set()
        while not self.is_done:
            seconds = deadline - anyio.current_time()
            if seconds <= 0:
                self.matches.problem = TIMEOUT_NOTE
                break
            if self._chunks is None and self._is_looked_up and self._has_many_matches:
                self._chunks = await anyio.to_thread.run_sync(self._best_chunks)  # events would wait for it in a slice
            await store.read_for_search(self.run_slice, seconds)

    def find_prefixes(self, db: Db, words: Iterable[str]) -> dict[str, Any]:
        """Return those of the words that are prefixes of messages, each with the eligible chunks of these messages.

        A prefix is followed by a colon. Nothing is found as long as not all chunks are in memory.
        """
        self._eligible = eligible = self._eligible or EligibleChunks.find(db, self._filter, self._index.chunks)
        if eligible.table is None or eligible.table.columns is None:
            return {}
        columns, tokenize = eligible.table.columns, db.engine.tokenizer(db)
        size = eligible.last if eligible.size is None else eligible.size
        found: dict[str, Any] = {}
        for word in words:
            for spelling in _spellings(tokenize, word)[:1]:
                frequency = self._frequency(db, spelling)
                if not MIN_PREFIXED_MESSAGES <= frequency <= MAX_LOCATED_FREQUENCY:
                    continue
                postings = self._index.occurrences.read(db, spelling, frequency, eligible.last, eligible.changes)
                if postings is None or postings.offsets is None:
                    continue
                matches = eligible.select(Term(word, (spelling,), frequency, eligible.last), postings)
                starts = postings.starts[:-1] if matches.positions is None else postings.starts[matches.positions]
                exist = columns.partitions[matches.chunks] > 0  # cached occurrences still have chunks that were deleted
                chunks = matches.chunks[exist & (postings.offsets[starts] == 0)]
                chunks = chunks[columns.turns[chunks] >= 0]
                least = max(MIN_PREFIXED_MESSAGES, MIN_PREFIXED_SHARE * int(exist.sum()))
                if least <= len(chunks) <= MAX_SCOPE_SHARE * size and _begin_with_names(db, chunks):
                    found[word] = chunks
        return found

    def run_slice(self, db: Db) -> None:
        """Look up terms for SLICE_SECONDS: one trip to the connection's thread for each term would cost more."""
        began = time.monotonic()
        seconds = 0.0
        while not self.is_done and seconds < (BRIEF_SLICE_SECONDS if db.waiting_commits else SLICE_SECONDS):
            if self._eligible is None:
                self._eligible = EligibleChunks.find(db, self._filter, self._index.chunks)
            elif self._terms is None:
                self._find_terms(db)
            elif not self._is_looked_up:
                if self._look_up(db, *self._terms[0]):
                    self._terms.popleft()
            elif self._chunks is None:
                if self._has_many_matches:
                    return
                self._chunks = self._best_chunks()
            else:
                self._add_places(db, self._chunks[0])
                self._chunks.popleft()
                if not self._chunks:
                    self._repeat_without_deleted_chunks()
            seconds = time.monotonic() - began

    @property
    def _is_looked_up(self) -> bool:
        if self._terms is None:
            return False
        looked_up = self._term_count - len(self._terms)
        return not self._terms or len(self._found) >= MAX_TERMS or looked_up >= MAX_LOOKUPS

    @property
    def _has_many_matches(self) -> bool:
        return sum(len(one.chunks) for one in self._found.values()) > MAX_CHOSEN_IN_SLICE

    def _find_terms(self, db: Db) -> None:
        """Find the terms of the next word; after the last word, put all terms in order, the rarest first.

        To count the chunks with a frequent word takes milliseconds the first time.
        """
        if self._unknown is None:
            self._unknown = deque([word for word in self._words if word not in self.names] or self._words)
        if self._unknown:
            self._find_terms_of(db, self._unknown[0])
            self._unknown.popleft()
            return
        self.matches.stems = self._stems
        self._term_count = len(self._known)
        self._terms = deque(sorted(enumerate(self._known.values()), key=lambda term: term[1].frequency))

    def _find_terms_of(self, db: Db, word: str) -> None:
        """Find the terms of a word that occur anywhere, each with its other spellings."""
        tokenize = db.engine.tokenizer(db)
        assert self._eligible is not None
        chunk_count = self._eligible.chunk_count
        for spelling in _spellings(tokenize, word):
            frequency = self._frequency(db, spelling)
            generic = GENERIC_WEIGHT if word in GENERIC_WORDS else 1.0
            self.matches.weights[spelling.stem] = generic * word_weight(frequency, chunk_count)
            if word not in GENERIC_WORDS and is_rare_name(word, spelling.stem, frequency, chunk_count):
                self.matches.rare_names.add(spelling.stem)
            if spelling.stem in self._stems:
                continue
            spellings = [spelling] if frequency else []
            for other_word in OTHER_SPELLINGS.get(word, ()):
                for other in _spellings(tokenize, other_word):
                    if more := self._frequency(db, other):
                        spellings.append(other)
                        frequency += more
            if spellings:
                self._known[spelling.stem] = Term(word, tuple(spellings), frequency, max(chunk_count, frequency))
                self._stems.update(one.stem for one in spellings)

    def _frequency(self, db: Db, spelling: Spelling) -> int:
        eligible = self._eligible
        assert eligible is not None
        cached = self._index.occurrences.count(spelling.stem, eligible.last, eligible.changes)
        if cached is not None:
            return cached
        return self._index.frequencies.get(db, spelling, eligible.chunk_count, eligible.change_count)

    def _look_up(self, db: Db, position: int, term: Term) -> bool:
        """Look up a term, or a part of it; return True once all of it is."""
        eligible = self._eligible
        assert eligible is not None
        by_spelling = [
            self._index.occurrences.read(db, one, term.frequency, eligible.last, eligible.changes)
            for one in term.spellings
        ]
        complete = [postings for postings in by_spelling if postings is not None]
        if len(complete) < len(by_spelling):
            return False
        found = eligible.select(term, Postings.merge(complete))
        if found.term.frequency:
            self._found[position] = found
        return True

    def _best_chunks(self) -> deque[Any]:
        """Choose the chunks to be scored, in slices if their places are not in memory."""
        self.matches.terms = [self._found[position] for position in sorted(self._found)]
        eligible = self._eligible
        assert eligible is not None
        if eligible.note:
            self.matches.limits.append(eligible.note)
        if self._terms:
            looked_up = self._term_count - len(self._terms)
            of_store = "" if eligible.size is None else " of the store"
            self.matches.limits.append(f"of {self._term_count} words the {looked_up} rarest{of_store} were looked up")
        chunks, count = rarest_matches(self.matches.terms, eligible.last)
        if count > len(chunks):
            best = f"the best {len(chunks):,} were ranked"
            self.matches.limits.append(f"of at least {count:,} chunks with a word of the query {best}")
        if eligible.table is not None:
            return deque([chunks])
        return deque(chunks[start : start + CHUNKS_PER_SLICE] for start in range(0, len(chunks), CHUNKS_PER_SLICE))

    def _repeat_without_deleted_chunks(self) -> None:
        """Begin again with occurrences that are read from the index if many of the chosen chunks were deleted."""
        found = len(self.matches.places.chunks)
        if self._is_repeated or self._deleted_count <= MAX_DELETED_SHARE * (found + self._deleted_count):
            return
        self._is_repeated = True
        self._index.occurrences.forget([one.stem for match in self.matches.terms for one in match.term.spellings])
        self._eligible = self._unknown = self._terms = self._chunks = None
        self._known, self._stems, self._found = {}, set(), {}
        self.matches = KeywordMatches()

    def _add_places(self, db: Db, chunks: Any) -> None:
        eligible = self._eligible
        assert eligible is not None
        is_listed = eligible.size is not None
        if eligible.table is not None and eligible.table.columns is not None:
            columns = eligible.table.columns
            if not is_listed:
                self._deleted_count += int((columns.partitions[chunks] == 0).sum())
                chunks = self._visible(db, chunks, eligible.table, columns)
            self.matches.places = Places(
                chunks,
                columns.sessions[chunks],
                columns.turns[chunks],
                columns.tokens[chunks],
                eligible.table.sessions.by_text,
                eligible.table.sessions.texts,
            )
            return
        condition = "true" if is_listed else self._filter.condition
        params = {"ids": json.dumps(list(map(int, chunks)))} | ({} if is_listed else self._filter.params)
        [found] = db.tuples(_PLACES.format(condition=condition), params)
        ids, *others = map(decode_json, found)
        if len(ids) < len(chunks):
            self._deleted_count += len(chunks) - db.value(_COUNT_EXISTING, params)
        self.matches.places.add(ids, *others)

    def _visible(self, db: Db, chunks: Any, table: ChunkTable, columns: ChunkColumns) -> Any:
        """Return those of the chunks that pass the filter. Only the database knows who may see a memory."""
        import numpy as np

        chunking = self._filter.params["chunking"]
        is_eligible = table.partition_mask(chunking, self._filter.includes_source)
        chunks = chunks[is_eligible[columns.partitions[chunks]]]
        is_memory = table.partition_mask(chunking, "memories".__eq__)[columns.partitions[chunks]]
        if is_memory.any():
            params = self._filter.params | {"near": json.dumps(chunks[is_memory].tolist())}
            visible = [row[0] for row in db.tuples(MATCHING_CHUNKS.format(condition=self._filter.condition), params)]
            chunks = np.sort(np.append(chunks[~is_memory], np.array(visible, np.int64)))
        return chunks


def _begin_with_names(db: Db, chunks: Any) -> bool:
    """Return whether chunks, an array, begin with names of speakers, judged by a sample of them."""
    sample = chunks[:: -(-len(chunks) // SAMPLED_PREFIXES)]
    beginnings = [row[0] for row in db.tuples(_BEGINNINGS, {"ids": json.dumps(sample.tolist())})]
    return sum(map(begins_with_name, beginnings)) >= max(1, MIN_NAME_SHARE * len(beginnings))


def first_spellings(db: Db, text: str, max_words: int) -> list[Spelling]:
    """Return the spellings of the first distinct words of a text."""
    tokenize = db.engine.tokenizer(db)
    return [spelling for word in query_words(text)[:max_words] for spelling in _spellings(tokenize, word)[:1]]


def _spellings(tokenize: Any, word: str) -> list[Spelling]:
    encoded = word.encode()
    return [
        Spelling(stem, encoded[start:end].decode())
        for start, end, stem in tokenize(encoded, apsw.FTS5_TOKENIZE_QUERY, None)
    ]
