"""JSON values are counted outside of strings, without decoding."""

import json

from hypothesis import given
from hypothesis import strategies as st

from clankersd.json_values import estimate_values, has_more_values_than

VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def separators(value: object) -> int:
    """Commas, brackets and braces that JSON needs for a value."""
    if not isinstance(value, list | dict):
        return 0
    children = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(len(children) - 1, 0) + sum(map(separators, children))


@given(VALUES)
def test_separators_are_counted_outside_of_strings(value: object) -> None:
    body, count = json.dumps(value).encode(), separators(value)
    assert not has_more_values_than(body, count)
    assert count == 0 or has_more_values_than(body, count - 1)
    assert estimate_values(body) >= count


def test_text_full_of_brackets_is_one_value() -> None:
    body = json.dumps(["[,{" * 10_000 + '\\"']).encode()
    assert estimate_values(body) > 10_000
    assert not has_more_values_than(body, 1)


def test_what_is_not_json_is_left_to_the_decoder() -> None:
    assert not has_more_values_than(b'["unfinished', 1)
