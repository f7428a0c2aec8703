"""Find values that are recognised by the text around them, by the rules `CONTEXTS`."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from clankersd.redaction.checks import CHECKS, Check, is_reference
from clankersd.redaction.lazy_pattern import LazyPattern
from clankersd.redaction.rules import CONTEXTS
from clankersd.redaction.secret import Secret


class _Context(NamedTuple):
    pattern: LazyPattern
    check: Check
    kind: str


def _contexts_by_anchor() -> dict[bytes, list[_Context]]:
    """Group the rules by anchor; each pattern begins with its anchor."""
    by_anchor: dict[bytes, list[_Context]] = {}
    for rule in CONTEXTS:
        for anchor in rule.anchors:
            escaped = re.escape(anchor)
            before = f"(?<!{rule.unless_after}{escaped})" if rule.unless_after else ""
            pattern = LazyPattern(f"{escaped}{before}{rule.pattern}".encode(), re.M)
            by_anchor.setdefault(anchor.encode(), []).append(_Context(pattern, CHECKS[rule.check], rule.kind))
    return by_anchor


_BY_ANCHOR = _contexts_by_anchor()
ANCHORS = tuple(_BY_ANCHOR)
_ORDER = {anchor: number for number, anchor in enumerate(ANCHORS)}


def find_in_context(data: bytes, lowered: bytes, places: dict[bytes, list[int]]) -> Iterator[Secret]:
    """Find values by their context: the rules are tried where their anchors are."""
    for anchor in sorted(places.keys() & _ORDER.keys(), key=_ORDER.__getitem__):
        for context in _BY_ANCHOR[anchor]:
            pattern, done = context.pattern.get(), 0
            for at in places[anchor]:
                if at < done or (match := pattern.match(lowered, at)) is None:
                    continue
                done = match.end()
                start, stop = match.span(1)
                if stop - start and not is_reference(data, start) and context.check(data[start:stop], data, start):
                    yield Secret(start, stop, context.kind)
