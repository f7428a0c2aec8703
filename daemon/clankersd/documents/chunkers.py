"""Chunking strategies for document text: recursive, markdown, parentChild and semantic.

Every strategy returns spans of the text, none longer than the given number of tokens. Sizes are counted as in the
index: a token is four characters, or one Chinese, Japanese or Korean character.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from clankersd.index.chunker import HEADING, QUARTERS_PER_TOKEN, fence_after, lines_of, size_of, split_line

SPLIT_PERCENTILE = 25
"""The semantic strategy splits between neighbouring sentences whose similarity is below this percentile."""

_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\n")
_TRAILING_SPACE = re.compile(r"[^\S\n]*(?:\n(?:[^\S\n]*\n)*)?")  # without the indentation of the next line
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_INITIAL = re.compile(r"[A-Z]")
_ABBREVIATIONS = frozenset(
    """al approx ca cf co corp dept dr e.g ed eds eq etc fig figs gen gov i.e inc jr ltd mr mrs ms no nos p.m a.m pp
    prof rev sec sr st u.k u.s vol vs z.b bzw usw""".split()  # noqa: SIM905  # easier to read as a text
)


@dataclass
class Span:
    """A part of a text that becomes a chunk; if it has `children`, they are searched instead of it."""

    start: int
    end: int
    metadata: dict[str, Any] = field(default_factory=dict)
    children: "list[Span]" = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """The smallest unit that chunks are packed from: a sentence, a line or a definition.

    `starts_block` marks the first piece of a paragraph or a definition.
    """

    start: int
    end: int
    size: int
    starts_block: bool


def chunk_recursive(text: str, tokens: int, overlap: int) -> list[Span]:
    """Split at paragraphs where possible, else at sentences, else between words."""
    return pack_pieces(text, split_sentences(text, 0, len(text), tokens), tokens, overlap)


def chunk_markdown(text: str, tokens: int, overlap: int) -> list[Span]:
    """Make each section a chunk with its heading; split large ones.

    A section of less than an eighth of a chunk is merged with the next one, if both fit into a chunk.
    """
    limit = tokens * QUARTERS_PER_TOKEN
    sections: list[Span] = []
    for section in _split_sections(text):
        before = sections[-1] if sections else None
        size = size_of(text[before.start : before.end]) if before else 0
        if before and size < limit // 8 and size + size_of(text[section.start : section.end]) <= limit:
            sections[-1] = Span(before.start, section.end, section.metadata or before.metadata)
        else:
            sections.append(section)
    spans: list[Span] = []
    for section in sections:
        pieces = split_sentences(text, section.start, section.end, tokens)
        packed = pack_pieces(text, pieces, tokens, overlap)
        spans += [Span(span.start, span.end, section.metadata) for span in packed]
    return spans


def chunk_parent_child(text: str, parent_tokens: int, tokens: int, overlap: int) -> list[Span]:
    """Split into large parent chunks, each with the small child chunks that are searched."""
    parents = chunk_recursive(text, parent_tokens, 0)
    for parent in parents:
        pieces = split_sentences(text, parent.start, parent.end, tokens)
        parent.children = pack_pieces(text, pieces, tokens, overlap)
    return parents


def chunk_semantic(text: str, sentences: list[Piece], similarities: list[float], tokens: int) -> list[Span]:
    """Split where neighbouring sentences are least similar; `similarities` compares each sentence with the next."""
    if not sentences:
        return []
    threshold = 0.0
    if similarities:  # the value at SPLIT_PERCENTILE, interpolated linearly
        values = sorted(similarities)
        position = (len(values) - 1) * SPLIT_PERCENTILE / 100
        low, high = int(position), math.ceil(position)
        threshold = values[low] + position % 1 * (values[high] - values[low])
    spans: list[Span] = []
    topic = [sentences[0]]
    for sentence, similarity in zip(sentences[1:], similarities, strict=True):
        if similarity < threshold:
            spans += pack_pieces(text, topic, tokens, 0)
            topic = []
        topic.append(Piece(sentence.start, sentence.end, sentence.size, starts_block=False))
    return spans + pack_pieces(text, topic, tokens, 0)


def split_sentences(text: str, start: int, end: int, tokens: int) -> list[Piece]:
    """Split the text between two offsets into sentences and lines, and those that are too long into parts."""
    limit = tokens * QUARTERS_PER_TOKEN
    pieces = []
    for left, right, starts_block in _sentences(text, start, end):
        for begin, stop in split_line(text[left:right], limit):
            size = size_of(text[left + begin : left + stop])
            pieces.append(Piece(left + begin, left + stop, size, starts_block and begin == 0))
    return pieces


def pack_pieces(text: str, pieces: list[Piece], tokens: int, overlap: int) -> list[Span]:
    """Pack consecutive pieces into spans of at most `tokens`.

    A span ends before the start of a block if that leaves it at least half full, otherwise after as many pieces as
    fit.
    """
    limit = tokens * QUARTERS_PER_TOKEN
    max_shared = min(overlap * QUARTERS_PER_TOKEN, limit // 2)
    ends = list(accumulate(piece.size for piece in pieces))
    spans, begin = [], 0
    while begin < len(pieces):
        before = ends[begin - 1] if begin else 0
        stop = max(bisect_right(ends, before + limit), begin + 1)
        if stop < len(pieces):
            half_full = max(bisect_left(ends, before + limit // 2) + 1, begin + 1)
            stop = next((at for at in range(stop, half_full - 1, -1) if pieces[at].starts_block), stop)
        start, end = pieces[begin].start, pieces[stop - 1].end
        blank = _BLANK_LINES.match(text, start, end)  # the first line's indentation stays
        assert blank
        start, end = blank.end(), start + len(text[start:end].rstrip())
        if start < end:
            spans.append(Span(start, end))
        previous, begin = begin, stop
        if stop < len(pieces):  # overlap with the end of this span, if a new piece still fits then
            room = min(max_shared, limit - pieces[stop].size)
            while begin - 1 > previous and ends[stop - 1] - (ends[begin - 2] if begin > 1 else 0) <= room:
                begin -= 1
    return spans


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the start and end of each sentence, trailing space included, and whether it begins a paragraph."""
    begin, starts_block = start, True
    for match in _SENTENCE_END.finditer(text, start, end):
        if match.start() < begin:
            continue
        if match[0] == ".":  # it may end an abbreviation or an initial
            word = _LAST_WORD.search(text, max(begin, match.start() - 12), match.start())
            if word and (word[0].lower() in _ABBREVIATIONS or (len(word[0]) == 1 and _INITIAL.match(word[0]))):
                continue
        space = _TRAILING_SPACE.match(text, match.end(), end)
        assert space
        yield begin, space.end(), starts_block
        begin, starts_block = space.end(), text.count("\n", match.start(), space.end()) > 1
    if begin < end:
        yield begin, end, starts_block


def _split_sections(text: str) -> list[Span]:
    """Split at headings outside of code fences; each section's metadata names its heading and those above it."""
    sections = [Span(0, 0)]
    headings: list[tuple[int, str]] = []
    at, fence = 0, None
    for line in lines_of(text):
        if fence is None and HEADING.match(line):
            stripped = line.lstrip()
            level = len(stripped) - len(stripped.lstrip("#"))
            headings = [(depth, name) for depth, name in headings if depth < level]
            headings.append((level, line.strip(" \t\r\n#")))
            names = [name for _, name in headings if name]
            metadata = {"section_heading": names[-1], "section_path": " > ".join(names)} if names else {}
            sections.append(Span(at, at, metadata))
        fence = fence_after(line, fence)
        at += len(line)
        sections[-1].end = at
    return [section for section in sections if text[section.start : section.end].strip()]
