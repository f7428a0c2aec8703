"""`clankers-ctl jobs`, and waiting for a job with a progress bar."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from clankers.ctl.command import EXIT_FAILED, Ctl, common_options
from clankers.ctl.formatting import format_duration, format_time
from clankers.ctl.output import Column, console, echo, one_line, print_json, print_table, rich_console, secho
from clankers_protocol.admin import Job, JobCancel, JobList, JobStarted, JobStatus
from clankers_protocol.errors import Conflict
from clankers_protocol.wire import Method

POLL_SECONDS = 0.1

MAX_STATUS_CHARACTERS = 30
"""A shorter note names the current step of a job and labels the progress bar. A longer one is an error to print."""

COLUMNS = [
    Column("Kind"),
    Column("State"),
    Column("Done", align_right=True),
    Column("Began", optional=True),
    Column("Took", align_right=True, optional=True),
    Column("Note", min_width=16, optional=True),
    Column("Id", optional=True, style="cyan"),
]


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Show at most this many.")
@common_options
def jobs(ctl: Ctl, limit: int) -> None:
    """List long-running jobs of the daemon, newest first.

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
        print_table(COLUMNS, [_row(job) for job in found])


def _row(job: Job) -> list[str]:
    done = f"{job.done:,}" if job.total is None else f"{job.done:,} / {job.total:,}"
    took = "" if job.finished_at is None else job_duration(job)
    note = one_line(job.error or job.note or "")
    return [job.kind, job.state, done, format_time(job.created_at), took, note, job.id]


def job_duration(*jobs: Job) -> str:
    """Format the time that finished jobs took together."""
    return format_duration(sum((job.finished_at or job.created_at) - job.created_at for job in jobs) / 1000)


def run_job(ctl: Ctl, request: Method[JobStarted]) -> Job:
    """Start a job and wait until it has ended; Ctrl-C cancels it."""
    job_id = ctl.call(request).job_id
    with suppress(KeyboardInterrupt):
        return _watch(ctl, job_id)
    # Not inside an `except` block: until the exception is gone, its traceback may still hold the connection.
    try:
        job = ctl.call(JobCancel(job_id))
    except Conflict:  # it has just ended by itself
        job = ctl.call(JobStatus(job_id))
    return job if job.state != "running" else _poll(ctl, job_id, lambda _: None)


def run_job_or_exit(ctl: Ctl, request: Method[JobStarted]) -> Job:
    """Start a job and wait for it; exit with 1 unless it succeeds."""
    job = run_job(ctl, request)
    exit_unless_done(ctl, job)
    return job


def exit_unless_done(ctl: Ctl, *jobs: Job) -> None:
    """Report the first job that failed or was cancelled, and exit with 1."""
    for job in jobs:
        if job.state != "done":
            if ctl.json:
                print_json(job if len(jobs) == 1 else jobs)
            reason = f": {one_line(job.error)}" if job.error else ""
            secho(f"{job.kind} {job.state}{reason}", fg="red", err=True)
            sys.exit(EXIT_FAILED)


def _watch(ctl: Ctl, job_id: str) -> Job:
    """Wait for a job; show its progress on a terminal, and otherwise each of its notes once."""
    if ctl.json:
        return _poll(ctl, job_id, lambda job: None)
    out = console(stderr=True)
    printed: set[str] = set()

    def print_note(job: Job) -> None:
        note = one_line(job.note or "")
        if note and note not in printed:
            printed.add(note)
            out.print(note, style="yellow" if len(note) > MAX_STATUS_CHARACTERS else "")

    if not out.is_terminal:
        return _poll(ctl, job_id, print_note)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # slow to load

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=rich_console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def update(job: Job) -> None:
            label = one_line(job.note or job.kind)
            if len(label) > MAX_STATUS_CHARACTERS:
                print_note(job)
                label = "waiting"
            progress.update(task, completed=job.done, total=job.total, description=label)

        return _poll(ctl, job_id, update)


def _poll(ctl: Ctl, job_id: str, on_status: Callable[[Job], Any]) -> Job:
    while True:
        job = ctl.call(JobStatus(job_id))
        on_status(job)
        if job.state != "running":
            return job
        time.sleep(POLL_SECONDS)
