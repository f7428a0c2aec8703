"""Occurrences of a word in chunks, read from their tsvectors.

The server sends them as arrays of integers in binary: as rows, they took eight times as long. Here they are put
together by iterators in C, because this layer does without numpy.
"""

import sys
from array import array
from collections.abc import Iterable
from itertools import chain, groupby, repeat
from operator import add
from typing import TYPE_CHECKING

from clankersd.db.engine import HEADER, OCCURRENCES_PER_CHUNK, OFFSET_BITS, OFFSETS
from clankersd.db.postgres.words import EXTRA_POSITION, LAST_POSITION, quote_stem

if TYPE_CHECKING:
    from clankersd.db.connection import Db

_OFFSET_AT = [
    position - 1 if position <= OFFSETS else HEADER + OFFSETS - 1 if position < EXTRA_POSITION else OFFSETS - 1
    for position in range(LAST_POSITION + 1)
]
"""Offset, with HEADER in the header, by position in a tsvector."""

# A tsvector of one word is sent as the number of words (4 bytes), the word, a zero byte, the number of its positions,
# and these: 2 bytes each, whose highest bits are the weight.
_FOUND = """
    SELECT chunk, tsvectorsend(ts_filter(setweight(words, 'A', ARRAY[:stem]), '{{a}}')) AS found
    FROM chunk_words WHERE words @@ :query::tsquery {limits}
"""
_PACKED = """
    SELECT string_agg(int8send(chunk), ''), string_agg(pg_catalog.substr(found, :start::int, 2), ''),
        string_agg(pg_catalog.substr(found, :start::int + 2), '')
    FROM ({found}) AS ordered
"""
_ALL = _PACKED.format(found=_FOUND.format(limits="ORDER BY chunk"))
_AFTER = _PACKED.format(found=_FOUND.format(limits="AND chunk > :last ORDER BY chunk LIMIT :limit"))
_CHUNKS = """
    SELECT string_agg(int8send(chunk), '')
    FROM (SELECT chunk FROM chunk_words
          WHERE words @@ :query::tsquery AND chunk BETWEEN :first AND :last ORDER BY chunk) AS ordered
"""


def read_occurrences(db: "Db", stem: str) -> "array[int]":
    """Return all occurrences of a stem, in order."""
    return _read(db, _ALL, stem, {})


def read_occurrences_after(db: "Db", stem: str, last: int, limit: int) -> list[list[int]]:
    """Return the occurrences of a stem in each of the first `limit` chunks after `last` that contain it."""
    found = _read(db, _AFTER, stem, {"last": last, "limit": limit})
    return [list(group) for _, group in groupby(found, lambda occurrence: occurrence >> OFFSET_BITS)]


def read_chunks(db: "Db", stem: str, first: int, last: int) -> list[int]:
    """Return the chunks from `first` to `last` that contain a stem."""
    params = {"query": quote_stem(stem), "first": first, "last": last}
    return _integers("q", db.value(_CHUNKS, params)).tolist()


def _read(db: "Db", sql: str, stem: str, params: dict[str, int]) -> "array[int]":
    start = 4 + len(stem.encode()) + 1 + 1
    [row] = db.tuples(sql, {"stem": stem, "query": quote_stem(stem), "start": start, **params})
    chunks, counts, positions = _integers("q", row[0]), _integers("h", row[1]), _integers("h", row[2])
    first_in_chunk = (chunk * OCCURRENCES_PER_CHUNK for chunk in chunks)
    in_chunks: Iterable[int] = chain.from_iterable(map(repeat, first_in_chunk, counts))
    # With the bits of the weight A, a position is negative: it counts from the end of the table, which has 2^14 items.
    return array("q", map(add, in_chunks, map(_OFFSET_AT.__getitem__, positions)))


def _integers(kind: str, sent: bytes | None) -> "array[int]":
    """Return the integers that the server has sent, highest byte first; None are none."""
    integers = array(kind, sent or b"")
    if sys.byteorder == "little":
        integers.byteswap()
    return integers
