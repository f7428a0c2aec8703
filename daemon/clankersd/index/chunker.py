"""Splitting text into chunks: at line ends where possible, at headings where sensible, with exact positions."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

DEFAULT_TOKENS = 400
DEFAULT_OVERLAP_TOKENS = 80
MAX_SCAN_CHARS = 64 * 1024
"""Characters that one regular expression call scans, which holds the interpreter lock."""

QUARTERS_PER_TOKEN = 4
"""A token is about four characters, or one character of Chinese, Japanese or Korean. Sizes are counted in quarters of
a token, so that both are integers."""

CJK = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U0001b000-\U0001b16f\U00020000-\U000323af"
)
"""Ranges of Chinese, Japanese and Korean characters, for use inside [] of a regular expression."""

_CJK_CHARACTER = re.compile(f"[{CJK}]")
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


@dataclass(frozen=True)
class _Piece:
    """A line, or part of a line that is too long."""

    start: int
    end: int
    line: int
    size: int
    opens_section: bool


def chunk(text: str, tokens: int = DEFAULT_TOKENS, overlap: int = DEFAULT_OVERLAP_TOKENS) -> list[Chunk]:
    """Split `text` into chunks of at most `tokens`, which together hold every character of it.

    Consecutive chunks share about `overlap` tokens. Blank text has no chunks.
    """
    if not text.strip():
        return []
    limit = tokens * QUARTERS_PER_TOKEN
    if len(text) * QUARTERS_PER_TOKEN <= limit or size_of(text) <= limit:
        return [Chunk(text, 1, text.count("\n", 0, len(text) - 1) + 1, 0, len(text))]
    chunks = []
    for group in _group_pieces(_split_pieces(text, limit), limit, min(overlap * QUARTERS_PER_TOKEN, limit // 2)):
        first, last = group[0], group[-1]
        chunks.append(Chunk(text[first.start : last.end], first.line, last.line, first.start, last.end))
    return chunks


def size_of(text: str) -> int:
    """Measure a text in quarters of a token."""
    if text.isascii():
        return len(text)
    parts = (text[start : start + MAX_SCAN_CHARS] for start in range(0, len(text), MAX_SCAN_CHARS))
    return len(text) + (QUARTERS_PER_TOKEN - 1) * sum(len(_CJK_CHARACTER.findall(part)) for part in parts)


def _split_pieces(text: str, limit: int) -> Iterator[_Piece]:
    start, fence = 0, None
    for number, line in enumerate(lines_of(text), 1):
        opens_section = fence is None and HEADING.match(line) is not None
        fence = fence_after(line, fence)
        for left, right in split_line(line, limit):
            size = size_of(line[left:right])
            yield _Piece(start + left, start + right, number, size, opens_section and left == 0)
        start += len(line)


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
    end, size = start, 0
    while end < len(line) and size < limit:
        size += QUARTERS_PER_TOKEN if _CJK_CHARACTER.match(line[end]) else 1
        end += size <= limit
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


def _group_pieces(pieces: Iterator[_Piece], limit: int, overlap: int) -> Iterator[list[_Piece]]:
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        at_section = piece.opens_section and size >= limit // 2
        if group and (at_section or size + piece.size > limit):
            yield group
            # Begin the next chunk with the last pieces of this one that fit, never with all of them.
            start, size = len(group), 0
            max_shared = min(overlap, limit - piece.size)
            while not at_section and start > 1 and size + group[start - 1].size <= max_shared:
                start -= 1
                size += group[start].size
            group = group[start:]
        group.append(piece)
        size += piece.size
    yield group
