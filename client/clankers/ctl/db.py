"""`clankers-ctl db` and `clankers-ctl query`."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options, yes_option
from clankers.ctl.formatting import format_bytes, plural
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import (
    Column,
    confirm,
    echo,
    fits_terminal,
    note,
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

MIGRATION_TIMEOUT_SECONDS = 3600
"""Generous, because a migration is a plain request and not a job, and may take long on a large database."""

QUERY_TIMEOUT_SECONDS = 120


@click.group()
def db() -> None:
    """Check, vacuum and migrate the database.

    \b
    Examples:
      clankers-ctl db check
      clankers-ctl db vacuum
      clankers-ctl db migrate
    """


@db.command()
@common_options
def migrate(ctl: Ctl) -> None:
    """Migrate the database to the daemon's schema version. The daemon also does this when it starts.

    \b
    Examples:
      clankers-ctl db migrate
    """
    _print_migration(ctl, ctl.call(DbMigrate(), timeout=MIGRATION_TIMEOUT_SECONDS))


@db.command()
@yes_option
@common_options
def rollback(ctl: Ctl, yes: bool) -> None:
    """Undo the last migration. Asks for confirmation and makes a backup first.

    Afterwards the daemon stores nothing until you run `db migrate` or start an older version of the daemon.

    \b
    Examples:
      clankers-ctl db rollback
      clankers-ctl db rollback --yes --json
    """
    if not yes:
        confirm("Undo the last migration? The daemon stores no events after that.", abort=True)
    _print_migration(ctl, ctl.call(DbRollback(), timeout=MIGRATION_TIMEOUT_SECONDS))


def _print_migration(ctl: Ctl, migrated: Migrated) -> None:
    if ctl.json:
        print_json(migrated)
        return
    if migrated.from_version == migrated.to_version:
        echo(f"Nothing to do: the schema is at version {migrated.to_version}.")
    else:
        echo(f"The schema changed from version {migrated.from_version} to {migrated.to_version}.")
    for name in migrated.applied:
        echo(f"  {name}")
    if migrated.backup:
        echo(f"Backup: {migrated.backup}")


@db.command()
@common_options
def check(ctl: Ctl) -> None:
    """Check the integrity of the database. Exits with 4 if it is damaged. Ctrl-C stops the check.

    \b
    Examples:
      clankers-ctl db check
      clankers-ctl db check --json | jq .result.problems
    """
    job = run_job_or_exit(ctl, DbCheck())
    result = job.result or {}
    is_ok = bool(result.get("ok"))
    if ctl.json:
        print_json(job)
    elif is_ok:
        secho("The database passed the integrity check.", fg="green")
    else:
        secho("The database is damaged:", fg="red")
        for problem in result.get("problems", []):
            echo(f"  {plain(str(problem))}")
    sys.exit(0 if is_ok else EXIT_PROBLEM)


@db.command()
@common_options
def vacuum(ctl: Ctl) -> None:
    """Return unused pages to the file system and erase the words of deleted texts. Ctrl-C keeps the progress so far.

    \b
    Examples:
      clankers-ctl db vacuum
    """
    job = run_job_or_exit(ctl, DbVacuum())
    ctl.report(job, f"Freed {format_bytes((job.result or {}).get('freedBytes', 0))} of disk space.")


# -- query


@click.command()
@click.argument("sql")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Print a table, a JSON list of objects (same as --json), or CSV.",
)
@click.option(
    "--safe",
    is_flag=True,
    help="With CSV: put an apostrophe before cells that a spreadsheet would run as a formula.",
)
@click.option("--limit", type=click.IntRange(1, 100_000), help="Return at most this many rows.")
@common_options
def query(ctl: Ctl, sql: str, output_format: str, safe: bool, limit: int | None) -> None:
    """Run one read-only SQL statement. If SQL is -, it is read from standard input.

    \b
    Examples:
      clankers-ctl query "SELECT * FROM sessions ORDER BY created_at DESC LIMIT 5"
      clankers-ctl query "SELECT tool_name, count(*) FROM tools GROUP BY 1" --format csv
      clankers-ctl query "SELECT title FROM sessions" --format csv --safe > titles.csv
      clankers-ctl query - --json < report.sql
    """
    if safe and (ctl.json or output_format != "csv"):
        raise click.UsageError("--safe can only be used with --format csv.")
    if sql == "-":
        sql = sys.stdin.read()
    answer = ctl.call(Query(sql, limit), timeout=QUERY_TIMEOUT_SECONDS)
    names = unique_names(answer.columns)
    if ctl.json or output_format == "json":
        print_json([dict(zip(names, row, strict=True)) for row in answer.rows])
    elif output_format == "csv":
        print_csv(answer.columns, answer.rows, safe=safe)
    else:
        _print_rows(answer)
    if answer.truncated:
        echo(f"Showing the first {plural(len(answer.rows), 'row')}. Use --limit to see more.", err=True)


def unique_names(names: Sequence[str]) -> list[str]:
    """Number repeated column names (`id`, `id:2`), because a JSON object holds each key once."""
    counts: dict[str, int] = {}
    unique: list[str] = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}:{counts[name]}")
    return unique


def _print_rows(answer: Rows) -> None:
    columns = [_column(name, [row[index] for row in answer.rows]) for index, name in enumerate(answer.columns)]
    cells = [[one_line(_text(value)) for value in row] for row in answer.rows]
    if fits_terminal(columns, cells):
        print_table(columns, cells)
    else:
        for row in answer.rows:  # too wide for a table: one line per value
            print_facts(zip(map(one_line, answer.columns), map(_text, row), strict=True))
            echo()
    note(f"{plural(len(answer.rows), 'row')} in {answer.took_ms:.1f} ms")


def _column(name: str, values: Sequence[Any]) -> Column:
    not_null = [value for value in values if value is not None]
    is_numeric = bool(not_null) and all(isinstance(value, int | float) for value in not_null)
    return Column(one_line(name), align_right=is_numeric, min_width=None if is_numeric else 16)


def _text(value: Any) -> str:
    return "NULL" if value is None else plain(str(value))
