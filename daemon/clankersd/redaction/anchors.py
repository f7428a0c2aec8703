"""Anchors: literals that rules begin with. All of them are found in one pass, and rules are tried only there."""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any


class Anchors:
    """A set of literals, and where they occur in a text.

    An Aho-Corasick automaton finds them. Where its library is missing, or built for another processor, each literal is
    searched for by itself, which takes longer.
    """

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._literals = sorted(set(literals))
        self._automaton = self._make_automaton()

    def _make_automaton(self) -> Any:
        try:
            library = importlib.import_module("ahocorasick_rs")
        except Exception:  # missing, or built for another processor
            return None
        return library.BytesAhoCorasick(self._literals, implementation=library.Implementation.DFA)

    def find(self, data: bytes) -> dict[bytes, list[int]]:
        """Return where each of the literals begins in a text, in order; nothing for one that does not occur."""
        starts: dict[bytes, list[int]] = {}
        for number, start in self._find_all(data):
            starts.setdefault(self._literals[number], []).append(start)
        return starts

    def _find_all(self, data: bytes) -> list[tuple[int, int]]:
        """Return the number of each literal that occurs, and where it begins."""
        if self._automaton is not None:
            found = self._automaton.find_matches_as_indexes(data, overlapping=True)
            return [(number, start) for number, start, _ in found]
        return [(number, at) for number, literal in enumerate(self._literals) for at in _places_of(literal, data)]


def _places_of(literal: bytes, data: bytes) -> Iterator[int]:
    at = data.find(literal)
    while at >= 0:
        yield at
        at = data.find(literal, at + 1)
