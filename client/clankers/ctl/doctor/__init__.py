"""`clankers-ctl doctor`: check the daemon and everything around it, and advise what to do about problems."""

import sys

import click
import msgspec

from clankers.ctl.command import EXIT_NOT_RUNNING, EXIT_PROBLEM, Ctl, common_options, daemon_paths
from clankers.ctl.doctor import files, setup
from clankers.ctl.formatting import format_duration, plural
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import Column, one_line, print_json, print_table, secho
from clankers.ctl.text import Text
from clankers.messages import BadReply, DaemonUnavailable
from clankers_protocol import VERSION
from clankers_protocol.admin import DaemonStatus, Diagnosis, DoctorCheck, DoctorRepair, Finding, StatusReport
from clankers_protocol.capture import CaptureReport, CaptureStatus
from clankers_protocol.errors import RpcError
from clankers_protocol.paths import Paths, default_paths

STATUS_TIMEOUT_SECONDS = 10
COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
COLUMNS = [Column("State"), Column("Check", style="cyan"), Column("Finding", min_width=30, wrap=True)]


@click.command()
@click.option(
    "--repair", is_flag=True, help="Rebuild damaged indexes, tighten file permissions, remove leftover files."
)
@common_options
def doctor(ctl: Ctl, repair: bool) -> None:
    """Check the daemon and everything around it.

    Checks the daemon, its files, the database, the index, capture, plugins and the service. The daemon continues to
    store events during the check, however large the database is. If the daemon is not running, doctor checks its files,
    settings, plugins and service. With --repair, doctor rebuilds derived data (the search index and the indexes of
    tables), tightens file permissions and removes leftover files; it never changes captured data.

    Exits with 0 if there is no problem, 3 if the daemon does not answer, and 4 if there is a problem. Warnings do not
    count as problems.

    \b
    Examples:
      clankers-ctl doctor
      clankers-ctl doctor --repair
      clankers-ctl doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    status, diagnosis = diagnose(ctl, repair=repair)
    _print_diagnosis(ctl, diagnosis)
    if status is None:
        sys.exit(EXIT_NOT_RUNNING)
    sys.exit(EXIT_PROBLEM if any(check.state == "problem" for check in diagnosis.checks) else 0)


def diagnose(ctl: Ctl, *, repair: bool = False) -> tuple[StatusReport | None, Diagnosis]:
    """Check everything, and with `repair` repair it first; return the status of the daemon, if it answers, as well."""
    status, daemon_finding = _check_daemon(ctl)
    if status is not None:
        paths = daemon_paths(status)
    else:
        default = default_paths()
        paths = Paths(default.data, default.database, ctl.socket or default.socket, default.logs, default.config)
    report, capture_checks = _check_capture(ctl) if status is not None else (None, [])
    repaired = [*files.tighten_permissions(paths), *files.remove_leftovers(paths)] if repair else []
    checks = [daemon_finding, *files.check_files(paths, status), *setup.check_plugins(report), setup.check_service()]
    if status is None:
        checks.append(setup.check_settings())
    else:
        diagnosis = _diagnose_daemon(ctl, repair)
        repaired += diagnosis.repaired
        checks += [*capture_checks, *diagnosis.checks]
    return status, Diagnosis(checks, repaired)


def _check_capture(ctl: Ctl) -> tuple[CaptureReport | None, list[Finding]]:
    """Return what the daemon says about capture, and the findings about it."""
    try:
        report = ctl.call(CaptureStatus())
    except RpcError as error:
        finding = f"Capture cannot be checked: {error.message}"
        return None, [Finding("capture", "problem", finding, "clankers-ctl health")]
    return report, setup.check_capture(report)


def _check_daemon(ctl: Ctl) -> tuple[StatusReport | None, Finding]:
    """Return the status of the daemon, if it answers, and a finding about it."""
    try:
        status = ctl.call(DaemonStatus(), timeout=STATUS_TIMEOUT_SECONDS, start=False)
    except DaemonUnavailable as error:
        problem, _, advice = str(error).partition(". ")
        return None, Finding("daemon", "problem", f"{problem}.", advice)
    except (TimeoutError, BadReply, RpcError) as error:
        advice = "clankers-ctl logs --level error; then restart the daemon"
        return None, Finding("daemon", "problem", f"The daemon does not answer correctly: {error}", advice)
    our_version = VERSION
    running = f"clankersd {status.version} has been running for {format_duration(status.uptime_seconds)}"
    if status.version != our_version:
        advice = "clankers-ctl daemon restart"
        return status, Finding("daemon", "warning", f"{running}, but clankers-ctl is {our_version}.", advice)
    return status, Finding("daemon", "ok", f"{running}, process {status.pid}.")


def _diagnose_daemon(ctl: Ctl, repair: bool) -> Diagnosis:
    """Have the daemon check itself, and with `repair` also repair itself."""
    try:
        job = run_job_or_exit(ctl, DoctorRepair() if repair else DoctorCheck())
    except RpcError as error:  # the job cannot even start, because the database is unavailable
        problem, _, advice = error.message.removeprefix("storage unavailable: ").partition(": ")
        return Diagnosis([Finding("database", "problem", f"{problem[:1].upper()}{problem[1:]}.", advice or None)], [])
    return msgspec.convert(job.result, Diagnosis)


def _print_diagnosis(ctl: Ctl, diagnosis: Diagnosis) -> None:
    counts = {state: sum(check.state == state for check in diagnosis.checks) for state in COLOURS}
    if ctl.json:
        print_json({"ok": not counts["problem"], "checks": diagnosis.checks, "repaired": diagnosis.repaired})
        return
    for step in diagnosis.repaired:
        secho(f"Repaired: {one_line(step)}", fg="green")
    rows: list[list[str | Text]] = []
    for check in diagnosis.checks:
        rows.append([Text(check.state, COLOURS[check.state]), check.name, one_line(check.finding)])
        if check.advice:
            rows.append(["", "", f"→ {one_line(check.advice)}"])
    print_table(COLUMNS, rows)
    if counts["problem"] or counts["warning"]:
        colour = "red" if counts["problem"] else "yellow"
        summary = ", ".join(plural(counts[state], state) for state in ("problem", "warning") if counts[state])
        secho(f"{summary}, {counts['ok']:,} ok", fg=colour, bold=True)
    else:
        secho(f"All {len(diagnosis.checks):,} checks are ok", fg="green", bold=True)
