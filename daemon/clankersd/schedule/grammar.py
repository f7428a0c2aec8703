"""Schedules as people write them, and the moments they stand for.

Every moment is computed from a day and a time in a zone: a time that the clocks skip is the first one after the gap, a
time that comes twice is its first. Cron expressions are cronsim's, which has the same rules from Debian's cron.
"""

import calendar
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from clankers_protocol.errors import InvalidParams

GRAMMAR = (
    "HH:MM once | HH:MM daily | HH:MM weekly(DAY) | HH:MM custom(DAY,DAY,...) | HH:MM monthly(1-31), "
    "or a cron expression: MINUTE HOUR DAY MONTH WEEKDAY"
)
FARTHEST_DAYS = 62
"""Any schedule but a cron expression has a run in so many days, before and after."""

_DAYS = (
    ("monday", "mon", "senin"),
    ("tuesday", "tue", "selasa"),
    ("wednesday", "wed", "rabu"),
    ("thursday", "thu", "kamis"),
    ("friday", "fri", "jumat"),
    ("saturday", "sat", "sabtu"),
    ("sunday", "sun", "minggu"),
)
_WEEKDAY = {name: number for number, names in enumerate(_DAYS) for name in names}
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_CRON_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?!\d)", re.ASCII)
_RECURRENCE = re.compile(r"([a-z]+)\s*(?:\(([^()]*)\))?")


@dataclass(frozen=True)
class Schedule:
    """When something happens. `once` is over after its first run."""

    next_after: Callable[[datetime], datetime | None]
    """The first moment later than the given one; None when there is none."""
    last_until: Callable[[datetime], datetime | None]
    """The last moment that is not later than the given one; None when there is none."""
    once: bool = False


def parse_schedule(text: str, zone: tzinfo) -> Schedule:
    """The schedule that `text` describes; raises InvalidParams, which shows the grammar and the place."""
    words = text.strip().lower()
    start = len(text) - len(text.lstrip())
    if ":" in words.partition(" ")[0]:
        return _parse_days(text, words, start, zone)
    return _parse_cron(text, words, start, zone)


def parse_timezone(name: str) -> ZoneInfo:
    """The zone of an IANA name; raises InvalidParams."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown, outside the folder of zones, a folder
        raise _no_zone(name) from error


def local_timezone(environ: Mapping[str, str] = os.environ) -> str:
    """The IANA name of the machine's zone; UTC where it does not say."""
    given = environ.get("TZ", "").removeprefix(":")
    linked = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    for name in (given, linked, _etc_timezone(), "UTC"):
        with suppress(InvalidParams):
            return parse_timezone(name).key
    raise AssertionError("UTC is everywhere")


def _etc_timezone() -> str:
    try:
        return Path("/etc/timezone").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _no_zone(name: str) -> InvalidParams:
    return InvalidParams(
        f"invalid params: there is no time zone {name!r}; write one as Europe/Berlin - at `$.timezone`"
    )


def _wrong(text: str, place: int, expected: str) -> InvalidParams:
    shown = f"{text}\n{' ' * place}^"
    return InvalidParams(
        f"invalid params: expected {expected} at character {place + 1} of the schedule - at `$.schedule`\n"
        f"{shown}\nThe grammar is {GRAMMAR}",
        {"field": "schedule", "position": place, "expected": expected, "grammar": GRAMMAR},
    )


# -- HH:MM and how often


def _parse_days(text: str, words: str, start: int, zone: tzinfo) -> Schedule:
    clock = _TIME.match(words)
    if not clock:
        raise _wrong(text, start, "a time as 09:30")
    if int(clock[1]) > 23:
        raise _wrong(text, start, "an hour from 00 to 23")
    if int(clock[2]) > 59:
        raise _wrong(text, start + clock.start(2), "a minute from 00 to 59")
    rest = words[clock.end() :].lstrip()
    place = start + len(words) - len(rest)
    found = _RECURRENCE.fullmatch(rest)
    if not found:
        raise _wrong(text, place, "once, daily, weekly(day), custom(day,day) or monthly(day of the month)")
    at = time(int(clock[1]), int(clock[2]))
    on = _days(text, place, found)
    return Schedule(
        lambda moment: _next(on, at, zone, moment),
        lambda moment: _last(on, at, zone, moment),
        once=found[1] == "once",
    )


def _days(text: str, place: int, found: "re.Match[str]") -> Callable[[date], bool]:
    """Which days the recurrence means."""
    name, inside = found[1], found[2]
    if name in ("once", "daily"):
        if inside is not None:
            raise _wrong(text, place + found.start(2) - 1, f"nothing after {name}")
        return lambda day: True
    if name not in ("weekly", "custom", "monthly"):
        raise _wrong(text, place, "once, daily, weekly(day), custom(day,day) or monthly(day of the month)")
    if inside is None:
        raise _wrong(text, place + found.end(1), f"({'1-31' if name == 'monthly' else 'day'}) after {name}")
    if name == "monthly":
        return _monthly(text, place + found.start(2), inside)
    weekdays = _weekdays(text, place + found.start(2), inside)
    if name == "weekly" and len(weekdays) > 1:
        raise _wrong(text, place + found.start(2), "one day; custom(day,day) takes several")
    return lambda day: day.weekday() in weekdays


def _monthly(text: str, place: int, inside: str) -> Callable[[date], bool]:
    if not re.fullmatch(r"\s*\d{1,2}\s*", inside, re.ASCII) or not 1 <= int(inside) <= 31:
        raise _wrong(text, place, "a day of the month from 1 to 31")
    wanted = int(inside)
    return lambda day: day.day == min(wanted, calendar.monthrange(day.year, day.month)[1])


def _weekdays(text: str, place: int, inside: str) -> set[int]:
    found = set()
    for part in inside.split(","):
        if part.strip() not in _WEEKDAY:
            raise _wrong(text, place + len(part) - len(part.lstrip()), "a day as mon or monday")
        found.add(_WEEKDAY[part.strip()])
        place += len(part) + 1
    return found


def _next(on: Callable[[date], bool], at: time, zone: tzinfo, moment: datetime) -> datetime | None:
    today = moment.astimezone(zone).date() - timedelta(days=1)  # a skipped day's run may fall on the one after it
    days = (today + timedelta(days=number) for number in range(FARTHEST_DAYS))
    return next((run for day in days if on(day) and (run := in_zone(day, at, zone)) > moment), None)


def _last(on: Callable[[date], bool], at: time, zone: tzinfo, moment: datetime) -> datetime | None:
    today = moment.astimezone(zone).date()
    days = (today - timedelta(days=number) for number in range(FARTHEST_DAYS))
    return next((run for day in days if on(day) and (run := in_zone(day, at, zone)) <= moment), None)


def in_zone(day: date, at: time, zone: tzinfo) -> datetime:
    """The moment in UTC at which the clocks of `zone` show this time; the end of the gap when they skip it."""
    local = datetime.combine(day, at, zone)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
        return moment
    return _end_of_gap(local.replace(fold=1).astimezone(UTC), moment, zone)


def _end_of_gap(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The moment at which the clocks were changed, which lies between these two."""
    offset = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = (before + (after - before) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after


# -- cron


def _parse_cron(text: str, words: str, start: int, zone: tzinfo) -> Schedule:
    expression = _MACROS.get(words, words)
    fields = list(re.finditer(r"\S+", words))
    if expression == words and len(fields) != len(_CRON_FIELDS):
        raise _wrong(text, start + _wrong_count(fields, words), _what(words))
    try:
        cron = CronSim(expression, datetime.now(zone))
        soonest = next(cron, None)
    except (CronSimError, ValueError, AssertionError, OverflowError) as error:
        number = next((number for number, name in enumerate(_CRON_FIELDS) if str(error).endswith(name)), 0)
        raise _wrong(text, start + fields[number].start(), f"a cron field for the {_CRON_FIELDS[number]}") from error
    if soonest is None:
        raise _wrong(text, start + fields[2].start(), "a day that comes")
    return Schedule(
        lambda moment: _cron_next(expression, moment, zone),
        lambda moment: _cron_last(expression, moment, zone),
    )


def _wrong_count(fields: "list[re.Match[str]]", words: str) -> int:
    """Where a cron expression of too few or too many fields goes wrong; what is none is wrong from its beginning."""
    if not fields or fields[0][0][0] not in "*0123456789":
        return 0
    return fields[len(_CRON_FIELDS)].start() if len(fields) > len(_CRON_FIELDS) else len(words)


def _what(words: str) -> str:
    if words.startswith("@"):
        return f"one of {', '.join(_MACROS)}"
    return "a time as 09:30, or the five fields of a cron expression"


def _cron_next(expression: str, moment: datetime, zone: tzinfo) -> datetime | None:
    # In the hour that comes twice, cronsim's next may lie before the moment it was asked about.
    runs = (run.astimezone(UTC) for run in CronSim(expression, moment.astimezone(zone)))
    return next((run for run in runs if run > moment), None)


def _cron_last(expression: str, moment: datetime, zone: tzinfo) -> datetime | None:
    asked = (moment + timedelta(seconds=1)).astimezone(zone)
    runs = (run.astimezone(UTC) for run in CronSim(expression, asked, reverse=True))
    return next((run for run in runs if run <= moment), None)
