"""Parse schedules as people write them, and compute when they run.

Every run is computed from a day and a time in a time zone. If the clocks skip that time, the run is at the end of the
gap; if it comes twice, the run is at the first. Cron expressions are evaluated by cronsim, which takes the same rules
from Debian's cron.
"""

import calendar
import os
import re
from collections.abc import Mapping
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
MAX_DISTANCE_DAYS = 62
"""A calendar schedule has a run within this many days before and after any moment."""

_DAY_NAMES = (
    ("monday", "mon", "senin"),
    ("tuesday", "tue", "selasa"),
    ("wednesday", "wed", "rabu"),
    ("thursday", "thu", "kamis"),
    ("friday", "fri", "jumat"),
    ("saturday", "sat", "sabtu"),
    ("sunday", "sun", "minggu"),
)
_WEEKDAY = {name: number for number, names in enumerate(_DAY_NAMES) for name in names}
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
_RECURRENCES = "once, daily, weekly(day), custom(day,day) or monthly(day of the month)"


@dataclass(frozen=True)
class CalendarSchedule:
    """A time of day on every day, on some weekdays, or on a day of the month. `once` ends after its first run."""

    at: time
    zone: tzinfo
    weekdays: frozenset[int] | None = None
    month_day: int | None = None
    once: bool = False

    @classmethod
    def parse(cls, text: str, words: str, start: int, zone: tzinfo) -> "CalendarSchedule":
        """Parse `HH:MM RECURRENCE`; `words` begins at offset `start` of `text`."""
        clock = _TIME.match(words)
        if not clock:
            raise _syntax_error(text, start, "a time as 09:30")
        if int(clock[1]) > 23:
            raise _syntax_error(text, start, "an hour from 00 to 23")
        if int(clock[2]) > 59:
            raise _syntax_error(text, start + clock.start(2), "a minute from 00 to 59")
        at = time(int(clock[1]), int(clock[2]))
        rest = words[clock.end() :].lstrip()
        position = start + len(words) - len(rest)
        recurrence = _RECURRENCE.fullmatch(rest)
        if not recurrence:
            raise _syntax_error(text, position, _RECURRENCES)
        name, argument = recurrence[1], recurrence[2]
        if name in ("once", "daily"):
            if argument is not None:
                raise _syntax_error(text, position + recurrence.start(2) - 1, f"nothing after {name}")
            return cls(at, zone, once=name == "once")
        if name not in ("weekly", "custom", "monthly"):
            raise _syntax_error(text, position, _RECURRENCES)
        if argument is None:
            expected = f"({'1-31' if name == 'monthly' else 'day'}) after {name}"
            raise _syntax_error(text, position + recurrence.end(1), expected)
        position += recurrence.start(2)
        if name == "monthly":
            if not re.fullmatch(r"\s*\d{1,2}\s*", argument, re.ASCII) or not 1 <= int(argument) <= 31:
                raise _syntax_error(text, position, "a day of the month from 1 to 31")
            return cls(at, zone, month_day=int(argument))
        weekdays, part_position = set(), position
        for part in argument.split(","):
            if part.strip() not in _WEEKDAY:
                raise _syntax_error(text, part_position + len(part) - len(part.lstrip()), "a day as mon or monday")
            weekdays.add(_WEEKDAY[part.strip()])
            part_position += len(part) + 1
        if name == "weekly" and len(weekdays) > 1:
            raise _syntax_error(text, position, "one day; custom(day,day) takes several")
        return cls(at, zone, weekdays=frozenset(weekdays))

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first run later than `moment`."""
        first = moment.astimezone(self.zone).date() - timedelta(days=1)  # a run in a skipped day moves to the next
        days = (first + timedelta(days=number) for number in range(MAX_DISTANCE_DAYS))
        runs = (local_to_utc(day, self.at, self.zone) for day in days if self._includes(day))
        return next((run for run in runs if run > moment), None)

    def last_until(self, moment: datetime) -> datetime | None:
        """Return the last run that is not later than `moment`."""
        today = moment.astimezone(self.zone).date()
        days = (today - timedelta(days=number) for number in range(MAX_DISTANCE_DAYS))
        runs = (local_to_utc(day, self.at, self.zone) for day in days if self._includes(day))
        return next((run for run in runs if run <= moment), None)

    def _includes(self, day: date) -> bool:
        if self.weekdays is not None:
            return day.weekday() in self.weekdays
        if self.month_day is not None:
            return day.day == min(self.month_day, calendar.monthrange(day.year, day.month)[1])
        return True


@dataclass(frozen=True)
class CronSchedule:
    """A cron expression."""

    expression: str
    zone: tzinfo
    once: bool = False

    @classmethod
    def parse(cls, text: str, words: str, start: int, zone: tzinfo) -> "CronSchedule":
        """Parse a cron expression or a macro; `words` begins at offset `start` of `text`."""
        expression = _MACROS.get(words, words)
        fields = list(re.finditer(r"\S+", words))
        if expression == words and len(fields) != len(_CRON_FIELDS):
            expected = "a time as 09:30, or the five fields of a cron expression"
            if words.startswith("@"):
                expected = f"one of {', '.join(_MACROS)}"
            position = start
            if fields and fields[0][0][0] in "*0123456789":  # a cron expression: its first surplus field, or its end
                position += fields[len(_CRON_FIELDS)].start() if len(fields) > len(_CRON_FIELDS) else len(words)
            raise _syntax_error(text, position, expected)
        try:
            cron = CronSim(expression, datetime.now(zone))
            first_run = next(cron, None)
        except (CronSimError, ValueError, AssertionError, OverflowError) as error:
            number = next((number for number, name in enumerate(_CRON_FIELDS) if str(error).endswith(name)), 0)
            expected = f"a cron field for the {_CRON_FIELDS[number]}"
            raise _syntax_error(text, start + fields[number].start(), expected) from error
        if first_run is None:
            raise _syntax_error(text, start + fields[2].start(), "a day that comes")
        return cls(expression, zone)

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first run later than `moment`; None if there is none."""
        # In the hour that comes twice, cronsim's next run may be earlier than the moment it was given.
        runs = (run.astimezone(UTC) for run in CronSim(self.expression, moment.astimezone(self.zone)))
        return next((run for run in runs if run > moment), None)

    def last_until(self, moment: datetime) -> datetime | None:
        """Return the last run that is not later than `moment`; None if there is none."""
        start = (moment + timedelta(seconds=1)).astimezone(self.zone)
        runs = (run.astimezone(UTC) for run in CronSim(self.expression, start, reverse=True))
        return next((run for run in runs if run <= moment), None)


Schedule = CalendarSchedule | CronSchedule


def parse_schedule(text: str, zone: tzinfo) -> Schedule:
    """Parse a schedule; raises InvalidParams, which shows the grammar and the position of the error."""
    words = text.strip().lower()
    start = len(text) - len(text.lstrip())
    if ":" in words.partition(" ")[0]:
        return CalendarSchedule.parse(text, words, start, zone)
    return CronSchedule.parse(text, words, start, zone)


def parse_timezone(name: str) -> ZoneInfo:
    """Return the time zone with this IANA name; raises InvalidParams."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown, outside the time zone folder, a folder
        raise InvalidParams(
            f"invalid params: there is no time zone {name!r}; write one as Europe/Berlin - at `$.timezone`"
        ) from error


def local_timezone(environ: Mapping[str, str] = os.environ) -> str:
    """Return the IANA name of the machine's time zone, or UTC if the machine does not name one."""
    variable = environ.get("TZ", "").removeprefix(":")
    linked = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    written = ""
    with suppress(OSError, UnicodeDecodeError):
        written = Path("/etc/timezone").read_text("utf-8").strip()
    for name in (variable, linked, written, "UTC"):
        with suppress(InvalidParams):
            return parse_timezone(name).key
    raise AssertionError("UTC exists everywhere")


def local_to_utc(day: date, at: time, zone: tzinfo) -> datetime:
    """Convert a local time to UTC; if the clocks skip it, return the end of the gap."""
    local = datetime.combine(day, at, zone)
    after = local.astimezone(UTC)
    if after.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
        return after
    before = local.replace(fold=1).astimezone(UTC)  # the clocks were changed between the two
    offset = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = (before + (after - before) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after


def _syntax_error(text: str, position: int, expected: str) -> InvalidParams:
    shown = f"{text}\n{' ' * position}^"
    return InvalidParams(
        f"invalid params: expected {expected} at character {position + 1} of the schedule - at `$.schedule`\n"
        f"{shown}\nThe grammar is {GRAMMAR}",
        {"field": "schedule", "position": position, "expected": expected, "grammar": GRAMMAR},
    )
