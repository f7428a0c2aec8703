"""Times as people write and read them, in the local time zone."""

import re
from datetime import datetime, time, timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, now: datetime, *, end_of_day: bool = False) -> datetime:
    """Parse a time. A day means its beginning, or with `end_of_day` its end. Raises ValueError."""
    day = {"today": now, "yesterday": now - timedelta(days=1)}.get(text)
    if text == "now":
        return now
    if match := re.fullmatch(r"(\d+)\s*([smhdw])( ago)?", text):
        return now - timedelta(**{UNITS[match[2]]: int(match[1])})
    if day is None and re.fullmatch(r"\d{4}-?\d\d-?\d\d", text):
        day = datetime.fromisoformat(text)
    if day is not None:
        return datetime.combine(day.date(), time.max if end_of_day else time.min).astimezone()
    return datetime.fromisoformat(text).astimezone()


def format_time(milliseconds: int | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """Format a timestamp in the local time zone; empty if there is none."""
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime(form)
