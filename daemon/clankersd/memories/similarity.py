"""Whether two texts say the same: a hash of what they say, and how many of their words they share.

A simhash alone is neither safe nor sufficient: "port 8080" and "port 9090" are a few bits apart. So it only finds
candidates; words decide, and a number, a negation or an order of words that differs makes a difference.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator

from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.tokenize import WORD

QUARTER = 16
SAME_WORDS = 0.8
"""The share of words that two texts have in common when they say the same."""

ORDER_MATTERS = 30
"""Words. In a text up to so long their order is part of what it says."""

_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff]")
_NEGATION = re.compile("not?|never|none|nothing|without|neither|nor|cannot|(do|does|did|is|are|wo|ca|must|should)nt")
_APOSTROPHE = re.compile(r"['’]")


def content_hash(text: str) -> str:
    """The same for texts that differ only in case and spacing."""
    return hashlib.sha256(" ".join(_plain(text).split()).encode()).hexdigest()


def words(text: str) -> list[str]:
    """The words of a text as they are compared; ideographs one by one."""
    found = []
    for word in WORD.findall(_APOSTROPHE.sub("", _plain(text))):
        found += list(word) if _IDEOGRAPH.search(word) else [word]
    return found


def simhash(text: str) -> int | None:
    """64 bits, of which like texts share most; None for a text without words, which is like nothing."""
    features = words(text)
    if not features:
        return None
    digests = b"".join(hashlib.blake2b(feature.encode(), digest_size=8).digest() for feature in features)
    np = numpy_if_available()
    if np is None:
        return _majority_bits(digests, len(features))
    bits = np.unpackbits(np.frombuffer(digests, np.uint8).reshape(-1, 8), axis=1)
    return int.from_bytes(np.packbits(bits.sum(axis=0) * 2 > len(features)).tobytes(), "big")


def _majority_bits(digests: bytes, count: int) -> int:
    """Set each bit that most of the 8-byte digests have set; numpy does the same, faster."""
    numbers = [int.from_bytes(digests[at : at + 8], "big") for at in range(0, len(digests), 8)]
    return sum(1 << bit for bit in range(64) if sum(number >> bit & 1 for number in numbers) * 2 > count)


def distance(one: int, other: int) -> int:
    """In how many bits two hashes differ."""
    return (one ^ other).bit_count()


def max_distance(length: int) -> int:
    """How many bits two texts of about this length may differ in to be looked at."""
    return 2 if length < 50 else 3 if length < 200 else 4 if length < 500 else 5


def quarters(value: int) -> tuple[int, int, int, int]:
    """The hash in four parts: of two hashes up to 3 bits apart, one part at least is the same."""
    return tuple(value >> (QUARTER * part) & 0xFFFF for part in range(4))  # type: ignore[return-value]


def probes(quarter: int, apart: int) -> Iterator[int]:
    """The values of a quarter to look up: itself, and for hashes up to 7 bits apart each with one bit changed."""
    yield quarter
    if apart > 3:
        for bit in range(QUARTER):
            yield quarter ^ (1 << bit)


def overlap(one: str, other: str) -> float:
    """The share of words that two texts have in common."""
    first, second = set(words(one)), set(words(other))
    return len(first & second) / len(first | second) if first and second else 0.0


def differs_in_substance(one: str, other: str) -> bool:
    """Whether two texts that look alike differ in what matters: a number, a negation, the order of few words."""
    first, second = words(one), words(other)
    apart = set(first) ^ set(second)
    if any(_NEGATION.fullmatch(word) or any(letter.isdigit() for letter in word) for word in apart):
        return True
    return not apart and len(first) <= ORDER_MATTERS and first != second


def is_near_duplicate(one: str, other: str) -> bool:
    """Whether two texts say the same in nearly the same words."""
    return overlap(one, other) >= SAME_WORDS and not differs_in_substance(one, other)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text.strip()).casefold()
