"""Find values that are recognised by the text around them, by the rules `CONTEXTS`."""

import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from clankersd.redaction.checks import CHECKS, Check, is_reference
from clankersd.redaction.lazy_pattern import LazyPattern
from clankersd.redaction.rules import CONTEXTS
from clankersd.redaction.secret import Secret


class _Context(NamedTuple):
    pattern: LazyPattern
    check: Check
    kind: str


def _contexts_by_anchor() -> dict[bytes, list[_Context]]:
    """Group the rules by anchor, each on its own: a pattern that begins with a literal is searched much faster."""
    by_anchor: dict[bytes, list[_Context]] = {}
    for rule in CONTEXTS:
        for anchor in rule.anchors:
            escaped = re.escape(anchor)
            before = f"(?<!{rule.unless_after}{escaped})" if rule.unless_after else ""
            pattern = LazyPattern(f"{escaped}{before}{rule.pattern}".encode(), re.M)
            by_anchor.setdefault(anchor.encode(), []).append(_Context(pattern, CHECKS[rule.check], rule.kind))
    return by_anchor


def _make_automaton(anchors: Iterable[bytes]) -> Any:
    """Return an Aho-Corasick automaton, which finds all anchors in one pass; None where its library is missing.

    It works on characters: decoded as Latin-1, each is a byte.
    """
    try:
        automaton = importlib.import_module("ahocorasick").Automaton()
    except Exception:  # missing, or built for another processor
        return None
    for number, anchor in enumerate(anchors):
        automaton.add_word(anchor.decode("latin-1"), number)
    automaton.make_automaton()
    return automaton


_BY_ANCHOR = _contexts_by_anchor()
_ANCHORS = list(_BY_ANCHOR)
_AUTOMATON = _make_automaton(_ANCHORS)


def find_in_context(data: bytes, lowered: bytes) -> Iterator[Secret]:
    """Find values by their context: a rule is applied if one of its anchors occurs."""
    for anchor in _find_anchors(lowered):
        for context in _BY_ANCHOR[anchor]:
            yield from _match_context(context, data, lowered)


def _find_anchors(lowered: bytes) -> list[bytes]:
    """Return the anchors that occur in a text, in the order of the rules."""
    if _AUTOMATON is None:
        return [anchor for anchor in _ANCHORS if anchor in lowered]
    return [_ANCHORS[number] for number in sorted({number for _, number in _AUTOMATON.iter(lowered.decode("latin-1"))})]


def _match_context(context: _Context, data: bytes, lowered: bytes) -> Iterator[Secret]:
    for match in context.pattern.get().finditer(lowered):
        start, end = match.span(1)
        if end - start and not is_reference(data, start) and context.check(data[start:end], data, start):
            yield Secret(start, end, context.kind)
