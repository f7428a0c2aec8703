"""Find assigned values that are secrets by their name, or because they look random."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from clankersd.redaction.checks import (
    ATTRIBUTE,
    HEX_KEY,
    PATH,
    WORDS_WITH_NUMBERS,
    follows_type_name,
    has_irregular_case,
    is_camel_case,
    is_credential,
    is_mixed,
    is_own_name,
    is_placeholder,
    is_random,
    is_reference,
    is_word,
    looks_shuffled,
    reads_as_words,
)
from clankersd.redaction.lazy_pattern import LazyPattern
from clankersd.redaction.rules import NAMES
from clankersd.redaction.secret import Secret
from clankersd.redaction.tokens import WRAP, unwrap

_BINDING = (
    rb"(?:\\{0,7}[\"'`]?\]?\)?[ \t]{0,3}(?::[ \t]{0,2}[a-z_.]{2,20}(?:\[[a-z]{2,10}\])?(?:[ \t]?\|[ \t]?none)?"
    rb"[ \t]{0,2}=(?=[ \t]{0,2}[\"'])"
    rb"|=>|:=|\?=|==?(?!=)|:[ \t]{0,2}[|>][+-]?[ \t]{0,2}\n[ \t]{1,20}|:(?![:/]))[ \t]{0,3}(?:[bruf$@]{1,2}(?=[\"']))?"
    rb"|[ \t]{1,3}(?![a-z_]{1,40}=[^=\s])(?=[^\s=:]{6}))"
)
_NAME_PATTERNS = [
    (
        name,
        name.word.encode(),
        LazyPattern(
            re.escape(name.word.encode())
            + name.ending.encode()
            + b"("
            + _BINDING
            + rb")(?=\\{0,7}[\"'`]?[^\s\"'`,;(){}<>|\\\[\]]{3})"
        ),
        re.compile(name.needs.encode()) if name.needs else None,
    )
    for name in NAMES
]
_NAME_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/"
_QUOTED = re.compile(
    rb"\\{1,7}\"([^\"\n\\]{1,500}+)\\{1,7}\"|\"((?:[^\"\n\\]|\\[^\"\n]){1,500}+)\"|'((?:[^'\n\\]"
    rb"|\\[^'\n]){1,500}+)'|`([^`\n\\]{1,500}+)`"
)
_BARE = re.compile(rb"(?:[^\s\"'`,;<>(){}\[\]\\|&]|&(?![a-zA-Z_.-]{1,30}=)){1,4096}+")


_ORDINARY_WORD = re.compile(rb"(?:com|by|tres|sur|over|under|mini|encom|render|sub|multi|one|single|two)_?pass\Z")


class _Name(NamedTuple):
    name: bytes
    """The full name, in its own case."""

    kind: str
    word: str
    bound: bytes
    spaced: bool
    """Assigned as in code: with a space after the sign."""

    option: bool
    value_at: int


ANCHORS = tuple(name.word.encode() for name in NAMES)


def find_named_values(data: bytes, lowered: bytes, places: dict[bytes, list[int]]) -> Iterator[Secret]:
    """Find values by their names: the rules are tried where the words are that such names end with."""
    for name, anchor, pattern, needs in _NAME_PATTERNS:
        if anchor not in places:
            continue
        done = 0
        for at in places[anchor]:
            if at < done or (match := pattern.get().match(lowered, at)) is None:
                continue  # part of a value that was examined, or no name
            done = match.end()
            named = _name_of(data, match, name.word, name.kind, needs)
            if named is None:
                continue
            examined, found = _value_of(data, named)
            done = max(done, examined)
            if found:
                yield Secret(*found, named.kind)


def _name_of(
    data: bytes, match: re.Match[bytes], word: str, kind: str, needs: re.Pattern[bytes] | None
) -> _Name | None:
    start = match.start()
    before = data[max(0, start - 60) : start]
    before = before[len(before.rstrip(_NAME_CHARACTERS)) :]
    context = before
    if not before and data[start - 1 : start] == b" ":  # "API key: ..."
        earlier = data[max(0, start - 31) : start - 1]
        context = earlier[len(earlier.rstrip(_NAME_CHARACTERS)) :]
    if needs and not needs.search(context.lower()) and not (word == "pw" and not before):
        return None
    if word == "pass" and _ORDINARY_WORD.search(before.lower() + match[0][:4]):
        return None
    if (
        word in ("auth", "salt")
        and before[-1:].isalpha()
        and before[-1:].islower()
        and data[start : start + 1].islower()
    ):
        return None
    name = before + data[start : match.start(1)]
    bound = match[1].strip(b" \t\"'`\\])")
    option = name.startswith(b"-") and not before.endswith(b"/")
    if not bound and not option:
        return None
    spaced = bound != b":" and match[1][-1:] in b" \t" and not option
    return _Name(name, kind, word, bound, spaced, option, match.end(1))


def _value_of(data: bytes, named: _Name) -> tuple[int, tuple[int, int] | None]:
    """Return where the value ends, and its span if it is a secret."""
    if is_reference(data, named.value_at) or follows_type_name(data, named.value_at):
        return named.value_at, None
    if quoted := _QUOTED.match(data, named.value_at):
        group = quoted.lastindex or 1
        secret = not is_reference(data, quoted.start(group)) and _is_quoted_secret(quoted[group], named)
        return quoted.end(), quoted.span(group) if secret else None
    bare = _BARE.match(data, named.value_at)
    if bare is None:
        return named.value_at, None
    value = bare[0].rstrip(b".:")
    end = bare.start() + len(value)
    if data[end : end + 1] in (b"(", b"[", b"{") or not _is_bare_secret(value, named, data):
        return bare.end(), None
    if len(value) >= 40 and WRAP.match(data, end):
        _, _, ends = unwrap(data, bare.start(), True)
        end = max(end, *ends)
    return end, (bare.start(), end)


def _is_quoted_secret(value: bytes, named: _Name) -> bool:
    if is_placeholder(value) or is_word(value, named.name):
        return False
    if named.kind == "password":
        return len(value) >= 4 and value.count(b" ") < 3 and not ATTRIBUTE.search(value)
    if named.word == "auth":
        return is_credential(value, b"", 0)
    if b" " in value or len(value) < 8:
        return False
    return is_random(value) if named.word == "salt" else is_mixed(value) or (len(value) >= 20 and looks_shuffled(value))


def _is_bare_secret(value: bytes, named: _Name, data: bytes) -> bool:
    if is_placeholder(value):
        return False
    shouted = named.name.isupper() and not named.spaced and named.bound == b"="
    if shouted and named.kind == "password" and len(value) >= 6 and _PLAIN.fullmatch(value) and not value.isupper():
        return not is_own_name(value, named.name)
    if (shouted or named.option) and _is_surely_secret(value, named):
        return True
    if named.kind == "password" and not named.spaced and has_irregular_case(value):
        return True
    if named.kind == "password" and named.bound == b"=" and _is_property(data, named, value):
        return True
    if reads_as_words(value):
        return False
    if is_word(value, named.name) or ATTRIBUTE.search(value):
        return is_random(value) and len(value) >= 24 and not PATH.match(value)
    if named.word in ("auth", "salt"):
        return is_credential(value, b"", 0) and not named.spaced
    if HEX_KEY.fullmatch(value):
        return named.word in ("key", "secret")
    if value.isdigit():
        return named.kind == "password" and not named.spaced and len(value) >= 6
    if named.spaced:
        return (
            is_random(value)
            or looks_shuffled(value)
            or (named.kind == "password" and _is_full_line(data, named, value))
        )
    if named.kind == "password" or named.name.isupper() or named.option:
        return len(value) >= 6 and (is_mixed(value) or (named.name.isupper() and len(value) >= 8))
    if len(value) >= 16:
        return is_mixed(value)
    shortest = 8 if named.word == "secret" else 12
    return (
        len(value) >= shortest
        and sum(48 <= byte <= 57 for byte in value) > 1
        and not WORDS_WITH_NUMBERS.fullmatch(value)
    )


_PLAIN = re.compile(rb"[A-Za-z0-9][A-Za-z0-9_-]*")


def _is_surely_secret(value: bytes, named: _Name) -> bool:
    """Accept of an environment variable or option what in code might be a name: letters, digits, dots and hyphens."""
    if len(value) < 8 or PATH.match(value) or value[:1] in b"/.~" or is_own_name(value, named.name):
        return False
    return is_mixed(value) and sum(48 <= byte <= 57 for byte in value) > 1 and not _VERSION.search(value)


_VERSION = re.compile(rb"\d\.\d|[=@]|\A[a-z]{2,10}:")


def _is_full_line(data: bytes, named: _Name, value: bytes) -> bool:
    """Tell whether a line is only `name = value`, as in an INI file, and the value is not a plain identifier."""
    start = data.rfind(b"\n", max(0, named.value_at - 100), named.value_at) + 1
    end = named.value_at + len(value)
    is_alone = data[start : named.value_at].startswith(named.name) and data[end : end + 1] in (b"", b"\n", b"\r")
    return is_alone and len(value) >= 7 and is_mixed(value) and any(48 <= byte <= 57 for byte in value)


def _is_property(data: bytes, named: _Name, value: bytes) -> bool:
    """Tell whether it is a line of a properties file, as `spring.datasource.password=…`, and no code."""
    if named.spaced or b"." not in named.name or named.name.startswith((b"self.", b"this.")):
        return False
    return (
        named.word.encode() not in value.lower() and not ATTRIBUTE.search(value) and _is_full_line(data, named, value)
    )


_ASSIGNED = re.compile(
    rb"(?:=[ \t]?|:[ \t]|:(?=[\"']))\[?\\?[\"'`]?([A-Za-z0-9+/_-]{24,128}+={0,2})(?![A-Za-z0-9+/_=.:~-])"
)
_NO_SECRET = re.compile(
    rb"(?:id|uuid|guid|integrity|hash|h1|sha\d*|sum|checksum|digest|etag|commit|rev|ref|cursor|nonce"
    rb"|signature|url|uri|path|"
    rb"file|filename|image|img|data|base64|src|href|content|body|key_?id|fingerprint|version|slug|name"
    rb"|resolved|snapshot|"
    rb"public[_-]?key|pub_?key|next|previous|mapping|mappings|icon|font|blob|bytes|text|payload|d|hex"
    rb"|seed|trace|span|event|message|cid|address|addr|hostkey|class|style|alt|title|label)"
    rb"[\"'`\\\]]*\s*[=:][ \t]?\\?[\"'`]?\Z"
)
_ID = re.compile(rb"[a-z]{1,12}[_-](?=[A-Za-z0-9]{14,}\Z)|sha\d{1,3}-|0[xX]")


_VALUE_CHARACTERS = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"+/_-" else 32 for byte in range(256))
_VALUE_RUN = b"a" * 24
"""Shortest run of the characters A-Za-z0-9+/_- in a value that looks random."""

BYTES_BEFORE_VALUE, BYTES_FROM_VALUE = 5, 160
"""Bytes around the beginning of a value that tell whether it is assigned, and where it ends."""


def find_random_values(data: bytes, lowered: bytes) -> Iterator[Secret]:
    """Find assigned values that look random. Only places with a long run of letters and digits are searched."""
    runs = data.translate(_VALUE_CHARACTERS)
    at, done = runs.find(_VALUE_RUN), 0
    while at >= 0:
        match = _ASSIGNED.search(data, max(done, at - BYTES_BEFORE_VALUE), at + BYTES_FROM_VALUE)
        if match and match.start(1) == at:
            done = match.end()  # what ends a value, as in `c3VtbWVy==`, assigns no other
            if _is_random_secret(match[1], at, data, lowered):
                yield Secret(at, done, "entropy")
        stop = runs.find(b" ", at)
        at = runs.find(_VALUE_RUN, stop) if stop >= 0 else -1


def _is_random_secret(value: bytes, start: int, data: bytes, lowered: bytes) -> bool:
    if _ID.match(value) or reads_as_words(value.rstrip(b"/")) or is_camel_case(value) or not is_random(value):
        return False
    end = start + len(value)
    if data[end : end + 1] == b"(" or (value[:1] == b"_" and data[start - 1 : start] in b"= \t"):
        return False  # a call, or the name of a variable
    return not _NO_SECRET.search(lowered, max(0, start - 40), start)
