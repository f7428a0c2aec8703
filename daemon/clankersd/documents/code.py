"""Chunk source code along its syntax: functions and classes stay in one chunk. Needs the extra `code`."""

import importlib
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from clankersd.documents.chunkers import Piece, Span, pack_pieces, split_sentences
from clankersd.index.chunker import QUARTERS_PER_TOKEN, size_of

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 40
"""Levels of syntax nodes that are split further; a node at this depth that is too large is split like text."""

LANGUAGES = {
    "py": "python", "pyi": "python", "js": "javascript", "mjs": "javascript", "cjs": "javascript",
    "jsx": "javascript", "ts": "typescript", "tsx": "tsx", "go": "go", "rs": "rust", "java": "java", "c": "c",
    "h": "c", "cc": "cpp", "cpp": "cpp", "cxx": "cpp", "hpp": "cpp", "hh": "cpp", "rb": "ruby", "sh": "bash",
    "bash": "bash",
}  # fmt: skip
"""Language by file name suffix."""

_DEFINITION_TYPE = re.compile("definition|declaration|_item|class|function|method|interface|module|struct")
_GRAMMARS = {
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
}


def parser_for(language: str) -> Any:
    """Return a parser for the language; raises ImportError if its grammar is not installed."""
    module, function = _GRAMMARS.get(language, (f"tree_sitter_{language}", "language"))
    grammar = getattr(importlib.import_module(module), function)
    tree_sitter = importlib.import_module("tree_sitter")
    return tree_sitter.Parser(tree_sitter.Language(grammar()))


def chunk_code(text: str, language: str, tokens: int) -> list[Span]:
    """Split at definitions; each chunk's metadata names the first symbol it defines."""
    data = text.encode()
    root = parser_for(language).parse(data).root_node
    nodes = _split_nodes(root, tokens * QUARTERS_PER_TOKEN, _CharacterOffsets(text, data), 0)
    pieces: list[Piece] = []
    symbols: dict[int, str] = {}
    for start, end, name in _fill_gaps(nodes, len(text)):
        if name:
            symbols[start] = name
        size = size_of(text[start:end])
        if size <= tokens * QUARTERS_PER_TOKEN:
            pieces.append(Piece(start, end, size, starts_block=name is not None))
        else:
            pieces += split_sentences(text, start, end, tokens)
    spans = pack_pieces(text, pieces, tokens, 0)
    for span in spans:
        span.metadata = {"language": language}
        symbol = next((symbols[start] for start in symbols if span.start <= start < span.end), None)
        if symbol:
            span.metadata["symbol"] = symbol
    return spans


class _CharacterOffsets:
    """Convert byte offsets in the UTF-8 encoding of a text to character offsets."""

    def __init__(self, text: str, data: bytes) -> None:
        self._ends = None if len(text) == len(data) else [0, *accumulate(len(letter.encode()) for letter in text)]

    def __call__(self, byte: int) -> int:
        return byte if self._ends is None else bisect_left(self._ends, byte)


def _split_nodes(
    node: "Node", limit: int, offsets: _CharacterOffsets, depth: int
) -> Iterator[tuple[int, int, str | None]]:
    """Yield start, end and name of definitions and statements, splitting those larger than `limit`."""
    for child in node.children:
        start, end = offsets(child.start_byte), offsets(child.end_byte)
        name = _definition_name(child)
        if end - start > limit and child.child_count and depth < MAX_DEPTH:
            inner = list(_split_nodes(child, limit, offsets, depth + 1))
            yield start, inner[0][1], name
            yield from inner[1:]
        else:
            yield start, end, name


def _definition_name(node: "Node") -> str | None:
    """Return the name that a node defines, also inside an `export` or below decorators."""
    for candidate in (node, node.child_by_field_name("definition"), node.child_by_field_name("declaration")):
        if candidate is None or not _DEFINITION_TYPE.search(candidate.type):
            continue
        name = candidate.child_by_field_name("name")
        if name is not None and name.text is not None:
            return name.text.decode(errors="replace")[:200]
    return None


def _fill_gaps(nodes: Iterator[tuple[int, int, str | None]], length: int) -> Iterator[tuple[int, int, str | None]]:
    """Extend nodes to cover the full text: what lies between two nodes belongs to the first (comments are nodes)."""
    current: tuple[int, str | None] | None = None
    for start, _, name in nodes:
        if current is None:
            current = (0, name)
            continue
        if start > current[0]:
            yield current[0], start, current[1]
        current = (start, name)
    if current is not None and current[0] < length:
        yield current[0], length, current[1]
