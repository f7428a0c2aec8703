"""Find tokens that are recognised by their own form, also if they are wrapped over several lines."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from clankersd.redaction.anchors import Anchors
from clankersd.redaction.checks import HEX, is_mixed, is_random, is_token
from clankersd.redaction.lazy_pattern import LazyPattern
from clankersd.redaction.rules import TOKENS, Token
from clankersd.redaction.secret import Secret

_RUN_CHARACTERS = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-" else 32 for byte in range(256))
_REGION_CHARACTERS = bytes(
    97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-.+/~:$%=" else 32 for byte in range(256)
)
_RUN = b"a" * 16
"""Shortest run of the characters A-Za-z0-9_- in a token."""

MAX_TOKEN_BYTES = 4096
MIN_GENERIC_BYTES, MAX_GENERIC_BYTES = 25, 512
MIN_INFIXED_BYTES = 32
"""No token with its anchor inside is shorter."""

_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f][0-9A-Fa-f])|(?<=\\u[0-9a-fA-F]{4}))"
_PREFIXED = [rule for rule in TOKENS if rule.anchor and not rule.before]
_INFIXED = [rule for rule in TOKENS if not rule.anchor or rule.before]


def _pattern_of(rule: Token) -> LazyPattern:
    return LazyPattern((_START + rule.before + re.escape(rule.anchor) + rule.after).encode())


_BY_ANCHOR: dict[bytes, list[tuple[LazyPattern, str]]] = {}
for _rule in _PREFIXED:
    _BY_ANCHOR.setdefault(_rule.anchor.encode(), []).append((_pattern_of(_rule), _rule.kind))
_ANCHOR = LazyPattern(
    _START.encode() + b"(?=(" + b"|".join(re.escape(each) for each in sorted(_BY_ANCHOR, key=len, reverse=True)) + b"))"
)
_SHORTER = {
    anchor: [rule for other, rules in _BY_ANCHOR.items() if anchor.startswith(other) for rule in rules]
    for anchor in _BY_ANCHOR
}
"""The rules to try where an anchor is found: its own, and those of anchors that it begins with."""

_INFIXES = [(rule.anchor.encode(), _pattern_of(rule), rule.kind) for rule in _INFIXED]
_FREQUENT_INFIXES = (b"", b".")
_ANCHORS = Anchors({*_BY_ANCHOR, *(infix for infix, _, _ in _INFIXES)}.difference(_FREQUENT_INFIXES))
_GENERIC = re.compile(
    _START.encode()
    + rb"[a-zA-Z][a-zA-Z0-9]{0,9}(?:[_-][a-zA-Z0-9]{1,10}){0,2}?[_-]"
    + rb"(?:pat|token|tok|key|apikey|secret|sk|live|prod|auth|access|api)[_-](?:v\d[_-])?"
    + rb"([A-Za-z0-9]{20,})(?![A-Za-z0-9])"
)
"""A vendor's token that no rule knows: `acme_live_...`, `foo-pat-...`."""


def find_tokens(data: bytes) -> Iterator[Secret]:
    """Find tokens. Only places with a long run of letters and digits are searched, and only their beginning."""
    runs = data.translate(_RUN_CHARACTERS)
    at = runs.find(_RUN)
    if at < 0:
        return
    regions = data.translate(_REGION_CHARACTERS)
    places = _ANCHORS.find(data)
    anchors = sorted({place for anchor in places.keys() & _BY_ANCHOR.keys() for place in places[anchor]})
    infixes = [each for each in _INFIXES if each[0] in places or each[0] in _FREQUENT_INFIXES]
    while at >= 0:
        start = regions.rfind(b" ", max(0, at - MAX_TOKEN_BYTES), at) + 1
        start = max(start, at - MAX_TOKEN_BYTES)
        stop = regions.find(b" ", at)
        stop = stop if stop >= 0 else len(data)
        end = min(stop, at + MAX_TOKEN_BYTES)
        yield from _prefixed_tokens(data, anchors[bisect_left(anchors, start) : bisect_left(anchors, end)], end)
        yield from _other_tokens(data, start, end, infixes)
        at = runs.find(_RUN, stop)


def _prefixed_tokens(data: bytes, anchors: list[int], end: int) -> Iterator[Secret]:
    """Find tokens that begin with an anchor: at these places of a region, which ends at `end`."""
    done = 0
    for at in anchors:
        if at < done or (anchor := _ANCHOR.get().match(data, at, end)) is None:
            continue  # part of a run that was examined, or inside a word
        for rule, kind in _SHORTER[anchor[1]]:
            pattern = rule.get()
            match = pattern.match(data, anchor.start(), anchor.start() + MAX_TOKEN_BYTES)
            done = max(done, match.end() if match else 0)
            if found := _token_at(data, pattern, match, anchor.start(), len(anchor[1])):
                done = max(done, found[1])
                yield Secret(*found, kind)
                break


def _other_tokens(data: bytes, start: int, end: int, infixes: list[tuple[bytes, LazyPattern, str]]) -> Iterator[Secret]:
    """Find tokens in a region that have an anchor inside, or a form that many vendors use."""
    for infix, rule, kind in infixes if end - start >= MIN_INFIXED_BYTES else ():
        if data.find(infix, start, end) >= 0:
            for match in rule.get().finditer(data, start, end):
                if is_token(match[0], 0):
                    yield Secret(match.start(), match.end(), kind)
    if MIN_GENERIC_BYTES <= end - start < MAX_GENERIC_BYTES:
        for match in _GENERIC.finditer(data, start, end):
            if is_random(match[1]) or (HEX.fullmatch(match[1]) and is_mixed(match[1])):
                yield Secret(match.start(), match.end(), "api-key")


def _token_at(
    data: bytes, pattern: re.Pattern[bytes], match: re.Match[bytes] | None, start: int, prefix: int
) -> tuple[int, int] | None:
    """Return the span of a token that `match` found on one line, or that is wrapped over several."""
    if match and not is_token(match[0], prefix):
        return None
    if match and not WRAP.match(data, match.end()):
        return match.span()
    joined, places, ends = unwrap(data, start, bool(match))
    if len(ends) > 1 and (token := pattern.match(joined)) and is_token(token[0], prefix):
        line = bisect_right(places, token.end() - 1) - 1
        return start, ends[line] - (
            places[line + 1] - token.end() if line + 1 < len(places) else len(joined) - token.end()
        )
    return match.span() if match else None


WRAP = re.compile(rb"\\?(?:\r?\n|\\n)[ \t>|]{0,16}")
_LINE_PART = re.compile(rb"[A-Za-z0-9_.+/=~-]{1,512}+")
_LINE_END = re.compile(rb"[ \t]{0,3}\\?(?:\r?\n|\\n|[\"'`,;)\]}]|\Z)")
MIN_WRAPPED_BYTES, MAX_WRAPPED_LINES = 16, 120


def unwrap(data: bytes, start: int, complete: bool) -> tuple[bytes, list[int], list[int]]:
    """Join a wrapped token; returns the joined text, where each line begins in it, and where each ends in `data`.

    A line continues the one before if it holds nothing else. After a token that is `complete`, it must look random.
    """
    parts: list[bytes] = []
    places: list[int] = []
    ends: list[int] = []
    total, at = 0, start
    while len(parts) < MAX_WRAPPED_LINES and (part := _LINE_PART.match(data, at)):
        if parts:
            begins_token = _ANCHOR.get().match(data, part.start())
            if begins_token or not _LINE_END.match(data, part.end()) or (complete and not is_random(part[0])):
                break
        parts.append(part[0])
        places.append(total)
        ends.append(part.end())
        total += len(part[0])
        wrap = WRAP.match(data, part.end())
        if wrap is None or len(part[0]) < MIN_WRAPPED_BYTES:
            break
        at = wrap.end()
    return b"".join(parts), places, ends
