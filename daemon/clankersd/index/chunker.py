"""Cutting text into chunks: whole lines where possible, at headings where sensible, exact in where it cut."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

TOKENS = 400
OVERLAP = 80
PIECE_CHARACTERS = 64 * 1024
"""Characters looked through in one call, which keeps the interpreter lock."""

# A token is about four characters, or one character of Chinese, Japanese or Korean: sizes are counted in
# quarters of a token, so that both are whole numbers.
QUARTERS_PER_TOKEN = 4

CJK = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U0001b000-\U0001b16f\U00020000-\U000323af"
)
_CJK_CHARACTER = re.compile(f"[{CJK}]")
HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_JOINERS = "\u200d\ufe0e\ufe0f"


@dataclass(frozen=True)
class Chunk:
    """A piece of a text. Lines count from 1 and include both ends; offsets are those of the characters."""

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


def chunk(text: str, tokens: int = TOKENS, overlap: int = OVERLAP) -> list[Chunk]:
    """The chunks of `text`: together they hold every character of it, each at most `tokens` long.

    Consecutive chunks share about `overlap` tokens. Blank text has no chunks.
    """
    if not text.strip():
        return []
    limit = tokens * QUARTERS_PER_TOKEN
    if len(text) * QUARTERS_PER_TOKEN <= limit or size_of(text) <= limit:
        return [Chunk(text, 1, text.count("\n", 0, len(text) - 1) + 1, 0, len(text))]
    pieces = list(_pieces(text, limit))
    return [_join(text, group) for group in _groups(pieces, limit, min(overlap * QUARTERS_PER_TOKEN, limit // 2))]


def size_of(text: str) -> int:
    """How long a text is, in quarters of a token."""
    if text.isascii():
        return len(text)
    pieces = (text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS))
    return len(text) + (QUARTERS_PER_TOKEN - 1) * sum(len(_CJK_CHARACTER.findall(piece)) for piece in pieces)


def _pieces(text: str, limit: int) -> Iterator[_Piece]:
    start, fence = 0, None
    for number, line in enumerate(lines_of(text), 1):
        opens_section = fence is None and HEADING.match(line) is not None
        fence = fence_after(line, fence)
        for left, right in split_line(line, limit):
            size = size_of(line[left:right])
            yield _Piece(start + left, start + right, number, size, opens_section and left == 0)
        start += len(line)


def lines_of(text: str) -> Iterator[str]:
    """The lines as editors count them: only a newline ends one."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end + 1]
        start = end + 1
    if start < len(text):
        yield text[start:]


def fence_after(line: str, fence: str | None) -> str | None:
    """The code fence that is open after this line."""
    found = _FENCE.match(line)
    if not found:
        return fence
    if fence is None:
        return found[1]
    closes = found[1][0] == fence[0] and len(found[1]) >= len(fence) and not line[found.end() :].strip()
    return None if closes else fence


def split_line(line: str, limit: int) -> Iterator[tuple[int, int]]:
    """Where to cut a line so that no part is longer than `limit`."""
    start = 0
    while len(line) - start > limit // QUARTERS_PER_TOKEN and size_of(line[start : start + limit + 1]) > limit:
        end = _last_fit(line, start, limit)
        yield start, end
        start = end
    yield start, len(line)


def _last_fit(line: str, start: int, limit: int) -> int:
    """The end of the longest part that fits, after a space where one is near, never inside a character."""
    end, size = start, 0
    while end < len(line) and size < limit:
        size += QUARTERS_PER_TOKEN if _CJK_CHARACTER.match(line[end]) else 1
        end += size <= limit
    space = line.rfind(" ", start + (end - start) * 3 // 4, end)
    if space > start:
        return space + 1
    whole = end
    while whole > start + 1 and _continues(line[whole]):
        whole -= 1
    return whole if whole > start + 1 else end


def _continues(character: str) -> bool:
    """Whether this character belongs to the one before it, as seen by a reader."""
    return character in _JOINERS or unicodedata.combining(character) != 0 or unicodedata.category(character) == "Mn"


def _groups(pieces: list[_Piece], limit: int, overlap: int) -> Iterator[list[_Piece]]:
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        at_section = piece.opens_section and size >= limit // 2
        if group and (at_section or size + piece.size > limit):
            yield group
            group = [] if at_section else _tail(group, min(overlap, limit - piece.size))
            size = sum(part.size for part in group)
        group.append(piece)
        size += piece.size
    yield group


def _tail(group: list[_Piece], room: int) -> list[_Piece]:
    """The last pieces of a chunk that fit into `room`, to begin the next one with; never all of them."""
    taken, size = len(group), 0
    while taken > 1 and size + group[taken - 1].size <= room:
        taken -= 1
        size += group[taken].size
    return group[taken:]


def _join(text: str, group: list[_Piece]) -> Chunk:
    first, last = group[0], group[-1]
    return Chunk(text[first.start : last.end], first.line, last.line, first.start, last.end)
