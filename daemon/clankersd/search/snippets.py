"""Snippets: the part of a text with the most matches of the query, each match between « and »."""

import re
import unicodedata
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from clankersd.index.tokenize import CJK_CHARACTER

SNIPPET_CHARACTERS = 300
LEAD_CHARACTERS = 40
"""Characters shown before the first match and after the last one."""

WORD_SEARCH_CHARACTERS = 20
"""Distance by which a cut may move to fall between two words."""

MAX_UNINFLECTED_CHARACTERS = 2
"""Stems of at most this length only match the word itself: such short words have no endings."""

MARK, UNMARK = "«", "»"


@dataclass(frozen=True)
class Excerpt:
    """Part of a text, with the spans of the matches inside it."""

    source: str
    start: int
    end: int
    matches: list[tuple[int, int]]

    @property
    def marked(self) -> str:
        """The excerpt on one line, with its matches marked."""
        parts, position = [], self.start
        for start, end in self.matches:
            parts += [self.source[position:start], MARK, self.source[start:end], UNMARK]
            position = end
        return self._on_one_line("".join([*parts, self.source[position : self.end]]))

    @property
    def plain(self) -> str:
        """The excerpt on one line, without marks."""
        return self._on_one_line(self.source[self.start : self.end])

    def _on_one_line(self, text: str) -> str:
        before = "… " if self.start else ""
        after = " …" if self.end < len(self.source) else ""
        return before + " ".join(text.split()) + after


def snippet(text: str, stems: AbstractSet[str]) -> str:
    """Return about SNIPPET_CHARACTERS of the text around its densest matches, on one line, with matches marked."""
    return excerpt(text, stems).marked


def excerpt(text: str, stems: AbstractSet[str]) -> Excerpt:
    """Choose about SNIPPET_CHARACTERS of the text around the densest matches of the stems."""
    matches: list[tuple[int, int]] = []
    if stems:
        matches = [match.span() for match in _pattern(frozenset(stems)).finditer(_without_accents(text))]
    start = _densest_start(matches, len(text))
    end = min(start + SNIPPET_CHARACTERS, len(text))
    if start and (space := text.find(" ", start, start + WORD_SEARCH_CHARACTERS)) >= 0:
        start = space + 1
    if end < len(text) and (space := text.rfind(" ", end - WORD_SEARCH_CHARACTERS, end)) >= 0:
        end = space
    return Excerpt(text, start, end, [span for span in matches if span[0] >= start and span[1] <= end])


def count_matching_stems(text: str, stems: AbstractSet[str]) -> int:
    """Count the stems that occur in the text, by the same rules by which matches are marked."""
    return len(matching_stems(text, stems))


def matching_stems(text: str, stems: Iterable[str]) -> list[str]:
    """Return the stems that occur in the text."""
    plain = _without_accents(text)
    if not plain.isascii():
        return [stem for stem in stems if _pattern(frozenset([stem])).search(plain)]
    # Most stems are not in most texts, which a search without a pattern finds out much sooner.
    lower = plain.lower()
    return [
        stem
        for stem in stems
        if (stem[:-1] if stem.endswith("i") else stem).lower() in lower and _pattern(frozenset([stem])).search(plain)
    ]


@lru_cache(maxsize=1024)
def _pattern(stems: frozenset[str]) -> re.Pattern[str]:
    """Compile a pattern for words that begin with a stem and are little longer, and for CJK text anywhere."""
    cjk = [re.escape(stem) for stem in stems if CJK_CHARACTER.search(stem)]
    words = [_word_pattern(_without_accents(stem)) for stem in stems if not CJK_CHARACTER.search(stem)]
    alternatives = [rf"(?<!\w)(?:{'|'.join(sorted(words))})(?!\w)"] if words else []
    return re.compile("|".join(alternatives + sorted(cjk, key=len, reverse=True)), re.IGNORECASE)


def _word_pattern(stem: str) -> str:
    """Allow for endings. The stem of "flaky" is "flaki": a final i may have been a y."""
    pattern = re.escape(stem[:-1]) + "[iy]" if stem.endswith("i") else re.escape(stem)
    return pattern + (r"\w{0,4}" if len(stem) > MAX_UNINFLECTED_CHARACTERS else "")


def _without_accents(text: str) -> str:
    """Remove accents as the index does, character by character, so that positions stay the same."""
    return text if text.isascii() else "".join(unicodedata.normalize("NFD", letter)[0] for letter in text)


def _densest_start(matches: list[tuple[int, int]], length: int) -> int:
    """Find the start of the window that holds the most matches."""
    if not matches or length <= SNIPPET_CHARACTERS:
        return 0
    best, best_count, last = matches[0][0], 0, 0
    for first, (start, _) in enumerate(matches):
        last = max(last, first)
        while last < len(matches) and matches[last][1] <= start + SNIPPET_CHARACTERS - LEAD_CHARACTERS:
            last += 1
        if last - first > best_count:
            best, best_count = start, last - first
    return max(0, min(best - LEAD_CHARACTERS, length - SNIPPET_CHARACTERS))
