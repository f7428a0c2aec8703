"""Snippets: the part of a text where most of the query stands, with what matched between « and »."""

import re

LENGTH = 300
MARK, UNMARK = "«", "»"

_WORD = re.compile(r"\w+")


def snippet(text: str, stems: set[str], stem_of: "dict[str, str] | None" = None) -> str:
    """About LENGTH characters of `text` around its densest matches, on one line."""
    hits = [match.span() for match in _WORD.finditer(text) if _matches(match[0], stems)]
    start = _best_start(hits, len(text))
    end = min(start + LENGTH, len(text))
    start, end = _to_words(text, start, end)
    shown = _marked(text, start, end, hits)
    return ("… " if start else "") + " ".join(shown.split()) + (" …" if end < len(text) else "")


def _matches(word: str, stems: set[str]) -> bool:
    folded = word.casefold()
    return any(folded.startswith(stem) and len(folded) - len(stem) <= 4 for stem in stems)  # noqa: PLR2004


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
