"""Text without what a terminal does not show: a coloured token is still a token.

Programs colour what they print (`grep --color`, logs, test runners), so that escape sequences stand before, after and
inside of secrets. A web page or a chat may leave zero-width characters in what is copied from it.
"""

import re
from bisect import bisect_right

_ESCAPES = (b"\x1b", b"\\u001b", b"\\x1b", b"\\033", b"\\e[")
"""The escape character itself, and as JSON and programs write it, in small letters."""

_ZERO_WIDTH = tuple(map(str.encode, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))

_INVISIBLE = re.compile(
    rb"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e)"
    rb"(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]"  # a colour
    rb"|\]8;[^;\x07\x1b\n]{0,64};)"  # begin of a link
    rb"|\x1b[\\(][B0]?|\x07|" + b"|".join(_ZERO_WIDTH)  # end of a link, character set
)


ANCHORS = frozenset((*_ESCAPES, *_ZERO_WIDTH))


def has_invisible(data: bytes, places: dict[bytes, list[int]]) -> bool:
    """Tell whether the text has escape sequences of terminals or zero-width characters, by the anchors in it."""
    return not ANCHORS.isdisjoint(places) and _INVISIBLE.search(data) is not None


def blank_invisible(data: bytes) -> bytes:
    """Replace what is invisible by as many spaces."""
    return _INVISIBLE.sub(lambda found: b" " * len(found[0]), data)


class VisibleText:
    """A text without what is invisible, which knows where each byte was."""

    def __init__(self, data: bytes) -> None:
        pieces: list[bytes] = []
        self._starts: list[int] = []
        """Where each piece begins in `text`."""
        self._originals: list[int] = []
        """Where each piece begins in the original."""
        at = length = 0
        for start, end in [*(found.span() for found in _INVISIBLE.finditer(data)), (len(data), len(data))]:
            if start > at:
                pieces.append(data[at:start])
                self._starts.append(length)
                self._originals.append(at)
                length += start - at
            at = end
        self.text = b"".join(pieces)

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span in the original, without what is invisible around it."""
        return self._original(start), self._original(end - 1) + 1

    def _original(self, position: int) -> int:
        piece = bisect_right(self._starts, position) - 1
        return self._originals[piece] + position - self._starts[piece]
