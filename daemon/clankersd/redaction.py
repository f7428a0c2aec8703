"""Secrets are taken out of a text before it is stored: a pure function, and cheap where there is nothing to find.

All of it looks at the text's UTF-8 bytes, where lowering letters moves nothing and searching for a word is as fast as
reading memory. A mark stands where a secret was; what is marked is left alone the next time.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from clankersd.large_texts import LARGE_TEXT_CHARACTERS, redact_in_pieces

if TYPE_CHECKING:
    from clankersd.db import Db

Given = TypeVar("Given", bound=msgspec.Struct)

MARK = b"[redacted:"
SLACK = 4096
"""Characters that are read beyond a cut: a secret that the cut goes through must be seen whole."""

_COUNT = """
    INSERT INTO redactions (kind, count, last_at) VALUES (:kind, :count, :now)
    ON CONFLICT (kind) DO UPDATE SET count = count + :count, last_at = :now
"""
_TOLD = ("content", "summary", "tags", "concepts", "files", "metadata", "reason", "name")
"""What of a memory or an entity is somebody's own words."""


class _Found(NamedTuple):
    start: int
    end: int
    kind: str


def redact(text: str) -> tuple[str, dict[str, int]]:
    """The text without its secrets, and how many of which kind there were."""
    return redact_in_pieces(text, _redact) if len(text) > LARGE_TEXT_CHARACTERS else _redact(text)


def _redact(text: str) -> tuple[str, dict[str, int]]:
    data = text.encode("utf-8", "surrogatepass")
    lowered = data.lower()
    found = sorted(_find(data, lowered), key=lambda each: (each.start, -each.end))
    return _replaced(data, found) if found else (text, {})


def redact_all(value: object) -> tuple[object, dict[str, int]]:
    """A JSON value with every text in it redacted."""
    counts: Counter[str] = Counter()

    def walk(inner: object) -> object:
        if isinstance(inner, str):
            text, found = redact(inner)
            counts.update(found)
            return text
        if isinstance(inner, dict):
            return {key: walk(_keyed(key, each, counts)) for key, each in inner.items()}
        return [walk(each) for each in inner] if isinstance(inner, list) else inner

    return walk(value), dict(counts)


def without_secrets(given: Given) -> tuple[Given, dict[str, int]]:
    """A request on memories with the secrets taken out of what it tells, and how many of which kind there were."""
    counts: Counter[str] = Counter()
    clean: dict[str, object] = {}
    for name in _TOLD:
        if value := getattr(given, name, None):
            clean[name], found = redact_all(value)
            counts.update(found)
    return (msgspec.structs.replace(given, **clean) if counts else given), dict(counts)


def capped(text: str | None, characters: int, slack: int = SLACK) -> str | None:
    """The text's beginning, with a mark where it was cut. A cut that others made just beyond stays as it is."""
    if text is None or len(text) <= characters + max(slack, 64):
        return text
    if slack:
        return text[: characters + slack]
    return f"{text[:characters]}\n… [truncated]"


def count_redactions(db: "Db", counts: dict[str, int], now: int) -> None:
    """Remember how often something was taken out."""
    for kind, count in counts.items():
        db.execute(_COUNT, {"kind": kind, "count": count, "now": now})


def _keyed(key: object, value: object, counts: Counter[str]) -> object:
    """A short value whose key alone tells that it is a secret."""
    if not isinstance(value, str) or not isinstance(key, str) or len(value) > 500:
        return value
    beginning = f"{key}: "
    text, found = redact(f"{beginning}{value}")
    if text.startswith(beginning) and set(found) & {"password", "secret"}:
        counts.update(found)
        return text.removeprefix(beginning)
    return value


def _replaced(data: bytes, found: list[_Found]) -> tuple[str, dict[str, int]]:
    pieces: list[bytes] = []
    counts: Counter[str] = Counter()
    at = 0
    for each in found:
        if each.start < at:  # begins in what is gone already
            at = max(at, each.end)
            continue
        pieces += (data[at : each.start], MARK, each.kind.encode(), b"]")
        counts[each.kind] += 1
        at = each.end
    pieces.append(data[at:])
    return b"".join(pieces).decode("utf-8", "surrogatepass"), dict(counts)


def _find(data: bytes, lowered: bytes) -> Iterator[_Found]:
    """Single bytes are looked for first: that is ten times quicker than looking for words, and often enough."""
    dashes = b"-" in data
    colons = b":" in data
    if b"<" in data and b"<private>" in lowered:
        yield from _spans(_PRIVATE_BLOCK, lowered, "private")
    if b"bearer" in lowered or b"authorization" in lowered:
        yield from _spans(_BEARER, data, "bearer", 1)
    if dashes and b"-----BEGIN" in data:
        yield from _spans(_PRIVATE_KEY, data, "private-key")
    if colons and b"://" in data:
        yield from _urls(data)
    runs = data.translate(_LETTERS)
    if _RUN in runs:
        yield from _keys(data, runs)
    if colons or b"=" in data or (dashes and b"--" in data) or b"pass" in lowered:
        yield from _named(data, lowered)


def _spans(pattern: re.Pattern[bytes], data: bytes, kind: str, group: int = 0) -> Iterator[_Found]:
    for match in pattern.finditer(data):
        yield _Found(match.start(group), match.end(group), kind)


# -- what is there at all

_LETTERS = bytes(97 if chr(byte).isalnum() and byte < 128 else 32 for byte in range(256))
_RUN = b"a" * 12
"""Every known kind of key has so many letters and digits in a row."""

_WORDS = (b"pass", b"pwd", b"secret", b"token", b"key", b"credential", b"auth")


# -- formats

_PRIVATE_BLOCK = re.compile(rb"<private>.*?(?:</private>|\Z)", re.S)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.S)
_BEARER = re.compile(
    rb"(?i:\bbearer\s+|\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:bearer|basic|token|apikey)\s+)"
    rb"([A-Za-z0-9._~+/=-]{12,})"
)
_URL = re.compile(rb"://[^\s/:@\"'<>\\`]{0,200}:([^\s/@\"'<>\\`]{1,200})@[A-Za-z0-9\[_]")


def _format(needle: str, rest: str, kind: str = "api-key", before: str = r"(?<![A-Za-z0-9])") -> "_Format":
    return needle.encode(), (before + re.escape(needle) + rest).encode(), kind


_Format = tuple[bytes, bytes, str]
"""What to look for, the whole pattern, compiled when it is needed, and what it finds."""

_FORMATS: tuple[_Format, ...] = (
    _format("sk-", r"[A-Za-z0-9_-]{20,}"),
    _format("sk_live_", r"[A-Za-z0-9]{16,}"),
    _format("sk_test_", r"[A-Za-z0-9]{16,}"),
    _format("rk_live_", r"[A-Za-z0-9]{16,}"),
    _format("whsec_", r"[A-Za-z0-9+/=]{24,}"),
    _format("ghp_", r"[A-Za-z0-9]{30,}"),
    _format("gho_", r"[A-Za-z0-9]{30,}"),
    _format("ghu_", r"[A-Za-z0-9]{30,}"),
    _format("ghs_", r"[A-Za-z0-9]{30,}"),
    _format("ghr_", r"[A-Za-z0-9]{30,}"),
    _format("github_pat_", r"[A-Za-z0-9_]{22,}"),
    _format("glpat-", r"[A-Za-z0-9_-]{20,}"),
    _format("xox", r"[abeoprs]-[A-Za-z0-9-]{10,}"),
    _format("xapp-", r"[A-Za-z0-9-]{20,}"),
    _format("hooks.slack.com/services/", r"[A-Za-z0-9/]{20,}"),
    _format("AKIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _format("ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _format("AIza", r"[A-Za-z0-9_-]{35}"),
    _format("ya29.", r"[A-Za-z0-9_-]{20,}"),
    _format("GOCSPX-", r"[A-Za-z0-9_-]{20,}"),
    _format("npm_", r"[A-Za-z0-9]{36}"),
    _format("pypi-", r"[A-Za-z0-9_-]{50,}"),
    _format("hf_", r"[A-Za-z0-9]{30,}"),
    _format("gsk_", r"[A-Za-z0-9]{30,}"),
    _format("xai-", r"[A-Za-z0-9]{30,}"),
    _format("pplx-", r"[A-Za-z0-9]{30,}"),
    _format("nvapi-", r"[A-Za-z0-9_-]{30,}"),
    _format("SG.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    _format("dop_v1_", r"[a-f0-9]{32,}"),
    _format("shpat_", r"[a-fA-F0-9]{32}"),
    _format("lin_api_", r"[A-Za-z0-9]{30,}"),
    _format("tskey-", r"[A-Za-z0-9-]{20,}"),
    _format("ATATT3", r"[A-Za-z0-9_=-]{50,}"),
    _format("AGE-SECRET-KEY-1", r"[A-Z0-9]{50,}"),
    _format("eyJ", r"[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}", "jwt"),
    _format(":AA", r"[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])", "api-key", r"(?<=[0-9]{8})[0-9]{0,2}"),
)


# -- keys, by their format or by looking like nothing else

_TOKEN = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-./+" else 32 for byte in range(256))
LONGEST_KEY = 4096
_DIGIT = re.compile(rb"[0-9]")
_PREFIX = re.compile(b"|".join(re.escape(needle) for needle, _, _ in _FORMATS))


def _keys(data: bytes, runs: bytes) -> Iterator[_Found]:
    """Looks only at the few places that have a long run of letters and digits."""
    tokens = data.translate(_TOKEN)
    at = runs.find(_RUN)
    while at >= 0:
        start, end = tokens.rfind(b" ", 0, at) + 1, tokens.find(b" ", at)
        end = end if end >= 0 else len(data)
        seen = min(end, at + LONGEST_KEY)
        if _PREFIX.search(data, max(start - 12, 0), seen):
            yield from _formatted(data, start, seen)
        if _DIGIT.search(data, start, seen):
            yield from _random_value(data, start)
        at = runs.find(_RUN, end)


def _formatted(data: bytes, start: int, end: int) -> Iterator[_Found]:
    near = data[max(start - 12, 0) : end]
    for needle, pattern, kind in _FORMATS:
        if needle in near:
            for match in re.compile(pattern).finditer(data, start if needle[0] != 58 else max(start - 12, 0), end):
                yield _Found(match.start(), match.end(), kind)


# -- passwords in addresses

_REFERENCE = re.compile(rb"[$%{<\[*]|\.\.\.|x{3,}|\*{2,}", re.I)
"""How a value begins that only refers to one, or shows where one would be."""


def _urls(data: bytes) -> Iterator[_Found]:
    for match in _URL.finditer(data):
        if not _REFERENCE.match(match[1]):
            yield _Found(match.start(1), match.end(1), "url-password")


# -- values whose name tells what they are

_NAME = re.compile(rb"[A-Za-z0-9_.-]*\Z")
_WHOLE_WORD = {
    b"pass": re.compile(rb"(?:word|wd|phrase|code)?s?\d{0,2}(?![a-z])"),
    b"pwd": re.compile(rb"\d{0,2}(?![a-z])"),
    b"secret": re.compile(rb"s?(?:[_-]?key)?\d{0,2}(?![a-z])"),
    b"token": re.compile(rb"\d{0,2}(?![a-z])"),
    b"key": re.compile(rb"\d{0,2}(?![a-z])"),
    b"credential": re.compile(rb"s?(?![a-z])"),
    b"auth": re.compile(rb"(?![a-z])"),
}
_BINDING = re.compile(rb"\\?[\"'`]?\]?\s{0,3}(?:=>|:=|==?|:)\s{0,3}(?:[bru]{1,2}(?=[\"']))?|\s+is\s+")
_APART = re.compile(rb"\s+(?=[^\s=:]{6})")
_QUOTED = re.compile(rb"(\\?[\"'`])((?:(?!\1)[^\n\r\\]|\\(?![\"'`nr])[^\n\r]){1,500}?)\1")
_BARE = re.compile(rb"[^\s\"'`,;<>(){}\[\]\\|]{1,100}")
_REST = re.compile(rb"[^\s\"'`,;<>(){}\[\]\\|]*")
_SECRET_KEY_NAME = re.compile(
    rb"(?i)(?:api|access|secret|private|auth|encrypt(?:ion)?|sign(?:ing)?|account|service|client|master|license|deploy|"
    rb"webhook|app|admin|shared|storage|session)[_.-]?key\Z"
)


def _named(data: bytes, lowered: bytes) -> Iterator[_Found]:
    for word in _WORDS:
        at = lowered.find(word)
        while at >= 0:
            end = at + len(word)
            if whole := _WHOLE_WORD[word].match(lowered, end):
                end = whole.end()
                if found := _value_of(data, word, at, end):
                    yield found
                    end = found.end
            at = lowered.find(word, end)


class _Name(NamedTuple):
    """A name that tells of a secret, how its value is bound to it, and where that begins."""

    name: bytes
    kind: str
    how: bytes
    spaced: bool
    value_at: int


def _value_of(data: bytes, word: bytes, start: int, end: int) -> _Found | None:
    named = _name_of(data, word, start, end)
    span = named and (_quoted_value(data, named) or _bare_value(data, named))
    if not named or not span or _REFERENCE.match(data, *span):
        return None
    return _Found(*span, named.kind)


def _name_of(data: bytes, word: bytes, start: int, end: int) -> _Name | None:
    option = b"--" in data[max(0, start - 40) : start]
    binding = _BINDING.match(data, end) or (_APART.match(data, end) if option else None)
    if binding is None:
        return None
    before = _NAME.search(data, max(0, start - 60), start)
    name = (before[0] if before else b"") + data[start:end]
    how = binding[0].strip(b" \t\"'`\\]")
    if word == b"key" and not _SECRET_KEY_NAME.search(name):
        return None
    if (how == b"is" and word != b"pass") or (not how and not name.startswith(b"--")):
        return None
    spaced = how not in (b":", b"is") and binding[0][-1:] == b" " and not name.startswith(b"--")
    return _Name(name, "password" if word in (b"pass", b"pwd") else "secret", how, spaced, binding.end())


def _quoted_value(data: bytes, named: _Name) -> tuple[int, int] | None:
    quoted = _QUOTED.match(data, named.value_at)
    return quoted.span(2) if quoted and _is_quoted_secret(quoted[2], named) else None


def _bare_value(data: bytes, named: _Name) -> tuple[int, int] | None:
    bare = _BARE.match(data, named.value_at)
    if bare is None:
        return None
    value = bare[0].rstrip(b".:")
    end = bare.start() + len(value)
    if data[end : end + 1] in (b"(", b"[", b"{") or not _is_bare_secret(value, named):
        return None
    rest = _REST.match(data, end) if len(bare[0]) == 100 else None
    return bare.start(), rest.end() if rest else end


def _is_quoted_secret(value: bytes, named: _Name) -> bool:
    if _is_word(value, named.name):
        return False
    if named.kind == "password":
        return len(value) >= 4 and value.count(b" ") < 3
    return b" " not in value and len(value) >= 8 and (_mixed(value) or len(value) >= 20)


def _is_bare_secret(value: bytes, named: _Name) -> bool:
    if _is_word(value, named.name) or _ATTRIBUTE.search(value):
        return False
    if named.spaced:
        return _random(value)
    shouted = named.name.isupper()
    if named.kind == "password" or shouted or named.name.startswith(b"--"):
        return len(value) >= 6 and (_mixed(value) or (shouted and len(value) >= 8))
    return len(value) >= 16 and _mixed(value)


_ATTRIBUTE = re.compile(rb"[A-Za-z_)\]]\.[A-Za-z_]|->|::|^/|^\./|^https?:|^[\d.,_]+[a-zA-Z%]{0,3}$|^0x")
_WORD = re.compile(rb"[A-Za-z]+(?:[ _./:-][A-Za-z]+)*[?!.:]?")
_PLACEHOLDERS = (b"your", b"example", b"change", b"placeholder", b"replace", b"dummy", b"redacted", b"insert", b"todo")


def _is_word(value: bytes, name: bytes) -> bool:
    """Plain words, a name much like its own, or something that stands for a secret."""
    lowered = value.lower()
    if any(each in lowered for each in _PLACEHOLDERS):
        return True
    return bool(_WORD.fullmatch(value)) or lowered.strip(b"_-0123456789") in name.lower()


def _mixed(value: bytes) -> bool:
    """Letters with digits, or with signs that no name has."""
    letters = any(65 <= byte <= 90 or 97 <= byte <= 122 or byte > 127 for byte in value)
    return letters and any(48 <= byte <= 57 or byte in b"!@#%^&*+=?~" for byte in value)


# -- values that look like nothing else

_ASSIGNED = re.compile(rb"[=:]\s?\\?[\"'`]?\Z")
_VALUE = re.compile(rb"[A-Za-z0-9+/_-]{24,128}={0,2}(?![A-Za-z0-9+/_=.:-])")
_NO_SECRET = re.compile(
    rb"(?i)(?:id|uuid|guid|integrity|hash|sha\d*|checksum|digest|etag|commit|rev|ref|cursor|nonce|signature|url|uri|path|"
    rb"file|filename|image|data|base64|src|href|content|body|key_?id|fingerprint|version|slug|name|resolved|snapshot)"
    rb"[\"'`\\\]]*\s*[=:]\s?\\?[\"'`]?\Z"
)
_KNOWN_IDS = re.compile(
    rb"(?:toolu|msg|req|call|chatcmpl|resp|ses|evt|prt|run|asst|thread|step|file|org|sha\d{1,3})[_-]"
)


def _random_value(data: bytes, start: int) -> Iterator[_Found]:
    value = _VALUE.match(data, start)
    if value is None or not _ASSIGNED.search(data, max(0, start - 4), start):
        return
    if _KNOWN_IDS.match(value[0]) or not _random(value[0]):
        return
    if not _NO_SECRET.search(data, max(0, start - 40), start):
        yield _Found(start, value.end(), "entropy")


def _random(value: bytes) -> bool:
    """Whether it reads like dice: letters and digits that change all the time, and not only hexadecimal ones."""
    if len(value) < 16 or _HEX.fullmatch(value):
        return False
    kinds = [_KIND[byte] for byte in value]
    changes = sum(a != b for a, b in pairwise(kinds)) / len(value)
    if kinds.count("0") < 2 or changes < 0.3:
        return False
    return _entropy(value) >= (3.5 if "A" in kinds and "a" in kinds else 4.0)


_HEX = re.compile(rb"[0-9a-fA-F-]+")
_KIND = ["0" if 48 <= b <= 57 else "A" if 65 <= b <= 90 else "a" if 97 <= b <= 122 else "." for b in range(256)]


def _entropy(value: bytes) -> float:
    return -sum(n / len(value) * log2(n / len(value)) for n in Counter(value).values())
