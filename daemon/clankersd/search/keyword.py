"""Keyword search: look up where the terms of a query occur within the scope that is searched.

Frequencies count in the scope, not in the whole index, so that a project is searched as well in a large store as alone.
Ids and places come from SQLite as JSON arrays: a row for each would take ten times as long.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import apsw
from msgspec.json import decode as decode_json

from clankersd.db import Db, Store
from clankersd.db.commit_priority import yield_core
from clankersd.db.engine import CHUNK_TEXT
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.tokenize import query_words
from clankersd.search.chunk_table import ChunkColumns, ChunkTable
from clankersd.search.closeness import is_rare_name, word_weight
from clankersd.search.filters import MATCHING_CHUNKS, ChunkFilter
from clankersd.search.scope import Scope, Term, TermMatches
from clankersd.search.speakers import MAX_NAME_CHARACTERS, begins_with_name
from clankersd.search.term_index import MAX_LOCATED_FREQUENCY, Postings, Spelling, TermIndex
from clankersd.search.vocabulary import GENERIC_WEIGHT, GENERIC_WORDS, OTHER_SPELLINGS

MAX_TERMS = 16
"""Terms that are scored: the rarest ones that occur in the scope."""

MAX_LOOKUPS = 32
"""Terms that are looked up to find them: one that is rare in the store may be absent from the scope."""

MAX_SCORED_CHUNKS = 2_000
"""Chunks whose place in a conversation is looked up: those with the most and rarest terms."""

RARITY_STEPS = 64
"""Precision of the sum of inverse document frequencies that chooses them."""

MIN_SKIPPED_FREQUENCY = 20_000
"""A term in fewer chunks is added up for all of them, without asking whether only some of them matter."""

MIN_PREFIXED_MESSAGES = 20
MIN_PREFIXED_SHARE = 0.5
"""Messages in the scope that begin with a word, and their share of all with it, from which on it is a prefix: others
mention the name of a speaker as well, and a few messages begin with any word."""

SAMPLED_PREFIXES = 20
MIN_NAME_SHARE = 0.8
"""Messages that begin with a word whose texts are read, and the share of them with a colon after it, as after the name
of a speaker: prompts begin with "Fix" or "Please", and the index has no punctuation."""

MAX_SCOPE_SHARE = 0.9
"""Share of the scope above which messages with a prefix cannot be told from others by it."""

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


@dataclass
class Places:
    """Places of chunks in conversations, as columns in the order of the chunks: thousands of rows would take longer.

    Sessions are numbered from 1 on: `session_numbers` and `session_ids` translate. A chunk outside a conversation has
    the session 0 or the turn -1. The columns are arrays of numpy if they come from memory, else lists.
    """

    chunks: Any = field(default_factory=list)
    sessions: Any = field(default_factory=list)
    turns: Any = field(default_factory=list)
    tokens: Any = field(default_factory=list)
    session_numbers: dict[str, int] = field(default_factory=dict)
    session_ids: list[str] = field(default_factory=lambda: [""])

    def add(self, chunks: list[int], sessions: list[str], turns: list[int], tokens: list[int]) -> None:
        """Add columns of the database; an empty session is none."""
        for session in sessions:
            if session and session not in self.session_numbers:
                self.session_numbers[session] = len(self.session_ids)
                self.session_ids.append(session)
        self.chunks += chunks
        self.sessions += [self.session_numbers.get(session, 0) for session in sessions]
        self.turns += turns
        self.tokens += tokens


@dataclass
class KeywordMatches:
    """Matches by term, in the order of the query, and the places of the best chunks with any of them.

    `weights` has every stem of the query, known or not; `rare_names` those that hardly any chunk contains. `limits`
    state what was left out because there is so much; `problem` is the reason why the search is incomplete otherwise.
    """

    terms: list[TermMatches] = field(default_factory=list)
    places: Places = field(default_factory=Places)
    stems: set[str] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    rare_names: set[str] = field(default_factory=set)
    limits: list[str] = field(default_factory=list)
    problem: str | None = None

    def indexed_coverage(self, chunk: int) -> float:
        """Return the weighted share of the query's words by which the index finds a chunk, be it in the header."""
        found = 0.0
        for one in self.terms:
            if one.postings.find([chunk]):
                found += max(self.weights.get(spelling.stem, 0.0) for spelling in one.term.spellings)
        total = sum(self.weights.values())
        return min(1.0, found / total) if total else 0.0

    def chunks_with_phrase(self, phrase: str, chunks: Any) -> Any:
        """Return those of the chunks, an array or a list, that can have a phrase of the query word for word, in order.

        Its first and last word may be parts of words in the text; all others occur as they are.
        """
        words = set(query_words(phrase))
        for one in [one for one in self.terms if one.term.word in words][1:-1]:
            chunks = one.postings.find(chunks)
        return chunks

    def chunks_with_words(self, phrase: str, chunks: list[int]) -> list[int]:
        """Return those of the chunks that have every word of a phrase of the query, in order."""
        words = set(query_words(phrase))
        for one in [one for one in self.terms if one.term.word in words]:
            chunks = one.postings.find(chunks)
        return chunks


class FirstRead(Protocol):
    """A read that another task needs: it is done in the first trip to the connection's thread."""

    is_over: anyio.Event

    def read(self, db: Db) -> None: ...


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
        self._scope: Scope | None = None
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

    async def run(self, store: Store, deadline: float, first: FirstRead) -> None:
        """Look up everything within the deadline, after what is to be read first."""

        def begin(db: Db) -> None:
            first.read(db)
            self.run_slice(db)

        await store.read_for_search(begin, max(0.0, deadline - anyio.current_time()))
        first.is_over.set()
        while not self.is_done:
            seconds = deadline - anyio.current_time()
            if seconds <= 0:
                self.matches.problem = TIMEOUT_NOTE
                break
            if self._chunks is None and self._is_looked_up and self._has_many_matches:
                self._chunks = await anyio.to_thread.run_sync(self._best_chunks)  # events would wait for it in a slice
            await store.read_for_search(self.run_slice, seconds)

    def find_prefixes(self, db: Db, words: Iterable[str]) -> dict[str, Any]:
        """Return those of the words that are prefixes of messages, each with the chunks of these messages in the scope.

        A prefix is followed by a colon. Nothing is found as long as not all chunks are in memory.
        """
        self._scope = scope = self._scope or Scope.find(db, self._filter, self._index.chunks)
        if scope.table is None or scope.table.columns is None:
            return {}
        turns, tokenize = scope.table.columns.turns, db.engine.tokenizer(db)
        size = scope.last if scope.size is None else scope.size
        found: dict[str, Any] = {}
        for word in words:
            for spelling in _spellings(tokenize, word)[:1]:
                frequency = self._frequency(db, spelling.stem)
                if not MIN_PREFIXED_MESSAGES <= frequency <= MAX_LOCATED_FREQUENCY:
                    continue
                postings = self._index.occurrences.read(db, spelling, frequency, scope.last, scope.changes)
                if postings is None or postings.offsets is None:
                    continue
                matches = scope.select(Term(word, (spelling,), frequency, scope.last), postings)
                starts = postings.starts[:-1] if matches.positions is None else postings.starts[matches.positions]
                chunks = matches.chunks[postings.offsets[starts] == 0]
                chunks = chunks[turns[chunks] >= 0]
                least = max(MIN_PREFIXED_MESSAGES, MIN_PREFIXED_SHARE * len(matches.chunks))
                if least <= len(chunks) <= MAX_SCOPE_SHARE * size and _begin_with_names(db, chunks):
                    found[word] = chunks
        return found

    def run_slice(self, db: Db) -> None:
        """Look up terms for SLICE_SECONDS: one trip to the connection's thread for each term would cost more."""
        began = time.monotonic()
        seconds = 0.0
        while not self.is_done and seconds < (BRIEF_SLICE_SECONDS if db.waiting_commits else SLICE_SECONDS):
            if self._scope is None:
                self._scope = Scope.find(db, self._filter, self._index.chunks)
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
        assert self._scope is not None
        chunk_count = self._scope.chunk_count
        for spelling in _spellings(tokenize, word):
            frequency = self._frequency(db, spelling.stem)
            generic = GENERIC_WEIGHT if word in GENERIC_WORDS else 1.0
            self.matches.weights[spelling.stem] = generic * word_weight(frequency, chunk_count)
            if word not in GENERIC_WORDS and is_rare_name(word, spelling.stem, frequency, chunk_count):
                self.matches.rare_names.add(spelling.stem)
            if spelling.stem in self._stems:
                continue
            spellings = [spelling] if frequency else []
            for other_word in OTHER_SPELLINGS.get(word, ()):
                for other in _spellings(tokenize, other_word):
                    if more := self._frequency(db, other.stem):
                        spellings.append(other)
                        frequency += more
            if spellings:
                self._known[spelling.stem] = Term(word, tuple(spellings), frequency, max(chunk_count, frequency))
                self._stems.update(one.stem for one in spellings)

    def _frequency(self, db: Db, stem: str) -> int:
        scope = self._scope
        assert scope is not None
        cached = self._index.occurrences.count(stem, scope.last, scope.changes)
        return self._index.frequencies.get(db, stem, scope.chunk_count) if cached is None else cached

    def _look_up(self, db: Db, position: int, term: Term) -> bool:
        """Look up a term, or a part of it; return True once all of it is."""
        scope = self._scope
        assert scope is not None
        by_spelling = [
            self._index.occurrences.read(db, one, term.frequency, scope.last, scope.changes) for one in term.spellings
        ]
        complete = [postings for postings in by_spelling if postings is not None]
        if len(complete) < len(by_spelling):
            return False
        found = scope.select(term, Postings.merge(complete))
        if found.term.frequency:
            self._found[position] = found
        return True

    def _best_chunks(self) -> deque[Any]:
        """Choose the chunks to be scored, in slices if their places are not in memory."""
        self.matches.terms = [self._found[position] for position in sorted(self._found)]
        scope = self._scope
        assert scope is not None
        if scope.note:
            self.matches.limits.append(scope.note)
        if self._terms:
            looked_up = self._term_count - len(self._terms)
            of_store = "" if scope.size is None else " of the store"
            self.matches.limits.append(f"of {self._term_count} words the {looked_up} rarest{of_store} were looked up")
        chunks, count = rarest_matches(self.matches.terms, scope.last)
        if count > len(chunks):
            best = f"the best {len(chunks):,} were ranked"
            self.matches.limits.append(f"of at least {count:,} chunks with a word of the query {best}")
        if scope.table is not None:
            return deque([chunks])
        return deque(chunks[start : start + CHUNKS_PER_SLICE] for start in range(0, len(chunks), CHUNKS_PER_SLICE))

    def _repeat_without_deleted_chunks(self) -> None:
        """Begin again with occurrences that are read from the index if many of the chosen chunks were deleted."""
        found = len(self.matches.places.chunks)
        if self._is_repeated or self._deleted_count <= MAX_DELETED_SHARE * (found + self._deleted_count):
            return
        self._is_repeated = True
        self._index.occurrences.forget([one.stem for match in self.matches.terms for one in match.term.spellings])
        self._scope = self._unknown = self._terms = self._chunks = None
        self._known, self._stems, self._found = {}, set(), {}
        self.matches = KeywordMatches()

    def _add_places(self, db: Db, chunks: Any) -> None:
        scope = self._scope
        assert scope is not None
        is_listed = scope.size is not None
        if scope.table is not None and scope.table.columns is not None:
            columns = scope.table.columns
            if not is_listed:
                self._deleted_count += int((columns.labels[chunks] == 0).sum())
                chunks = self._visible(db, chunks, scope.table, columns)
            self.matches.places = Places(
                chunks,
                columns.sessions[chunks],
                columns.turns[chunks],
                columns.tokens[chunks],
                scope.table.sessions.by_text,
                scope.table.sessions.texts,
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
        labels = table.fitting_labels(chunking, self._filter.includes_source)
        chunks = chunks[labels[columns.labels[chunks]]]
        is_memory = table.fitting_labels(chunking, "memories".__eq__)[columns.labels[chunks]]
        if is_memory.any():
            params = self._filter.params | {"near": json.dumps(chunks[is_memory].tolist())}
            visible = [row[0] for row in db.tuples(MATCHING_CHUNKS.format(condition=self._filter.condition), params)]
            chunks = np.sort(np.append(chunks[~is_memory], np.array(visible, np.int64)))
        return chunks


def rarest_matches(terms: list[TermMatches], last: int) -> tuple[Any, int]:
    """Return in order the MAX_SCORED_CHUNKS chunks whose terms are the most and the rarest.

    Return also how many chunks have any term; if there are many, at least how many.
    """
    numpy = numpy_if_available()
    if numpy is None:
        totals: Counter[int] = Counter()
        for one in terms:
            totals.update(dict.fromkeys(one.chunks, one.term.idf))
        return sorted(chunk for chunk, _ in totals.most_common(MAX_SCORED_CHUNKS)), len(totals)
    rarity = numpy.zeros(last + 1, numpy.int32)
    contenders = None
    steps = [max(1, round(one.term.idf * RARITY_STEPS)) for one in terms]
    remaining = sum(steps)
    for one, step in sorted(zip(terms, steps, strict=True), key=lambda pair: len(pair[0].chunks)):
        yield_core()
        if len(one.chunks) > MIN_SKIPPED_FREQUENCY:
            contenders = _find_contenders(rarity, contenders, remaining)
        if contenders is None:
            # An index of 32 bits would be converted in small pieces, which takes twice as long.
            rarity[one.chunks.astype(numpy.intp)] += step
        else:
            wanted = contenders.astype(numpy.int32)
            positions = numpy.minimum(numpy.searchsorted(one.chunks, wanted), len(one.chunks) - 1)
            rarity[contenders[one.chunks[positions] == wanted]] += step
        remaining -= step
    chunks = numpy.flatnonzero(rarity > 0) if contenders is None else contenders
    count = max([len(chunks), *(len(one.chunks) for one in terms)])
    if len(chunks) > MAX_SCORED_CHUNKS:
        rarity = rarity[chunks]
        as_rare = numpy.cumsum(numpy.bincount(rarity)[::-1])[::-1]  # number of chunks that are at least so rare
        least = int(numpy.searchsorted(-as_rare, -MAX_SCORED_CHUNKS, side="right")) - 1
        is_chosen = rarity > least
        # Of equally good chunks, the newest.
        newest = numpy.flatnonzero(rarity == least)[numpy.count_nonzero(is_chosen) - MAX_SCORED_CHUNKS :]
        is_chosen[newest] = True
        chunks = chunks[is_chosen]
    return chunks, count


def _begin_with_names(db: Db, chunks: Any) -> bool:
    """Return whether chunks, an array, begin with names of speakers, judged by a sample of them."""
    sample = chunks[:: -(-len(chunks) // SAMPLED_PREFIXES)]
    beginnings = [row[0] for row in db.tuples(_BEGINNINGS, {"ids": json.dumps(sample.tolist())})]
    return sum(map(begins_with_name, beginnings)) >= max(1, MIN_NAME_SHARE * len(beginnings))


def _find_contenders(rarity: Any, contenders: Any, remaining: int) -> Any:
    """Return the chunks that can be among the best, of former contenders if there are; None if any chunk can be.

    `rarity` is what each chunk has by the terms so far, `remaining` the most that it can gain by those to come, which
    are the frequent ones. To look these up in a few thousand chunks is much faster than to add up all of theirs.
    """
    import numpy as np

    found = rarity if contenders is None else rarity[contenders]
    high = found[found > remaining] if contenders is None else found
    if len(high) < MAX_SCORED_CHUNKS:
        return contenders
    least = max(1, np.partition(high, -MAX_SCORED_CHUNKS)[-MAX_SCORED_CHUNKS] - remaining)
    return np.flatnonzero(found >= least) if contenders is None else contenders[found >= least]


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
