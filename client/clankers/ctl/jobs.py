"""`clankers-ctl jobs`, and waiting for a job with a progress bar."""

import errno
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
import msgspec

from clankers.ctl.command import EXIT_FAILED, Ctl, common_options
from clankers.ctl.formatting import format_duration, format_time
from clankers.ctl.output import (
    WIDE_TERMINAL_COLUMNS,
    Column,
    console,
    echo,
    one_line,
    print_facts,
    print_json,
    print_table,
    rich_console,
    secho,
)
from clankers_protocol.admin import Job, JobCancel, JobList, JobStarted, JobStatus
from clankers_protocol.errors import Conflict
from clankers_protocol.wire import Method

POLL_SECONDS = 0.1

SHORT_ID_CHARACTERS = 8
"""Length of the end of an id, which is random, in lists on a narrow terminal."""

MAX_STATUS_CHARACTERS = 30
"""A shorter note names the current step of a job and labels the progress bar. A longer one is an error to print."""

COLUMNS = [
    Column("Id", style="cyan"),
    Column("Kind", min_width=8),
    Column("State"),
    Column("Done", align_right=True),
    Column("Began", optional=True),
    Column("Took", align_right=True, optional=True),
    Column("Note", min_width=16, optional=True),
]


limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Show at most this many."
)


@click.group(invoke_without_command=True)
@limit_option
@common_options
def jobs(ctl: Ctl, limit: int) -> None:
    """List, show and cancel long-running jobs of the daemon.

    Without a command, lists them.

    \b
    Examples:
      clankers-ctl jobs
      clankers-ctl jobs cancel 0199c5a2
    """
    if click.get_current_context().invoked_subcommand is None:
        _print_list(ctl, limit)


@jobs.command(name="list")
@limit_option
@common_options
def list_(ctl: Ctl, limit: int) -> None:
    """List jobs, newest first.

    \b
    Examples:
      clankers-ctl jobs list
      clankers-ctl jobs list --json | jq '.[] | select(.state == "running")'
    """
    _print_list(ctl, limit)


@jobs.command()
@click.argument("id")
@common_options
def show(ctl: Ctl, id: str) -> None:  # noqa: A002  # the name on the command line
    """Show one job: its progress, its result, or why it failed. The id can be shortened.

    \b
    Examples:
      clankers-ctl jobs show 0199c5a2
      clankers-ctl jobs show 0199c5a2 --json | jq .error
    """
    _print_job(ctl, _find(ctl, id))


@jobs.command()
@click.argument("id")
@common_options
def cancel(ctl: Ctl, id: str) -> None:  # noqa: A002  # the name on the command line
    """Cancel a running job. Completed steps are not undone; a switch of the embedder is.

    \b
    Examples:
      clankers-ctl jobs cancel 0199c5a2
    """
    _print_job(ctl, ctl.call(JobCancel(_find(ctl, id).id)))


def _find(ctl: Ctl, name: str) -> Job:
    """Return the job whose id is, begins with or ends with `name`."""
    matching = [job for job in ctl.call(JobList(1000)) if job.id.startswith(name) or job.id.endswith(name)]
    exact = [job for job in matching if job.id == name]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if not matching:
        raise click.ClickException(f"There is no job {name}. `clankers-ctl jobs list` shows them.")
    raise click.ClickException(f"{len(matching)} jobs have an id that begins or ends with {name}. Use more of it.")


def _print_job(ctl: Ctl, job: Job) -> None:
    if ctl.json:
        print_json(job)
        return
    job_id, kind, state, done, began, took, _ = _row(job)
    result = None if job.result is None else msgspec.json.encode(job.result).decode()
    print_facts(
        [
            ("id", job_id),
            ("kind", kind),
            ("state", state),
            ("done", done),
            ("began", began),
            ("took", took or None),
            ("note", one_line(job.note) if job.note else None),
            ("error", one_line(job.error) if job.error else None),
            ("result", one_line(result) if result else None),
        ]
    )


def _print_list(ctl: Ctl, limit: int) -> None:
    found = ctl.call(JobList(limit))
    if ctl.json:
        print_json(found)
    elif not found:
        echo("No jobs.", err=True)
    else:
        rows = [_row(job) for job in found]
        if console().width < WIDE_TERMINAL_COLUMNS:
            rows = [[job_id[-SHORT_ID_CHARACTERS:], *others] for job_id, *others in rows]
        print_table(COLUMNS, rows)


def _row(job: Job) -> list[str]:
    done = f"{job.done:,}" if job.total is None else f"{job.done:,} / {job.total:,}"
    took = "" if job.finished_at is None else job_duration(job)
    note = one_line(job.error or job.note or "")
    return [job.id, job.kind, job.state, done, format_time(job.created_at), took, note]


def job_duration(*jobs: Job) -> str:
    """Format the time that finished jobs took together."""
    return format_duration(sum((job.finished_at or job.created_at) - job.created_at for job in jobs) / 1000)


def run_job(ctl: Ctl, request: Method[JobStarted]) -> Job:
    """Start a job and wait until it has ended. Ctrl-C, SIGTERM and the end of the terminal cancel it."""
    job_id = ctl.call(request).job_id
    with suppress(KeyboardInterrupt), _interrupted_by(signal.SIGTERM, signal.SIGHUP):
        return _watch(ctl, job_id)
    # Not inside an `except` block: until the exception is gone, its traceback may still hold the connection.
    try:
        job = ctl.call(JobCancel(job_id))
    except Conflict:  # it has just ended by itself
        job = ctl.call(JobStatus(job_id))
    return job if job.state != "running" else _poll(ctl, job_id, lambda _: None)


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt inside the block when one of the signals arrives, or when the terminal is gone."""
    before = {number: signal.signal(number, _raise_interrupt) for number in signals}
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:  # a progress bar on a terminal that was closed
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_interrupt(_: int, __: object) -> None:
    raise KeyboardInterrupt


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
    """Wait for a job; show its progress on a terminal, and otherwise each of its problems once."""
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
        return _poll(ctl, job_id, lambda job: print_note(job) if len(job.note or "") > MAX_STATUS_CHARACTERS else None)
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
