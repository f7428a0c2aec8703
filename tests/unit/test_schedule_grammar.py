"""Schedule parsing and next runs: clock changes, ends of months, order of runs, invalid schedules."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clankers_protocol.errors import InvalidParams
from clankersd.schedule.grammar import GRAMMAR, local_timezone, parse_schedule, parse_timezone

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


@pytest.mark.parametrize(
    ("day", "year", "expected"),
    [
        (31, 2026, ["01-31", "02-28", "03-31", "04-30", "05-31", "06-30", "07-31", "08-31", "09-30", "10-31"]),
        (30, 2026, ["01-30", "02-28", "03-30", "04-30", "05-30"]),
        (29, 2026, ["01-29", "02-28", "03-29"]),
        (29, 2028, ["01-29", "02-29", "03-29"]),
        (31, 2028, ["01-31", "02-29", "03-31", "04-30"]),
        (28, 2026, ["01-28", "02-28", "03-28"]),
    ],
)
def test_monthly_day_that_a_month_lacks_is_its_last_day(day: int, year: int, expected: list[str]) -> None:
    schedule = parse_schedule(f"08:00 monthly({day})", UTC)
    moment: datetime | None = datetime(year, 1, 1, tzinfo=UTC)
    for wanted in expected:
        assert moment
        moment = schedule.next_after(moment)
        assert moment == datetime.fromisoformat(f"{year}-{wanted}T08:00+00:00")


@pytest.mark.parametrize(
    ("schedule", "zone", "now", "expected"),
    [
        # In spring the clocks skip an hour: a run in it is at its end.
        ("02:30 daily", BERLIN, "2027-03-28 01:00", "2027-03-28 01:00+00:00"),
        ("30 2 * * *", BERLIN, "2027-03-28 01:00", "2027-03-28 01:00+00:00"),
        ("02:30 daily", NEW_YORK, "2027-03-14 01:00", "2027-03-14 07:00+00:00"),
        ("02:30 weekly(sun)", NEW_YORK, "2027-03-10 01:00", "2027-03-14 07:00+00:00"),
        ("02:30 monthly(28)", BERLIN, "2027-03-20 01:00", "2027-03-28 01:00+00:00"),
        ("03:00 daily", BERLIN, "2027-03-28 01:00", "2027-03-28 01:00+00:00"),
        ("01:59 daily", BERLIN, "2027-03-28 01:00", "2027-03-28 00:59+00:00"),
        # The day after everything is as it was, an hour earlier in UTC.
        ("02:30 daily", BERLIN, "2027-03-28 12:00", "2027-03-29 00:30+00:00"),
        ("09:00 daily", BERLIN, "2027-03-27 12:00", "2027-03-28 07:00+00:00"),
        ("09:00 daily", BERLIN, "2027-03-26 12:00", "2027-03-27 08:00+00:00"),
        # In autumn an hour comes twice: a run in it is in the first.
        ("02:30 daily", BERLIN, "2027-10-31 01:00", "2027-10-31 00:30+00:00"),
        ("30 2 * * *", BERLIN, "2027-10-31 01:00", "2027-10-31 00:30+00:00"),
        ("01:30 daily", NEW_YORK, "2027-11-07 00:30", "2027-11-07 05:30+00:00"),
        ("09:00 daily", BERLIN, "2027-10-30 12:00", "2027-10-31 08:00+00:00"),
        # Half hours, quarter hours, half an hour of summer time, and a day that never was.
        ("09:00 daily", "Asia/Kolkata", "2027-01-01 00:00", "2027-01-01 03:30+00:00"),
        ("09:00 daily", "Asia/Kathmandu", "2027-01-01 00:00", "2027-01-01 03:15+00:00"),
        ("02:15 daily", "Australia/Lord_Howe", "2027-10-03 01:00", "2027-10-02 15:30+00:00"),
        ("09:00 daily", "Pacific/Apia", "2011-12-29 10:00", "2011-12-30 10:00+00:00"),
    ],
)
def test_next_run_respects_clock_changes_and_time_zones(schedule: str, zone: str, now: str, expected: str) -> None:
    where = ZoneInfo(zone)
    moment = datetime.fromisoformat(now).replace(tzinfo=where).astimezone(UTC)
    assert parse_schedule(schedule, where).next_after(moment) == datetime.fromisoformat(expected)


@pytest.mark.parametrize("schedule", ["02:30 daily", "30 2 * * *"])
def test_repeated_hour_is_not_due_twice(schedule: str) -> None:
    second = datetime(2027, 10, 31, 1, 10, tzinfo=UTC)  # 02:10 in Berlin, for the second time
    found = parse_schedule(schedule, ZoneInfo(BERLIN)).next_after(second)
    assert found == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


SCHEDULES = ["02:30 daily", "02:30 weekly(sun)", "02:30 custom(sun,mon,sat)", "02:30 monthly(31)", "30 2 * * *"]


@settings(deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    zone=st.sampled_from([BERLIN, NEW_YORK, "UTC", "Pacific/Apia", "Australia/Lord_Howe"]),
    moment=st.integers(1_262_304_000, 2_051_222_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_runs_are_in_order_and_the_last_is_never_after_now(schedule: str, zone: str, moment: datetime) -> None:
    found = parse_schedule(schedule, parse_timezone(zone))
    coming = found.next_after(moment)
    assert coming
    assert coming > moment
    last = found.last_until(coming)
    assert last
    assert last <= coming
    runs = [coming]
    for _ in range(5):
        following = found.next_after(runs[-1])
        assert following
        runs.append(following)
    assert all(timedelta(0) < later - earlier for earlier, later in pairwise(runs))


@pytest.mark.parametrize("schedule", SCHEDULES[:4])
def test_last_run_is_the_latest_that_has_passed(schedule: str) -> None:
    found = parse_schedule(schedule, parse_timezone(BERLIN))
    coming = found.next_after(datetime(2027, 3, 20, tzinfo=UTC))
    assert coming
    assert found.last_until(coming) == coming
    assert found.last_until(coming + timedelta(hours=3)) == coming
    before = found.last_until(coming - timedelta(seconds=1))
    assert before
    assert before < coming


@pytest.mark.parametrize(
    ("schedule", "place", "expected"),
    [
        ("24:00 daily", 0, "an hour"),
        ("09:60 daily", 3, "a minute"),
        ("9:5 daily", 0, "a time"),
        ("09:000 daily", 0, "a time"),
        ("-9:00 daily", 0, "a time"),
        ("09:00", 5, "once, daily"),
        ("09:00 sometimes", 6, "once, daily"),
        ("09:00 daily daily", 6, "once, daily"),
        ("09:00 once(mon)", 10, "nothing after once"),
        ("09:00 daily()", 11, "nothing after daily"),
        ("09:00 weekly", 12, "(day) after weekly"),
        ("09:00 weekly()", 13, "a day as mon"),
        ("09:00 weekly(blursday)", 13, "a day as mon"),
        ("09:00 weekly(mon,tue)", 13, "one day"),
        ("  09:00 custom(mon, noday)", 20, "a day as mon"),
        ("09:00 custom(mon,)", 17, "a day as mon"),
        ("09:00 monthly", 13, "(1-31) after monthly"),
        ("09:00 monthly(0)", 14, "a day of the month"),
        ("09:00 monthly(32)", 14, "a day of the month"),
        ("09:00 monthly(-1)", 14, "a day of the month"),
        ("09:00 monthly(first)", 14, "a day of the month"),
        ("60 * * * *", 0, "minute"),
        ("* 24 * * *", 2, "hour"),
        ("0 0 32 * *", 4, "day-of-month"),
        ("0 0 30 2 *", 4, "day-of-month"),
        ("0 0 * 13 *", 6, "month"),
        ("0 0 * * 8", 8, "day-of-week"),
        ("0 0 * * 5#1/2", 8, "day-of-week"),
        ("* * * *", 7, "five fields"),
        ("* * * * * *", 10, "five fields"),
        ("@reboot", 0, "one of @yearly"),
        ("whenever", 0, "a time as 09:30"),
        ("9;rm -rf /", 10, "five fields"),
        ("   ", 3, "a time as 09:30"),
    ],
)
def test_invalid_schedule_error_names_position_and_expectation(schedule: str, place: int, expected: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        parse_schedule(schedule, UTC)
    assert refused.value.data["position"] == place
    assert expected in refused.value.data["expected"]
    assert GRAMMAR in refused.value.message
    assert f"character {place + 1} of the schedule" in refused.value.message


@pytest.mark.parametrize("name", ["", "Nowhere/Land", "../../etc/passwd", "/etc/passwd", "Europe", "UTC+2:30", "a\0b"])
def test_unknown_time_zone_is_rejected(name: str) -> None:
    with pytest.raises(InvalidParams, match="there is no time zone"):
        parse_timezone(name)


def test_local_time_zone_has_a_name() -> None:
    assert parse_timezone(local_timezone()).key
    assert local_timezone({"TZ": "Asia/Tokyo"}) == "Asia/Tokyo"
    assert local_timezone({"TZ": ":Asia/Tokyo"}) == "Asia/Tokyo"
    assert parse_timezone(local_timezone({"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"})).key
