"""Cutting a document's text: at paragraphs and sentences, at headings, into parents and children.

Every way gives spans of the text, none longer than asked for. Sizes are counted as the index counts them: a token is
four characters, or one of Chinese, Japanese or Korean.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from clankersd.index.chunker import HEADING, QUARTERS_PER_TOKEN, fence_after, lines_of, size_of, split_line

SEPARATION = 25
"""Per cent. Sentences are parted where they are less alike than this share of all neighbours."""

_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\n")
_SPACE = re.compile(r"[^\S\n]*(?:\n(?:[^\S\n]*\n)*)?")  # but not the indentation of what follows
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_INITIAL = re.compile(r"[A-Z]")
_ABBREVIATIONS = frozenset(
    """al approx ca cf co corp dept dr e.g ed eds eq etc fig figs gen gov i.e inc jr ltd mr mrs ms no nos p.m a.m pp
    prof rev sec sr st u.k u.s vol vs z.b bzw usw""".split()  # noqa: SIM905  # as a text it can be read
)


@dataclass
class Span:
    """A part of a text to become a chunk; `children` are parts of it that are searched in its stead."""

    start: int
    end: int
    metadata: dict[str, Any] = field(default_factory=dict)
    children: "list[Span]" = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """The smallest part that is moved as a whole. One that `opens` begins something: a paragraph, a function."""

    start: int
    end: int
    size: int
    opens: bool


def chunk_recursive(text: str, tokens: int, overlap: int) -> list[Span]:
    """At paragraphs where possible, else at sentences, else between words."""
    return pack_pieces(text, split_sentences(text, 0, len(text), tokens), tokens, overlap)


def chunk_markdown(text: str, tokens: int, overlap: int) -> list[Span]:
    """Each section by itself under its heading; very small ones go with the next, large ones are cut further."""
    spans: list[Span] = []
    for section in _joined(text, _sections(text), tokens):
        inside = pack_pieces(text, split_sentences(text, section.start, section.end, tokens), tokens, overlap)
        spans += [Span(span.start, span.end, section.metadata) for span in inside]
    return spans


def chunk_parent_child(text: str, parent_tokens: int, tokens: int, overlap: int) -> list[Span]:
    """Large parts, each with the small ones it is found by."""
    parents = chunk_recursive(text, parent_tokens, 0)
    for parent in parents:
        parent.children = pack_pieces(text, split_sentences(text, parent.start, parent.end, tokens), tokens, overlap)
    return parents


def chunk_semantic(text: str, sentences: list[Piece], likeness: list[float], tokens: int) -> list[Span]:
    """Where neighbouring sentences are least alike; `likeness` is that of each sentence with the next."""
    if not sentences:
        return []
    threshold = _percentile(sorted(likeness)) if likeness else 0.0
    opened = [sentences[0]]
    for piece, alike in zip(sentences[1:], likeness, strict=True):
        opened.append(Piece(piece.start, piece.end, piece.size, alike < threshold))
    spans: list[Span] = []
    begin = 0
    for at in [*(place for place, piece in enumerate(opened) if piece.opens and place), len(opened)]:
        spans += pack_pieces(text, opened[begin:at], tokens, 0)
        begin = at
    return spans


def _percentile(values: list[float]) -> float:
    """Below which so many per cent of the values lie, between two of them where need be."""
    place = (len(values) - 1) * SEPARATION / 100
    low, part = int(place), place % 1
    return values[low] + (part * (values[low + 1] - values[low]) if part else 0.0)


def split_sentences(text: str, start: int, end: int, tokens: int) -> list[Piece]:
    """The sentences and lines between two places, all of the text; too long ones in parts."""
    limit = tokens * QUARTERS_PER_TOKEN
    found = []
    for left, right, opens in _sentences(text, start, end):
        for one, other in split_line(text[left:right], limit):
            size = size_of(text[left + one : left + other])
            found.append(Piece(left + one, left + other, size, opens and one == 0))
    return found


def pack_pieces(text: str, parts: list[Piece], tokens: int, overlap: int) -> list[Span]:
    """Consecutive pieces put together, as many as fit; rather to where something opens than full to the brim."""
    limit, shared = tokens * QUARTERS_PER_TOKEN, min(overlap * QUARTERS_PER_TOKEN, tokens * QUARTERS_PER_TOKEN // 2)
    ends = list(accumulate(piece.size for piece in parts))
    spans, begin = [], 0
    while begin < len(parts):
        before = ends[begin - 1] if begin else 0
        stop = max(bisect_right(ends, before + limit), begin + 1)
        if stop < len(parts):
            half = bisect_left(ends, before + limit // 2) + 1
            stop = next((at for at in range(stop, max(half, begin + 1) - 1, -1) if parts[at].opens), stop)
        span = _trimmed(text, parts[begin].start, parts[stop - 1].end)
        if span:
            spans.append(span)
        begin = _with_overlap(parts, ends, begin, stop, limit, shared)
    return spans


def _with_overlap(parts: list[Piece], ends: list[int], begin: int, stop: int, limit: int, shared: int) -> int:
    """Where the next span begins: early enough to share its beginning, if it then still has room for what is new."""
    if stop >= len(parts):
        return stop
    room = min(shared, limit - parts[stop].size)
    first = stop
    while first - 1 > begin and ends[stop - 1] - (ends[first - 2] if first > 1 else 0) <= room:
        first -= 1
    return first


def _trimmed(text: str, start: int, end: int) -> Span | None:
    """Without blank lines around it; the first line keeps its indentation."""
    blank = _BLANK_LINES.match(text, start, end)
    assert blank
    start, end = blank.end(), start + len(text[start:end].rstrip())
    return Span(start, end) if start < end else None


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Where sentences begin and end, with the space behind them, and which of them begin a paragraph."""
    begin, opens = start, True
    for found in _END.finditer(text, start, end):
        if found.start() < begin or _is_abbreviation(text, begin, found):
            continue
        space = _SPACE.match(text, found.end(), end)
        assert space
        yield begin, space.end(), opens
        begin, opens = space.end(), text.count("\n", found.start(), space.end()) > 1
    if begin < end:
        yield begin, end, opens


def _is_abbreviation(text: str, begin: int, found: re.Match[str]) -> bool:
    if found[0] != ".":
        return False
    word = _LAST_WORD.search(text, max(begin, found.start() - 12), found.start())
    if word is None:
        return False
    return word[0].lower() in _ABBREVIATIONS or (len(word[0]) == 1 and _INITIAL.match(word[0]) is not None)


def _sections(text: str) -> list[Span]:
    """The parts of a text under its headings, each with its heading and those above it."""
    sections, above = [Span(0, 0)], list[tuple[int, str]]()
    at, fence = 0, None
    for line in lines_of(text):
        if fence is None and HEADING.match(line):
            level = len(line.lstrip()) - len(line.lstrip().lstrip("#"))
            above = [*((depth, name) for depth, name in above if depth < level), (level, line.strip(" \t\r\n#"))]
            names = [name for _, name in above if name]
            known = {"section_heading": names[-1], "section_path": " > ".join(names)} if names else {}
            sections.append(Span(at, at, known))
        fence = fence_after(line, fence)
        at += len(line)
        sections[-1].end = at
    return [section for section in sections if text[section.start : section.end].strip()]


def _joined(text: str, sections: list[Span], tokens: int) -> list[Span]:
    """Sections that are hardly more than a heading go with what follows, if both fit together."""
    limit, joined = tokens * QUARTERS_PER_TOKEN, list[Span]()
    for section in sections:
        before = joined[-1] if joined else None
        size = size_of(text[before.start : before.end]) if before else 0
        if before and size < limit // 8 and size + size_of(text[section.start : section.end]) <= limit:
            joined[-1] = Span(before.start, section.end, section.metadata or before.metadata)
        else:
            joined.append(section)
    return joined
