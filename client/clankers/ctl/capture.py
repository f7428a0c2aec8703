"""`clankers-ctl capture` and `clankers-ctl import`: events and history of harnesses."""

import re
import sys
import time
from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options, normalize_project
from clankers.ctl.formatting import format_bytes, format_duration, format_time, plural, since_callback
from clankers.ctl.jobs import job_duration, run_job_or_exit
from clankers.ctl.output import Column, echo, one_line, print_facts, print_json, print_table, secho
from clankers_protocol.admin import Job
from clankers_protocol.capture import (
    CapturePause,
    CaptureReport,
    CaptureResume,
    CaptureStatus,
    HarnessCapture,
    ImportStart,
    ImportSummary,
    LostEvents,
    Pause,
    PauseReport,
    SpoolDepth,
    TranscriptReading,
)
from clankers_protocol.harnesses import IMPORTABLE, find_harness
from clankers_protocol.projects import ProjectShow

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

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
    """Check, pause and resume the capture of events.

    \b
    Examples:
      clankers-ctl capture status
      clankers-ctl capture pause --for 2h
    """


@capture.command()
@common_options
def status(ctl: Ctl) -> None:
    """Show the last event of each harness, and lost events.

    Also shows how many events are spooled or rejected, and what was redacted. Exits with 4 if a harness no longer
    sends events, or if events were rejected, skipped or lost, and shows what to do.

    \b
    Examples:
      clankers-ctl capture status
      clankers-ctl capture status --json | jq '.harnesses[] | select(.state == "dead")'
    """
    report = ctl.call(CaptureStatus())
    ctl.report(report, _print_report)
    sys.exit(0 if report.ok else EXIT_PROBLEM)


def _print_report(report: CaptureReport) -> None:
    for each in report.paused:
        secho(_describe_pause(each), fg="yellow")
    redacted = sorted(report.redacted.items())
    print_table(COLUMNS, [_row(harness) for harness in report.harnesses])
    echo()
    for harness in report.harnesses:
        echo(f"{one_line(harness.harness)}: {one_line(harness.explanation)}")
        if harness.last_refusal:
            echo(f"  last event refused {_ago(harness.last_refused_at)}: {one_line(harness.last_refusal)}")
    echo()
    print_facts(
        [
            ("spool", _spool(report.spool)),
            ("rejected", _rejected(report.spool)),
            *[("skipped", f"{one_line(event.name)}: {one_line(event.problem)}") for event in report.spool.skipped],
            ("lost", _lost(report.lost)),
            ("transcripts", _transcripts(report.transcripts)),
            ("redacted", ", ".join(f"{count:,} {one_line(kind)}" for kind, count in redacted) or "nothing"),
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


def _ago(timestamp: int | None) -> str:
    if timestamp is None:
        return "–"
    return f"{format_duration(max(time.time() - timestamp / 1000, 0))} ago"


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
    newest = []
    for event in spool.newest[:3]:
        problem = f": {one_line(event.problem)}" if event.problem else ""
        newest.append(f"{one_line(event.name)} ({format_time(event.at)}{problem})")
    return f"{plural(spool.rejected, 'event')} that cannot be stored, in spool/rejected: {', '.join(newest)}"


def _lost(lost: LostEvents | None) -> str:
    if lost is None:
        return "none"
    events = f"{plural(lost.count, 'event')} that hooks could not store"
    return f"{events}, last {_ago(lost.last_at)}: {one_line(lost.last_reason)}"


def _transcripts(read: TranscriptReading) -> str:
    if not read.files:
        return "none read"
    malformed = f", {plural(read.malformed, 'malformed line')} skipped" if read.malformed else ""
    return (
        f"{plural(read.lines, 'line')} of {plural(read.files, 'file')} read{malformed}, last {_ago(read.last_read_at)}"
    )


# -- pause and resume


def _folder_callback(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Turn a folder, or the name or id of a project, into an absolute path."""
    if value is not None and value.startswith(("/", "~", "./", "../")) and not Path(value).expanduser().is_dir():
        raise click.BadParameter(f"{value} is not a folder.")
    project = normalize_project(context, option, value)
    if not project or project.startswith("/"):
        return project
    return context.ensure_object(Ctl).call(ProjectShow(project)).path


def _duration_callback(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", value)
    if not match or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not a duration. Write 30m, 2h, 1d …")
    return float(match[1]) * SECONDS[match[2]]


pause_project_option = click.option(
    "--project",
    metavar="PROJECT",
    callback=_folder_callback,
    help="Only this project: a folder, or its name or id. Otherwise all projects.",
)


@capture.command()
@pause_project_option
@click.option("--for", "seconds", metavar="DURATION", callback=_duration_callback, help="Resume after 30m, 2h, 1d …")
@common_options
def pause(ctl: Ctl, project: str | None, seconds: float | None) -> None:
    """Pause capture. What happens during the pause is not stored, not spooled, and not read from transcripts later.

    The pause survives a restart of the daemon. It ends by itself after --for, or with `clankers-ctl capture resume`.

    \b
    Examples:
      clankers-ctl capture pause --for 2h
      clankers-ctl capture pause --project .
    """
    _print_pauses(ctl, ctl.call(CapturePause(project, seconds)))


@capture.command()
@pause_project_option
@common_options
def resume(ctl: Ctl, project: str | None) -> None:
    """Resume capture: of one project, or everywhere.

    \b
    Examples:
      clankers-ctl capture resume
      clankers-ctl capture resume --project .
    """
    _print_pauses(ctl, ctl.call(CaptureResume(project)))


def _print_pauses(ctl: Ctl, report: PauseReport) -> None:
    if ctl.json:
        print_json(report)
        return
    for each in report.paused:
        echo(_describe_pause(each))
    if not report.paused:
        echo("Capture is on.")


def _describe_pause(pause: Pause) -> str:
    place = f" in {one_line(pause.project)}" if pause.project else ""
    until = f" until {format_time(pause.until)}" if pause.until else " until you resume it"
    option = f" --project {one_line(pause.project)}" if pause.project else ""
    return f"Capture is paused{place}{until}. Resume it: clankers-ctl capture resume{option}"


# -- import


def _source_callback(_: click.Context, __: click.Parameter, value: str) -> str | Path:
    """Return the name of a harness, or the path of a file."""
    if value in IMPORTABLE:
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise click.BadParameter(f"{value!r} is neither a file nor one of {', '.join(IMPORTABLE)}.")
    return path


def _complete_source(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    harnesses = [CompletionItem(name) for name in IMPORTABLE if name.startswith(incomplete)]
    return [*harnesses, CompletionItem(incomplete, type="file")]


@click.command(name="import")
@click.argument("source", metavar="HARNESS|FILE", callback=_source_callback, shell_complete=_complete_source)
@click.option(
    "--since",
    metavar="TIME",
    callback=since_callback,
    help="Only import sessions of a harness that were active since this time: 2h, 3d, 1w, today …",
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported of a harness; import nothing.")
@common_options
def import_(ctl: Ctl, source: str | Path, since: int | None, dry_run: bool) -> None:
    """Import the history of a harness, or a file. Importing again adds only what is new.

    HARNESS is claude-code, codex, gemini or opencode, whose history on this disk is read. FILE is an export
    (`clankers-ctl export`), compressed or not, or a file with memories (`clankers-ctl memory import`). An export is
    merged with what is stored: of two states of the same thing, the one that changed last stays.

    \b
    Examples:
      clankers-ctl import claude-code --dry-run
      clankers-ctl import claude-code --since 4w
      clankers-ctl import opencode --json | jq .result
      clankers-ctl import clankers.jsonl.zst
    """
    if not isinstance(source, Path):
        ctl.report(run_job_or_exit(ctl, ImportStart(source, since, dry_run)), _print_summary)
    elif since is not None or dry_run:
        raise click.UsageError("--since and --dry-run are for the history of a harness, not for a file.")
    else:
        _import_file(ctl, source)


def _import_file(ctl: Ctl, path: Path) -> None:
    from clankers.ctl.memory.transfer import import_memories  # slow to load
    from clankers.ctl.transfer import import_export, is_export  # slow to load

    if is_export(path):
        import_export(ctl, path)
    else:
        import_memories(ctl, path)


def _print_summary(job: Job) -> None:
    summary = msgspec.convert(job.result, ImportSummary)
    harness = find_harness(summary.harness)
    noun = harness.history_unit if harness else "session"
    read = f"Read {plural(summary.files, noun)} in {job_duration(job)}"
    echo(f"{read}; {'would import' if summary.dry_run else 'imported'}:")
    print_facts(
        [
            ("looked in", ", ".join(map(one_line, summary.folders)) or None),
            ("sessions", f"{summary.sessions:,}"),
            ("messages", f"{summary.messages:,}"),
            ("tool calls", f"{summary.tools:,}"),
            ("errors", f"{summary.errors:,}"),
            ("compactions", f"{summary.compactions:,}"),
            ("secrets", f"{summary.redacted:,} redacted" if summary.redacted else None),
            ("opted out", plural(summary.opted_out, noun) if summary.opted_out else None),
            ("unreadable", plural(summary.unreadable, noun) if summary.unreadable else None),
            ("malformed", plural(summary.malformed, "line") if summary.malformed else None),
        ]
    )
