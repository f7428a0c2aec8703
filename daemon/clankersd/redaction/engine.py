"""Redaction: secrets are replaced by a mark before a text is stored.

A pure function of the text, linear in its length for any input. It works on UTF-8 bytes: lower case moves no byte
there, and searching for a literal runs at memory speed, so most texts are dismissed by a few such searches. What
secrets look like is data in `rules.py`. A mark is never matched again: redacting twice changes nothing.
"""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from clankers_protocol.errors import InvalidParams
from clankersd.redaction import assignments, contexts, invisible
from clankersd.redaction.anchors import Anchors
from clankersd.redaction.assignments import find_named_values, find_random_values
from clankersd.redaction.blocks import find_kubernetes_secrets, find_private_keys, find_private_text
from clankersd.redaction.contexts import find_in_context
from clankersd.redaction.invisible import VisibleText, blank_invisible, has_invisible
from clankersd.redaction.large_texts import LARGE_TEXT_CHARACTERS, redact_in_pieces
from clankersd.redaction.secret import Secret
from clankersd.redaction.tokens import find_tokens

if TYPE_CHECKING:
    from clankersd.db import Db

_PRIVATE_TEXT, _PRIVATE_KEY, _KUBERNETES = b"<private", b"-----begin", b"kind"
_ANCHORS = Anchors(
    (*assignments.ANCHORS, *contexts.ANCHORS, *invisible.ANCHORS, _PRIVATE_TEXT, _PRIVATE_KEY, _KUBERNETES)
)

StructT = TypeVar("StructT", bound=msgspec.Struct)

MARK = b"[redacted:"
MIN_TEXT_CHARACTERS = 6
MAX_WORD_CHARACTERS = 32
MIN_REMEMBERED_BYTES = 256
MAX_REMEMBERED_TEXTS = 8192
MAX_HASHED_BYTES = 2047
"""For more at once, hashlib gives up the interpreter lock. To get it back from a busy thread takes longer."""

_KEYED_DIGEST = hashlib.sha256(os.urandom(64))
"""Digest with a random beginning: nobody can prepare a secret that has the digest of a text without one."""

SLACK = 4096
"""Characters kept beyond the limit until the text is redacted: a secret at the limit must be seen completely."""

_COUNT = """
    INSERT INTO redactions (kind, count, last_at) VALUES (:kind, :count, :now)
    ON CONFLICT (kind) DO UPDATE SET count = redactions.count + :count, last_at = :now
"""


_clean_words: set[str] = set()
"""Short texts without secrets: roles, names of models and tools, which come with every event."""

_clean_texts: dict[bytes, None] = {}
"""Digests of texts without secrets, oldest first: most texts come twice, from a hook and from the transcript."""

_last_redaction: tuple[bytes, str, dict[str, int]] = (b"", "", {})
"""The digest of the last text with secrets, and its redaction: a prompt is a message and may name its session."""


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
    global _last_redaction
    data = text.encode("utf-8", "surrogatepass")
    if len(data) < MIN_REMEMBERED_BYTES:
        found = sorted(_find(data), key=lambda each: (each.start, -each.end))
        return _replaced(data, found) if found else (text, {})
    digest = _keyed_digest(data)
    if digest in _clean_texts:
        return text, {}
    last_digest, redacted, counts = _last_redaction
    if digest == last_digest:
        return redacted, dict(counts)
    found = sorted(_find(data), key=lambda each: (each.start, -each.end))
    if found:
        redacted, counts = _replaced(data, found)
        _last_redaction = (digest, redacted, dict(counts))
        return redacted, counts
    _clean_texts[digest] = None
    if len(_clean_texts) > MAX_REMEMBERED_TEXTS:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread removes it, or adds one
            del _clean_texts[next(iter(_clean_texts))]
    return text, {}


def _keyed_digest(data: bytes) -> bytes:
    hashed = _KEYED_DIGEST.copy()
    for start in range(0, len(data), MAX_HASHED_BYTES):
        hashed.update(data[start : start + MAX_HASHED_BYTES])
    return hashed.digest()


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
    for name in _text_fields(type(given)):
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


@cache
def _text_fields(struct: type) -> tuple[str, ...]:
    """Return the fields of a struct that may hold free text."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(field.name for field in info.fields if holds_text(field.name, field.type))


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


def refuse_secret(name: str, place: str) -> None:
    """Raise InvalidParams if a name has a secret in it: a name cannot be redacted, since it is looked up as it is."""
    if kinds := redact(name)[1]:
        what = ", ".join(sorted(kinds))
        raise InvalidParams(f"invalid params: it contains a secret ({what}): choose another name - at `{place}`")


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


def _replaced(data: bytes, found: list[Secret]) -> tuple[str, dict[str, int]]:
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


def _find(data: bytes) -> Iterator[Secret]:
    """Find the secrets of every kind, in no order, also if they are coloured or have invisible characters in them."""
    lowered = data.lower()
    places = _ANCHORS.find(lowered)
    if not has_invisible(data, places):
        yield from _find_visible(data, lowered, places)
        return
    blanked = blank_invisible(data)
    lowered = blanked.lower()
    yield from _find_visible(blanked, lowered, _ANCHORS.find(lowered))
    visible = VisibleText(data)
    lowered = visible.text.lower()
    for each in _find_visible(visible.text, lowered, _ANCHORS.find(lowered)):
        yield Secret(*visible.original_span(each.start, each.end), each.kind)


def _find_visible(data: bytes, lowered: bytes, places: dict[bytes, list[int]]) -> Iterator[Secret]:
    """Find the secrets of every kind, in no order; each search runs only if the anchors that it needs occur."""
    if _PRIVATE_TEXT in places:
        yield from find_private_text(lowered)
    if _PRIVATE_KEY in places:
        yield from find_private_keys(data)
    yield from find_tokens(data)
    is_bound = b"=" in data or b":" in data
    if is_bound or b"-" in data:
        yield from find_named_values(data, lowered, places)
    if is_bound:
        yield from find_random_values(data, lowered)
        if _KUBERNETES in places and b"data" in lowered:
            yield from find_kubernetes_secrets(data, lowered)
    yield from find_in_context(data, lowered, places)
