"""Large JSON is decoded in slices to the same values, and too many values are refused."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers_protocol.errors import ParseError
from clankers_protocol.events import UpsertMessage
from clankersd.wire import large_json, rpc

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=40,
)


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "PIECE_BYTES", 8)
    monkeypatch.setattr(large_json, "MAX_CALL_SECONDS", 0)


def count(value: Any) -> tuple[int, int, int]:
    """Arrays and objects, members of objects, and levels."""
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = [count(each) for each in (value.values() if isinstance(value, dict) else value)]
    return (
        1 + sum(each[0] for each in inner),
        (len(value) if isinstance(value, dict) else 0) + sum(each[1] for each in inner),
        1 + max((each[2] for each in inner), default=0),
    )


@given(value=VALUES, spaced=st.booleans(), ascii_only=st.booleans())
def test_decode_large_gives_what_decoding_at_once_gives(value: Any, spaced: bool, ascii_only: bool) -> None:
    body = json.dumps(value, indent=1 if spaced else None, ensure_ascii=ascii_only).encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "PIECE_BYTES", 8)
        patch.setattr(large_json, "MAX_CALL_SECONDS", 0)
        patch.setattr(large_json, "STRING_PIECE_BYTES", 4)
        assert large_json.decode_large(body) == msgspec.json.decode(body)
        patch.setattr(large_json, "MAX_LEVEL_MEMBERS", 0)
        assert large_json.decode_large(body) == msgspec.json.decode(body)
        shape = large_json.measure(body)
    assert (shape.containers, shape.members, shape.depth) == count(msgspec.json.decode(body))


@pytest.mark.parametrize("level_members", [0, large_json.MAX_LEVEL_MEMBERS])
@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[1,2',
        b"[1,2]]",
        b'[1,"a]',
        b'{"a":1,}',
        b'{"a":1,"b":2]',
        b"[1,2,3,4,5,6,,7]",
        b"[,1,2,3]",
        b"[1,2,3,4,5,6,7,]",
        b"[1],[2]",
        b"[1 2,3]",
        b"[}",
        b'["\xff","b","c"]',
        b"",
        b"[1,2,nul]",
    ],
)
@pytest.mark.usefixtures("tiny_slices")
def test_decode_large_refuses_what_is_no_json(body: bytes, level_members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "MAX_LEVEL_MEMBERS", level_members)
    with pytest.raises(ParseError):
        large_json.decode_large(body)


def test_convert_large_validates_everything_and_copies_no_wide_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "MAX_LEVEL_MEMBERS", 2)
    metadata = {"a": 1, "b": [2], "c": {"d": 3}}
    message: dict[str, Any] = {"id": "m", "sessionId": "s", "textContent": "text", "metadata": metadata}
    request = {"message": message, "client": {"name": "n"}}
    converted = large_json.convert_large(request, UpsertMessage)
    assert converted == msgspec.convert(request, UpsertMessage)
    assert converted.message.metadata is metadata
    for wrong in ({**message, "textContent": 1}, {**message, "metadata": [1]}, 1):
        with pytest.raises(msgspec.ValidationError) as plain:
            msgspec.convert({"message": wrong}, UpsertMessage)
        with pytest.raises(msgspec.ValidationError, match=re.escape(str(plain.value))):
            large_json.convert_large({"message": wrong}, UpsertMessage)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[" + b"[]," * large_json.MAX_CONTAINERS + b"1]", "arrays and objects"),
        (b"{" + b",".join(b'"%x":1' % n for n in range(large_json.MAX_MEMBERS + 1)) + b"}", "members"),
        (b"[" + b"1," * (large_json.MAX_VALUES + 1) + b"1]", "values"),
        (b"[" * 65 + b"]" * 65, "nested deeper"),
        (b"[" + b"1" * 2000 + b"]", "digits"),
    ],
)
def test_measure_refuses_too_many_values_and_says_of_what(body: bytes, what: str) -> None:
    with pytest.raises(ParseError, match=what):
        large_json.measure(body)


@pytest.mark.usefixtures("tiny_slices")
def test_measure_counts_nothing_inside_strings() -> None:
    shape = large_json.measure(json.dumps(["[{,:", 'a\\"b[', "\\" * 31, "]}"]).encode())
    assert (shape.containers, shape.members, shape.values, shape.depth) == (1, 0, 3, 1)


@pytest.mark.parametrize("padding", [0, rpc.LARGE_BODY_BYTES], ids=["small", "large"])
def test_decode_replaces_half_a_surrogate_pair_alone(padding: int) -> None:
    body = b'{"pad":"' + b"x" * padding + rb'","text":"\ud83d\ude00 \ud83d \ude00 \\ud83d \uD800\n"}'
    assert rpc.decode(body)["text"] == "😀 \ufffd \ufffd \\ud83d \ufffd\n"


@given(
    text=st.text(st.sampled_from('a\\"\n\t😀é漢u'), max_size=200), ascii_only=st.booleans(), piece=st.integers(2, 40)
)
def test_decode_large_gives_a_long_string_whole(text: str, ascii_only: bool, piece: int) -> None:
    body = json.dumps(text, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "MAX_CALL_SECONDS", 0)
        patch.setattr(large_json, "STRING_PIECE_BYTES", piece)
        assert large_json.decode_large(body) == text


@pytest.mark.parametrize(
    "body", [rb'"abc\ud83d xxxxx"', rb'"abcdefgh\x"', b'"abcdefgh', b'"abcde\nfgh"', b'"abcd"efg"', b'"a"b"']
)
def test_decode_large_refuses_a_long_string_that_is_malformed(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "MAX_CALL_SECONDS", 0)
    monkeypatch.setattr(large_json, "STRING_PIECE_BYTES", 4)
    with pytest.raises(ParseError):
        large_json.decode_large(body)
