"""Text for terminals: nothing in it commands the terminal, reorders or hides, and ordinary text stays."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers_protocol.terminal import clusters, escape_json, sanitize

FORBIDDEN = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n", "\t"}
FORBIDDEN |= set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\u200b\u2060\ufeff\xad")


@pytest.mark.parametrize(
    "text",
    [
        "plain text, with a tab\there\nand a second line",
        "naïve café 東京 שלום مرحبا",
        "👩\u200d👩\u200d👧\u200d👦 family",
        "❤\ufe0f\u200d🔥 burning heart",
        "🏳\ufe0f\u200d🌈 1\ufe0f\u20e3 👍🏽",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f Scotland",
        "می\u200cخواهم",  # Persian needs the non-joiner
        "葛\U000e0100城",  # an ideographic variation
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x9b31mred", "�31mred"),
        ("back\x08space\x7f", "back␈space␡"),
        ("over\rwritten\r\n", "over␍written\n"),
        ("\u202etxt.exe", "�txt.exe"),
        ("\u2066isolated\u2069", "�isolated�"),
        ("a\u200bb\ufeffc\xadd\u2060e", "abcde"),
        ("hi\U000e0041\U000e0042\U000e007f", "hi�"),
        ("🏴\U000e0041\U000e007f", "🏴�"),
        ("a\ufe0f\ufe01\ufe02b", "ab"),
        ("pass\u200dword p\u200cq", "password pq"),
        ("\u2800x\U0001d173y", "xy"),
        ("👩\u200d\u200d👧", "👩👧"),
        ("\u200d\u200dx \ufe0f", "x "),
        ("line\u2028separator", "line�separator"),
    ],
)
def test_what_commands_reorders_or_hides_is_shown_or_removed(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_safe_and_stays_so(text: str) -> None:
    shown = sanitize(text)
    assert not FORBIDDEN & set(shown)
    assert sanitize(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escaped_json_means_the_same(text: str) -> None:
    escaped = escape_json(json.dumps({text: text}, ensure_ascii=False))
    assert json.loads(escaped) == {text: text}
    assert sanitize(escaped) == escaped
    assert not any(unicodedata.category(char) == "Cc" for char in escaped)


def test_escaped_json_keeps_emoji_whole_and_escapes_what_hides() -> None:
    assert escape_json('"👩\u200d👩\u200d👧 ❤\ufe0f"') == '"👩\u200d👩\u200d👧 ❤\ufe0f"'
    assert escape_json('"pass\u200dword\u202e"') == '"pass\\u200dword\\u202e"'


def test_clusters_are_cut_between_and_never_inside() -> None:
    assert clusters("a👩\u200d👩\u200d👧e\u0301") == ["a", "👩\u200d👩\u200d👧", "e\u0301"]
