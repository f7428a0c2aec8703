"""`clankers-ctl retention`: what is removed after a time, or when the database is too large."""

import click

from clankers.ctl.command import Ctl, common_options, deletion_options
from clankers.ctl.formatting import describe_last_run, describe_removed, format_bytes
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import confirm, echo, one_line, print_facts, print_json
from clankers_protocol.retention import RetentionCount, RetentionShow, RetentionStart


@click.group()
def retention() -> None:
    """Show and apply the retention settings.

    The setting retention has rules such as tool-outputs=30d, sessions=365d or opencode/sessions=90d: what is older is
    deleted for good. retention_megabytes is a size budget. Both are off unless you set them. While one is on, the
    daemon applies them every night, as the scheduled action "retention". Memories are never removed.

    \b
    Examples:
      clankers-ctl config set retention '["tool-outputs=30d", "sessions=365d"]'
      clankers-ctl retention run --dry-run
      clankers-ctl retention show
    """


@retention.command()
@common_options
def show(ctl: Ctl) -> None:
    """Show the rules, what the last run removed, and when the next one is.

    \b
    Examples:
      clankers-ctl retention show
      clankers-ctl retention show --json | jq .last.removed
    """
    report = ctl.call(RetentionShow())
    if ctl.json:
        print_json(report)
        return
    budget = format_bytes(report.megabytes * 1_000_000) if report.megabytes else "none"
    print_facts(
        [
            ("rules", ", ".join(map(one_line, report.rules)) or "none"),
            ("size budget", budget),
            ("runs", describe_last_run(report)),
        ]
    )


@retention.command()
@deletion_options
@common_options
def run(ctl: Ctl, dry_run: bool, yes: bool) -> None:
    """Remove now what the rules and the size budget say. Asks for confirmation first.

    What is removed is erased as `clankers-ctl forget` does; backups keep it until they are rotated out.

    \b
    Examples:
      clankers-ctl retention run --dry-run
      clankers-ctl retention run --yes
    """
    plan = ctl.call(RetentionCount(), timeout=120)
    if dry_run or not plan.removed:
        ctl.report(
            plan, f"Would remove {describe_removed(plan.removed)}." if plan.removed else "There is nothing to remove."
        )
        return
    if not yes:
        echo(f"This removes {describe_removed(plan.removed)}.")
        confirm("Remove it for good?", abort=True)
    job = run_job_or_exit(ctl, RetentionStart())
    if ctl.json:
        print_json(job.result)
        return
    echo(f"Removed {describe_removed(job.result['removed'])}, and freed {format_bytes(job.result['freedBytes'])}.")
    if job.result["note"]:
        echo(one_line(job.result["note"]))
