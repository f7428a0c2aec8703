"""Redact large texts piece by piece.

A search for secrets in tens of megabytes would keep the interpreter lock for seconds. A text is cut where no secret
can lie across the cut: between lines, outside blocks that are redacted as a whole, and only where redacting the two
sides gives the same as redacting both together.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator

Redact = Callable[[str], tuple[str, dict[str, int]]]

PIECE_CHARACTERS = 128 * 1024
LARGE_TEXT_CHARACTERS = 2 * PIECE_CHARACTERS
CONTEXT_CHARACTERS = 2048
MAX_CUTS_TRIED = 20
"""Cuts that are tried before the piece is made longer."""

_BLOCK_EDGE = re.compile(r"<private>|</private>|-----BEGIN|-----END", re.IGNORECASE)


def redact_in_pieces(text: str, redact: Redact) -> tuple[str, dict[str, int]]:
    """Redact `text` with `redact`, which is called for pieces of it."""
    counts: Counter[str] = Counter()
    clean: list[str] = []
    for piece in split_between_secrets(text, redact):
        redacted, found = redact(piece)
        clean.append(redacted)
        counts.update(found)
    return "".join(clean), dict(counts)


def split_between_secrets(text: str, redact: Redact) -> Iterator[str]:
    """Cut a text into pieces of about PIECE_CHARACTERS; longer ones where it cannot be cut."""
    start, wanted = 0, PIECE_CHARACTERS
    open_block = False
    seen = 0
    while len(text) - start > wanted:
        for edge in _BLOCK_EDGE.finditer(text, seen, start + wanted):
            open_block = not edge[0].startswith("</") and edge[0].upper() != "-----END"
        seen = start + wanted
        cut = None if open_block else _find_cut(text, start + wanted, redact)
        if cut is None:
            wanted += PIECE_CHARACTERS
            continue
        yield text[start:cut]
        start, seen, wanted = cut, cut, PIECE_CHARACTERS
    yield text[start:]


def _find_cut(text: str, before: int, redact: Redact) -> int | None:
    """The last place before `before` where the text may be cut."""
    least = before - PIECE_CHARACTERS // 2
    for separator in ("\n", " "):
        end = before
        for _ in range(MAX_CUTS_TRIED):
            found = text.rfind(separator, least, end)
            if found < 0:
                break
            if _divides(text, found + 1, redact):
                return found + 1
            end = found
    return before if _divides(text, before, redact) else None


def _divides(text: str, cut: int, redact: Redact) -> bool:
    """Whether nothing that is redacted lies across the cut."""
    left, right = text[max(0, cut - CONTEXT_CHARACTERS) : cut], text[cut : cut + CONTEXT_CHARACTERS]
    return redact(left)[0] + redact(right)[0] == redact(left + right)[0]
