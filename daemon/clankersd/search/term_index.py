"""Terms of the full-text index: in how many chunks a term occurs, and where.

The occurrences of terms are cached, since reading them takes most of a keyword search. Chunk ids only grow and the text
of a chunk does not change, so a frequent term needs only the chunks that were added since. Its deleted chunks stay in
the cache until it is dropped; a search does not find them, because it looks each chunk up. A rare term is used as long
as no chunk was added, changed or deleted. Everything is dropped when the header of a stored chunk changes, which hardly
ever happens, when the index is rebuilt, and with another connection, whose database may be another one.
"""

import math
from bisect import bisect_right
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from threading import Lock
from typing import Any

from clankersd.db import Db
from clankersd.db.engine import MAX_EXACT_COUNT, OCCURRENCES_PER_CHUNK, OFFSET_BITS, OFFSETS
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.sorted_arrays import find_sorted
from clankersd.search.vocabulary import GENERIC_WEIGHT, GENERIC_WORDS

LAST_OFFSET = OFFSETS - 1
MAX_LOCATED_FREQUENCY = MAX_EXACT_COUNT
"""Chunks up to which the offsets of a term are read. A more frequent term, which tells little, has the last offset."""

MATCHES_PER_SLICE = 5_000
MAX_CHUNKS_PER_SLICE = 100_000
"""Chunks with a term without offsets that are read at once if they are spread evenly, which takes half a millisecond,
and the range of chunk ids that is read at most. To find the beginning of a range takes a tenth of a millisecond."""

MAX_ADDED_CHUNKS = 1_000
"""Chunks with a cached term that are added one by one; after more of them, the term is read again."""

MAX_CACHED_BYTES = 48_000_000
MAX_CACHED_BYTES_PER_CHUNK = 128
"""In a large index the cache may have so much for each chunk, if that is more: a fifth of what a vector takes."""

MAX_CACHED_TERMS = 20_000
MIN_CACHED_FREQUENCY = 200
"""A rarer term is read again after every change of the chunks: that is fast."""


@dataclass(frozen=True)
class Postings:
    """Chunks in which a term occurs, in order, and where it occurs in each.

    The offsets in the chunk at position `n` are `offsets[starts[n] : starts[n + 1]]`; HEADER is added in the header.
    All three are arrays where there is numpy. Of a very frequent term only the chunks are known, and `starts` and
    `offsets` are None: it has the last offset, once in each chunk.
    """

    chunks: Any
    starts: Any = None
    offsets: Any = None

    @staticmethod
    def of(occurrences: Any) -> "Postings":
        """Split occurrences in the order of their chunks, each `chunk * OCCURRENCES_PER_CHUNK + offset`."""
        numpy = numpy_if_available()
        if numpy is None:
            offsets = [one % OCCURRENCES_PER_CHUNK for one in occurrences]
            by_chunk = Counter(one >> OFFSET_BITS for one in occurrences)
            return Postings(list(by_chunk), [0, *accumulate(by_chunk.values())], offsets)
        encoded = numpy.asarray(occurrences, numpy.int64)
        chunks = encoded >> OFFSET_BITS
        is_first = numpy.ones(len(chunks) + 1, numpy.bool_)
        numpy.not_equal(chunks[1:], chunks[:-1], out=is_first[1:-1])
        starts = numpy.flatnonzero(is_first).astype(numpy.int32)
        offsets = (encoded & (OCCURRENCES_PER_CHUNK - 1)).astype(numpy.uint16)
        return Postings(chunks[starts[:-1]].astype(numpy.int32), starts, offsets)

    @staticmethod
    def merge(parts: "list[Postings]") -> "Postings":
        """Join the postings of several terms into those of all of them."""
        if len(parts) == 1:
            return parts[0]
        numpy = numpy_if_available()
        if numpy is None:
            return Postings.of(sorted(one for part in parts for one in part.occurrences))
        return Postings.of(numpy.sort(numpy.concatenate([part.occurrences for part in parts])))

    @property
    def occurrences(self) -> Any:
        """The occurrences, encoded as `of` takes them."""
        numpy = numpy_if_available()
        if numpy is None:
            ranges = zip(self.chunks, self.starts, self.starts[1:], strict=False)
            return [chunk * OCCURRENCES_PER_CHUNK + one for chunk, a, b in ranges for one in self.offsets[a:b]]
        chunks = self.chunks.astype(numpy.int64)
        if self.offsets is None:
            return chunks * OCCURRENCES_PER_CHUNK + LAST_OFFSET
        return numpy.repeat(chunks, numpy.diff(self.starts)) * OCCURRENCES_PER_CHUNK + self.offsets

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.chunks, self.starts, self.offsets) if array is not None)

    def locate(self, positions: Any) -> tuple[Any, Any]:
        """Return how often the term occurs in the chunks at these positions, and all its offsets there, as arrays."""
        import numpy as np

        if self.offsets is None:
            return np.ones(len(positions), np.int32), np.full(len(positions), LAST_OFFSET, np.uint16)
        starts = self.starts[positions]
        counts = self.starts[positions + 1] - starts
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        return counts, self.offsets[np.arange(total) + np.repeat(starts - (ends - counts), counts)]

    def find(self, chunks: Any) -> Any:
        """Return those of the chunks in which the term occurs: of an array of numpy an array, else a list."""
        numpy = numpy_if_available()
        if numpy is None:
            return [chunk for chunk in chunks if chunk in self.chunks]
        wanted = numpy.asarray(chunks, numpy.int32)
        if not len(self.chunks):
            return chunks[:0]
        found = wanted[find_sorted(self.chunks, wanted)[1]]
        return found if isinstance(chunks, numpy.ndarray) else found.tolist()

    def until(self, last: int) -> "Postings":
        """Return the postings of the chunks up to `last`."""
        end = bisect_right(self.chunks, last)
        if end == len(self.chunks):
            return self
        if self.offsets is None:
            return Postings(self.chunks[:end])
        return Postings(self.chunks[:end], self.starts[: end + 1], self.offsets[: self.starts[end]])

    def followed_by(self, newer: "Postings") -> "Postings":
        """Return these postings with those of newer chunks, as arrays."""
        import numpy as np

        if not len(newer.chunks):
            return self
        if self.offsets is None:
            return Postings(np.concatenate((self.chunks, newer.chunks)))
        starts = np.concatenate((self.starts[:-1], newer.starts + self.starts[-1]))
        parts = (self.chunks, newer.chunks), (self.offsets, newer.offsets)
        return Postings(np.concatenate(parts[0]), starts, np.concatenate(parts[1]))


@dataclass(frozen=True)
class Spelling:
    """A stem, and the word or part of a word that it comes from."""

    stem: str
    word: str


@dataclass(frozen=True)
class Term:
    """A word of the query with its stem and those of its other spellings; frequencies are numbers of chunks.

    `frequency` is that in the whole index until the term has been looked up, and then that in the eligible chunks.
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


@dataclass(frozen=True)
class TermMatches:
    """A term with its postings, and the positions of the eligible chunks among them, None if all are eligible."""

    term: Term
    postings: Postings
    positions: Any = None

    @cached_property
    def chunks(self) -> Any:
        if self.positions is None:
            return self.postings.chunks
        if numpy_if_available() is None:
            return [self.postings.chunks[position] for position in self.positions]
        return self.postings.chunks[self.positions]


@dataclass(frozen=True)
class _CachedTerm:
    """Postings of a term in the chunks up to `last`; of a rare term, `changes` is that of the search that read it."""

    postings: Postings
    last: int
    changes: int | None = None


class TermFrequencies:
    """Number of chunks that contain a term, cached until the index has changed: counting reads all occurrences."""

    def __init__(self, full_text: str = "chunks_fts") -> None:
        self._full_text = full_text
        self._cached: dict[str, int] = {}
        self._cached_at_change = 0

    def clear(self) -> None:
        """Forget all numbers."""
        self._cached = {}

    def get(self, db: Db, spelling: Spelling, chunk_count: int, change_count: int) -> int:
        """Return the number of chunks with the stem of a spelling, which is an estimate for a very frequent one.

        The cache is dropped when `change_count`, the number of chunks that were ever added, changed or deleted, has
        grown by 2 % of `chunk_count`: where as many are deleted as are added, the number of chunks stays the same.
        """
        is_outdated = abs(change_count - self._cached_at_change) > max(100, chunk_count // 50)
        if is_outdated or len(self._cached) > MAX_CACHED_TERMS:
            self._cached, self._cached_at_change = {}, change_count
        frequency = self._cached.get(spelling.stem, 0)
        if frequency < MIN_CACHED_FREQUENCY:
            frequency = db.engine.count_texts(db, self._full_text, spelling.word)
            self._cached[spelling.stem] = frequency
        return frequency


class TermOccurrences:
    """Occurrences of terms in the index, least recently used ones dropped from the cache first.

    Used by the connection's thread, and by others for reads that take long.
    """

    def __init__(self) -> None:
        self._cached: OrderedDict[str, _CachedTerm] = OrderedDict()
        self._partial: dict[str, tuple[list[Postings], int]] = {}
        self._bytes = 0
        self._lock = Lock()
        self._times_cleared = 0

    def count(self, stem: str, last: int, changes: int | None) -> int | None:
        """Return the number of chunks with a rare stem if it is cached and no chunk has changed since, else None."""
        found = self._get(stem)
        if found is None or found.changes is None or (found.last, found.changes) != (last, changes):
            return None
        return len(found.postings.chunks)

    def read(
        self, db: Db, spelling: Spelling, frequency: int, last: int, changes: int | None = None
    ) -> Postings | None:  # fmt: skip
        """Return the postings of a stem in the chunks up to `last`.

        `changes` is the number of changes of chunks that the search knows of, None if it knows of none. Of a very
        frequent term, one call reads a range of chunks: None means that there are more to be read.
        """
        times_cleared = self._times_cleared
        found = self._get(spelling.stem)
        is_rare = frequency < MIN_CACHED_FREQUENCY
        if found is not None and is_rare and (found.last, found.changes) != (last, changes):
            found = None
        if found is not None and found.last < last:
            found = _with_new_chunks(db, spelling, found, last)
        if found is None and frequency <= MAX_LOCATED_FREQUENCY:
            # Chunks that were stored since the search began are left to the next one, which adds them.
            postings = Postings.of(db.engine.occurrences(db, spelling.stem)).until(last)
            found = _CachedTerm(postings, last, changes if is_rare else None)
        elif found is None:
            found = self._read_range(db, spelling, frequency, last)
            if found is None:
                return None
        if (not is_rare or changes is not None) and numpy_if_available() is not None:
            self._put(spelling.stem, found, times_cleared)
        # Another search may have read chunks that are newer than this one knows.
        return found.postings.until(last)

    def clear(self) -> None:
        """Drop everything: words of chunks that were indexed before have changed."""
        with self._lock:
            self._cached.clear()
            self._partial.clear()
            self._bytes = 0
            self._times_cleared += 1

    def forget(self, stems: list[str]) -> None:
        """Drop stems from the cache."""
        with self._lock:
            for stem in stems:
                if dropped := self._cached.pop(stem, None):
                    self._bytes -= dropped.postings.nbytes

    def _read_range(self, db: Db, spelling: Spelling, frequency: int, last: int) -> _CachedTerm | None:
        """Read the next range of chunks of a term without its offsets; return None if there are more to be read."""
        parts, read_until = self._partial.get(spelling.stem) or ([], 0)
        end = read_until + min(MAX_CHUNKS_PER_SLICE, max(1, MATCHES_PER_SLICE * last // frequency))
        parts = [*parts, Postings.of(db.engine.chunks_with(db, spelling.word, read_until + 1, end))]
        if end < last:
            self._partial[spelling.stem] = parts, end
            return None
        self._partial.pop(spelling.stem, None)
        return _CachedTerm(_join_chunks(parts).until(last), last)

    def _get(self, stem: str) -> _CachedTerm | None:
        with self._lock:
            if stem in self._cached:
                self._cached.move_to_end(stem)
            return self._cached.get(stem)

    def _put(self, stem: str, found: _CachedTerm, times_cleared: int) -> None:
        """Cache what was read, unless everything was dropped meanwhile."""
        with self._lock:
            if times_cleared != self._times_cleared:
                return
            if replaced := self._cached.pop(stem, None):
                self._bytes -= replaced.postings.nbytes
            self._cached[stem] = found
            self._bytes += found.postings.nbytes
            most = max(MAX_CACHED_BYTES, MAX_CACHED_BYTES_PER_CHUNK * found.last)
            while len(self._cached) > 1 and (self._bytes > most or len(self._cached) > MAX_CACHED_TERMS):
                _, dropped = self._cached.popitem(last=False)
                self._bytes -= dropped.postings.nbytes


def _join_chunks(parts: list[Postings]) -> Postings:
    """Join the postings of consecutive ranges of chunks, without offsets where there is numpy."""
    numpy = numpy_if_available()
    if numpy is None:
        return Postings.of([one for part in parts for one in part.occurrences])
    return Postings(numpy.concatenate([part.chunks for part in parts]))


def _with_new_chunks(db: Db, spelling: Spelling, cached: _CachedTerm, last: int) -> _CachedTerm | None:
    """Add the chunks that were stored since; None if they are so many that the term is to be read again."""
    added = db.engine.occurrences_after(db, spelling.word, cached.last, MAX_ADDED_CHUNKS + 1)
    if len(added) > MAX_ADDED_CHUNKS:
        return None
    newer = Postings.of([one for occurrences in added for one in occurrences]).until(last)
    return _CachedTerm(cached.postings.followed_by(newer), last)


@dataclass(frozen=True)
class TermIndex:
    """The tables in memory that all searches share."""

    chunks: ChunkTable = field(default_factory=ChunkTable)
    frequencies: TermFrequencies = field(default_factory=TermFrequencies)
    occurrences: TermOccurrences = field(default_factory=TermOccurrences)

    def __post_init__(self) -> None:
        self.chunks.on_words_changed += [self.frequencies.clear, self.occurrences.clear]
