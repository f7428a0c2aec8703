"""Terms of the full-text index: in how many chunks a term occurs, and where.

The occurrences of frequent terms are cached, since nearly every query has some and reading them takes most of a
keyword search. Chunk ids only grow and the text of a chunk does not change, so a cached term needs only the chunks that
were added since. Deleted chunks stay in the cache until it is dropped; a search does not find them, because it looks
each chunk up.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from clankersd.db import Db
from clankersd.db.engine import OCCURRENCES_PER_CHUNK
from clankersd.embedders.memory_headroom import numpy_if_available

MAX_LOCATED_FREQUENCY = 20_000
"""Chunks up to which the offsets of a term are read. A more frequent term, which tells little, has the last offset."""

CHUNKS_PER_SLICE = 20_000
"""Range of chunk ids that is read at once for a term without offsets."""

MAX_ADDED_CHUNKS = 1_000
"""Chunks with a cached term that are added one by one; after more of them, the term is read again."""

MAX_CACHED_BYTES = 48_000_000
MAX_CACHED_TERMS = 20_000
MIN_CACHED_FREQUENCY = 200
"""A rarer term is read each time: that is fast, and the term may have just been stored."""

Occurrences = Sequence[int]
"""Occurrences of a term in order, each as `chunk * OCCURRENCES_PER_CHUNK + offset`, plus HEADER in the header.

An array of numpy where there is numpy.
"""


@dataclass(frozen=True)
class Spelling:
    """A stem, and the word or part of a word that it comes from."""

    stem: str
    word: str


@dataclass(frozen=True)
class _CachedTerm:
    """Occurrences of a term in the chunks up to `last`."""

    occurrences: Any
    last: int


class TermFrequencies:
    """Number of chunks that contain a term, cached until the index has grown: counting reads all occurrences."""

    def __init__(self, full_text: str = "chunks_fts") -> None:
        self._full_text = full_text
        self._cached: dict[str, int] = {}
        self._cached_at_count = 0

    def get(self, db: Db, stem: str, chunk_count: int) -> int:
        """Return the number of chunks with the stem. The cache is dropped when `chunk_count` has changed by 2 %."""
        is_outdated = abs(chunk_count - self._cached_at_count) > max(100, self._cached_at_count // 50)
        if is_outdated or len(self._cached) > MAX_CACHED_TERMS:
            self._cached, self._cached_at_count = {}, chunk_count
        frequency = self._cached.get(stem, 0)
        if frequency < MIN_CACHED_FREQUENCY:
            frequency = db.engine.count_texts(db, self._full_text, stem)
            self._cached[stem] = frequency
        return frequency


class TermOccurrences:
    """Occurrences of terms in the index, least recently used ones dropped from the cache first.

    Used by the connection's thread, and by others for reads that take long.
    """

    def __init__(self) -> None:
        self._cached: OrderedDict[str, _CachedTerm] = OrderedDict()
        self._partial: dict[str, _CachedTerm] = {}
        self._bytes = 0
        self._lock = Lock()

    def read(self, db: Db, spelling: Spelling, frequency: int, last: int) -> Occurrences | None:
        """Return the occurrences of a stem in the chunks up to `last`.

        Of a very frequent term, one call reads a range of chunks: None means that there are more to be read.
        """
        numpy = numpy_if_available()
        found = self._get(spelling.stem)
        if found is not None and found.last < last:
            found = _with_new_chunks(db, spelling, found, last)
        if found is None and frequency <= MAX_LOCATED_FREQUENCY:
            read = db.engine.occurrences(db, spelling.stem)
            found = _CachedTerm(read if numpy is None else numpy.array(read, numpy.int64), last)
        elif found is None:
            found = self._read_range(db, spelling, last)
            if found.last < last:
                return None
        if numpy is None:
            return found.occurrences  # type: ignore[no-any-return]
        if frequency >= MIN_CACHED_FREQUENCY:
            self._put(spelling.stem, found)
        # Another search may have read chunks that are newer than this one knows.
        end = numpy.searchsorted(found.occurrences, (last + 1) * OCCURRENCES_PER_CHUNK)
        return found.occurrences[:end]  # type: ignore[no-any-return]

    def _read_range(self, db: Db, spelling: Spelling, last: int) -> _CachedTerm:
        """Read the next range of chunks of a term without its offsets."""
        before = self._partial.get(spelling.stem) or _CachedTerm([], 0)
        end = before.last + CHUNKS_PER_SLICE
        added = db.engine.chunks_with(db, spelling.word, before.last + 1, end)
        read = _CachedTerm(before.occurrences + added, min(end, last))
        if read.last < last:
            self._partial[spelling.stem] = read
            return read
        self._partial.pop(spelling.stem, None)
        numpy = numpy_if_available()
        return read if numpy is None else _CachedTerm(numpy.array(read.occurrences, numpy.int64), last)

    def _get(self, stem: str) -> _CachedTerm | None:
        with self._lock:
            if stem in self._cached:
                self._cached.move_to_end(stem)
            return self._cached.get(stem)

    def _put(self, stem: str, found: _CachedTerm) -> None:
        with self._lock:
            if replaced := self._cached.pop(stem, None):
                self._bytes -= replaced.occurrences.nbytes
            self._cached[stem] = found
            self._bytes += found.occurrences.nbytes
            while self._bytes > MAX_CACHED_BYTES and len(self._cached) > 1:
                _, dropped = self._cached.popitem(last=False)
                self._bytes -= dropped.occurrences.nbytes


def _with_new_chunks(db: Db, spelling: Spelling, cached: _CachedTerm, last: int) -> _CachedTerm | None:
    """Add the chunks that were stored since; None if they are so many that the term is to be read again."""
    import numpy as np

    added = db.engine.occurrences_after(db, spelling.word, cached.last, MAX_ADDED_CHUNKS + 1)
    if len(added) > MAX_ADDED_CHUNKS:
        return None
    new = np.array([one for occurrences in added for one in occurrences], np.int64)
    return _CachedTerm(np.concatenate((cached.occurrences, new)) if len(new) else cached.occurrences, last)


@dataclass(frozen=True)
class TermIndex:
    """The two caches that searches share."""

    frequencies: TermFrequencies = field(default_factory=TermFrequencies)
    occurrences: TermOccurrences = field(default_factory=TermOccurrences)
