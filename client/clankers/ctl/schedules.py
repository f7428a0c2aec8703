"""`clankers-ctl schedule`: actions that run at set times."""

from contextlib import suppress
from typing import get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options, deletion_options
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.ids import display_ids
from clankers.ctl.output import Column, confirm, echo, one_line, print_facts, print_json, print_table
from clankers_protocol.schedules import (
    Missed,
    RunState,
    ScheduleCreate,
    ScheduledAction,
    ScheduleDelete,
    ScheduleDeleteAll,
    ScheduleDue,
    ScheduleEnable,
    ScheduleFind,
    ScheduleGet,
    ScheduleHistory,
    ScheduleList,
    ScheduleRun,
    ScheduleUpdate,
)

COLUMNS = [
    Column("Id", style="cyan"),
    Column("Next run"),
    Column("Description", min_width=20),
    Column("Schedule", min_width=12),
    Column("Zone", optional=True),
    Column("Action", optional=True),
]
RUN_COLUMNS = [
    Column("Due"),
    Column("State"),
    Column("Description", min_width=20),
    Column("Attempts", align_right=True, optional=True),
    Column("Took", align_right=True, optional=True),
    Column("Error", min_width=12, optional=True),
    Column("Run", optional=True, style="cyan"),
]


def _complete_ids(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Complete the id of a scheduled action."""
    with suppress(Exception):  # completion must not print errors while someone types
        page = ctx.ensure_object(Ctl).call(ScheduleList(limit=1000), timeout=1)
        return [found.id for found in page.actions if found.id.startswith(incomplete)]
    return []


@click.group()
def schedule() -> None:
    """Schedule actions that the daemon or a client runs.

    \b
    A schedule is one of
      HH:MM once            HH:MM daily            HH:MM weekly(mon)
      HH:MM custom(mon,thu) HH:MM monthly(31)      or a cron expression: 30 9 * * 1-5

    \b
    Examples:
      clankers-ctl schedule add "03:00 daily" "Nightly backup" --builtin backup
      clankers-ctl schedule list
      clankers-ctl schedule history
    """


@schedule.command("list")
@click.option("--enabled/--disabled", default=None, help="Only list enabled, or only disabled, actions.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Show at most this many.")
@common_options
def list_actions(ctl: Ctl, enabled: bool | None, limit: int) -> None:
    """List scheduled actions, next due first.

    \b
    Examples:
      clankers-ctl schedule list
      clankers-ctl schedule list --disabled
    """
    page = ctl.call(ScheduleList(enabled=enabled, limit=limit))
    if ctl.json:
        print_json(page)
        return
    _print_actions(ctl, page.actions)
    if page.cursor:
        echo("There are more scheduled actions. Use --limit N to see them.", err=True)


def _print_actions(ctl: Ctl, actions: list[ScheduledAction]) -> None:
    if not actions:
        echo("No scheduled actions.", err=True)
        return
    ids = display_ids(ctl, "schedule", [found.id for found in actions])
    print_table(COLUMNS, [_row(shown, found) for shown, found in zip(ids, actions, strict=True)])


def _no_next_run(found: ScheduledAction) -> str:
    return "finished" if found.enabled else "off"


def _row(shown: str, found: ScheduledAction) -> list[str]:
    return [
        one_line(shown),
        format_time(found.next_run) if found.next_run else _no_next_run(found),
        one_line(found.description),
        one_line(found.schedule),
        one_line(found.timezone),
        found.builtin or "client",
    ]


@schedule.command()
@click.argument("when")
@click.argument("description")
@click.option(
    "--zone", metavar="ZONE", help="IANA time zone, for example Europe/Berlin.  [default: that of the daemon]"
)
@click.option(
    "--missed",
    type=click.Choice(get_args(Missed)),
    default="once",
    show_default=True,
    help="Run once, or skip, a run missed while the daemon was off.",
)
@click.option(
    "--builtin", metavar="NAME", help="Have the daemon run this: backup, maintain, reindex, retention or sync."
)
@click.option("--prompt", help="Prompt for the client that runs the action.")
@click.option("--tool-calls", metavar="JSON", help="JSON list of tool calls for the client that runs the action.")
@click.option("--skill", metavar="NAME", help="Skill for the client that runs the action.")
@click.option("--disabled", is_flag=True, help="Add the action without enabling it.")
@common_options
def add(
    ctl: Ctl,
    when: str,
    description: str,
    zone: str | None,
    missed: Missed,
    builtin: str | None,
    prompt: str | None,
    tool_calls: str | None,
    skill: str | None,
    disabled: bool,
) -> None:
    """Schedule an action.

    \b
    Examples:
      clankers-ctl schedule add "03:00 daily" "Nightly backup" --builtin backup
      clankers-ctl schedule add "30 9 * * 1-5" "Stand-up notes" --prompt "Sum up what was done yesterday"
      clankers-ctl schedule add "18:00 monthly(31)" "Month's end" --zone Europe/Berlin --missed skip
    """
    request = ScheduleCreate(
        description=description,
        schedule=when,
        timezone=zone,
        missed=missed,
        builtin=builtin,
        tool_calls=_parse_tool_calls(tool_calls),
        synthesis_prompt=prompt,
        skill_id=skill,
        enabled=not disabled,
    )
    _print_action(ctl, ctl.call(request))


@schedule.command()
@click.argument("id", shell_complete=_complete_ids)
@common_options
def show(ctl: Ctl, id: str) -> None:  # noqa: A002  # the name on the command line
    """Show a scheduled action.

    \b
    Examples:
      clankers-ctl schedule show 0199c5a2
    """
    _print_action(ctl, ctl.call(ScheduleGet(id)))


@schedule.command()
@click.argument("id", shell_complete=_complete_ids)
@click.option("--when", help="Set the schedule.")
@click.option("--description", help="Set the description.")
@click.option("--zone", metavar="ZONE", help="Set the IANA time zone.")
@click.option(
    "--missed", type=click.Choice(get_args(Missed)), help="Run once, or skip, a run missed while the daemon was off."
)
@common_options
def update(
    ctl: Ctl,
    id: str,  # noqa: A002
    when: str | None,
    description: str | None,
    zone: str | None,
    missed: Missed | None,
) -> None:
    """Change the schedule or description of a scheduled action.

    \b
    Examples:
      clankers-ctl schedule update 0199c5a2 --when "04:00 daily"
    """
    values = {"schedule": when, "description": description, "timezone": zone, "missed": missed}
    changes = {name: value for name, value in values.items() if value is not None}
    if not changes:
        raise click.UsageError("Specify what to change: --when, --description, --zone or --missed.")
    _print_action(ctl, ctl.call(ScheduleUpdate(id, **changes)))  # type: ignore[arg-type]  # each has its own type


@schedule.command()
@click.argument("id", shell_complete=_complete_ids)
@common_options
def enable(ctl: Ctl, id: str) -> None:  # noqa: A002
    """Enable a scheduled action.

    \b
    Examples:
      clankers-ctl schedule enable 0199c5a2
    """
    _print_action(ctl, ctl.call(ScheduleEnable(id, enabled=True)))


@schedule.command()
@click.argument("id", shell_complete=_complete_ids)
@common_options
def disable(ctl: Ctl, id: str) -> None:  # noqa: A002
    """Disable a scheduled action without deleting it.

    \b
    Examples:
      clankers-ctl schedule disable 0199c5a2
    """
    _print_action(ctl, ctl.call(ScheduleEnable(id, enabled=False)))


@schedule.command()
@click.argument("text")
@common_options
def find(ctl: Ctl, text: str) -> None:
    """Find scheduled actions whose description contains the text.

    \b
    Examples:
      clankers-ctl schedule find backup
    """
    found = ctl.call(ScheduleFind(text))
    if ctl.json:
        print_json(found)
    else:
        _print_actions(ctl, found)


@schedule.command()
@common_options
def due(ctl: Ctl) -> None:
    """List due actions that no client has claimed yet.

    \b
    Examples:
      clankers-ctl schedule due
    """
    found = ctl.call(ScheduleDue())
    if ctl.json:
        print_json(found)
    else:
        _print_actions(ctl, found)


@schedule.command()
@click.argument("id", required=False, shell_complete=_complete_ids)
@click.option("--state", type=click.Choice(get_args(RunState)), help="Only list runs in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Show at most this many.")
@common_options
def history(ctl: Ctl, id: str | None, state: RunState | None, limit: int) -> None:  # noqa: A002
    """List the runs of one scheduled action, or of all, newest first.

    \b
    Examples:
      clankers-ctl schedule history
      clankers-ctl schedule history 0199c5a2 --state failed
    """
    page = ctl.call(ScheduleHistory(action_id=id, state=state, limit=limit))
    ctl.report_page(page, "runs", RUN_COLUMNS, lambda: [_run(run) for run in page.runs])


def _run(run: ScheduleRun) -> list[str]:
    took = "" if run.finished_at is None else format_duration((run.finished_at - run.created_at) / 1000)
    return [
        format_time(run.scheduled_for),
        run.state,
        one_line(run.description),
        str(run.attempts),
        took,
        one_line(run.error or ""),
        run.id,
    ]


@schedule.command()
@click.argument("id", required=False, shell_complete=_complete_ids)
@click.option("--all", "everything", is_flag=True, help="Delete all scheduled actions.")
@deletion_options
@common_options
def delete(ctl: Ctl, id: str | None, everything: bool, dry_run: bool, yes: bool) -> None:  # noqa: A002
    """Delete a scheduled action, or all of them, with their history. Asks for confirmation first.

    \b
    Examples:
      clankers-ctl schedule delete 0199c5a2
      clankers-ctl schedule delete --all --dry-run
    """
    if (id is None) != everything:
        raise click.UsageError("Specify the id of a scheduled action, or --all.")
    found = None if id is None else ctl.call(ScheduleGet(id))
    count = 1 if found else ctl.call(ScheduleDeleteAll(dry_run=True)).deleted
    what = f"{found.id} ({one_line(found.description)})" if found else plural(count, "scheduled action")
    if not dry_run and not yes:
        confirm(f"Delete {what}?", abort=True)
    if not dry_run and found:
        ctl.call(ScheduleDelete(found.id))
    elif not dry_run:
        count = ctl.call(ScheduleDeleteAll()).deleted
    ctl.report({"deleted": count, "dryRun": dry_run}, f"{'Would delete' if dry_run else 'Deleted'} {what}.")


def _print_action(ctl: Ctl, found: ScheduledAction) -> None:
    if ctl.json:
        print_json(found)
        return
    calls = one_line(msgspec.json.encode(found.tool_calls).decode()) if found.tool_calls else None
    print_facts(
        [
            ("id", found.id),
            ("description", one_line(found.description)),
            ("schedule", f"{one_line(found.schedule)} ({one_line(found.timezone)})"),
            ("next run", format_time(found.next_run) or _no_next_run(found)),
            ("if missed", "run once" if found.missed == "once" else "skip"),
            ("run by", f"the daemon ({found.builtin})" if found.builtin else "a client"),
            ("prompt", found.synthesis_prompt and one_line(found.synthesis_prompt)),
            ("tool calls", calls),
            ("skill", found.skill_id),
        ]
    )


def _parse_tool_calls(text: str | None) -> list[dict[str, object]] | None:
    """Parse --tool-calls."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=list[dict[str, object]])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"{text!r} is not a JSON list of objects: {error}") from error
