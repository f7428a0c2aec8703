"""`clankers-ctl` without a command: the state of the daemon, what was captured today, what needs attention."""

from datetime import datetime
from pathlib import Path

from clankers.ctl.command import Ctl
from clankers.ctl.formatting import format_time, plural
from clankers.ctl.ids import display_ids
from clankers.ctl.output import Column, console, echo, one_line, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import Health
from clankers_protocol.capture import CaptureStatus
from clankers_protocol.sessions import SessionList, Stats

RECENT_SESSIONS = 5
COLUMNS = [
    Column("Id", style="cyan"),
    Column("Began"),
    Column("Title", min_width=24),
    Column("Project", min_width=12, optional=True),
    Column("Harness", optional=True),
]
HINTS = (
    ('clankers-ctl search "login fails"', "search everything that was captured"),
    ("clankers-ctl view", "see it in the browser"),
    ("clankers-ctl doctor", "check the daemon and all around it"),
)


def print_overview(ctl: Ctl) -> None:
    """Print a short overview of the daemon and what it captured."""
    try:
        health = ctl.call(Health(), timeout=5)
    except DaemonUnavailable:
        secho("● The daemon is not running.", fg="yellow", bold=True)
        echo("Start it with `clankers-ctl daemon start`, or run `clankers-ctl setup` to connect your agents.")
        return
    if health.ok:
        secho("● ok", fg="green", bold=True)
    else:
        secho(f"● problem: {health.problem}", fg="red", bold=True)
    capture = ctl.call(CaptureStatus())
    attention = [*health.warnings, *([health.degraded] if health.degraded else [])]
    attention += [harness.explanation for harness in capture.harnesses if harness.state == "dead"]
    if capture.spool.rejected:
        rejected = plural(capture.spool.rejected, "event")
        attention.append(f"{rejected} could not be stored: run `clankers-ctl capture status`.")
    if capture.lost is not None and capture.lost.count:
        attention.append(f"Hooks lost {plural(capture.lost.count, 'event')}: {capture.lost.last_reason}")
    attention += [
        f"Capture is paused {f'in {one.project}' if one.project else 'everywhere'}." for one in capture.paused
    ]
    for warning in attention:
        secho(f"● {one_line(warning)}", fg="yellow")
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    today = ctl.call(Stats(since=int(midnight.timestamp() * 1000), limit=1)).totals
    echo(
        f"Captured today: {plural(today.sessions, 'session')}, {plural(today.messages, 'message')}, "
        f"{plural(today.tools, 'tool call')}."
    )
    page = ctl.call(SessionList(limit=RECENT_SESSIONS, top_level=True, skip_automated=True))
    if page.sessions:
        ids = display_ids(ctl, "session", [session.id for session in page.sessions])
        echo()
        rows = []
        for shown, session in zip(ids, page.sessions, strict=True):
            title = one_line(session.title or session.user_prompt or "–")
            project = one_line(session.project_name or Path(session.project_path or "").name)
            rows.append(
                [one_line(shown), format_time(session.created_at), title, project, one_line(session.source or "")]
            )
        print_table(COLUMNS, rows)
    else:
        echo("Nothing has been captured yet. Run `clankers-ctl setup` to connect your agents.")
    _print_hints()


def _print_hints() -> None:
    """Print the commands to try; in a narrow terminal, each with its purpose below it."""
    widest = max(len(command) for command, _ in HINTS)
    longest = widest + max(len(purpose) for _, purpose in HINTS)
    separator = "  " if console().width >= longest + 4 else "\n    "
    echo("\nTry:")
    for command, purpose in HINTS:
        echo(f"  {command.ljust(widest) if separator == '  ' else command}{separator}{purpose}")
    echo("\nRun clankers-ctl --help to see all commands.")
