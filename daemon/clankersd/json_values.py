"""Count the values of a JSON text without decoding it: a small text may decode to very many objects."""

import re

STEP_BYTES = 1024 * 1024
"""Bytes looked at in one go: meanwhile no other thread runs."""

_SEPARATORS = (b",", b"[", b"{")
_END_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def estimate_values(body: bytes) -> int:
    """Count separators, those inside of strings too: quick, and never too few."""
    starts = range(0, len(body), STEP_BYTES)
    return sum(body.count(separator, start, start + STEP_BYTES) for start in starts for separator in _SEPARATORS)


def has_more_values_than(body: bytes, limit: int) -> bool:
    """Tell whether there are more separators outside of strings; stops as soon as that is clear."""
    count, position = 0, 0
    while True:
        quote = body.find(b'"', position)
        end = len(body) if quote < 0 else quote
        count += sum(body.count(separator, position, end) for separator in _SEPARATORS)
        if count > limit:
            return True
        closed = _END_OF_STRING.match(body, quote + 1) if quote >= 0 else None
        if closed is None:  # the end, or not JSON
            return False
        position = closed.end()
