"""`clankers-ctl doctor`: everything that can be wrong, looked at, and what to do about it."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from clankers.ctl.command import EXIT_NOT_RUNNING, EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.doctor import files, parts
from clankers.ctl.formatting import format_duration, plural
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import Column, one_line, print_json, print_table, secho
from clankers.messages import BadReply, DaemonUnavailable
from clankers_protocol.admin import DaemonStatus, Diagnosis, DoctorCheck, DoctorRepair, Finding, StatusReport
from clankers_protocol.capture import CaptureStatus
from clankers_protocol.errors import RpcError
from clankers_protocol.paths import Paths, default_paths

if TYPE_CHECKING:
    from rich.text import Text

ANSWER_SECONDS = 10
COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
COLUMNS = [Column("State"), Column("Check", style="cyan"), Column("Finding", min_width=30, wrap=True)]


@click.command()
@click.option("--repair", is_flag=True, help="Make anew what is wrong and follows from something else.")
@common_options
def doctor(ctl: Ctl, repair: bool) -> None:
    """Check everything: the daemon, its files, the database, the index, capture, plugins and the service.

    Events are stored meanwhile, however large the database is. Without a daemon it checks what the files tell.
    With --repair it makes anew what follows from something else (the search index, indexes of tables), tightens
    permissions and removes what is left over; what was captured is never changed.

    Exits 0 when there is no problem, 3 when the daemon does not answer, 4 when there is a problem. Warnings are none.

    \b
    Examples:
      clankers-ctl doctor
      clankers-ctl doctor --repair
      clankers-ctl doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    status, daemon = _reached(ctl)
    paths = _paths(ctl, status)
    repaired = [*files.tighten(paths), *files.remove_leftovers(paths)] if repair else []
    checks = [
        daemon,
        files.database_file(paths),
        files.disk(paths),
        files.permissions(paths),
        files.backups(paths),
        files.replaced(paths),
        files.logs(paths),
        files.leftovers(paths),
        files.spool(paths, status is not None),
        files.set_aside(paths),
        files.lost_events(paths),
        *parts.plugins(),
        parts.service(),
    ]
    if status is None:
        checks.append(parts.settings())
    else:
        diagnosis = _asked(ctl, repair)
        repaired += diagnosis.repaired
        checks += [*_captures(ctl), *diagnosis.checks]
    _print(ctl, Diagnosis(checks, repaired))
    _exit(status, checks)


def _reached(ctl: Ctl) -> tuple[StatusReport | None, Finding]:
    """What the daemon says of itself, if it does, and what to think of it."""
    try:
        status = ctl.call(DaemonStatus(), timeout=ANSWER_SECONDS)
    except DaemonUnavailable as error:
        told, _, advice = str(error).partition(". ")
        return None, Finding("daemon", "problem", f"{told}.", advice)
    except (TimeoutError, BadReply, RpcError) as error:
        told = f"The daemon does not answer as it should: {error}"
        return None, Finding("daemon", "problem", told, "clankers-ctl logs --level error; then start it again")
    ours, told = version("clankers"), f"clankersd {status.version} has run for {format_duration(status.uptime_seconds)}"
    if status.version != ours:
        advice = f"start it again: kill {status.pid}; the next hook or `clankersd` starts the new one"
        return status, Finding("daemon", "warning", f"{told}, but clankers-ctl is {ours}.", advice)
    return status, Finding("daemon", "ok", f"{told}, process {status.pid}.")


def _paths(ctl: Ctl, status: StatusReport | None) -> Paths:
    """Where the daemon keeps its files: it may have been told other places than we were."""
    if status is not None:
        places = (status.data_path, status.db_path, status.socket_path, status.log_path, status.config_path)
        return Paths(*map(Path, places))
    ours = default_paths()
    return Paths(ours.data, ours.database, ctl.socket or ours.socket, ours.logs, ours.config)


def _asked(ctl: Ctl, repair: bool) -> Diagnosis:
    """What the daemon finds, and with `repair` what it did about it."""
    try:
        job = run_job_or_exit(ctl, DoctorRepair() if repair else DoctorCheck())
    except RpcError as error:  # it cannot even begin: the database is in trouble
        told, _, advice = error.message.removeprefix("storage unavailable: ").partition(": ")
        return Diagnosis([Finding("database", "problem", f"{told[:1].upper()}{told[1:]}.", advice or None)], [])
    return msgspec.convert(job.result, Diagnosis)


def _captures(ctl: Ctl) -> list[Finding]:
    try:
        return parts.captures(ctl.call(CaptureStatus()))
    except RpcError as error:
        return [Finding("capture", "problem", f"It cannot be looked at: {error.message}", "clankers-ctl health")]


def _print(ctl: Ctl, diagnosis: Diagnosis) -> None:
    counts = {state: sum(check.state == state for check in diagnosis.checks) for state in COLOURS}
    if ctl.json:
        print_json({"ok": not counts["problem"], "checks": diagnosis.checks, "repaired": diagnosis.repaired})
        return
    for step in diagnosis.repaired:
        secho(f"Repaired: {one_line(step)}", fg="green")
    print_table(COLUMNS, [row for check in diagnosis.checks for row in _rows(check)])
    if counts["problem"] or counts["warning"]:
        colour = "red" if counts["problem"] else "yellow"
        told = ", ".join(plural(counts[state], state) for state in ("problem", "warning") if counts[state])
        secho(f"{told}, {counts['ok']:,} ok", fg=colour, bold=True)
    else:
        secho(f"All {len(diagnosis.checks):,} checks are ok", fg="green", bold=True)


def _rows(check: Finding) -> list[list["str | Text"]]:
    from rich.text import Text

    rows: list[list[str | Text]] = [[Text(check.state, COLOURS[check.state]), check.name, one_line(check.finding)]]
    return [*rows, ["", "", f"→ {one_line(check.advice)}"]] if check.advice else rows


def _exit(status: StatusReport | None, checks: list[Finding]) -> None:
    if status is None:
        sys.exit(EXIT_NOT_RUNNING)
    sys.exit(EXIT_PROBLEM if any(check.state == "problem" for check in checks) else 0)
