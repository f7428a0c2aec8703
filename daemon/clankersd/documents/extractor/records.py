"""What travels from the process that takes documents apart to the daemon."""

from bisect import bisect_right
from typing import Any

import msgspec

from clankersd.documents.chunkers import Piece, Span
from clankersd.index.chunks import hash_of
from clankersd.index.tokenize import count_words, other_forms


class Task(msgspec.Struct):
    """A document to be taken apart. `size` bytes follow it, unless it is a file at `path`."""

    name: str
    path: str | None
    size: int
    kind: str | None
    strategy: str | None
    tokens: int
    overlap: int
    parent_tokens: int
    max_bytes: int
    seconds: int


class Record(msgspec.Struct, array_like=True):
    """A chunk ready to be stored. `parent` is the place of its parent among all records of the document."""

    content: str
    start: int | None
    end: int | None
    start_line: int | None
    end_line: int | None
    metadata: dict[str, Any]
    hash: str
    extra: str
    tokens: int
    searchable: bool = True
    parent: int | None = None


class Window(msgspec.Struct, tag="window"):
    """A stretch of the text, and its chunks; to be cut by meaning, its `sentences` instead."""

    text: str
    offset: int
    line: int
    facts: list[tuple[int, dict[str, Any]]]
    records: list[Record] = msgspec.field(default_factory=list)
    sentences: list[tuple[int, int, int]] = msgspec.field(default_factory=list)

    def pieces(self) -> list[Piece]:
        return [Piece(start, end, size, False) for start, end, size in self.sentences]


class Done(msgspec.Struct, tag="done"):
    """All of it."""

    kind: str
    strategy: str
    title: str
    sha256: str
    bytes: int
    characters: int
    redacted: dict[str, int] = msgspec.field(default_factory=dict)


class Failed(msgspec.Struct, tag="failed"):
    reason: str


Message = Window | Done | Failed


def build_records(window: Window, spans: list[Span], before: int) -> list[Record]:
    """The chunks of a window, parents before their children; `before` records came in earlier windows."""
    newlines = [at for at, letter in enumerate(window.text) if letter == "\n"] if "\n" in window.text else []
    records: list[Record] = []
    for span in spans:
        place = before + len(records)
        records.append(_record(window, span, newlines, None))
        records += [_record(window, child, newlines, place) for child in span.children]
    return records


def _record(window: Window, span: Span, newlines: list[int], parent: int | None) -> Record:
    content = window.text[span.start : span.end]
    searchable = not span.children
    return Record(
        content,
        window.offset + span.start,
        window.offset + span.end,
        window.line + bisect_right(newlines, span.start - 1),
        window.line + bisect_right(newlines, span.end - 2),
        _facts(window, span.start) | span.metadata,
        hash_of(content),
        other_forms(content) if searchable else "",
        count_words(content),
        searchable,
        parent,
    )


def _facts(window: Window, at: int) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for offset, facts in window.facts:
        if offset > at:
            break
        known |= facts
    return known
