"""`clankers-ctl status` and `clankers-ctl health`."""

import sys

import click

from clankers.ctl.command import PROBLEM, Ctl, common
from clankers.ctl.human import size, span
from clankers.ctl.output import one_line, print_facts, print_json
from clankers_protocol.admin import DaemonStatus, Health, HealthReport, Sizes, StatusReport


@click.command()
@common
def status(ctl: Ctl) -> None:
    """Show what the daemon is, does and holds. Exits 4 when it reports a problem.

    \b
    Examples:
      clankers-ctl status
      clankers-ctl status --json | jq .counts
    """
    report = ctl.call(DaemonStatus())
    if ctl.json:
        print_json(report)
    else:
        _print_status(report)
    sys.exit(0 if report.ok else PROBLEM)


@click.command()
@common
def health(ctl: Ctl) -> None:
    """Say whether the daemon can do its work. Exits 4 when it cannot, 3 when it does not run.

    \b
    Examples:
      clankers-ctl health
      clankers-ctl health --json || notify-send "clankers has a problem"
    """
    report = ctl.call(Health())
    if ctl.json:
        print_json(report)
    else:
        _print_state(report)
        if report.degraded:
            click.secho(f"  degraded: {one_line(report.degraded)}", fg="yellow")
        click.echo(_versions(report))
    sys.exit(0 if report.ok else PROBLEM)


def _print_state(report: StatusReport | HealthReport) -> None:
    if report.ok:
        click.secho("● ok", fg="green", bold=True)
    else:
        click.secho(f"● problem: {report.problem or 'events cannot be stored'}", fg="red", bold=True)


def _versions(report: StatusReport | HealthReport) -> str:
    vec = f"sqlite-vec {report.sqlite_vec_version}" if report.sqlite_vec_version else "no sqlite-vec"
    ours = f"clankersd {report.version}, protocol {report.protocol}, schema {report.schema_version}"
    return f"{ours}, SQLite {report.sqlite_version}, {vec}"


def _sizes(sizes: Sizes | None) -> str | None:
    if sizes is None:
        return None
    return f"{size(sizes.database)}, {size(sizes.wal)} of WAL, {size(sizes.free)} unused"


def _print_status(report: StatusReport) -> None:
    queue = report.queue
    memory = f", {size(report.memory_bytes)} of memory" if report.memory_bytes else ""
    _print_state(report)
    print_facts(
        [
            ("versions", f"{_versions(report)}, Python {report.python_version}"),
            ("process", f"{report.pid}, up {span(report.uptime_seconds)}{memory}"),
            ("connections", str(report.connections)),
            (
                "queue",
                f"{queue.waiting} waiting; {queue.writes:,} writes in {queue.commits:,} commits so far",
            ),
            ("database", report.db_path),
            ("", _sizes(report.sizes)),
            (
                "holds",
                ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report.counts.items() if count)
                or "nothing yet",
            ),
            ("socket", report.socket_path),
            ("logs", report.log_path),
            ("config", report.config_path),
        ]
    )
