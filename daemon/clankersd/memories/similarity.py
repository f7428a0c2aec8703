"""Similarity of texts: near-duplicates by simhash, verified by their words.

A simhash alone is neither safe nor sufficient: "port 8080" and "port 9090" differ in a few bits. So it only finds
candidates. The words decide, and a differing number, negation or word order means that two texts differ.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator

from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.tokenize import STOP_WORDS, WORD
from clankersd.search.near_duplicates import changes_meaning

QUARTER_BITS = 16
MIN_SHARED_WORDS = 0.8
"""Share of words that near-duplicates have in common."""

MAX_ORDERED_WORDS = 30
"""Up to this many words, a text with the same words in another order differs."""

MAX_ENDING_LETTERS = 3

_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff]")
_APOSTROPHE = re.compile(r"['’]")


def content_hash(text: str) -> str:
    """Return a hash that ignores case and spacing."""
    return hashlib.sha256(" ".join(_normalize(text).split()).encode()).hexdigest()


def words(text: str) -> list[str]:
    """Split a text into normalized words; each ideograph is a word."""
    result = []
    for word in WORD.findall(_APOSTROPHE.sub("", _normalize(text))):
        result += list(word) if _IDEOGRAPH.search(word) else [word]
    return result


def simhash(text: str) -> int | None:
    """Return a 64-bit hash that differs little between similar texts; None for a text without words."""
    features = words(text)
    if not features:
        return None
    digests = b"".join(hashlib.blake2b(feature.encode(), digest_size=8).digest() for feature in features)
    np = numpy_if_available()
    if np is None:
        numbers = [int.from_bytes(digests[at : at + 8], "big") for at in range(0, len(digests), 8)]
        return sum(1 << bit for bit in range(64) if sum(number >> bit & 1 for number in numbers) * 2 > len(features))
    bits = np.unpackbits(np.frombuffer(digests, np.uint8).reshape(-1, 8), axis=1)
    return int.from_bytes(np.packbits(bits.sum(axis=0) * 2 > len(features)).tobytes(), "big")


def distance(one: int, other: int) -> int:
    """Return the number of bits in which two hashes differ."""
    return (one ^ other).bit_count()


def max_distance(length: int) -> int:
    """Return the bits in which the hashes of near-duplicates of about this many characters may differ."""
    if length < 50:
        return 2
    if length < 200:
        return 3
    return 4 if length < 500 else 5


def quarters(value: int) -> tuple[int, int, int, int]:
    """Split a hash into four parts; two hashes that differ in up to 3 bits share at least one."""
    return tuple(value >> (QUARTER_BITS * part) & 0xFFFF for part in range(4))  # type: ignore[return-value]


def probes(quarter: int, max_bits: int) -> Iterator[int]:
    """Yield the values of a quarter to look up: itself and, beyond 3 differing bits, each value with one bit flipped.

    Two hashes that differ in up to 7 bits have a quarter that differs in at most one.
    """
    yield quarter
    if max_bits > 3:
        for bit in range(QUARTER_BITS):
            yield quarter ^ (1 << bit)


def overlap(one: str, other: str) -> float:
    """Return the share of words that two texts have in common (Jaccard index)."""
    first, second = set(words(one)), set(words(other))
    return len(first & second) / len(first | second) if first and second else 0.0


def differs_in_substance(one: str, other: str) -> bool:
    """Check whether similar texts differ in a number, a negation or, if they are short, in word order."""
    first, second = words(one), words(other)
    unshared = set(first) ^ set(second)
    if changes_meaning(unshared):
        return True
    return not unshared and len(first) <= MAX_ORDERED_WORDS and first != second


def replaces_words(one: str, other: str) -> bool:
    """Check whether two texts are the same but for some words: one speaks of Tuesday, the other of Thursday.

    Words without a meaning of their own, and other forms of the same word, do not count.
    """
    if overlap(one, other) < MIN_SHARED_WORDS:
        return False
    first, second = set(words(one)), set(words(other))
    own, others = (first - second) - STOP_WORDS, (second - first) - STOP_WORDS
    return any(not any(_is_form_of(word, each) for each in others) for word in own) and any(
        not any(_is_form_of(word, each) for each in own) for word in others
    )


def _is_form_of(one: str, other: str) -> bool:
    """Check whether two words differ in their ending only: "job" and "jobs", "deploy" and "deployed"."""
    stem_letters = max(3, max(len(one), len(other)) - MAX_ENDING_LETTERS)
    return one[:stem_letters] == other[:stem_letters]


def is_near_duplicate(one: str, other: str) -> bool:
    """Check whether two texts say the same in nearly the same words."""
    return (
        overlap(one, other) >= MIN_SHARED_WORDS
        and not differs_in_substance(one, other)
        and not replaces_words(one, other)
    )


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFKC", text.strip()).casefold()
