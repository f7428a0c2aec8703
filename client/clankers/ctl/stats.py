"""`clankers-ctl stats`: usage statistics of sessions."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import click

from clankers.ctl.command import Ctl, common_options, project_option
from clankers.ctl.formatting import abbreviate, format_dollars, format_duration, plural, since_callback, until_callback
from clankers.ctl.output import Column, bar, console, echo, one_line, print_facts, print_json, print_table
from clankers.ctl.text import Text
from clankers_protocol.sessions import Statistics, Stats, ToolUsage, Totals, Usage

CALENDAR_WEEKS = 26
SHADES = "·░▒▓█"
WEEKDAY_LABELS = ("Mon  ", "     ", "Wed  ", "     ", "Fri  ", "     ", "Sun  ")

Measure = Callable[[Usage], float]

MEASURES: dict[str, Measure] = {
    "tokens": lambda usage: usage.prompt_tokens + usage.completion_tokens,
    "messages": lambda usage: usage.messages,
    "sessions": lambda usage: usage.sessions,
    "cost": lambda usage: usage.cost,
}


@click.command()
@project_option("Only count sessions of this project")
@click.option(
    "--since", metavar="TIME", callback=since_callback, help="Only count sessions started since TIME: 2h, 3d, today …"
)
@click.option("--until", metavar="TIME", callback=until_callback, help="Only count sessions started until TIME.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Show at most this many rows per chart.",
)
@click.option(
    "--by", type=click.Choice(list(MEASURES)), help="Show this quantity as bars.  [default: tokens, if there are any]"
)
@common_options
def stats(ctl: Ctl, project: str | None, since: int | None, until: int | None, limit: int, by: str | None) -> None:
    """Show usage by day, project, model, harness and tool.

    Ends with a calendar of the last half year: a square for each day, fuller the more messages it has.

    \b
    Examples:
      clankers-ctl stats
      clankers-ctl stats --since 1w --by cost
      clankers-ctl stats --json | jq .totals
    """
    days = CALENDAR_WEEKS * 7
    statistics = ctl.call(Stats(project=project, since=since, until=until, limit=limit, calendar_days=days))
    if ctl.json:
        print_json(statistics)
        return
    _print_totals(statistics.totals)
    if by is None:
        has_tokens = statistics.totals.prompt_tokens + statistics.totals.completion_tokens > 0
        by = "tokens" if has_tokens else "messages"
    _print_charts(statistics, by)
    if statistics.tools:
        _print_tools(statistics.tools)
    if statistics.calendar:
        echo()
        _print_calendar({each.day: each.messages for each in statistics.calendar})


def _print_totals(totals: Totals) -> None:
    print_facts(
        [
            ("sessions", f"{totals.sessions:,} in {plural(totals.projects, 'project')}"),
            ("messages", f"{totals.messages:,}"),
            ("tools", f"{plural(totals.tools, 'call')}, {totals.failed_tools:,} failed"),
            ("errors", f"{totals.errors:,}"),
            ("compactions", f"{totals.compactions:,}"),
            ("tokens", f"{abbreviate(totals.prompt_tokens)} in, {abbreviate(totals.completion_tokens)} out"),
            ("cost", format_dollars(totals.cost) if totals.cost else "unknown"),
        ]
    )


def _print_charts(statistics: Statistics, measure: str) -> None:
    charts = {
        "Day": statistics.by_day[::-1],
        "Project": statistics.by_project,
        "Model": statistics.by_model,
        "Source": statistics.by_source,
    }
    for name, rows in charts.items():
        if rows:
            echo()
            _print_chart(name, rows, measure)


def _print_chart(name: str, rows: Sequence[Usage], measure: str) -> None:
    largest = max(map(MEASURES[measure], rows)) or 1
    width = _bar_width()
    shown = [measure, *(other for other in MEASURES if other != measure)]
    columns = [
        Column(name, min_width=16, truncate_start=name == "Project"),
        Column("", style="cyan"),
        *(Column(each.capitalize(), align_right=True, optional=each != measure) for each in shown),
    ]
    cells = [
        [
            one_line(usage.name or "–"),
            bar(MEASURES[measure](usage) / largest, width),
            *(_amount(each, usage) for each in shown),
        ]
        for usage in rows
    ]
    print_table(columns, cells)


def _amount(measure: str, usage: Usage) -> str:
    amount = MEASURES[measure](usage)
    if measure == "cost":
        return format_dollars(amount) if amount else "–"  # no harness reports a cost of nothing
    return abbreviate(amount) if measure == "tokens" else f"{amount:,}"


def _print_tools(tools: Sequence[ToolUsage]) -> None:
    max_calls = max(tool.calls for tool in tools) or 1
    width = _bar_width()
    columns = [
        Column("Tool", min_width=16),
        Column("", style="yellow"),
        Column("Calls", align_right=True),
        Column("Failed", align_right=True),
        Column("Mean time", align_right=True, optional=True),
    ]
    cells = [
        [
            one_line(tool.name),
            bar(tool.calls / max_calls, width),
            f"{tool.calls:,}",
            f"{tool.failure_rate:.0%}" if tool.failures else "",
            "" if tool.mean_duration_ms is None else format_duration(tool.mean_duration_ms / 1000),
        ]
        for tool in tools
    ]
    echo()
    print_table(columns, cells)


def _print_calendar(messages: dict[str, int]) -> None:
    """Draw a column for each week and a line for each day of the week, as many weeks as fit."""
    out = console()
    weeks = max(min(CALENDAR_WEEKS, (out.width - len(WEEKDAY_LABELS[0])) // 2), 1)
    today = datetime.now().astimezone().date()
    monday = today - timedelta(days=today.weekday(), weeks=weeks - 1)
    most = max(messages.values())
    months = [" "] * (2 * weeks + 3)
    for week in range(weeks):
        first = monday + timedelta(weeks=week)
        if first.day <= 7:
            months[2 * week : 2 * week + 3] = first.strftime("%b")
    busiest = max(messages, key=lambda day: messages[day])
    out.print(Text("Messages per day", "bold"), Text(f"  most: {most:,} on {busiest}", "dim"), sep="")
    out.print(Text(" " * len(WEEKDAY_LABELS[0]) + "".join(months)[: 2 * weeks].rstrip(), "dim"))
    for weekday, label in enumerate(WEEKDAY_LABELS):
        line = Text(label, "dim")
        for week in range(weeks):
            day = monday + timedelta(weeks=week, days=weekday)
            if day <= today:
                count = messages.get(day.isoformat(), 0)
                level = math.ceil(math.log1p(count) / math.log1p(most) * (len(SHADES) - 1))
                line.append(f"{SHADES[level]} ", "green" if count else "dim")
        line.rstrip()
        out.print(line)


def _bar_width() -> int:
    return max(10, min(40, console().width // 4))
