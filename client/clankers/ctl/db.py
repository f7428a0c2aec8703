"""`clankers-ctl db` and `clankers-ctl jobs`."""

import sys

import click

from clankers.ctl.command import PROBLEM, Ctl, common
from clankers.ctl.human import size
from clankers.ctl.jobs import done
from clankers.ctl.output import confirm, echo, plain, print_json, secho
from clankers_protocol.admin import (
    DbCheck,
    DbMigrate,
    DbRollback,
    DbVacuum,
    Migrated,
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
@common
def migrate(ctl: Ctl) -> None:
    """Bring the database to the daemon's schema. The daemon does so by itself when it starts.

    \b
    Examples:
      clankers-ctl db migrate
    """
    _print_migrated(ctl, ctl.call(DbMigrate(), timeout=PATIENCE))


@db.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
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
@common
def check(ctl: Ctl) -> None:
    """Check the database's integrity. Exits 4 when something is wrong with it. Ctrl-C stops the check.

    \b
    Examples:
      clankers-ctl db check
      clankers-ctl db check --json | jq .result.problems
    """
    job = done(ctl, DbCheck())
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
    sys.exit(0 if sound else PROBLEM)


@db.command()
@common
def vacuum(ctl: Ctl) -> None:
    """Give unused pages back to the disk and erase the words of deleted texts. Ctrl-C stops it; what it has done stays.

    \b
    Examples:
      clankers-ctl db vacuum
    """
    job = done(ctl, DbVacuum())
    if ctl.json:
        print_json(job)
    else:
        echo(f"{size((job.result or {}).get('freedBytes', 0))} given back to the disk.")
