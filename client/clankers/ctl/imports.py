"""`clankers-ctl import`: bring in what harnesses kept before the daemon was there."""

import sys

import click
import msgspec

from clankers.ctl.command import FAILED, Ctl, common
from clankers.ctl.human import beginning, several, span
from clankers.ctl.jobs import finished
from clankers.ctl.output import echo, one_line, print_facts, print_json, secho
from clankers_protocol.admin import Job
from clankers_protocol.capture import ImportStart, ImportSummary
from clankers_protocol.harnesses import IMPORTABLE, find_harness


@click.command(name="import")
@click.argument("harness", type=click.Choice(IMPORTABLE))
@click.option("--since", metavar="TIME", callback=beginning, help="Only what went on since: 2h, 3d, 1w, today …")
@click.option("--dry-run", is_flag=True, help="Only tell what would come in.")
@common
def import_(ctl: Ctl, harness: str, since: int | None, dry_run: bool) -> None:
    """Bring in the history that a harness has kept. Twice is harmless.

    \b
    Examples:
      clankers-ctl import claude-code --dry-run
      clankers-ctl import claude-code --since 4w
      clankers-ctl import opencode --json | jq .result
    """
    job = finished(ctl, ImportStart(harness, since, dry_run))
    if ctl.json:
        print_json(job)
    if job.state != "done":
        secho(f"{job.kind} {job.state}{f': {one_line(job.error)}' if job.error else ''}", fg="red", err=True)
        sys.exit(FAILED)
    if not ctl.json:
        _print_summary(job, msgspec.convert(job.result, ImportSummary))


def _print_summary(job: Job, summary: ImportSummary) -> None:
    harness = find_harness(summary.harness)
    what = harness.history_unit if harness else "session"
    took = span(((job.finished_at or job.created_at) - job.created_at) / 1000)
    echo(f"{several(summary.files, what)} read in {took}; {'would come' if summary.dry_run else 'came'} in:")
    print_facts(
        [
            ("sessions", f"{summary.sessions:,}"),
            ("messages", f"{summary.messages:,}"),
            ("tool calls", f"{summary.tools:,}"),
            ("errors", f"{summary.errors:,}"),
            ("compactions", f"{summary.compactions:,}"),
            ("secrets", f"{summary.redacted:,} taken out" if summary.redacted else None),
            ("declined", several(summary.opted_out, what) if summary.opted_out else None),
            ("unreadable", several(summary.unreadable, what) if summary.unreadable else None),
            ("malformed", several(summary.malformed, "line") if summary.malformed else None),
        ]
    )
