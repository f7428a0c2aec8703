"""`clankers-ctl query`."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from clankers.ctl.command import Ctl, common
from clankers.ctl.output import Column, echo, fits, one_line, plain, print_csv, print_facts, print_json, print_table
from clankers_protocol.admin import Query, Rows


@click.command()
@click.argument("sql")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="json is a list of objects; --json is the same.",
)
@click.option(
    "--safe", is_flag=True, help="In CSV, put an apostrophe before cells that a spreadsheet would run as a formula."
)
@click.option("--limit", type=click.IntRange(1, 100_000), help="How many rows at most.")
@common
def query(ctl: Ctl, sql: str, form: str, safe: bool, limit: int | None) -> None:
    """Run one read-only SQL statement; with - for SQL it is read from standard input.

    \b
    Examples:
      clankers-ctl query "SELECT * FROM sessions ORDER BY created_at DESC LIMIT 5"
      clankers-ctl query "SELECT tool_name, count(*) FROM tools GROUP BY 1" --format csv
      clankers-ctl query "SELECT title FROM sessions" --format csv --safe > titles.csv
      clankers-ctl query - --json < report.sql
    """
    if safe and (ctl.json or form != "csv"):
        raise click.UsageError("--safe is for --format csv.")
    if sql == "-":
        sql = sys.stdin.read()
    answer = ctl.call(Query(sql, limit), timeout=120)
    names = distinct(answer.columns)
    if ctl.json or form == "json":
        print_json([dict(zip(names, row, strict=True)) for row in answer.rows])
    elif form == "csv":
        print_csv(answer.columns, answer.rows, safe=safe)
    else:
        _print_rows(answer)
    if answer.truncated:
        echo(f"Only the first {len(answer.rows):,} rows: --limit shows more.", err=True)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number where one comes again: a JSON object holds each once."""
    seen: dict[str, int] = {}
    told: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        told.append(name if seen[name] == 1 else f"{name}:{seen[name]}")
    return told


def _print_rows(answer: Rows) -> None:
    columns = [_column(name, [row[place] for row in answer.rows]) for place, name in enumerate(answer.columns)]
    cells = [[one_line(_text(value)) for value in row] for row in answer.rows]
    if fits(columns, cells):
        print_table(columns, cells)
    else:
        _print_one_below_the_other(answer)
    count = len(answer.rows)
    echo(f"{count:,} row{'' if count == 1 else 's'} in {answer.took_ms:.1f} ms", err=True)


def _print_one_below_the_other(answer: Rows) -> None:
    for row in answer.rows:
        print_facts(zip(map(one_line, answer.columns), map(_text, row), strict=True))
        echo()


def _column(name: str, values: Sequence[Any]) -> Column:
    known = [value for value in values if value is not None]
    numeric = bool(known) and all(isinstance(value, int | float) for value in known)
    return Column(one_line(name), right=numeric, least=None if numeric else 16)


def _text(value: Any) -> str:
    return "NULL" if value is None else plain(str(value))
