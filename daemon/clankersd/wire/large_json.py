"""Decode large JSON bodies without holding the interpreter lock for long.

One call of a C decoder on tens of megabytes stops every other thread, the event loop included, until it returns. What
makes it slow is not the length but the number of values: 30 MB of text take 20 ms, 30 MB of empty arrays two seconds.
So the values are counted first, piece by piece; a body with too many is refused, and one with many is decoded one
level at a time. Call these functions in a thread.
"""

import re
from dataclasses import dataclass
from typing import Any

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

_SECONDS_PER_BYTE = 0.8e-9
_SECONDS_PER_VALUE = 25e-9
_SECONDS_PER_CONTAINER = 250e-9
_SECONDS_PER_MEMBER = 400e-9

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_HUGE_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ESCAPE = re.compile(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.", re.DOTALL
)

_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F]")

_STRING_DECODER: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass
class Shape:
    """Counts of a body's values, outside its strings."""

    bytes: int
    containers: int = 0
    members: int = 0
    values: int = 0
    depth: int = 0

    @property
    def seconds(self) -> float:
        """Estimate how long decoding takes."""
        return (
            self.bytes * _SECONDS_PER_BYTE
            + self.values * _SECONDS_PER_VALUE
            + self.containers * _SECONDS_PER_CONTAINER
            + self.members * _SECONDS_PER_MEMBER
        )


def decode_large(body: bytes) -> Any:
    """Decode a body; raises ParseError for one that is no JSON or has too many values."""
    shape = measure(body)
    try:
        return _decode(body, shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"parse error: {error}") from error


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
        # The added quotes close a string that the piece ends in, and open one that it begins in.
        bare = _STRING.sub(b"", (b'"' + piece if in_string else piece) + b'"')
        in_string = not bare.endswith(b'"')
        if _HUGE_NUMBER.search(bare):
            raise ParseError(f"parse error: a number may have {MAX_DIGITS} digits")
        shape.members += bare.count(b":")
        shape.values += bare.count(b",")
        brackets = bare.translate(None, _NOT_BRACKETS)
        shape.containers += brackets.count(b"[") + brackets.count(b"{")
        _refuse_too_many(shape)
        for bracket in brackets:
            depth += 1 if bracket in b"[{" else -1
            shape.depth = max(shape.depth, depth)
        if shape.depth > MAX_DEPTH:
            raise ParseError(f"parse error: nested deeper than {MAX_DEPTH} levels")
    return shape


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
    if first == b"{":
        return {name: _decode_part(raw) for name, raw in _OBJECT.decode(body).items()}
    if first == b"[":
        return [_decode_part(raw) for raw in _ARRAY.decode(body)]
    if first == b'"' and len(body) > STRING_PIECE_BYTES:
        return _decode_string(bytes(body).strip())
    return msgspec.json.decode(body)


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


def _decode_part(raw: msgspec.Raw) -> Any:
    part = memoryview(raw)
    if len(part) < PIECE_BYTES // 16:
        return msgspec.json.decode(part)
    return _decode(part, measure(bytes(part)))
