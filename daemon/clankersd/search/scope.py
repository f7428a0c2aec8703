"""Scope of a search: the chunks that pass its filter, and the matches of terms among them."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from msgspec.json import decode as decode_json

from clankersd.db import Db
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.projects import PROJECT_NUMBERS
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.filters import ChunkFilter
from clankersd.search.term_index import Postings, Spelling
from clankersd.search.vocabulary import GENERIC_WEIGHT, GENERIC_WORDS

MAX_LISTED_SCOPE = 300_000
"""Chunks up to which the ids of a scope are listed. A larger scope is treated like the whole index."""

_MEMORY_CHUNKS = "SELECT chunks.id FROM chunks INDEXED BY idx_chunks_memory WHERE chunks.memory_id IS NOT NULL"


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


@dataclass(frozen=True)
class TermMatches:
    """A term with its postings, and the chunks of the scope among them: their positions, or None if all are."""

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
class Scope:
    """Chunks that pass a filter.

    `last` is the highest id of an indexed chunk, and `chunk_count` the number of chunks, or `last` if that is unknown.
    `size` is the number of chunks in the scope, None for the whole index, which is not listed. `ids` are listed without
    numpy; with it, `mask` is an array that is True at each id. `table` are the columns of the chunks if they are in
    memory, and `changes` the number of changes that they have followed. `note` states why the whole index is looked up
    instead of what passes the filter.
    """

    last: int
    chunk_count: int
    size: int | None = None
    ids: frozenset[int] | None = None
    mask: Any = None
    table: ChunkTable | None = None
    changes: int | None = None
    note: str | None = None

    @staticmethod
    def find(db: Db, chunk_filter: ChunkFilter, table: ChunkTable) -> "Scope":
        numpy = numpy_if_available()
        is_narrow = chunk_filter.is_narrow
        loaded = table if table.catch_up(db) and table.columns is not None else None
        last = db.engine.last_indexed_chunk(db)
        changes = None if loaded is None else loaded.changes_seen
        chunk_count = last if loaded is None else loaded.count()
        if not is_narrow and all(test.project is None and test.sources is None for test in chunk_filter.label_tests):
            return Scope(last, chunk_count, table=loaded, changes=changes)
        mask, ids_query = None, chunk_filter.ids
        if loaded is not None and not is_narrow:
            mask = _mask(db, chunk_filter, loaded, last)
            # Only the database knows who may see a memory.
            has_memories = chunk_filter.includes_source("memories")
            ids_query = f"{_MEMORY_CHUNKS} AND {chunk_filter.condition}" if has_memories else ""
        ids: list[int] = []
        if ids_query:
            sql = f"SELECT json_group_array(id) FROM ({ids_query} LIMIT {MAX_LISTED_SCOPE + 1})"
            listed = decode_json(db.value(sql, chunk_filter.params), type=list[int])
            ids = [chunk for chunk in listed if chunk <= last]  # later ones were stored since the search began
            if len(listed) > MAX_LISTED_SCOPE:
                passing = f"more than {MAX_LISTED_SCOPE:,} chunks pass the filter"
                return Scope(last, chunk_count, note=f"{passing}, so that words were looked up in the whole store")
        if numpy is None:
            return Scope(last, chunk_count, len(ids), frozenset(ids))
        if mask is None:
            mask = numpy.zeros(last + 1, numpy.bool_)
        mask[numpy.array(ids, numpy.int64)] = True
        return Scope(last, chunk_count, int(numpy.count_nonzero(mask)), mask=mask, table=loaded, changes=changes)

    def select(self, term: Term, postings: Postings) -> TermMatches:
        """Return the matches of a term in the scope; its frequency is counted there."""
        if self.size is None:
            return TermMatches(term, postings)
        numpy = numpy_if_available()
        if numpy is None:
            ids = self.ids or frozenset()
            positions: Any = [position for position, chunk in enumerate(postings.chunks) if chunk in ids]
        else:
            positions = numpy.flatnonzero(self.mask[postings.chunks.astype(numpy.intp)])
        return TermMatches(replace(term, frequency=len(positions), chunk_count=self.size), postings, positions)


def _mask(db: Db, chunk_filter: ChunkFilter, table: ChunkTable, last: int) -> Any:
    """Return an array that is True at the id of every chunk, other than of memories, that passes the label tests."""
    import numpy as np

    columns = table.columns
    assert columns is not None
    mask = np.zeros(last + 1, np.bool_)
    for test in chunk_filter.label_tests:
        sources = test.sources
        labels = table.fitting_labels(
            chunk_filter.params["chunking"],
            lambda source, sources=sources: source != "memories" and (sources is None or source in sources),  # type: ignore[misc]
        )
        if not labels.any():
            continue
        if test.project is None:
            mask |= labels[columns.labels[: last + 1]]
            continue
        for (number,) in db.tuples(f"SELECT * FROM {PROJECT_NUMBERS}", test.project):
            chunks = np.flatnonzero(columns.projects[: last + 1] == number)
            mask[chunks[labels[columns.labels[chunks]]]] = True
    return mask
