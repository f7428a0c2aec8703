"""Messages between the daemon and the extraction process, and the chunk records in them."""

from bisect import bisect_right
from typing import Any

import msgspec

from clankersd.documents.chunkers import Piece, Span
from clankersd.index.chunks import hash_of
from clankersd.index.tokenize import count_words, other_forms

WindowMetadata = list[tuple[int, dict[str, Any]]]
"""Offsets in a window, and the metadata that applies to the text from there on."""


class Task(msgspec.Struct):
    """A document to extract. `size` bytes of content follow the task, unless it is a file at `path`."""

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
    """A chunk ready to be stored. `parent` is the position of its parent among all records of the document."""

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
    """A section of the text with its chunks, or with its `sentences` if the daemon has to chunk it semantically."""

    text: str
    offset: int
    line: int
    metadata: WindowMetadata
    records: list[Record] = msgspec.field(default_factory=list)
    sentences: list[tuple[int, int, int]] = msgspec.field(default_factory=list)

    def pieces(self) -> list[Piece]:
        return [Piece(start, end, size, starts_block=False) for start, end, size in self.sentences]


class Done(msgspec.Struct, tag="done"):
    """Sent after the last window of a document."""

    kind: str
    strategy: str
    title: str
    sha256: str
    bytes: int
    characters: int
    redacted: dict[str, int] = msgspec.field(default_factory=dict)


class Failed(msgspec.Struct, tag="failed"):
    """Sent if the document cannot be extracted."""

    reason: str


Message = Window | Done | Failed


def build_records(window: Window, spans: list[Span], records_before: int) -> list[Record]:
    """Convert the spans of a window to records, parents before their children.

    `records_before` counts the records of earlier windows, since `Record.parent` is a position in the document.
    """
    newlines = [at for at, letter in enumerate(window.text) if letter == "\n"] if "\n" in window.text else []
    records: list[Record] = []
    for span in spans:
        parent = records_before + len(records)
        records.append(_build_record(window, span, newlines, None))
        records += [_build_record(window, child, newlines, parent) for child in span.children]
    return records


def _build_record(window: Window, span: Span, newlines: list[int], parent: int | None) -> Record:
    content = window.text[span.start : span.end]
    searchable = not span.children
    metadata: dict[str, Any] = {}
    for offset, values in window.metadata:
        if offset <= span.start:
            metadata |= values
    return Record(
        content=content,
        start=window.offset + span.start,
        end=window.offset + span.end,
        start_line=window.line + bisect_right(newlines, span.start - 1),
        end_line=window.line + bisect_right(newlines, span.end - 2),
        metadata=metadata | span.metadata,
        hash=hash_of(content),
        extra=other_forms(content) if searchable else "",
        tokens=count_words(content),
        searchable=searchable,
        parent=parent,
    )
