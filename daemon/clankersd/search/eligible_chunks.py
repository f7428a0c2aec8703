"""Eligible chunks of a search: those that pass its filter, in which it looks its terms up."""

from dataclasses import dataclass, replace
from typing import Any

from msgspec.json import decode as decode_json

from clankersd.db import Db
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.projects import PROJECT_NUMBERS
from clankersd.search.chunk_table import ChunkTable
from clankersd.search.filters import ChunkFilter
from clankersd.search.term_index import Postings, Term, TermMatches

MAX_LISTED_CHUNKS = 300_000
"""Eligible chunks up to which their ids are listed. More of them are treated like the whole index."""

_MEMORY_CHUNKS = "SELECT chunks.id FROM chunks INDEXED BY idx_chunks_memory WHERE chunks.memory_id IS NOT NULL"


@dataclass(frozen=True)
class EligibleChunks:
    """Chunks that pass a filter.

    `last` is the highest id of an indexed chunk, and `chunk_count` the number of chunks, or `last` if that is unknown.
    `size` is the number of eligible chunks, None for the whole index, which is not listed. `ids` are listed without
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

    @property
    def change_count(self) -> int:
        """A number that grows by one for each chunk that is added or deleted, and by two for one that is changed.

        Ids are no measure of what was added: those of deleted chunks are not used again.
        """
        return self.chunk_count + 2 * (self.changes or 0)

    @staticmethod
    def find(db: Db, chunk_filter: ChunkFilter, table: ChunkTable) -> "EligibleChunks":
        numpy = numpy_if_available()
        is_narrow = chunk_filter.is_narrow
        loaded = table if table.catch_up(db) and table.columns is not None else None
        last = db.engine.last_indexed_chunk(db)
        changes = None if loaded is None else loaded.changes_seen
        chunk_count = last if loaded is None else loaded.count()
        if not is_narrow and all(test.project is None and test.sources is None for test in chunk_filter.label_tests):
            return EligibleChunks(last, chunk_count, table=loaded, changes=changes)
        mask, ids_query = None, chunk_filter.ids
        if loaded is not None and not is_narrow:
            mask = _mask(db, chunk_filter, loaded, last)
            # Only the database knows who may see a memory.
            has_memories = chunk_filter.includes_source("memories")
            ids_query = f"{_MEMORY_CHUNKS} AND {chunk_filter.condition}" if has_memories else ""
        ids: list[int] = []
        if ids_query:
            sql = f"SELECT json_group_array(id) FROM ({ids_query} LIMIT {MAX_LISTED_CHUNKS + 1})"
            listed = decode_json(db.value(sql, chunk_filter.params), type=list[int])
            ids = [chunk for chunk in listed if chunk <= last]  # later ones were stored since the search began
            if len(listed) > MAX_LISTED_CHUNKS:
                passing = f"more than {MAX_LISTED_CHUNKS:,} chunks pass the filter"
                return EligibleChunks(
                    last, chunk_count, note=f"{passing}, so that words were looked up in the whole store"
                )
        if numpy is None:
            return EligibleChunks(last, chunk_count, len(ids), frozenset(ids))
        if mask is None:
            mask = numpy.zeros(last + 1, numpy.bool_)
        mask[numpy.array(ids, numpy.int64)] = True
        return EligibleChunks(
            last, chunk_count, int(numpy.count_nonzero(mask)), mask=mask, table=loaded, changes=changes
        )

    def select(self, term: Term, postings: Postings) -> TermMatches:
        """Return the matches of a term among these chunks; its frequency is counted there."""
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
        is_eligible = table.partition_mask(
            chunk_filter.params["chunking"],
            lambda source, sources=sources: source != "memories" and (sources is None or source in sources),  # type: ignore[misc]
        )
        if not is_eligible.any():
            continue
        if test.project is None:
            mask |= is_eligible[columns.partitions[: last + 1]]
            continue
        for (number,) in db.tuples(f"SELECT * FROM {PROJECT_NUMBERS}", test.project):
            chunks = np.flatnonzero(columns.projects[: last + 1] == number)
            mask[chunks[is_eligible[columns.partitions[chunks]]]] = True
    return mask
