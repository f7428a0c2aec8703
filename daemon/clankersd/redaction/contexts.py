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


_GATES = (
    b"</key>",
    b"cookie",
    b"credential",
    b"from-literal",
    b"variable",
    b".com/",
    b" -",
    b"$",
    b"pass",
    b"key",
    b"token",
    b"secret",
    b"sess",
    b"hooks",
    b"ldap",
    b"login",
    b"auth",
    b"user",
    b"set",
    b"(",
    b"",
)
"""Parts of many anchors: if a text has no such part, none of those anchors is searched for."""

_LETTERS = b"abcdefghijklmnopqrstuvwxyz \n"
"""Bytes of nearly every text. An anchor with other bytes, as `=` or `:`, is searched only in texts that have them."""

_Anchors = list[tuple[bytes, list[_Context]]]


def _gate_contexts() -> list[tuple[bytes, frozenset[int], list[tuple[frozenset[int], _Anchors]]]]:
    """Group the rules by gate, each anchor on its own: a pattern that begins with a literal is searched much faster.

    Returns for each gate the bytes beside letters that all of its anchors need, and the anchors by what they need.
    """
    by_anchor: dict[bytes, list[_Context]] = {}
    for rule in CONTEXTS:
        for anchor in rule.anchors:
            escaped = re.escape(anchor)
            before = f"(?<!{rule.unless_after}{escaped})" if rule.unless_after else ""
            pattern = LazyPattern(f"{escaped}{before}{rule.pattern}".encode(), re.M)
            by_anchor.setdefault(anchor.encode(), []).append(_Context(pattern, CHECKS[rule.check], rule.kind))
    gated: dict[bytes, dict[frozenset[int], _Anchors]] = {}
    for literal, contexts in by_anchor.items():
        groups = gated.setdefault(next(gate for gate in _GATES if gate in literal), {})
        groups.setdefault(frozenset(literal.translate(None, _LETTERS)), []).append((literal, contexts))
    return [(gate, frozenset.intersection(*groups), list(groups.items())) for gate, groups in gated.items()]


_CONTEXTS = _gate_contexts()


def find_in_context(data: bytes, lowered: bytes) -> Iterator[Secret]:
    """Find values by their context. An anchor is searched for only if its gate and its rarer bytes occur."""
    signs = frozenset(lowered.translate(None, _LETTERS))
    for gate, needed_by_all, groups in _CONTEXTS:
        if needed_by_all <= signs and gate in lowered:
            for needed, anchors in groups:
                if needed <= signs:
                    for anchor, contexts in anchors:
                        if anchor in lowered:
                            for context in contexts:
                                yield from _match_context(context, data, lowered)


def _match_context(context: _Context, data: bytes, lowered: bytes) -> Iterator[Secret]:
    for match in context.pattern.get().finditer(lowered):
        start, end = match.span(1)
        if end - start and not is_reference(data, start) and context.check(data[start:end], data, start):
            yield Secret(start, end, context.kind)
