"""`clankers-ctl jobs`, and waiting for a job with a progress bar."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from clankers.ctl.command import EXIT_FAILED, Ctl, common_options
from clankers.ctl.formatting import format_duration, format_time
from clankers.ctl.output import Column, console, echo, one_line, print_json, print_table, secho
from clankers_protocol.admin import Job, JobCancel, JobList, JobStarted, JobStatus
from clankers_protocol.errors import Conflict
from clankers_protocol.wire import Method

EVERY = 0.1
"""Seconds between two questions how far a job is."""

SHORT = 30
"""Characters. What a job does is said in fewer; more are a trouble it has."""


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@common_options
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
        echo("No jobs.", err=True)
    else:
        columns = [
            Column("Kind"),
            Column("State"),
            Column("Done", align_right=True),
            Column("Began", optional=True),
            Column("Took", align_right=True, optional=True),
            Column("Note", min_width=16, optional=True),
            Column("Id", optional=True, style="cyan"),
        ]
        print_table(columns, [_row(job) for job in found])


def _row(job: Job) -> list[str]:
    done = f"{job.done:,}" if job.total is None else f"{job.done:,} / {job.total:,}"
    took = "" if job.finished_at is None else format_duration((job.finished_at - job.created_at) / 1000)
    note = one_line(job.error or job.note or "")
    return [job.kind, job.state, done, format_time(job.created_at), took, note, job.id]


def run_job(ctl: Ctl, request: Method[JobStarted]) -> Job:
    """The job that `request` begins, once it has ended; Ctrl-C cancels it."""
    started = ctl.call(request)
    with suppress(KeyboardInterrupt):
        return _watched(ctl, started.job_id)
    # Not while the interrupt is handled: until it is forgotten, what it fell into may still hold the connection.
    return _cancelled(ctl, started.job_id)


def run_job_or_exit(ctl: Ctl, request: Method[JobStarted]) -> Job:
    """The job that `request` begins, once done; any other end exits with 1."""
    job = run_job(ctl, request)
    if job.state == "done":
        return job
    if ctl.json:
        print_json(job)
    secho(f"{job.kind} {job.state}{f': {job.error}' if job.error else ''}", fg="red", err=True)
    sys.exit(EXIT_FAILED)


def _cancelled(ctl: Ctl, job_id: str) -> Job:
    try:
        job = ctl.call(JobCancel(job_id))
    except Conflict:  # it has just ended by itself
        job = ctl.call(JobStatus(job_id))
    return job if job.state != "running" else _polled(ctl, job_id, lambda _: None)


def _watched(ctl: Ctl, job_id: str) -> Job:
    if ctl.json:
        return _polled(ctl, job_id, lambda job: None)
    out = console(stderr=True)
    notes = _Notes(lambda note: out.print(note, style="yellow" if len(note) > SHORT else ""))
    if not out.is_terminal:
        return _polled(ctl, job_id, notes.see)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # slow to load

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("", total=None)

        def see(job: Job) -> None:
            note = one_line(job.note or job.kind)
            if len(note) > SHORT:  # a trouble, in a line of its own
                notes.see(job)
                note = "waiting"
            progress.update(task, completed=job.done, total=job.total, description=note)

        return _polled(ctl, job_id, see)


class _Notes:
    """Says each note of a job once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def see(self, job: Job) -> None:
        note = one_line(job.note or "")
        if note and note not in self._said:
            self._said.add(note)
            self._say(note)


def _polled(ctl: Ctl, job_id: str, seen: Callable[[Job], Any]) -> Job:
    while True:
        job = ctl.call(JobStatus(job_id))
        seen(job)
        if job.state != "running":
            return job
        time.sleep(EVERY)
