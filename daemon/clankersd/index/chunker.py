"""Splitting text into chunks: at line ends where possible, at headings where sensible, with exact positions."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise

import msgspec

MAX_SCAN_CHARS = 64 * 1024
"""Characters that one regular expression call scans, which holds the interpreter lock."""

QUARTERS_PER_TOKEN = 4
"""A token is about four characters, or one character of Chinese, Japanese or Korean. Sizes are counted in quarters of
a token, so that both are integers."""

_CJK_RANGES = (
    (0x1100, 0x11FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3040, 0x30FF), (0x3130, 0x318F), (0x31A0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFF66, 0xFFDC),
    (0x1B000, 0x1B16F), (0x20000, 0x323AF),
)  # fmt: skip
CJK = "".join(f"{chr(first)}-{chr(last)}" for first, last in _CJK_RANGES)
"""Ranges of Chinese, Japanese and Korean characters, for use inside [] of a regular expression."""

_CJK_CHARACTER = re.compile(f"[{CJK}]")
_CJK_ROWS = {row & 0xFF for first, last in _CJK_RANGES if last < 0x20000 for row in range(first >> 8, (last >> 8) + 1)}
_ROWS_WITHOUT_CJK = bytes({*range(256)} - _CJK_ROWS)
"""Second bytes of the characters of the planes 0 and 1 that are not CJK; the planes 2 and 3 have no others."""
HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_JOINERS = "\u200d\ufe0e\ufe0f"


class Chunk(msgspec.Struct, frozen=True):
    """A part of a text. Lines count from 1, both ends included; offsets count characters."""

    text: str
    start_line: int
    end_line: int
    start_offset: int
    end_offset: int


class _Pieces(msgspec.Struct, frozen=True):
    """Lines of a text, and parts of lines that are too long, as columns: a struct for each would take twice as long.

    Piece `n` is `text[offsets[n] : offsets[n + 1]]`, and its size `sizes[n + 1] - sizes[n]`.
    """

    offsets: list[int]
    sizes: list[int]
    lines: list[int]
    sections: list[int]
    """The pieces that open a section."""


def chunk(text: str, tokens: int, overlap: int) -> list[Chunk]:
    """Split `text` into chunks of at most `tokens`, which together hold every character of it.

    Consecutive chunks share about `overlap` tokens. Blank text has no chunks.
    """
    if not text.strip():
        return []
    limit = tokens * QUARTERS_PER_TOKEN
    if len(text) * QUARTERS_PER_TOKEN <= limit or size_of(text) <= limit:
        return [Chunk(text, 1, text.count("\n", 0, len(text) - 1) + 1, 0, len(text))]
    pieces = _split(text, limit)
    offsets, lines = pieces.offsets, pieces.lines
    return [
        Chunk(text[offsets[first] : offsets[end]], lines[first], lines[end - 1], offsets[first], offsets[end])
        for first, end in _group(pieces, limit, min(overlap * QUARTERS_PER_TOKEN, limit // 2))
    ]


def has_cjk(text: str) -> bool:
    """Return whether a text has Chinese, Japanese or Korean characters.

    Most texts have dashes or accents. They are rejected by the second byte of their characters, which takes a small
    part of the time of a regular expression.
    """
    if text.isascii():
        return False
    codes = text.encode("utf-32-le", "surrogatepass")
    rows, planes = codes[1::4], codes[2::4]
    if rows.translate(None, _ROWS_WITHOUT_CJK) or planes.translate(None, b"\x00\x01"):
        return _CJK_CHARACTER.search(text) is not None
    return False


def size_of(text: str) -> int:
    """Measure a text in quarters of a token."""
    if not has_cjk(text):
        return len(text)
    parts = (text[start : start + MAX_SCAN_CHARS] for start in range(0, len(text), MAX_SCAN_CHARS))
    return len(text) + (QUARTERS_PER_TOKEN - 1) * sum(len(_CJK_CHARACTER.findall(part)) for part in parts)


def _split(text: str, limit: int) -> _Pieces:
    has_wide_characters = has_cjk(text)
    max_length = limit // QUARTERS_PER_TOKEN if has_wide_characters else limit
    offsets, lines, sections = [0], list[int](), list[int]()
    start, number, fence = 0, 0, None
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        number += 1
        if text[start] in "#`~" or (text[start] == " " and not text.startswith("    ", start)):
            line = text[start:end]
            if fence is None and HEADING.match(line):
                sections.append(len(lines))
            fence = fence_after(line, fence)
        if end - start <= max_length:
            lines.append(number)
            offsets.append(end)
        else:
            for _, right in split_line(text[start:end], limit):
                lines.append(number)
                offsets.append(start + right)
        start = end
    sizes = offsets
    if has_wide_characters:
        sizes = [0, *accumulate(size_of(text[left:right]) for left, right in pairwise(offsets))]
    return _Pieces(offsets, sizes, lines, sections)


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines as editors count them: only a newline ends one."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end + 1]
        start = end + 1
    if start < len(text):
        yield text[start:]


def fence_after(line: str, fence: str | None) -> str | None:
    """Return the code fence that is open after this line; `fence` is the one open before it."""
    match = _FENCE.match(line)
    if not match:
        return fence
    if fence is None:
        return match[1]
    closes = match[1][0] == fence[0] and len(match[1]) >= len(fence) and not line[match.end() :].strip()
    return None if closes else fence


def split_line(line: str, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of parts of a line, none of them longer than `limit`."""
    start = 0
    while len(line) - start > limit // QUARTERS_PER_TOKEN and size_of(line[start : start + limit + 1]) > limit:
        end = _end_of_part(line, start, limit)
        yield start, end
        start = end
    yield start, len(line)


def _end_of_part(line: str, start: int, limit: int) -> int:
    """Find the end of the longest part that fits: after a space if one is near, never inside a visible character."""
    if has_cjk(line[start : start + limit]):
        end, size = start, 0
        while end < len(line) and size < limit:
            size += QUARTERS_PER_TOKEN if _CJK_CHARACTER.match(line[end]) else 1
            end += size <= limit
    else:
        end = start + limit
    space = line.rfind(" ", start + (end - start) * 3 // 4, end)
    if space > start:
        return space + 1
    boundary = end
    while boundary > start + 1 and (
        line[boundary] in _JOINERS
        or unicodedata.combining(line[boundary]) != 0
        or unicodedata.category(line[boundary]) == "Mn"
    ):
        boundary -= 1  # readers see this character as part of the one before it
    return boundary if boundary > start + 1 else end


def _group(pieces: _Pieces, limit: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield the first piece of each chunk, and the one after its last."""
    sizes, count = pieces.sizes, len(pieces.lines)
    first = end = 0
    while end < count:
        section = _next_section(pieces, end, sizes[first] + limit // 2)
        end = min(bisect_right(sizes, sizes[first] + limit) - 1, section)
        yield first, end
        if end == section:
            first = end
        else:  # begin with the last pieces of this chunk that fit, never with all of them
            max_shared = min(overlap, limit - (sizes[end + 1] - sizes[end]))
            first = bisect_left(sizes, sizes[end] - max_shared, first + 1, end)


def _next_section(pieces: _Pieces, after: int, least: int) -> int:
    """Return the first piece after this one that opens a section, with `least` or more before it; else the end."""
    for number in range(bisect_right(pieces.sections, after), len(pieces.sections)):
        if pieces.sizes[section := pieces.sections[number]] >= least:
            return section
    return len(pieces.lines)
