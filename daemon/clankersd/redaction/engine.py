"""Redaction: secrets are replaced by a mark before a text is stored.

A pure function of the text, linear in its length for any input. It works on UTF-8 bytes: lower case moves no byte
there, and searching for a literal runs at memory speed, so most texts are dismissed by a few such searches. What
secrets look like is data in `rules.py`. A mark is never matched again: redacting twice changes nothing.
"""

import contextlib
import hashlib
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from clankersd.redaction.checks import (
    ATTRIBUTE,
    CHECKS,
    HEX,
    HEX_KEY,
    PATH,
    WORDS_WITH_NUMBERS,
    Check,
    has_irregular_case,
    is_camel_case,
    is_credential,
    is_mixed,
    is_own_name,
    is_placeholder,
    is_random,
    is_reference,
    is_token,
    is_word,
    looks_shuffled,
    reads_as_words,
)
from clankersd.redaction.large_texts import LARGE_TEXT_CHARACTERS, redact_in_pieces
from clankersd.redaction.rules import CONTEXTS, NAMES, TOKENS, Token

if TYPE_CHECKING:
    from clankersd.db import Db

StructT = TypeVar("StructT", bound=msgspec.Struct)

MARK = b"[redacted:"
MAX_WORD_CHARACTERS = 32
MIN_REMEMBERED_BYTES = 256
MAX_REMEMBERED_TEXTS = 8192
_DIGEST_KEY = os.urandom(16)  # nobody can prepare a secret with the digest of a text without one
SLACK = 4096
"""Characters kept beyond the limit until the text is redacted: a secret at the limit must be seen completely."""

_COUNT = """
    INSERT INTO redactions (kind, count, last_at) VALUES (:kind, :count, :now)
    ON CONFLICT (kind) DO UPDATE SET count = count + :count, last_at = :now
"""


class _Secret(NamedTuple):
    start: int
    end: int
    kind: str


_clean_words: set[str] = set()
"""Short texts without secrets: roles, names of models and tools, which come with every event."""

_clean_texts: dict[bytes, None] = {}
"""Digests of texts without secrets, oldest first: most texts come twice, from a hook and from the transcript."""


def redact(text: str) -> tuple[str, dict[str, int]]:
    """Replace the secrets in a text; return it with the number of secrets of each kind."""
    if len(text) < MIN_TEXT_CHARACTERS or text in _clean_words:
        return text, {}
    if len(text) > MAX_WORD_CHARACTERS:
        return redact_in_pieces(text, _redact) if len(text) > LARGE_TEXT_CHARACTERS else _redact(text)
    redacted, counts = _redact(text)
    if not counts:
        if len(_clean_words) >= MAX_REMEMBERED_TEXTS:
            _clean_words.clear()
        _clean_words.add(text)
    return redacted, counts


def _redact(text: str) -> tuple[str, dict[str, int]]:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) < MIN_REMEMBERED_BYTES:
        found = sorted(_find(data, data.lower()), key=lambda each: (each.start, -each.end))
        return _replaced(data, found) if found else (text, {})
    digest = hashlib.blake2b(data, digest_size=16, key=_DIGEST_KEY).digest()
    if digest in _clean_texts:
        return text, {}
    found = sorted(_find(data, data.lower()), key=lambda each: (each.start, -each.end))
    if found:
        return _replaced(data, found)
    _clean_texts[digest] = None
    if len(_clean_texts) > MAX_REMEMBERED_TEXTS:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread removes it, or adds one
            del _clean_texts[next(iter(_clean_texts))]
    return text, {}


def redact_all(value: object) -> tuple[object, dict[str, int]]:
    """Redact every text in a JSON value, keys included."""
    counts: Counter[str] = Counter()

    def clean(text: str) -> str:
        redacted, found = redact(text)
        counts.update(found)
        return redacted

    def walk(inner: object) -> object:
        if isinstance(inner, str):
            return clean(inner)
        if isinstance(inner, dict):
            named = inner.get("name", inner.get("key"))  # {"name": "DB_PASSWORD", "value": "..."}
            return {
                clean(key) if isinstance(key, str) else key: walk(
                    _keyed(named if key == "value" and isinstance(named, str) else key, each, counts)
                )
                for key, each in inner.items()
            }
        return [walk(each) for each in inner] if isinstance(inner, list | tuple) else inner

    return walk(value), dict(counts)


def without_secrets(given: StructT, *exempt: str) -> tuple[StructT, dict[str, int]]:
    """Redact every text of a struct, and of the structs in it, except identifiers and the fields named in `exempt`."""
    counts: Counter[str] = Counter()
    clean: dict[str, object] = {}
    for name in _texts_of(type(given)):
        value = getattr(given, name)
        if value and name not in exempt:
            clean[name], found = _redact_field(value)
            counts.update(found)
    return (msgspec.structs.replace(given, **clean) if counts else given), dict(counts)


def _redact_field(value: object) -> tuple[object, dict[str, int]]:
    """Redact a field of a struct, which may hold structs itself."""
    if isinstance(value, msgspec.Struct):
        return without_secrets(value)
    if isinstance(value, list) and any(isinstance(each, msgspec.Struct) for each in value):
        pairs = [_redact_field(each) for each in value]
        return [each for each, _ in pairs], dict(sum((Counter(found) for _, found in pairs), Counter()))
    return redact_all(value)


_TEXTS: dict[type, tuple[str, ...]] = {}


def _texts_of(struct: type) -> tuple[str, ...]:
    """Return the fields of a struct that may hold free text."""
    if struct not in _TEXTS:
        info = msgspec.inspect.type_info(struct)
        assert isinstance(info, msgspec.inspect.StructType)
        _TEXTS[struct] = tuple(field.name for field in info.fields if holds_text(field.name, field.type))
    return _TEXTS[struct]


def holds_text(name: str, declared: msgspec.inspect.Type) -> bool:
    """Tell whether a field can hold free text: a string that is neither an identifier nor bound to a pattern."""
    inspect = msgspec.inspect
    if name in ("id", "ids") or name.endswith(("_id", "_ids")):
        return False
    if isinstance(declared, inspect.StrType):
        return declared.pattern is None
    if isinstance(declared, inspect.UnionType):
        return any(holds_text(name, each) for each in declared.types)
    if isinstance(declared, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        return holds_text(name, declared.item_type)
    return isinstance(declared, inspect.DictType | inspect.AnyType | inspect.StructType)


def truncate(text: str | None, characters: int, slack: int = SLACK) -> str | None:
    """Return the beginning of a text, with a mark at its end. A text that is only a little longer stays as it is."""
    if text is None or len(text) <= characters + max(slack, 64):
        return text
    if slack:
        return text[: characters + slack]
    return f"{text[:characters]}\n… [truncated]"


def count_redactions(db: "Db", counts: dict[str, int], now: int) -> None:
    """Add to the number of secrets that were redacted, by kind."""
    for kind, count in counts.items():
        db.execute(_COUNT, {"kind": kind, "count": count, "now": now})


def _keyed(key: object, value: object, counts: Counter[str]) -> object:
    """Redact a short value that is a secret by its key."""
    if not isinstance(value, str) or not isinstance(key, str) or len(value) > 500 or len(key) > 200:
        return value
    beginning = f'{key}: "'
    text, found = redact(f'{beginning}{value}"')
    if text.startswith(beginning) and set(found) & {"password", "secret"}:
        counts.update(found)
        return text.removeprefix(beginning).removesuffix('"')
    return value


def _replaced(data: bytes, found: list[_Secret]) -> tuple[str, dict[str, int]]:
    pieces: list[bytes] = []
    counts: Counter[str] = Counter()
    at = 0
    for each in found:
        if each.start < at:  # begins inside the one before
            if each.end > at:
                at = each.end
            continue
        pieces += (data[at : each.start], MARK, each.kind.encode(), b"]")
        counts[each.kind] += 1
        at = each.end
    pieces.append(data[at:])
    return b"".join(pieces).decode("utf-8", "surrogatepass"), dict(counts)


# -- search

MIN_TEXT_CHARACTERS = 6
_RUN_CHARACTERS = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-" else 32 for byte in range(256))
_REGION_CHARACTERS = bytes(
    97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-.+/~:$%=" else 32 for byte in range(256)
)
_RUN = b"a" * 16
"""Shortest run of the characters A-Za-z0-9_- in a token."""

MAX_TOKEN_BYTES = 4096


def _find(data: bytes, lowered: bytes) -> Iterator[_Secret]:
    if b"<private>" in lowered:
        yield from _private_blocks(lowered)
    if b"-----BEGIN" in data:
        yield from _private_keys(data)
    runs = data.translate(_RUN_CHARACTERS)
    if _RUN in runs:
        yield from _tokens(data, runs)
    bound = b"=" in data or b":" in data
    if bound or b"-" in data:
        yield from _named(data, lowered)
    if bound:
        yield from _random_values(data, lowered)
        if b"kind" in lowered and b"data" in lowered:
            yield from _kubernetes(data, lowered)
    signs = frozenset(lowered.translate(None, _LETTERS))
    for gate, needed_by_all, groups in _CONTEXTS:
        if needed_by_all <= signs and gate in lowered:
            for needed, anchors in groups:
                if needed <= signs:
                    for anchor, contexts in anchors:
                        if anchor in lowered:
                            for context in contexts:
                                yield from _in_context(context, data, lowered)


# -- blocks

_PRIVATE_TAG = re.compile(rb"<(/?)private>")
_PEM_BEGIN = re.compile(rb"-----BEGIN [A-Za-z0-9 ]{0,40}(?:PRIVATE KEY(?: BLOCK)?|Static key V1)-----")
_PEM_END = re.compile(rb"-----END [A-Za-z0-9 ]{1,60}-----")
_PEM_BODY = re.compile(
    rb"(?:(?:\s|\\[nrt])*+(?:[A-Za-z0-9+/=]{16,}+|(?:Proc-Type|DEK-Info|Version|Comment): ?[A-Za-z0-9,. -]{1,100}+))*+"
)
_BASE64_RUN = re.compile(rb"[A-Za-z0-9+/]{20}")
MAX_PEM_BYTES = 64 * 1024


def _private_blocks(lowered: bytes) -> Iterator[_Secret]:
    """Find text between <private> and </private>, also nested; to the end of the text if it is not closed."""
    depth, start = 0, 0
    for tag in _PRIVATE_TAG.finditer(lowered):
        if not tag[1]:
            start = start if depth else tag.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield _Secret(start, tag.end(), "private")
    if depth:
        yield _Secret(start, len(lowered), "private")


def _private_keys(data: bytes) -> Iterator[_Secret]:
    """Find PEM blocks. A truncated one ends with its last line of base64; a header alone does not count."""
    at = 0
    end = _PEM_END.search(data)
    while begin := _PEM_BEGIN.search(data, at):
        while end and end.start() < begin.end():
            end = _PEM_END.search(data, end.end())
        body_end = end.start() if end else len(data)
        next_begin = data.find(b"-----BEGIN", begin.end(), body_end)
        body_end = next_begin if next_begin >= 0 else body_end
        at = begin.end()
        if body_end - at > MAX_PEM_BYTES or next_begin >= 0 or not end:
            body = _PEM_BODY.match(data, at, body_end)
            body_end = body.end() if body else at
            if _BASE64_RUN.search(data, at, body_end):
                yield _Secret(begin.start(), body_end, "private-key")
        elif _BASE64_RUN.search(data, at, body_end):
            yield _Secret(begin.start(), end.end(), "private-key")
        at = max(at, body_end)


_KIND_SECRET = re.compile(rb"kind\\?[\"']?:[ \t]{0,3}\\?[\"']?secret(?![a-z])")
_DATA_BLOCK = re.compile(rb"(?<![a-z])(?:string)?data:[ \t]*+\n((?:[ \t]++[^\n]*+(?:\n|\Z))++)")
_DATA_LINE = re.compile(rb"[ \t]++[\w.-]{1,200}+:[ \t]{1,3}[\"']?([^\s\"'#|>{}]{4,65536})")
_DATA_OBJECT = re.compile(rb"\"(?:string)?data\"[ \t\n]{0,10}:[ \t\n]{0,10}\{([^{}]{1,65536})\}")
_DATA_PAIR = re.compile(rb"\"[^\"\n]{1,200}+\"[ \t]{0,3}:[ \t]{0,3}\"([^\"\n]{4,65536}+)\"")


def _kubernetes(data: bytes, lowered: bytes) -> Iterator[_Secret]:
    """Find the values of Kubernetes Secret objects."""
    if not _KIND_SECRET.search(lowered):
        return
    start = 0
    while start < len(lowered):
        stop = lowered.find(b"\n---", start)
        stop = stop if stop >= 0 else len(lowered)
        if _KIND_SECRET.search(lowered, start, stop):
            for block, line in ((_DATA_BLOCK, _DATA_LINE), (_DATA_OBJECT, _DATA_PAIR)):
                for held in block.finditer(lowered, start, stop):
                    for pair in line.finditer(lowered, *held.span(1)):
                        if not is_placeholder(data[slice(*pair.span(1))]):
                            yield _Secret(*pair.span(1), "secret")
        start = stop + 4


# -- tokens, recognised by their own form

_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f][0-9A-Fa-f])|(?<=\\u[0-9a-fA-F]{4}))"
_PREFIXED = [rule for rule in TOKENS if rule.anchor and not rule.before]
_INFIXED = [rule for rule in TOKENS if not rule.anchor or rule.before]


def _compiled(rule: Token) -> re.Pattern[bytes]:
    return re.compile((_START + rule.before + re.escape(rule.anchor) + rule.after).encode())


_BY_ANCHOR: dict[bytes, list[tuple[re.Pattern[bytes], str]]] = {}
for _rule in _PREFIXED:
    _BY_ANCHOR.setdefault(_rule.anchor.encode(), []).append((_compiled(_rule), _rule.kind))
_ANCHOR = re.compile(
    _START.encode() + b"(?=(" + b"|".join(re.escape(each) for each in sorted(_BY_ANCHOR, key=len, reverse=True)) + b"))"
)
_SHORTER = {
    anchor: [rule for other, rules in _BY_ANCHOR.items() if anchor.startswith(other) for rule in rules]
    for anchor in _BY_ANCHOR
}
"""The rules to try where an anchor is found: its own, and those of anchors that it begins with."""

_INFIXES = [(rule.anchor.encode(), _compiled(rule), rule.kind) for rule in _INFIXED]
_GENERIC = re.compile(
    _START.encode()
    + rb"[a-zA-Z][a-zA-Z0-9]{0,9}(?:[_-][a-zA-Z0-9]{1,10}){0,2}?[_-]"
    + rb"(?:pat|token|tok|key|apikey|secret|sk|live|prod|auth|access|api)[_-](?:v\d[_-])?"
    + rb"([A-Za-z0-9]{20,})(?![A-Za-z0-9])"
)
"""A vendor's token that no rule knows: `acme_live_...`, `foo-pat-...`."""


def _tokens(data: bytes, runs: bytes) -> Iterator[_Secret]:
    """Find tokens. Only places with a long run of letters and digits are searched, and only their beginning."""
    regions = data.translate(_REGION_CHARACTERS)
    infixes = [each for each in _INFIXES if each[0] in data]
    at = runs.find(_RUN)
    while at >= 0:
        start = regions.rfind(b" ", max(0, at - MAX_TOKEN_BYTES), at) + 1
        start = max(start, at - MAX_TOKEN_BYTES)
        stop = regions.find(b" ", at)
        stop = stop if stop >= 0 else len(data)
        end = min(stop, at + MAX_TOKEN_BYTES)
        yield from _in_region(data, start, end, infixes)
        at = runs.find(_RUN, stop)


def _in_region(
    data: bytes, start: int, end: int, infixes: list[tuple[bytes, re.Pattern[bytes], str]]
) -> Iterator[_Secret]:
    done = 0
    for anchor in _ANCHOR.finditer(data, start, end):
        if anchor.start() < done:  # part of a run that was examined
            continue
        for pattern, kind in _SHORTER[anchor[1]]:
            match = pattern.match(data, anchor.start(), anchor.start() + MAX_TOKEN_BYTES)
            done = max(done, match.end() if match else 0)
            if found := _token_at(data, pattern, match, anchor.start(), len(anchor[1])):
                done = max(done, found[1])
                yield _Secret(*found, kind)
                break
    for infix, pattern, kind in infixes:
        if data.find(infix, start, end) >= 0:
            for match in pattern.finditer(data, start, end):
                if is_token(match[0], 0):
                    yield _Secret(match.start(), match.end(), kind)
    if end - start < MAX_GENERIC_BYTES:
        for match in _GENERIC.finditer(data, start, end):
            if is_random(match[1]) or (HEX.fullmatch(match[1]) and is_mixed(match[1])):
                yield _Secret(match.start(), match.end(), "api-key")


MAX_GENERIC_BYTES = 512


def _token_at(
    data: bytes, pattern: re.Pattern[bytes], match: re.Match[bytes] | None, start: int, prefix: int
) -> tuple[int, int] | None:
    """Return the span of a token that `match` found on one line, or that is wrapped over several."""
    if match and not is_token(match[0], prefix):
        return None
    if match and not _WRAP.match(data, match.end()):
        return match.span()
    joined, places, ends = _unwrapped(data, start, bool(match))
    if len(ends) > 1 and (token := pattern.match(joined)) and is_token(token[0], prefix):
        line = bisect_right(places, token.end() - 1) - 1
        return start, ends[line] - (
            places[line + 1] - token.end() if line + 1 < len(places) else len(joined) - token.end()
        )
    return match.span() if match else None


_WRAP = re.compile(rb"\\?(?:\r?\n|\\n)[ \t>|]{0,16}")
_LINE_PART = re.compile(rb"[A-Za-z0-9_.+/=~-]{1,512}+")
_LINE_END = re.compile(rb"[ \t]{0,3}\\?(?:\r?\n|\\n|[\"'`,;)\]}]|\Z)")
MIN_WRAPPED_BYTES, MAX_WRAPPED_LINES = 16, 120


def _unwrapped(data: bytes, start: int, complete: bool) -> tuple[bytes, list[int], list[int]]:
    """Join a wrapped token; returns the joined text, where each line begins in it, and where each ends in `data`.

    A line continues the one before if it holds nothing else. After a token that is `complete`, it must look random.
    """
    parts: list[bytes] = []
    places: list[int] = []
    ends: list[int] = []
    total, at = 0, start
    while len(parts) < MAX_WRAPPED_LINES and (part := _LINE_PART.match(data, at)):
        if parts and not _is_continuation(data, part, complete):
            break
        parts.append(part[0])
        places.append(total)
        ends.append(part.end())
        total += len(part[0])
        wrap = _WRAP.match(data, part.end())
        if wrap is None or len(part[0]) < MIN_WRAPPED_BYTES:
            break
        at = wrap.end()
    return b"".join(parts), places, ends


def _is_continuation(data: bytes, part: re.Match[bytes], complete: bool) -> bool:
    if _ANCHOR.match(data, part.start()) or not _LINE_END.match(data, part.end()):
        return False
    return not complete or is_random(part[0])


# -- values recognised by their surroundings


class _Context(NamedTuple):
    pattern: re.Pattern[bytes]
    check: Check
    kind: str


def _in_context(context: _Context, data: bytes, lowered: bytes) -> Iterator[_Secret]:
    for match in context.pattern.finditer(lowered):
        start, end = match.span(1)
        if end - start and not is_reference(data, start) and context.check(data[start:end], data, start):
            yield _Secret(start, end, context.kind)


# -- values recognised by their name

_BINDING = (
    rb"(?:\\?[\"'`]?\]?\)?[ \t]{0,3}(?::[ \t]{0,2}[a-z_.]{2,20}(?:\[[a-z]{2,10}\])?(?:[ \t]?\|[ \t]?none)?"
    rb"[ \t]{0,2}=(?=[ \t]{0,2}[\"'])"
    rb"|=>|:=|\?=|==?(?!=)|:[ \t]{0,2}[|>][+-]?[ \t]{0,2}\n[ \t]{1,20}|:(?![:/]))[ \t]{0,3}(?:[bruf$@]{1,2}(?=[\"']))?"
    rb"|[ \t]{1,3}(?![a-z_]{1,40}=[^=\s])(?=[^\s=:]{6}))"
)
_NAME_PATTERNS = [
    (
        name,
        re.compile(
            re.escape(name.word.encode())
            + name.ending.encode()
            + b"("
            + _BINDING
            + rb")(?=\\?[\"'`]?[^\s\"'`,;(){}<>|\\\[\]]{3})"
        ),
        re.compile(name.needs.encode()) if name.needs else None,
    )
    for name in NAMES
]
_NAME_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/"
_QUOTED = re.compile(
    rb"\\\"([^\"\n\\]{1,500}+)\\\"|\"((?:[^\"\n\\]|\\[^\"\n]){1,500}+)\"|'((?:[^'\n\\]"
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


def _named(data: bytes, lowered: bytes) -> Iterator[_Secret]:
    for name, pattern, needs in _NAME_PATTERNS:
        if name.word.encode() not in lowered:
            continue
        done = 0
        for match in pattern.finditer(lowered):
            if match.start() < done:  # part of a value that was examined
                continue
            named = _name_of(data, match, name.word, name.kind, needs)
            if named is None:
                continue
            done, found = _value_of(data, named)
            if found:
                yield _Secret(*found, named.kind)


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
    if is_reference(data, named.value_at):
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
    if len(value) >= 40 and _WRAP.match(data, end):
        _, _, ends = _unwrapped(data, bare.start(), True)
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


def _contexts() -> list[tuple[bytes, frozenset[int], list[tuple[frozenset[int], _Anchors]]]]:
    """Compile the rules, each anchor on its own: a pattern that begins with a literal is searched many times faster.

    Returns for each gate the bytes beside letters that all of its anchors need, and the anchors by what they need.
    """
    by_anchor: dict[bytes, list[_Context]] = {}
    for rule in CONTEXTS:
        for anchor in rule.anchors:
            escaped = re.escape(anchor)
            before = f"(?<!{rule.unless_after}{escaped})" if rule.unless_after else ""
            pattern = re.compile(f"{escaped}{before}{rule.pattern}".encode(), re.M)
            by_anchor.setdefault(anchor.encode(), []).append(_Context(pattern, CHECKS[rule.check], rule.kind))
    gated: dict[bytes, dict[frozenset[int], _Anchors]] = {}
    for literal, contexts in by_anchor.items():
        groups = gated.setdefault(next(gate for gate in _GATES if gate in literal), {})
        groups.setdefault(frozenset(literal.translate(None, _LETTERS)), []).append((literal, contexts))
    return [(gate, frozenset.intersection(*groups), list(groups.items())) for gate, groups in gated.items()]


_CONTEXTS = _contexts()


# -- values recognised by their randomness

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


def _random_values(data: bytes, lowered: bytes) -> Iterator[_Secret]:
    for match in _ASSIGNED.finditer(data):
        start, end = match.span(1)
        value = match[1]
        if _ID.match(value) or reads_as_words(value.rstrip(b"/")) or is_camel_case(value) or not is_random(value):
            continue
        if not _NO_SECRET.search(lowered, max(0, start - 40), start):
            yield _Secret(start, end, "entropy")
