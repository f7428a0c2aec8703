"""`clankers-ctl capture`: whether what harnesses do arrives."""

import sys
import time

import click

from clankers.ctl.command import PROBLEM, Ctl, common
from clankers.ctl.human import local, several, size, span
from clankers.ctl.output import Column, echo, one_line, print_facts, print_json, print_table
from clankers_protocol.capture import (
    CaptureReport,
    CaptureStatus,
    HarnessCapture,
    LostEvents,
    SpoolDepth,
    TranscriptReading,
)

COLUMNS = [
    Column("Harness", style="cyan"),
    Column("State"),
    Column("Last event"),
    Column("When", optional=True),
    Column("Events", right=True),
    Column("Ignored", right=True, optional=True, style="dim"),
    Column("Opted out", right=True, optional=True, style="dim"),
    Column("Refused", right=True, optional=True),
]


@click.group()
def capture() -> None:
    """See whether what harnesses do arrives.

    \b
    Examples:
      clankers-ctl capture status
    """


@capture.command()
@common
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
    sys.exit(0 if report.ok else PROBLEM)


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
    return f"{span(max(time.time() - moment / 1000, 0))} ago" if moment is not None else "–"


def _spool(spool: SpoolDepth) -> str:
    if spool.problem:
        return one_line(spool.problem)
    if not spool.waiting:
        return "empty"
    return f"{several(spool.waiting, 'event')} waiting, {size(spool.bytes)}, the oldest from {local(spool.oldest_at)}"


def _rejected(spool: SpoolDepth) -> str:
    if not spool.rejected:
        return "none"
    newest = ", ".join(
        f"{one_line(event.name)} ({local(event.at)}{f': {one_line(event.problem)}' if event.problem else ''})"
        for event in spool.newest[:3]
    )
    return f"{several(spool.rejected, 'event')} that cannot be stored, in spool/rejected: {newest}"


def _lost(lost: LostEvents | None) -> str:
    if lost is None:
        return "none"
    events = f"{several(lost.count, 'event')} that hooks could not store"
    return f"{events}, last {_ago(lost.last_at)}: {one_line(lost.last_reason)}"


def _transcripts(read: TranscriptReading) -> str:
    if not read.files:
        return "none read"
    bad = f", {several(read.malformed, 'malformed line')} skipped" if read.malformed else ""
    return f"{several(read.lines, 'line')} of {several(read.files, 'file')} read{bad}, last {_ago(read.last_read_at)}"


def _redacted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {one_line(kind)}" for kind, count in sorted(counts.items())) or "nothing"
