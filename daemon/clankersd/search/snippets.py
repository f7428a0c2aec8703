"""Snippets: the part of a text with the most matches of the query, each match between « and »."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from clankersd.index.chunker import CJK
from clankersd.index.tokenize import CJK_CHARACTER

SNIPPET_CHARACTERS = 300
LEAD_CHARACTERS = 40
"""Characters shown before the first match and after the last one."""

WORD_SEARCH_CHARACTERS = 20
"""Distance by which a cut may move to fall between two words."""

MAX_UNINFLECTED_CHARACTERS = 2
"""Stems of at most this length only match the word itself: such short words have no endings."""

MARK, UNMARK = "«", "»"

# The index splits words at an underscore, and indexes parts of camelCase names and of CJK text in addition.
_LETTER = rf"[^\W_{CJK}]"
_HUMP = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])"
_WORD_START = rf"(?:(?<!{_LETTER})|{_HUMP})"
_WORD_END = rf"(?:(?!{_LETTER})|{_HUMP})"
_ENDING = rf"(?:[^\W_A-Z{CJK}]{{0,4}}|[A-Z]{{0,4}})"

_LATIN = [chr(code) for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))]
_PLAIN_LETTERS = {letter: unicodedata.normalize("NFD", letter)[0] for letter in _LATIN}
_ACCENTED = re.compile(f"[{''.join(letter for letter, plain in _PLAIN_LETTERS.items() if letter != plain)}]")


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
    plain = _without_accents(text)
    lower = _lower(plain)
    matches = _merge(sorted(span for stem in stems for span in _find(stem, plain, lower)))
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
    lower = _lower(plain)
    return [stem for stem in stems if next(_find(stem, plain, lower), None)]


def _find(stem: str, plain: str, lower: str) -> Iterator[tuple[int, int]]:
    """Find the spans of the words with a stem, and of CJK text anywhere.

    `plain` is the text without accents, `lower` the same in small letters. Most stems are not in most texts, which a
    search without a pattern finds out much sooner.
    """
    beginning, pattern = _matcher(stem)
    position = lower.find(beginning)
    while position >= 0:
        if pattern is None:
            yield position, position + len(beginning)
        elif match := pattern.match(plain, position):
            yield match.span()
        position = lower.find(beginning, position + 1)


@lru_cache(maxsize=1024)
def _matcher(stem: str) -> tuple[str, re.Pattern[str] | None]:
    """Return what a match begins with, and a pattern for words that begin with the stem and are little longer."""
    if CJK_CHARACTER.search(stem):
        return stem.lower(), None
    stem = _lower(_without_accents(stem))
    # The stem of "flaky" is "flaki": a final i may have been a y.
    beginning, last = (stem[:-1], "[iy]") if stem.endswith("i") and len(stem) > 1 else (stem, "")
    ending = _ENDING if len(stem) > MAX_UNINFLECTED_CHARACTERS else ""
    return beginning, re.compile(f"{_WORD_START}(?i:{re.escape(beginning)}{last}){ending}{_WORD_END}")


def _merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge spans that overlap, such as those of a name and of its parts; they are sorted."""
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without_accents(text: str) -> str:
    """Remove the accents that the index removes, those of Latin letters; positions stay the same."""
    return text if text.isascii() else _ACCENTED.sub(lambda match: _PLAIN_LETTERS[match[0]], text)


def _lower(plain: str) -> str:
    """Return a text without accents in small letters; positions stay the same."""
    return plain.lower().replace("ς", "σ")


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
