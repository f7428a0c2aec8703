"""`clankers-ctl db` and `clankers-ctl jobs`."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.formatting import format_bytes
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import (
    Column,
    confirm,
    echo,
    fits_terminal,
    one_line,
    plain,
    print_csv,
    print_facts,
    print_json,
    print_table,
    secho,
)
from clankers_protocol.admin import (
    DbCheck,
    DbMigrate,
    DbRollback,
    DbVacuum,
    Migrated,
    Query,
    Rows,
)

PATIENCE = 3600
"""Seconds that a migration may take: it is not a job, and a large database takes its time."""


@click.group()
def db() -> None:
    """Look after the database.

    \b
    Examples:
      clankers-ctl db check
      clankers-ctl db vacuum
      clankers-ctl db migrate
    """


@db.command()
@common_options
def migrate(ctl: Ctl) -> None:
    """Bring the database to the daemon's schema. The daemon does so by itself when it starts.

    \b
    Examples:
      clankers-ctl db migrate
    """
    _print_migrated(ctl, ctl.call(DbMigrate(), timeout=PATIENCE))


@db.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def rollback(ctl: Ctl, yes: bool) -> None:
    """Undo the last migration, after a backup. Asks first.

    The daemon stores nothing from then on, until `db migrate` or until an older version of it is started.

    \b
    Examples:
      clankers-ctl db rollback
      clankers-ctl db rollback --yes --json
    """
    if not yes:
        confirm("Undo the last migration? No events are stored after that.", abort=True)
    _print_migrated(ctl, ctl.call(DbRollback(), timeout=PATIENCE))


def _print_migrated(ctl: Ctl, migrated: Migrated) -> None:
    if ctl.json:
        print_json(migrated)
        return
    if migrated.from_version == migrated.to_version:
        echo(f"Nothing to do: the schema is at version {migrated.to_version}.")
    else:
        echo(f"The schema went from version {migrated.from_version} to {migrated.to_version}.")
    for name in migrated.applied:
        echo(f"  {name}")
    if migrated.backup:
        echo(f"Backup: {migrated.backup}")


@db.command()
@common_options
def check(ctl: Ctl) -> None:
    """Check the database's integrity. Exits 4 when something is wrong with it. Ctrl-C stops the check.

    \b
    Examples:
      clankers-ctl db check
      clankers-ctl db check --json | jq .result.problems
    """
    job = run_job_or_exit(ctl, DbCheck())
    found = job.result or {}
    sound = bool(found.get("ok"))
    if ctl.json:
        print_json(job)
    elif sound:
        secho("The database is sound.", fg="green")
    else:
        secho("The database is damaged:", fg="red")
        for problem in found.get("problems", []):
            echo(f"  {plain(str(problem))}")
    sys.exit(0 if sound else EXIT_PROBLEM)


@db.command()
@common_options
def vacuum(ctl: Ctl) -> None:
    """Give the database's unused pages back to the disk. Ctrl-C stops it; what it has done stays.

    \b
    Examples:
      clankers-ctl db vacuum
    """
    job = run_job_or_exit(ctl, DbVacuum())
    if ctl.json:
        print_json(job)
    else:
        echo(f"{format_bytes((job.result or {}).get('freedBytes', 0))} given back to the disk.")


# -- query


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
@common_options
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
    names = unique_names(answer.columns)
    if ctl.json or form == "json":
        print_json([dict(zip(names, row, strict=True)) for row in answer.rows])
    elif form == "csv":
        print_csv(answer.columns, answer.rows, safe=safe)
    else:
        _print_rows(answer)
    if answer.truncated:
        echo(f"Only the first {len(answer.rows):,} rows: --limit shows more.", err=True)


def unique_names(names: Sequence[str]) -> list[str]:
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
    if fits_terminal(columns, cells):
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
    return Column(one_line(name), align_right=numeric, min_width=None if numeric else 16)


def _text(value: Any) -> str:
    return "NULL" if value is None else plain(str(value))
