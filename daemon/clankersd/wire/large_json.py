"""Decode large JSON bodies without holding the interpreter lock for long.

One call of a C decoder on tens of megabytes stops every other thread, the event loop included, until it returns. What
makes it slow is not the length but the number of values: 30 MB of text take 20 ms, 30 MB of empty arrays two seconds.
So the values are counted first, piece by piece; a body with too many is refused, and one with many is decoded one
level at a time, and a level of many members some of them at a time. Call these functions in a thread.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, islice
from typing import Any, TypeVar

import msgspec

from clankers_protocol.errors import ParseError
from clankersd.db.commit_priority import yield_to_commits

MAX_DEPTH = 64
MAX_CONTAINERS = 200_000
MAX_MEMBERS = 400_000
MAX_VALUES = 1_500_000
MAX_DIGITS = 1000
PIECE_BYTES = 64 * 1024
STRING_PIECE_BYTES = 1024 * 1024
MAX_CALL_SECONDS = 0.005
"""Approximate limit for one call of the decoder."""

MAX_LEVEL_MEMBERS = 10_000
"""Members of one object or array that are decoded, or copied, in one call."""

_SECONDS_PER_BYTE = 0.8e-9
_SECONDS_PER_VALUE = 25e-9
_SECONDS_PER_CONTAINER = 250e-9
_SECONDS_PER_MEMBER = 400e-9

_HUGE_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[]{},")
_STRUCTURE = re.compile(rb"[\[{]|[\]}]|,+")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
"""Change of the depth at a bracket."""

_FLAT_MEMBERS = re.compile(rb'(?:(?:[^"\[\]{},]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+,)++', re.DOTALL)
"""Members of an object or array that are neither objects nor arrays, each with the comma after it."""

_NESTED_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.", re.DOTALL
)

_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F]")

_STRING_DECODER: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])

StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass
class Shape:
    """Counts of a body's values, outside its strings."""

    bytes: int
    containers: int = 0
    members: int = 0
    values: int = 0
    depth: int = 0
    outermost: int = 0
    """Commas of the outermost object or array."""

    @property
    def seconds(self) -> float:
        """Estimate how long decoding takes."""
        return (
            self.bytes * _SECONDS_PER_BYTE
            + self.values * _SECONDS_PER_VALUE
            + self.containers * _SECONDS_PER_CONTAINER
            + self.members * _SECONDS_PER_MEMBER
        )


def decode_large(body: bytes, shape: Shape | None = None) -> Any:
    """Decode a body; raises ParseError for one that is no JSON or has too many values. `shape` saves measuring it."""
    measured = shape or measure(body)
    try:
        return _decode(body, measured)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"parse error: {error}") from error


def convert_large(value: Any, struct: type[StructT]) -> StructT:
    """Validate an object as `msgspec.convert` does, without copying the wide objects of free form in it."""
    objects = [name for name, _, _ in _objects_in(struct) if name in value] if isinstance(value, dict) else []
    if not objects:
        return msgspec.convert(value, struct)
    wide: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def without_wide(given: dict[str, Any], kind: type, path: tuple[str, ...]) -> dict[str, Any]:
        narrow = given
        for name, attribute, nested in _objects_in(kind):
            inner = given.get(name)
            if not isinstance(inner, dict):
                continue
            if nested is not None:
                narrow = {**narrow, name: without_wide(inner, nested, (*path, attribute))}
            elif len(inner) > MAX_LEVEL_MEMBERS:
                wide.append(((*path, attribute), inner))
                narrow = {**narrow, name: dict(islice(inner.items(), 1))}
        return narrow

    converted = msgspec.convert(without_wide(value, struct, ()), struct)
    for (*path, attribute), inner in wide:
        owner: Any = converted
        for step in path:
            owner = getattr(owner, step)
        msgspec.structs.force_setattr(owner, attribute, inner)
    return converted


@cache
def _objects_in(struct: type) -> list[tuple[str, str, type | None]]:
    """List the fields of a struct that hold an object: name in JSON, attribute, and the struct if it is one.

    Without a struct, the object may have any members with any values.
    """
    found: list[tuple[str, str, type | None]] = []
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        types = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        for each in types:
            if isinstance(each, msgspec.inspect.StructType):
                found.append((field.encode_name, field.name, each.cls))
            elif isinstance(each, msgspec.inspect.DictType) and isinstance(each.value_type, msgspec.inspect.AnyType):
                found.append((field.encode_name, field.name, None))
    return found


def measure(body: bytes) -> Shape:
    """Count a body's values; raises ParseError at the first limit that it exceeds."""
    shape = Shape(len(body))
    depth, start, in_string = 0, 0, False
    while start < len(body):
        yield_to_commits()
        piece = body[start : start + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and start + len(piece) < len(body):
            piece = piece[:-1]  # an escape stays in one piece
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")  # from left to right, as escapes are read
        parts = piece.split(b'"')
        bare = b"".join(parts[in_string::2])  # every second part is inside a string
        in_string ^= (len(parts) - 1) % 2 == 1
        if _HUGE_NUMBER.search(bare):
            raise ParseError(f"parse error: a number may have {MAX_DIGITS} digits")
        shape.members += bare.count(b":")
        shape.values += bare.count(b",")
        structure = bare.translate(None, _NOT_STRUCTURE)
        shape.containers += structure.count(b"[") + structure.count(b"{")
        _refuse_too_many(shape)
        depths = list(accumulate(map(_STEPS.__getitem__, structure.translate(None, b",")), initial=depth))
        shape.depth = max(shape.depth, max(depths))
        if min(depths) <= 1:  # else the piece is inside what the outermost object or array holds
            shape.outermost += _count_outermost(structure, depth)
        depth = depths[-1]
        if shape.depth > MAX_DEPTH:
            raise ParseError(f"parse error: nested deeper than {MAX_DEPTH} levels")
    return shape


def _count_outermost(structure: bytes, depth: int) -> int:
    """Count the commas of the outermost object or array in brackets and commas that begin at a depth."""
    count = 0
    for run in _STRUCTURE.findall(structure):
        if run in b"[{":
            depth += 1
        elif run in b"]}":
            depth -= 1
        elif depth == 1:
            count += len(run)
    return count


def replace_lone_surrogates(body: bytes) -> bytes:
    """Replace every escaped half of a surrogate pair that has no other half."""
    repaired = bytearray(body)
    for escape in _ESCAPE.finditer(body):
        if escape.end() - escape.start() == 6:  # neither a complete pair nor any other escape
            repaired[escape.start() : escape.end()] = b"\\ufffd"
    return bytes(repaired)


def _refuse_too_many(shape: Shape) -> None:
    for count, limit, noun in (
        (shape.containers, MAX_CONTAINERS, "arrays and objects"),
        (shape.members, MAX_MEMBERS, "members of objects"),
        (shape.values, MAX_VALUES, "values"),
    ):
        if count > limit:
            raise ParseError(f"parse error: a message may hold {limit} {noun}: send several")


def _decode(body: bytes | memoryview, shape: Shape) -> Any:
    yield_to_commits()
    if shape.seconds < MAX_CALL_SECONDS:
        return msgspec.json.decode(body)
    first = bytes(body[:64]).lstrip()[:1]
    if first == b"{" and shape.outermost > MAX_LEVEL_MEMBERS:
        members: dict[str, Any] = {}
        for piece in _split_members(bytes(body), b"}"):
            members.update(_decode_level(b"{" + piece + b"}"))
        return members
    if first == b"[" and shape.outermost > MAX_LEVEL_MEMBERS:
        items: list[Any] = []
        for piece in _split_members(bytes(body), b"]"):
            items.extend(_decode_level(b"[" + piece + b"]"))
        return items
    if first in (b"{", b"["):
        return _decode_level(body, shape)
    if first == b'"' and len(body) > STRING_PIECE_BYTES:
        return _decode_string(bytes(body).strip())
    return msgspec.json.decode(body)


def _decode_level(body: bytes | memoryview, shape: Shape | None = None) -> Any:
    """Decode an object or array whose members are decoded one by one."""
    if bytes(body[:64]).lstrip()[:1] == b"[":
        return [_decode_part(raw, shape) for raw in _ARRAY.decode(body)]
    return {name: _decode_part(raw, shape) for name, raw in _OBJECT.decode(body).items()}


def _split_members(body: bytes, closing: bytes) -> Iterator[bytes]:
    """Split what is inside the brackets of an object or array into pieces of complete members.

    Each piece in brackets is valid JSON if the body is, and the other way round.
    """
    body = body.strip(b" \t\r\n")
    start, at, end = 1, 1, len(body) - 1
    if body[end:] != closing:
        raise msgspec.DecodeError("an object or array is not closed")
    while at < end:
        flat = _FLAT_MEMBERS.match(body, at, min(at + PIECE_BYTES, end))
        at = flat.end() if flat else _end_of_member(body, at, end)
        if at - start < PIECE_BYTES // 2 and at < end:
            continue
        piece = body[start:at] if at == end else body[start : at - 1]
        if not piece.strip():
            raise msgspec.DecodeError("there is nothing between two commas")
        yield piece
        start = at


def _end_of_member(body: bytes, start: int, end: int) -> int:
    """Return the offset behind the comma that ends the member at `start`; `end` if it is the last."""
    depth = 0
    for token in _NESTED_TOKEN.finditer(body, start, end):
        byte = body[token.start()]
        if byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
        elif byte == ord(",") and not depth:
            return token.end()
    return end


def _decode_string(quoted: bytes) -> str:
    """Decode a long string in pieces that end neither inside an escape nor inside a character."""
    pieces: list[str] = []
    start = 1
    while len(quoted) - start > STRING_PIECE_BYTES and (cut := _find_cut(quoted, start + STRING_PIECE_BYTES)) > start:
        pieces.append(_STRING_DECODER.decode(b'"' + quoted[start:cut] + b'"'))
        start = cut
    pieces.append(_STRING_DECODER.decode(b'"' + quoted[start:]))
    return "".join(pieces)


def _find_cut(quoted: bytes, before: int) -> int:
    """Return the last offset before `before` where an escape begins, or else a character; 0 if there is none near."""
    least = before - STRING_PIECE_BYTES // 2
    end = before
    while (found := quoted.rfind(b"\\", least, end)) >= 0:
        while quoted[found - 1 : found] == b"\\":
            found -= 1  # the first of a row of backslashes begins an escape
        if not _LOW_SURROGATE.match(quoted, found):
            return found
        end = found
    if quoted.find(b"\\", max(0, before - 12), before) >= 0:
        return 0
    while quoted[before] & 0xC0 == 0x80:
        before -= 1
    return before


def _decode_part(raw: msgspec.Raw, around: Shape | None) -> Any:
    """Decode one member of an object or array of the shape `around`, if that is known."""
    yield_to_commits()
    part = memoryview(raw)
    if len(part) < PIECE_BYTES // 4:  # decoded quickly, whatever is in it
        return msgspec.json.decode(part)
    if around is not None and around.values <= MAX_LEVEL_MEMBERS:  # no level of it can be wide
        return _decode(part, replace(around, bytes=len(part)))
    return _decode(part, measure(bytes(part)))
