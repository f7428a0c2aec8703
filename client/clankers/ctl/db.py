"""`clankers-ctl db` and `clankers-ctl jobs`."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from clankers.ctl.command import FAILED, PROBLEM, Ctl, common
from clankers.ctl.human import local, size, span
from clankers.ctl.output import Column, console, one_line, plain, print_json, print_table
from clankers_protocol.admin import (
    DbCheck,
    DbMigrate,
    DbRollback,
    DbVacuum,
    Job,
    JobCancel,
    JobList,
    JobStarted,
    JobStatus,
    Migrated,
)
from clankers_protocol.wire import Method

PATIENCE = 3600
"""Seconds that a migration may take: it is not a job, and a large database takes its time."""

EVERY = 0.1
"""Seconds between two questions how far a job is."""


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
        click.confirm("Undo the last migration? No events are stored after that.", abort=True, err=True)
    _print_migrated(ctl, ctl.call(DbRollback(), timeout=PATIENCE))


def _print_migrated(ctl: Ctl, migrated: Migrated) -> None:
    if ctl.json:
        print_json(migrated)
        return
    if migrated.from_version == migrated.to_version:
        click.echo(f"Nothing to do: the schema is at version {migrated.to_version}.")
    else:
        click.echo(f"The schema went from version {migrated.from_version} to {migrated.to_version}.")
    for name in migrated.applied:
        click.echo(f"  {name}")
    if migrated.backup:
        click.echo(f"Backup: {migrated.backup}")


@db.command()
@common
def check(ctl: Ctl) -> None:
    """Check the database's integrity. Exits 4 when something is wrong with it. Ctrl-C stops the check.

    \b
    Examples:
      clankers-ctl db check
      clankers-ctl db check --json | jq .result.problems
    """
    job = _finished(ctl, DbCheck())
    found = job.result or {}
    sound = bool(found.get("ok"))
    if ctl.json:
        print_json(job)
    elif sound:
        click.secho("The database is sound.", fg="green")
    else:
        click.secho("The database is damaged:", fg="red")
        for problem in found.get("problems", []):
            click.echo(f"  {plain(str(problem))}")
    sys.exit(0 if sound else PROBLEM)


@db.command()
@common
def vacuum(ctl: Ctl) -> None:
    """Give the database's unused pages back to the disk. Ctrl-C stops it; what it has done stays.

    \b
    Examples:
      clankers-ctl db vacuum
    """
    job = _finished(ctl, DbVacuum())
    if ctl.json:
        print_json(job)
    else:
        click.echo(f"{size((job.result or {}).get('freedBytes', 0))} given back to the disk.")


def _finished(ctl: Ctl, request: Method[JobStarted]) -> Job:
    """The job that `request` begins, once done. Ctrl-C cancels it; any other end exits with 1."""
    started = ctl.call(request)
    try:
        job = _watched(ctl, started.job_id)
    except KeyboardInterrupt:
        job = ctl.call(JobCancel(started.job_id))
    if job.state == "done":
        return job
    if ctl.json:
        print_json(job)
    click.secho(f"{job.kind} {job.state}{f': {job.error}' if job.error else ''}", fg="red", err=True)
    sys.exit(FAILED)


def _watched(ctl: Ctl, job_id: str) -> Job:
    if ctl.json or not sys.stderr.isatty():
        return _polled(ctl, job_id, lambda job: None)
    from rich.progress import Progress  # slow to load

    with Progress(console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        return _polled(
            ctl,
            job_id,
            lambda job: progress.update(
                task, completed=job.done, total=job.total, description=one_line(job.note or job.kind)
            ),
        )


def _polled(ctl: Ctl, job_id: str, seen: Callable[[Job], Any]) -> Job:
    while True:
        job = ctl.call(JobStatus(job_id))
        seen(job)
        if job.state != "running":
            return job
        time.sleep(EVERY)


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@common
def jobs(ctl: Ctl, limit: int) -> None:
    """List long-running work, newest first.

    \b
    Examples:
      clankers-ctl jobs
      clankers-ctl jobs --json | jq '.[] | select(.state == "running")'
    """
    found = ctl.call(JobList(limit))
    if ctl.json:
        print_json(found)
    elif not found:
        click.echo("No jobs.", err=True)
    else:
        columns = [
            Column("Kind"),
            Column("State"),
            Column("Done", right=True),
            Column("Began", optional=True),
            Column("Took", right=True, optional=True),
            Column("Note", least=16, optional=True),
            Column("Id", optional=True, style="cyan"),
        ]
        print_table(columns, [_row(job) for job in found])


def _row(job: Job) -> list[str]:
    done = f"{job.done:,}" if job.total is None else f"{job.done:,} / {job.total:,}"
    took = "" if job.finished_at is None else span((job.finished_at - job.created_at) / 1000)
    note = one_line(job.error or job.note or "")
    return [job.kind, job.state, done, local(job.created_at), took, note, job.id]
