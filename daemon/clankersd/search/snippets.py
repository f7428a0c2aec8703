"""Snippets: the part of a text with the most matches of the query, each match between « and »."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from clankersd.index.chunker import CJK
from clankersd.index.tokenize import CJK_CHARACTER, compose

SNIPPET_CHARACTERS = 300
LEAD_CHARACTERS = 40
"""Characters shown before the first match and after the last one."""

WORD_SEARCH_CHARACTERS = 20
"""Distance by which a cut may move to fall between two words."""

MAX_UNINFLECTED_CHARACTERS = 2
"""Stems of at most this length only match the word itself: such short words have no endings."""

REPETITION_WEIGHT = 0.1
"""Weight of a stem in an excerpt that has it already, beside 1 for the first time."""

ROUNDING_ERROR = 1e-6
NO_WEIGHTS: Mapping[str, float] = {}
MARK, UNMARK = "«", "»"

# The index splits words at an underscore, and indexes parts of camelCase names and of CJK text in addition.
_LETTER = rf"[^\W_{CJK}]"
_HUMP = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])"
_WORD_END = rf"(?:(?!{_LETTER})|{_HUMP})"
# Compiled once: a pattern for each stem would take milliseconds, because of the ranges of CJK characters.
_WORD_START = re.compile(rf"(?<!{_LETTER})|{_HUMP}")
_UNINFLECTED = re.compile(_WORD_END)
_INFLECTED = re.compile(rf"(?:[^\W_A-Z{CJK}]{{0,4}}|[A-Z]{{0,4}}){_WORD_END}")

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


def excerpt(
    text: str,
    stems: AbstractSet[str],
    max_characters: int = SNIPPET_CHARACTERS,
    weights: Mapping[str, float] = NO_WEIGHTS,
) -> Excerpt:
    """Choose at most `max_characters` of the text around the densest matches of the stems.

    `weights` are those of stems; one without a weight counts 1.
    """
    text = compose(text)
    plain = _without_accents(text)
    lower = _lower(plain)
    found = sorted((*span, stem) for stem in stems for span in _find(stem, plain, lower))
    matches = _merge(found)
    start = _densest_start(found, len(text), max_characters, weights)
    end = min(start + max_characters, len(text))
    if start and (space := text.find(" ", start, start + WORD_SEARCH_CHARACTERS)) >= 0:
        start = space + 1
    is_inside_word = end < len(text) and not text[end].isspace()
    if is_inside_word and (space := text.rfind(" ", end - WORD_SEARCH_CHARACTERS, end)) >= 0:
        end = space
    return Excerpt(text, start, end, [span for span in matches if span[0] >= start and span[1] <= end])


def count_matching_stems(text: str, stems: AbstractSet[str]) -> int:
    """Count the stems that occur in the text, by the same rules by which matches are marked."""
    return len(matching_stems(text, stems))


def matching_stems(text: str, stems: Iterable[str]) -> list[str]:
    """Return the stems that occur in the text."""
    plain = _without_accents(compose(text))
    lower = _lower(plain)
    return [stem for stem in stems if next(_find(stem, plain, lower), None)]


def _find(stem: str, plain: str, lower: str) -> Iterator[tuple[int, int]]:
    """Find the spans of the words with a stem, and of CJK text anywhere.

    `plain` is the text without accents, `lower` the same in small letters. Most stems are not in most texts, which a
    search without a pattern finds out much sooner.
    """
    beginning, last_letters, ending = _split_stem(stem)
    position = lower.find(beginning)
    while position >= 0:
        end = position + len(beginning)
        if ending is None:
            yield position, end
        elif not last_letters or lower[end : end + 1] in last_letters:
            end += len(last_letters[:1])
            if _WORD_START.match(plain, position) and (match := ending.match(plain, end)):
                yield position, match.end()
        position = lower.find(beginning, position + 1)


@lru_cache(maxsize=1024)
def _split_stem(stem: str) -> tuple[str, tuple[str, ...], re.Pattern[str] | None]:
    """Return what a match begins with, the letters of which one comes next, and a pattern for its ending.

    CJK text has no endings and begins anywhere: it has no pattern.
    """
    if CJK_CHARACTER.search(stem):
        return stem.lower(), (), None
    stem = _lower(_without_accents(stem))
    ending = _INFLECTED if len(stem) > MAX_UNINFLECTED_CHARACTERS else _UNINFLECTED
    if stem.endswith("i") and len(stem) > 1:  # the stem of "flaky" is "flaki": a final i may have been a y
        return stem[:-1], ("i", "y"), ending
    return stem, (), ending


def _merge(found: list[tuple[int, int, str]]) -> list[tuple[int, int]]:
    """Merge the spans of matches that overlap, such as those of a name and of its parts; they are sorted."""
    merged: list[tuple[int, int]] = []
    for start, end, _ in found:
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


def _densest_start(
    found: list[tuple[int, int, str]], length: int, max_characters: int, weights: Mapping[str, float]
) -> int:
    """Find the start of the window whose matches weigh most. Other stems count more than the same one again."""
    if not found or length <= max_characters:
        return 0
    lead = min(LEAD_CHARACTERS, max_characters // 5)
    counts: Counter[str] = Counter()
    best, best_weight, weight, last = found[0][0], 0.0, 0.0, 0
    for first, (start, _, first_stem) in enumerate(found):
        while last < len(found) and found[last][1] <= start + max_characters - lead:
            stem = found[last][2]
            weight += weights.get(stem, 1.0) * (REPETITION_WEIGHT if counts[stem] else 1.0)
            counts[stem] += 1
            last += 1
        if weight > best_weight + ROUNDING_ERROR:
            best, best_weight = start, weight
        if last == first:  # longer than the window
            last += 1
            continue
        counts[first_stem] -= 1
        weight -= weights.get(first_stem, 1.0) * (REPETITION_WEIGHT if counts[first_stem] else 1.0)
    return max(0, min(best - lead, length - max_characters))
