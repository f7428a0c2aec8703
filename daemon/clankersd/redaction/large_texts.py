"""Redact large texts piece by piece.

A search for secrets in tens of megabytes would hold the interpreter lock for seconds. A text is split where no secret
can lie across the split: between lines, outside blocks that are redacted entirely, and only where redacting the two
sides gives the same as redacting both together.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from clankersd.db.commit_priority import yield_to_commits

Redact = Callable[[str], tuple[str, dict[str, int]]]

PIECE_CHARACTERS = 128 * 1024
LARGE_TEXT_CHARACTERS = 2 * PIECE_CHARACTERS
CONTEXT_CHARACTERS = 2048
MAX_SPLITS_TRIED = 20
"""Places tried for a split before the piece is made longer."""

_BLOCK_EDGE = re.compile(r"<private[>\s]|</private[>\s]|-----BEGIN|-----END", re.IGNORECASE)


def redact_in_pieces(text: str, redact: Redact) -> tuple[str, dict[str, int]]:
    """Redact `text` with `redact`, which is called for pieces of it."""
    counts: Counter[str] = Counter()
    clean: list[str] = []
    for piece in split_between_secrets(text, redact):
        yield_to_commits()
        redacted, piece_counts = redact(piece)
        clean.append(redacted)
        counts.update(piece_counts)
    return "".join(clean), dict(counts)


def split_between_secrets(text: str, redact: Redact) -> Iterator[str]:
    """Split a text into pieces of about PIECE_CHARACTERS; longer ones where it cannot be split."""
    start, length = 0, PIECE_CHARACTERS
    open_block = False
    searched_to = 0
    while len(text) - start > length:
        for edge in _BLOCK_EDGE.finditer(text, searched_to, start + length):
            open_block = not edge[0].startswith("</") and edge[0].upper() != "-----END"
        searched_to = start + length
        split = None if open_block else _find_split(text, start + length, redact)
        if split is None:
            length += PIECE_CHARACTERS
            continue
        yield text[start:split]
        start, searched_to, length = split, split, PIECE_CHARACTERS
    yield text[start:]


def _find_split(text: str, before: int, redact: Redact) -> int | None:
    """Return the last place before `before` where the text may be split."""
    least = before - PIECE_CHARACTERS // 2
    for separator in ("\n", " "):
        end = before
        for _ in range(MAX_SPLITS_TRIED):
            position = text.rfind(separator, least, end)
            if position < 0:
                break
            if _is_between_secrets(text, position + 1, redact):
                return position + 1
            end = position
    return before if _is_between_secrets(text, before, redact) else None


def _is_between_secrets(text: str, split: int, redact: Redact) -> bool:
    """Tell whether no secret lies across the split."""
    left, right = text[max(0, split - CONTEXT_CHARACTERS) : split], text[split : split + CONTEXT_CHARACTERS]
    return redact(left)[0] + redact(right)[0] == redact(left + right)[0]
