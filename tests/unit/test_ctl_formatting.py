"""Parsing and formatting in clankers-ctl: times, numbers, bars and columns."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clankers.ctl.config import parse_value
from clankers.ctl.db import unique_names
from clankers.ctl.formatting import abbreviate, format_bytes, format_dollars, format_duration
from clankers.ctl.output import COLUMN_GAP, Column, bar, column_widths, plain
from clankers_protocol.times import parse_time

NOW = datetime(2025, 1, 31, 12, 30, tzinfo=UTC).astimezone()


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("now", timedelta()),
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("3d", timedelta(days=3)),
        ("1w ago", timedelta(weeks=1)),
    ],
)
def test_parse_time_of_a_relative_time_is_that_long_ago(text: str, ago: timedelta) -> None:
    assert parse_time(text, NOW) == NOW - ago


def test_parse_time_of_a_day_is_its_first_or_last_moment() -> None:
    assert parse_time("today", NOW) == NOW.replace(hour=0, minute=0)
    assert parse_time("2025-01-31", NOW) == NOW.replace(hour=0, minute=0)
    assert parse_time("2025-01-30", NOW) == parse_time("yesterday", NOW)
    end = parse_time("yesterday", NOW, end_of_day=True)
    assert end < parse_time("today", NOW) <= end + timedelta(microseconds=1)


def test_parse_time_reads_a_time_zone() -> None:
    assert parse_time("2025-01-31T12:30Z", NOW) == NOW


@pytest.mark.parametrize("text", ["", "soon", "2", "h", "-2h", "2025-13-01", "2 fortnights"])
def test_parse_time_refuses_anything_else(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_duration(0.0123), "12 ms"),
        (format_duration(2.34), "2.3 s"),
        (format_duration(61), "1 min 1 s"),
        (format_duration(3 * 3600 + 65), "3 h 1 min"),
        (format_duration(50 * 3600), "2 d 2 h"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(1536), "1.5 KiB"),
        (format_bytes(5 * 1024**4), "5.0 TiB"),
        (abbreviate(950), "950"),
        (abbreviate(12_345), "12.3k"),
        (abbreviate(4_100_000), "4.1M"),
        (format_dollars(0), "$0.00"),
        (format_dollars(1234.5), "$1,234.50"),
        (format_dollars(0.0042), "$0.0042"),
    ],
)
def test_format_functions_choose_readable_units(shown: str, expected: str) -> None:
    assert shown == expected


def test_bar_shows_eighths_and_anything_above_zero() -> None:
    assert bar(0, 10) == ""
    assert bar(1, 3) == "███"
    assert bar(0.5, 3) == "█▌"
    assert bar(0.0001, 10) == "▏"


@given(st.lists(st.tuples(st.integers(1, 60), st.none() | st.integers(1, 30), st.booleans()), min_size=1, max_size=8))
def test_column_widths_fit_into_the_room(shapes: list[tuple[int, int | None, bool]]) -> None:
    columns = [Column("", min_width=least, optional=optional) for _, least, optional in shapes]
    natural = [width for width, _, _ in shapes]
    least = sum(column_widths(columns, natural, 0).values()) + COLUMN_GAP * (
        len(column_widths(columns, natural, 0)) - 1
    )

    for room in (40, 80, 500):
        widths = column_widths(columns, natural, room)
        total = sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)
        assert total <= max(room, least)
        assert all(width <= natural[place] for place, width in widths.items())


def test_column_widths_are_natural_if_there_is_enough_room() -> None:
    columns = [Column("", min_width=16), Column("", optional=True)]

    assert column_widths(columns, [30, 20], 52) == {0: 30, 1: 20}
    assert column_widths(columns, [30, 20], 51) == {0: 29, 1: 20}
    assert column_widths(columns, [30, 20], 30) == {0: 30}


def test_unique_names_numbers_repeated_names() -> None:
    assert unique_names(["id", "id", "x", "id"]) == ["id", "id:2", "x", "id:3"]


@pytest.mark.parametrize(
    ("typed", "value"),
    [("7", 7), ("0.5", 0.5), ("true", True), ("debug", "debug"), ('"7"', "7"), ("[1]", "[1]"), ("", "")],
)
def test_parse_value_detects_the_type(typed: str, value: object) -> None:
    assert parse_value(typed) == value
    assert type(parse_value(typed)) is type(value)


@given(st.text())
def test_plain_removes_control_characters_except_newlines_and_tabs(text: str) -> None:
    assert not {char for char in plain(text) if ord(char) < 32 or 127 <= ord(char) < 160} - {"\n", "\t"}
