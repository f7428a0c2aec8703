"""Words of texts and queries: additional forms that make a text searchable, and the words of a query."""

import re
import unicodedata
from functools import lru_cache

from clankersd.index.chunker import CJK, has_cjk
from clankersd.index.function_words import FUNCTION_WORDS, find_language

MAX_QUERY_WORDS, LAST_QUERY_WORDS = 64, 24
MAX_QUERY_CHARS = 10_000
"""Words and characters of a query that are used. Of a longer one, such as a pasted log, the end counts as well: a stack
trace names its cause there."""

MAX_WORDS_WITH_NUMBERS = 16
"""Numbers are dropped from a query of more words if it looks like a log or a stack trace: its line numbers, times and
addresses say nothing. In prose, a number or a hash is often the rarest word."""

MIN_NUMBER_SHARE = 0.25
MIN_NUMBERED_LINES, MIN_NUMBERED_LINE_SHARE = 4, 0.3
"""A query looks like a log if so large a part of its words are numbers, or if numbers are in so many of its lines."""

WORD = re.compile(r"\w+")
CJK_CHARACTER = re.compile(f"[{CJK}]")
# A letter and its accents, a kana and its mark, or the jamo of a Hangul syllable. There may be any number of accents.
_DECOMPOSED = re.compile(
    "\\w[\u0300-\u036f]{1,4}|[\u3040-\u30ff][\u3099\u309a]|[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?"
)
_DECOMPOSED_BYTES = (b"\xcc", b"\xcd", b"\xe3\x82\x99", b"\xe3\x82\x9a", b"\xe1\x85")
"""First bytes, in UTF-8, of the characters that follow the first one in a decomposed letter."""
_CAMEL_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
# A capital after a small letter, or several before one; written so that a text without any is rejected quickly.
_HUMP = re.compile(r"[A-Z](?:(?<=[a-z][A-Z])|[A-Z]+[a-z])")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]+|(?=[a-f]*\d)[0-9a-f]{8,}")
_CJK_RUN = re.compile(f"[{CJK}]+")
_SPACES_AND_OTHERS = bytes(ord(" " if chr(code).isspace() else "x") for code in range(256))
"""Translation of ASCII text: white space into spaces, everything else into an x."""
_CASES = (
    b"".join(
        b"A" if letter.isupper() else b"a" if letter.islower() else b" " if letter.isspace() else b"."
        for letter in map(chr, range(128))
    )
    + b"." * 128
)
"""Translation of UTF-8: capitals into an A, small letters into an a, white space into a space, the rest into dots."""
_LIST_MARKER = re.compile(r"\s*\d{1,3}[.)]\s")

# "may" is missing because it is a month as well. The tokenizer splits "don't" and "it's", so their parts are listed.
STOP_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below between
    both but by can could did do does doing done down during each else ever few for from further get gets getting got
    had has have having he her here hers herself him himself his how i if in into is it its itself just kind let like
    likely lot many me might more most much must my myself no nor not now of off on once one only or other our ours
    ourselves out over own same shall she should so some such than that the their theirs them themselves then there
    these they thing things this those through to too under until up us very was we were what when where which while
    who whom whose why will with would yes you your yours yourself yourselves
    d ll m re s t ve don didn doesn isn wasn""".split()  # noqa: SIM905  # as a text it can be read
)


def count_words(text: str) -> int:
    """Estimate the number of words in a text; a CJK character counts as one."""
    if text.isascii():  # counted without a list of them, which takes three times as long
        return max(1, (b" " + text.encode()).translate(_SPACES_AND_OTHERS).count(b" x"))
    cjk_count = sum(map(len, _CJK_RUN.findall(text))) if has_cjk(text) else 0
    return max(1, len(text.split()) + cjk_count)


def compose(text: str) -> str:
    """Return a text with each letter and its accents as one character; macOS writes them as several in file names."""
    if text.isascii():
        return text
    data = text.encode("utf-8", "surrogatepass")
    if not any(part in data for part in _DECOMPOSED_BYTES):
        return text
    return _DECOMPOSED.sub(lambda match: unicodedata.normalize("NFC", match[0]), text)


def other_forms(text: str) -> str:
    """Return additional words to index a text by.

    They are the parts of camelCase names, unigrams and bigrams of CJK text, and composed forms of decomposed words,
    which queries are made of.
    """
    forms: dict[str, None] = {}
    composed = compose(text)
    if composed != text:
        decomposed = set(WORD.findall(text))
        forms.update((word.lower(), None) for word in WORD.findall(composed) if word not in decomposed)
        text = composed
    for word in WORD.findall(text if has_cjk(text) else _parts_with_hump(text)):
        if word.isascii() and not _HUMP.search(word):
            continue
        runs = _CJK_RUN.findall(word)
        for run in runs:
            forms.update(dict.fromkeys(run))
            forms.update((run[start : start + 2], None) for start in range(len(run) - 1))
        rest = _CJK_RUN.sub(" ", word).replace("_", " ")
        if runs:
            forms.update(dict.fromkeys(rest.lower().split()))
        if _HUMP.search(rest):
            forms.update((part.lower(), None) for part in _CAMEL_PART.findall(rest))
    return " ".join(forms)


def _parts_with_hump(text: str) -> str:
    """Return the parts of a text between spaces in which `_HUMP` may match: found as bytes, in a tenth of the time."""
    data = text.encode("utf-8", "surrogatepass")
    cases = data.translate(_CASES)
    parts: list[bytes] = []
    for hump in (b"aA", b"AAa"):
        at = cases.find(hump)
        while at >= 0:
            end = cases.find(b" ", at)
            end = end if end >= 0 else len(data)
            parts.append(data[cases.rfind(b" ", 0, at) + 1 : end])
            at = cases.find(hump, end)
    return b" ".join(parts).decode("utf-8", "surrogatepass")


def query_words(query: str) -> list[str]:
    """Return the words of a query in their order, without stop words unless there are no others.

    Names in a path and parts of snake_case and camelCase names are words of their own; CJK text is split into bigrams.
    Of more than MAX_QUERY_WORDS words, the first and the last are returned. Numbers in a pasted log are left out.
    """
    words, _ = _distinct_words(searched_part(query))
    if len(words) > MAX_QUERY_WORDS:
        words = words[: MAX_QUERY_WORDS - LAST_QUERY_WORDS] + words[-LAST_QUERY_WORDS:]
    return list(words)


def describe_dropped_words(query: str) -> str | None:
    """Return a note about the words of a query that are not searched for; None if all are."""
    if len(query) < 2 * MAX_WORDS_WITH_NUMBERS:  # words have at least one character, and something between them
        return None
    words, number_count = _distinct_words(searched_part(query))
    notes = []
    if len(query) > MAX_QUERY_CHARS:
        notes.append(f"of {len(query):,} characters the first and last {MAX_QUERY_CHARS // 2:,} were read")
    if number_count:
        numbers = "1 number was" if number_count == 1 else f"{number_count:,} numbers were"
        notes.append(f"{numbers} left out, since the query looks like a log")
    if len(words) > MAX_QUERY_WORDS:
        first = MAX_QUERY_WORDS - LAST_QUERY_WORDS
        notes.append(f"of {len(words):,} words the first {first} and the last {LAST_QUERY_WORDS} were searched for")
    return "; ".join(notes) or None


def query_language(query: str) -> str | None:
    """Return the code of the language of a query, by its function words; None for English, or if it cannot be told."""
    return find_language([word.lower() for word in WORD.findall(compose(searched_part(query)))], STOP_WORDS)


def searched_part(query: str) -> str:
    """Return the part of a query that is searched for by keyword: all of it, or both ends of a very long one."""
    if len(query) <= MAX_QUERY_CHARS:
        return query
    return f"{query[: MAX_QUERY_CHARS // 2]} {query[-MAX_QUERY_CHARS // 2 :]}"


@lru_cache(maxsize=4)  # a search splits its query several times
def _distinct_words(text: str) -> tuple[tuple[str, ...], int]:
    """Return the distinct words of a query that can be searched for, and how many numbers were left out."""
    text = compose(text.replace("\x00", " "))
    words: dict[str, None] = {}
    for word in WORD.findall(text):
        runs = _CJK_RUN.findall(word)
        forms = [run[start : start + 2] for run in runs for start in range(max(len(run) - 1, 1))]
        rest = _CJK_RUN.sub(" ", word) if runs else word
        forms += rest.replace("_", " ").lower().split()
        if _HUMP.search(rest):
            forms += [part.lower() for part in _CAMEL_PART.findall(rest)]
        words.update(dict.fromkeys(forms))
    language = find_language(words, STOP_WORDS)
    empty = STOP_WORDS | FUNCTION_WORDS[language] if language else STOP_WORDS
    chosen = tuple(word for word in words if word not in empty) or tuple(words)
    if len(chosen) <= MAX_WORDS_WITH_NUMBERS:
        return chosen, 0
    without_numbers = tuple(word for word in chosen if not _NUMBER.fullmatch(word))
    number_count = len(chosen) - len(without_numbers)
    if not without_numbers or not number_count or not _looks_like_log(text, number_count / len(chosen)):
        return chosen, 0
    return without_numbers, number_count


def _looks_like_log(text: str, number_share: float) -> bool:
    """Return whether a text is a log or a stack trace rather than prose, given the share of numbers in its words."""
    if number_share >= MIN_NUMBER_SHARE:
        return True
    lines = [_LIST_MARKER.sub("", line, count=1) for line in text.lower().splitlines() if line.strip()]
    numbered = sum(any(_NUMBER.fullmatch(word) for word in WORD.findall(line.replace("_", " "))) for line in lines)
    return numbered >= MIN_NUMBERED_LINES and numbered >= MIN_NUMBERED_LINE_SHARE * len(lines)
