"""`clankers-ctl forget`: delete captured data for good."""

from typing import Any

import click

from clankers.ctl.command import Ctl, common_options, deletion_options, project_option
from clankers.ctl.formatting import count_of, plural, since_callback, until_callback
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import confirm, echo, one_line, print_json
from clankers_protocol.forgetting import ForgetCount, ForgetPlan, ForgetStart

MAX_LISTED_FILES = 10


@click.command()
@project_option("Forget everything of this project")
@click.option("--session", metavar="ID", help="Forget this session, or only what else you specify in it.")
@click.option("--since", metavar="TIME", callback=since_callback, help="Forget what was stored since TIME: 2h, today …")
@click.option("--until", metavar="TIME", callback=until_callback, help="Forget what was stored until TIME.")
@click.option("--source", metavar="HARNESS", help="Forget what came from this harness, for example claude-code.")
@click.option("--matching", metavar="WORDS", help="Forget messages, tool calls, memories and documents with this text.")
@click.option("--backups-too", is_flag=True, help="Also replace backups and copies of the database by a new backup.")
@deletion_options
@common_options
def forget(
    ctl: Ctl,
    project: str | None,
    session: str | None,
    since: int | None,
    until: int | None,
    source: str | None,
    matching: str | None,
    backups_too: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete captured data for good. Asks for confirmation first.

    Several options narrow each other. Afterwards the texts are in no table, index, log, spooled event or free page of
    the database. Backups keep them unless you give --backups-too. Files that are not the daemon's, such as the
    harnesses' own transcripts, are listed and stay.

    \b
    Examples:
      clankers-ctl forget --matching "Project Nightingale" --dry-run
      clankers-ctl forget --project ~/src/secret --backups-too
      clankers-ctl forget --source opencode --since 2025-01-01 --until 2025-02-01 --yes
    """
    criteria: dict[str, Any] = {
        "project": project, "session": session, "since": since, "until": until, "source": source, "matching": matching,
    }  # fmt: skip
    if not any(value is not None for value in criteria.values()):
        raise click.UsageError("Say what to forget: --project, --session, --since, --until, --source or --matching.")
    plan = ctl.call(ForgetCount(**criteria))
    if dry_run or not (plan.counts or plan.traces):
        if ctl.json:
            print_json(plan)
        else:
            _print_plan(plan, "Would delete", backups_too)
        return
    if not yes:
        _print_plan(plan, "This deletes", backups_too)
        confirm("Delete it for good?", abort=True)
    job = run_job_or_exit(ctl, ForgetStart(**criteria, backups_too=backups_too))
    if ctl.json:
        copies = [] if backups_too else plan.copies
        print_json(job.result | {"unreachable": plan.unreachable, "copies": copies, "traces": plan.traces})
        return
    _print_plan(plan, "Deleted", backups_too)
    if deleted := job.result["backupsDeleted"]:
        echo(f"Replaced {plural(len(deleted), 'backup')} by a new one.")
    elif not backups_too:
        echo("Backups made before now still hold it: `clankers-ctl forget … --backups-too` replaces them.")


def _print_plan(plan: ForgetPlan, verb: str, backups_too: bool) -> None:
    parts = [count_of(number, table) for table, number in plan.counts.items()]
    if plan.traces:
        parts.append(f"{plural(plan.traces, 'trace')} of it (searches, injected blocks, entities, log lines)")
    if not parts:
        echo("Nothing matches.")
        return
    echo(f"{verb} {', '.join(parts)}.")
    _print_files("These files are not the daemon's and stay as they are:", plan.unreachable)
    if not backups_too:
        _print_files("These copies of the database stay, too (--backups-too deletes them):", plan.copies)


def _print_files(title: str, paths: list[str]) -> None:
    if not paths:
        return
    echo(title)
    for path in paths[:MAX_LISTED_FILES]:
        echo(f"  {one_line(path)}")
    if len(paths) > MAX_LISTED_FILES:
        echo(f"  … and {len(paths) - MAX_LISTED_FILES:,} more")
