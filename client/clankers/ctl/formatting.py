"""Parse times that people write; format times, sizes and numbers for people."""

import re
from datetime import datetime, timedelta

import click

from clankers.ctl.output import one_line
from clankers_protocol.admin import RetentionReport
from clankers_protocol.counts import count_of as count_of
from clankers_protocol.counts import plural as plural
from clankers_protocol.times import UNITS, parse_time
from clankers_protocol.times import format_time as format_time  # commands take all formats from here


def since_callback(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Parse --since."""
    return None if value is None else wire_time(value)


def until_callback(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Parse --until: a day means its end."""
    return None if value is None else wire_time(value, end_of_day=True)


def future_callback(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Parse --expires and --valid-until: 2w means in two weeks."""
    return None if value is None else future_wire_time(value)


def future_wire_time(text: str) -> int:
    """Parse a time in the future as a timestamp of the wire: 2w means in two weeks, a day means its end."""
    if match := re.fullmatch(r"(?:in )?(\d+)\s*([smhdw])", text):
        delay = timedelta(**{UNITS[match[2]]: int(match[1])})
        return _timestamp(datetime.now().astimezone() + delay)
    return wire_time(text, end_of_day=True)


def wire_time(text: str, *, end_of_day: bool = False) -> int:
    """Parse a time as a timestamp of the wire. Raises BadParameter."""
    try:
        return _timestamp(parse_time(text, datetime.now().astimezone(), end_of_day=end_of_day))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is not a time. Examples: 2h, 3d, 1w, today, yesterday, 2025-01-31, 2025-01-31T18:00."
        ) from error


def _timestamp(when: datetime) -> int:
    """Return milliseconds; seconds before September 2001, because the daemon reads numbers that small as seconds."""
    milliseconds = int(when.timestamp() * 1000)
    return milliseconds if milliseconds >= 10**12 else milliseconds // 1000


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def format_bytes(count: int) -> str:
    """Format a number of bytes in the largest fitting unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def abbreviate(number: float) -> str:
    """Abbreviate a large number: 950, 12.3k, 4.1M."""
    for limit, divisor, suffix in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if number < limit:
            return f"{number:.0f}" if divisor == 1 else f"{number / divisor:.1f}{suffix}"
    return f"{number / 1e9:.1f}G"


def format_dollars(amount: float) -> str:
    """Format an amount in US dollars, with four decimals if it is less than a cent."""
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.4f}"


def describe_removed(removed: dict[str, int]) -> str:
    """List what the retention settings removed: 3 tool outputs, 1 session."""
    return ", ".join(count_of(number, kind.replace("-", " ")) for kind, number in removed.items()) or "nothing"


def describe_last_run(report: RetentionReport) -> str:
    """Tell what the last run of the retention settings removed, and when the next one is."""
    if report.last is None:
        last = "not yet"
    elif report.last.error:
        last = f"failed {format_time(report.last.at)}: {one_line(report.last.error)}"
    else:
        last = f"removed {describe_removed(report.last.removed)} {format_time(report.last.at)}"
    note = f"; {one_line(report.last.note)}" if report.last and report.last.note else ""
    following = f"next {format_time(report.next_run)}" if report.next_run else "no next run is planned"
    return f"{last}{note}; {following}"
