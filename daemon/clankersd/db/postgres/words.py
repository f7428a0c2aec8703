"""Words of texts as tsvectors, split by the tokenizer of FTS5: both engines find and rank the same."""

import re
import threading
from collections.abc import Iterable
from typing import Any

import apsw

from clankersd.db.engine import OFFSETS, TOKENIZER

MAX_WORD_BYTES = 2046
"""Longest word that a tsvector takes; longer ones are left out."""

HEADER_POSITION, EXTRA_POSITION = 8193, 12289
"""First positions of the words of the header and of the other forms; those of the text are 1 to OFFSETS."""

LAST_POSITION = 16383

_PHRASE = re.compile(r'"((?:[^"]|"")*)"|(AND|OR)')

_local = threading.local()


def tokenizer() -> Any:
    """Return FTS5's tokenizer, from a database in memory of this thread."""
    if not hasattr(_local, "tokenizer"):
        _local.connection = apsw.Connection(":memory:")
        _local.tokenizer = _local.connection.fts5_tokenizer(*TOKENIZER)
    return _local.tokenizer


def stem_of(word: str) -> str:
    """Return the stem of one word."""
    [(_, _, stem)] = tokenizer()(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None)
    return str(stem)


def chunk_words(text: str, header: str, extra: str) -> str:
    """Return the words of a chunk as the text of a tsvector."""
    positions: dict[str, list[int]] = {}
    for column, first, last in (
        (text, 1, OFFSETS),
        (header, HEADER_POSITION, EXTRA_POSITION - 1),
        (extra, EXTRA_POSITION, LAST_POSITION),
    ):
        _add_words(positions, column, first, last)
    return _tsvector(positions)


def text_words(columns: Iterable[str | None]) -> str:
    """Return the words of several columns, one after another, as the text of a tsvector."""
    positions: dict[str, list[int]] = {}
    first = 1
    for column in columns:
        first = min(_add_words(positions, column or "", first, LAST_POSITION) + 2, LAST_POSITION)
    return _tsvector(positions)


def to_tsquery(query: str) -> str:
    """Convert a query of FTS5, which is quoted phrases with AND or OR between them, to the text of a tsquery."""
    parts: list[str] = []
    for phrase, operator in _PHRASE.findall(query):
        if operator:
            parts.append("&" if operator == "AND" else "|")
            continue
        stems = [stem for _, _, stem in tokenizer()(phrase.replace('""', '"').encode(), apsw.FTS5_TOKENIZE_QUERY, None)]
        parts.append(f"({' <-> '.join(map(quote_stem, stems))})" if stems else "")
    # Phrases without a word are left out, with the operator before them.
    kept: list[str] = []
    for place in range(0, len(parts), 2):
        if parts[place]:
            kept += [*parts[place - 1 : place], parts[place]] if kept else [parts[place]]
    return " ".join(kept)


def _add_words(positions: dict[str, list[int]], text: str, first: int, last: int) -> int:
    """Add the words of a text at positions from `first` on; return the position of the last one."""
    position = first
    for number, (_, _, stem) in enumerate(tokenizer()(text.encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None)):
        position = min(first + number, last)
        if len(stem.encode()) <= MAX_WORD_BYTES:
            positions.setdefault(stem, []).append(position)
    return position


def _tsvector(positions: dict[str, list[int]]) -> str:
    return " ".join(f"{quote_stem(stem)}:{','.join(map(str, places))}" for stem, places in positions.items())


def quote_stem(stem: str) -> str:
    """Quote a stem for a tsvector or a tsquery."""
    return "'" + stem.replace("\\", "\\\\").replace("'", "''").replace("\0", "\ufffd") + "'"
