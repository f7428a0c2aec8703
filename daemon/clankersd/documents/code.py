"""Source code cut by its syntax: whole functions and classes, where the extra `code` is installed."""

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

DEEPEST = 40
"""Levels. What is nested deeper is cut like any text."""

LANGUAGES = {
    "py": "python", "pyi": "python", "js": "javascript", "mjs": "javascript", "cjs": "javascript",
    "jsx": "javascript", "ts": "typescript", "tsx": "tsx", "go": "go", "rs": "rust", "java": "java", "c": "c",
    "h": "c", "cc": "cpp", "cpp": "cpp", "cxx": "cpp", "hpp": "cpp", "hh": "cpp", "rb": "ruby", "sh": "bash",
    "bash": "bash",
}  # fmt: skip
"""By the end of the file's name."""

_DEFINES = re.compile("definition|declaration|_item|class|function|method|interface|module|struct")
_GRAMMARS = {
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
}


def parser_for(language: str) -> Any:
    """A parser of the language; raises ImportError where its grammar is not installed."""
    module, maker = _GRAMMARS.get(language, (f"tree_sitter_{language}", "language"))
    grammar = getattr(importlib.import_module(module), maker)
    tree_sitter = importlib.import_module("tree_sitter")
    return tree_sitter.Parser(tree_sitter.Language(grammar()))


def chunk_code(text: str, language: str, tokens: int) -> list[Span]:
    """At the definitions of the code, each chunk with the first name it defines."""
    data = text.encode()
    root = parser_for(language).parse(data).root_node
    places = _Places(text, data)
    parts, names = list[Piece](), dict[int, str]()
    for start, end, name in _filled(_parts(root, tokens * QUARTERS_PER_TOKEN, places, 0), len(text)):
        if name:
            names[start] = name
        if size_of(text[start:end]) <= tokens * QUARTERS_PER_TOKEN:
            parts.append(Piece(start, end, size_of(text[start:end]), opens=name is not None))
        else:
            parts += split_sentences(text, start, end, tokens)
    spans = pack_pieces(text, parts, tokens, 0)
    for span in spans:
        name = next((names[at] for at in names if span.start <= at < span.end), None)
        span.metadata = {"language": language} | ({"symbol": name} if name else {})
    return spans


class _Places:
    """Where a byte stands among the characters."""

    def __init__(self, text: str, data: bytes) -> None:
        self._ends = None if len(text) == len(data) else [0, *accumulate(len(letter.encode()) for letter in text)]

    def __call__(self, byte: int) -> int:
        return byte if self._ends is None else bisect_left(self._ends, byte)


def _parts(node: "Node", limit: int, places: _Places, depth: int) -> Iterator[tuple[int, int, str | None]]:
    """The definitions and statements, from large to small until each fits."""
    for child in node.children:
        start, end = places(child.start_byte), places(child.end_byte)
        if end - start > limit and child.child_count and depth < DEEPEST:
            inner = list(_parts(child, limit, places, depth + 1))
            yield from [(start, inner[0][1], _name(child)), *inner[1:]]
        else:
            yield start, end, _name(child)


def _name(node: "Node") -> str | None:
    """What a definition is called; also one inside of an `export` or under decorators."""
    for candidate in (node, node.child_by_field_name("definition"), node.child_by_field_name("declaration")):
        if candidate is None or not _DEFINES.search(candidate.type):
            continue
        found = candidate.child_by_field_name("name")
        if found is not None and found.text is not None:
            return found.text.decode(errors="replace")[:200]
    return None


def _filled(parts: Iterator[tuple[int, int, str | None]], length: int) -> Iterator[tuple[int, int, str | None]]:
    """All of the text: what stands between two parts (comments are parts) goes with the one before."""
    waiting: tuple[int, str | None] | None = None
    for start, _, name in parts:
        if waiting is not None and start > waiting[0]:
            yield waiting[0], start, waiting[1]
        waiting = (start if waiting is not None else 0, name)
    if waiting is not None and waiting[0] < length:
        yield waiting[0], length, waiting[1]
