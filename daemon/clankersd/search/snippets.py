"""Snippets: the part of a text where most of the query stands, with what matched between « and »."""

import re
import unicodedata

from clankersd.index.chunker import CJK

LENGTH = 300
SHORT = 2
MARK, UNMARK = "«", "»"

_CJK_WORD = re.compile(f"[{CJK}]")


def snippet(text: str, stems: set[str]) -> str:
    """About LENGTH characters of `text` around its densest matches, on one line."""
    hits = [match.span() for match in _pattern(stems).finditer(_without_accents(text))] if stems else []
    start = _best_start(hits, len(text))
    end = min(start + LENGTH, len(text))
    start, end = _to_words(text, start, end)
    shown = _marked(text, start, end, hits)
    return ("… " if start else "") + " ".join(shown.split()) + (" …" if end < len(text) else "")


def _pattern(stems: set[str]) -> re.Pattern[str]:
    """Words that begin with a stem and are little longer, and CJK wherever it stands."""
    cjk = [re.escape(stem) for stem in stems if _CJK_WORD.search(stem)]
    words = [_beginning(_without_accents(stem)) for stem in stems if not _CJK_WORD.search(stem)]
    alternatives = [rf"(?<!\w)(?:{'|'.join(sorted(words))})(?!\w)"] if words else []
    return re.compile("|".join(alternatives + sorted(cjk, key=len, reverse=True)), re.IGNORECASE)


def _beginning(stem: str) -> str:
    """The stem of "flaky" is "flaki": a last i may have been a y. Very short words have no endings."""
    begins = re.escape(stem[:-1]) + "[iy]" if stem.endswith("i") else re.escape(stem)
    return begins + (r"\w{0,4}" if len(stem) > SHORT else "")


def _without_accents(text: str) -> str:
    """As the index has it, letter for letter, so that places stay what they are."""
    return text if text.isascii() else "".join(unicodedata.normalize("NFD", letter)[0] for letter in text)


def _best_start(hits: list[tuple[int, int]], length: int) -> int:
    """Where to begin so that most hits are inside."""
    if not hits or length <= LENGTH:
        return 0
    best, most, last = hits[0][0], 0, 0
    for first, (begin, _) in enumerate(hits):
        last = max(last, first)
        while last < len(hits) and hits[last][1] <= begin + LENGTH - 40:
            last += 1
        if last - first > most:
            best, most = begin, last - first
    return max(0, min(best - 40, length - LENGTH))


def _to_words(text: str, start: int, end: int) -> tuple[int, int]:
    if start and (space := text.find(" ", start, start + 20)) >= 0:
        start = space + 1
    if end < len(text) and (space := text.rfind(" ", end - 20, end)) >= 0:
        end = space
    return start, end


def _marked(text: str, start: int, end: int, hits: list[tuple[int, int]]) -> str:
    parts, at = [], start
    for begin, finish in hits:
        if begin >= start and finish <= end:
            parts += [text[at:begin], MARK, text[begin:finish], UNMARK]
            at = finish
    return "".join([*parts, text[at:end]])
