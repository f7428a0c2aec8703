"""From bytes to JSON: anything is either decoded or a parse error."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers_protocol.errors import ParseError
from clankersd.wire.large_json import MAX_DEPTH
from clankersd.wire.rpc import decode

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


@given(values)
def test_json_is_decoded_as_it_is(value: object) -> None:
    assert decode(json.dumps(value).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_a_parse_error(body: bytes) -> None:
    try:
        decoded = decode(body)
    except ParseError:
        return
    assert msgspec.json.encode(decoded)


def test_half_a_surrogate_pair_is_replaced_and_the_rest_kept() -> None:
    assert decode(rb'{"text": "cut \ud83d"}') == {"text": "cut \ufffd"}
    assert decode(rb'{"text": "\ud83d\ude00 and \ude00"}') == {"text": "\U0001f600 and \ufffd"}


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_not_json_is_refused_even_beside_a_lone_surrogate(constant: str) -> None:
    with pytest.raises(ParseError):
        decode(rb'["\ud800", ' + constant.encode() + b"]")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
def test_nesting_is_bounded(depth: int) -> None:
    assert decode(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(ParseError):
        decode(b"[" * depth + b"]" * depth)
