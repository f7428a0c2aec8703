"""`clankers-ctl capture`: whether what harnesses do arrives."""

import sys
import time
from typing import cast, get_args

import click
import msgspec

from clankers.ctl.command import EXIT_FAILED, EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.formatting import format_bytes, format_duration, format_time, plural, since_callback
from clankers.ctl.jobs import run_job
from clankers.ctl.output import Column, echo, one_line, print_facts, print_json, print_table, secho
from clankers_protocol.admin import Job
from clankers_protocol.capture import (
    CaptureReport,
    CaptureStatus,
    HarnessCapture,
    Importable,
    ImportStart,
    ImportSummary,
    LostEvents,
    SpoolDepth,
    TranscriptReading,
)

COLUMNS = [
    Column("Harness", style="cyan"),
    Column("State"),
    Column("Last event"),
    Column("When", optional=True),
    Column("Events", align_right=True),
    Column("Ignored", align_right=True, optional=True, style="dim"),
    Column("Opted out", align_right=True, optional=True, style="dim"),
    Column("Refused", align_right=True, optional=True),
]


@click.group()
def capture() -> None:
    """See whether what harnesses do arrives.

    \b
    Examples:
      clankers-ctl capture status
    """


@capture.command()
@common_options
def status(ctl: Ctl) -> None:
    """Show the last event of each harness, what is still kept on disk, and what was kept out.

    Exits 4 when a harness's capture is dead or events were rejected, skipped or lost, and says what to do about it.

    \b
    Examples:
      clankers-ctl capture status
      clankers-ctl capture status --json | jq '.harnesses[] | select(.state == "dead")'
    """
    report = ctl.call(CaptureStatus())
    if ctl.json:
        print_json(report)
    else:
        _print(report)
    sys.exit(0 if report.ok else EXIT_PROBLEM)


def _print(report: CaptureReport) -> None:
    print_table(COLUMNS, [_row(harness) for harness in report.harnesses])
    echo()
    for harness in report.harnesses:
        echo(f"{one_line(harness.harness)}: {one_line(harness.explanation)}")
        if harness.last_refusal:
            echo(f"  last refused {_ago(harness.last_refused_at)}: {one_line(harness.last_refusal)}")
    echo()
    print_facts(
        [
            ("spool", _spool(report.spool)),
            ("rejected", _rejected(report.spool)),
            *[("skipped", f"{one_line(event.name)}: {one_line(event.problem)}") for event in report.spool.skipped],
            ("lost", _lost(report.lost)),
            ("transcripts", _transcripts(report.transcripts)),
            ("redacted", _redacted(report.redacted)),
        ]
    )


def _row(harness: HarnessCapture) -> list[str]:
    return [
        one_line(harness.harness),
        harness.state,
        one_line(harness.last_event or "–"),
        _ago(harness.last_event_at),
        f"{harness.events:,}",
        f"{harness.ignored:,}",
        f"{harness.opted_out:,}",
        f"{harness.refused:,}",
    ]


def _ago(moment: int | None) -> str:
    return f"{format_duration(max(time.time() - moment / 1000, 0))} ago" if moment is not None else "–"


def _spool(spool: SpoolDepth) -> str:
    if spool.problem:
        return one_line(spool.problem)
    if not spool.waiting:
        return "empty"
    waiting = f"{plural(spool.waiting, 'event')} waiting, {format_bytes(spool.bytes)}"
    return f"{waiting}, the oldest from {format_time(spool.oldest_at)}"


def _rejected(spool: SpoolDepth) -> str:
    if not spool.rejected:
        return "none"
    newest = ", ".join(
        f"{one_line(event.name)} ({format_time(event.at)}{f': {one_line(event.problem)}' if event.problem else ''})"
        for event in spool.newest[:3]
    )
    return f"{plural(spool.rejected, 'event')} that cannot be stored, in spool/rejected: {newest}"


def _lost(lost: LostEvents | None) -> str:
    if lost is None:
        return "none"
    events = f"{plural(lost.count, 'event')} that hooks could not store"
    return f"{events}, last {_ago(lost.last_at)}: {one_line(lost.last_reason)}"


def _transcripts(read: TranscriptReading) -> str:
    if not read.files:
        return "none read"
    bad = f", {plural(read.malformed, 'malformed line')} skipped" if read.malformed else ""
    return f"{plural(read.lines, 'line')} of {plural(read.files, 'file')} read{bad}, last {_ago(read.last_read_at)}"


def _redacted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {one_line(kind)}" for kind, count in sorted(counts.items())) or "nothing"


# -- import


@click.command(name="import")
@click.argument("harness", type=click.Choice(get_args(Importable)))
@click.option("--since", metavar="TIME", callback=since_callback, help="Only what went on since: 2h, 3d, 1w, today …")
@click.option("--dry-run", is_flag=True, help="Only tell what would come in.")
@common_options
def import_(ctl: Ctl, harness: str, since: int | None, dry_run: bool) -> None:
    """Bring in the history that a harness has kept. Twice is harmless.

    \b
    Examples:
      clankers-ctl import claude-code --dry-run
      clankers-ctl import claude-code --since 4w
      clankers-ctl import opencode --json | jq .result
    """
    job = run_job(ctl, ImportStart(cast(Importable, harness), since, dry_run))
    if ctl.json:
        print_json(job)
    if job.state != "done":
        secho(f"{job.kind} {job.state}{f': {one_line(job.error)}' if job.error else ''}", fg="red", err=True)
        sys.exit(EXIT_FAILED)
    if not ctl.json:
        _print_summary(job, msgspec.convert(job.result, ImportSummary))


def _print_summary(job: Job, summary: ImportSummary) -> None:
    what = "transcript" if summary.harness == "claude-code" else "session"
    took = format_duration(((job.finished_at or job.created_at) - job.created_at) / 1000)
    echo(f"{plural(summary.files, what)} read in {took}; {'would come' if summary.dry_run else 'came'} in:")
    print_facts(
        [
            ("sessions", f"{summary.sessions:,}"),
            ("messages", f"{summary.messages:,}"),
            ("tool calls", f"{summary.tools:,}"),
            ("errors", f"{summary.errors:,}"),
            ("compactions", f"{summary.compactions:,}"),
            ("secrets", f"{summary.redacted:,} taken out" if summary.redacted else None),
            ("declined", plural(summary.opted_out, what) if summary.opted_out else None),
            ("unreadable", plural(summary.unreadable, what) if summary.unreadable else None),
            ("malformed", plural(summary.malformed, "line") if summary.malformed else None),
        ]
    )
