"""`clankers-ctl status` and `clankers-ctl health`."""

import sys

import click

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.formatting import count_of, describe_last_run, format_bytes, format_duration, plural
from clankers.ctl.output import echo, one_line, print_facts, print_json, secho
from clankers_protocol.admin import DaemonStatus, Health, HealthReport, StatusReport

LONG_WAIT_MS = 2000


@click.command()
@common_options
def status(ctl: Ctl) -> None:
    """Show the state, versions, paths and data of the daemon.

    Exits with 4 if the daemon reports a problem.

    \b
    Examples:
      clankers-ctl status
      clankers-ctl status --json | jq .counts
    """
    report = ctl.call(DaemonStatus(), start=False)
    ctl.report(report, _print_status)
    sys.exit(0 if report.ok else EXIT_PROBLEM)


@click.command()
@common_options
def health(ctl: Ctl) -> None:
    """Check that the daemon works.

    Exits with 4 if the daemon has a problem, and with 3 if it is not running.

    \b
    Examples:
      clankers-ctl health
      clankers-ctl health --json || notify-send "clankers has a problem"
    """
    report = ctl.call(Health(), start=False)
    if ctl.json:
        print_json(report)
    else:
        _print_state(report)
        if report.ok and report.longest_write_wait_ms > LONG_WAIT_MS:
            waited = report.longest_write_wait_ms / 1000
            echo(f"An event waited {waited:.1f} s to be stored within the last minute: see clankers-ctl logs.")
        echo(_versions(report))
    sys.exit(0 if report.ok else EXIT_PROBLEM)


def _print_state(report: StatusReport | HealthReport) -> None:
    if report.ok:
        secho("● ok", fg="green", bold=True)
    else:
        secho(f"● problem: {report.problem or 'events cannot be stored'}", fg="red", bold=True)
    for warning in report.warnings:
        secho(f"● warning: {one_line(warning)}", fg="yellow")
    if report.degraded:
        secho(f"● degraded: {one_line(report.degraded)}", fg="yellow")


def _versions(report: StatusReport | HealthReport) -> str:
    ours = f"clankersd {report.version}, protocol {report.protocol}, schema {report.schema_version}"
    if report.postgres_version:
        vec = f"pgvector {report.pgvector_version}" if report.pgvector_version else "no pgvector"
        return f"{ours}, PostgreSQL {report.postgres_version}, {vec}"
    vec = f"sqlite-vec {report.sqlite_vec_version}" if report.sqlite_vec_version else "no sqlite-vec"
    return f"{ours}, SQLite {report.sqlite_version}, {vec}"


def _print_status(report: StatusReport) -> None:
    queue = report.queue
    memory = f", {format_bytes(report.memory_bytes)} of memory" if report.memory_bytes else ""
    counts = [count_of(count, name) for name, count in report.counts.items() if count]
    sizes = None
    if report.sizes:
        database, wal, free = (format_bytes(n) for n in (report.sizes.database, report.sizes.wal, report.sizes.free))
        sizes = f"{database}, {wal} of WAL, {free} unused"
    _print_state(report)
    writes, commits = plural(queue.writes, "write"), plural(queue.commits, "commit")
    queue_facts = f"{queue.waiting} waiting; {writes} in {commits} so far"
    print_facts(
        [
            ("versions", f"{_versions(report)}, Python {report.python_version}"),
            ("process", f"{report.pid}, up {format_duration(report.uptime_seconds)}{memory}"),
            ("connections", str(report.connections)),
            ("queue", queue_facts),
            ("database", report.database_server or report.db_path),
            ("", sizes),
            ("contains", ", ".join(counts) or "nothing yet"),
            ("retention", describe_last_run(report.retention) if report.retention else None),
            ("socket", report.socket_path),
            ("logs", report.log_path),
            ("config", report.config_path),
        ]
    )
