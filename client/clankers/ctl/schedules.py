"""`clankers-ctl schedule`."""

from contextlib import suppress
from typing import get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options, deletion_options
from clankers.ctl.formatting import format_duration, format_time, plural
from clankers.ctl.output import Column, confirm, display_ids, echo, one_line, print_facts, print_json, print_table
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
    Column("Does", optional=True),
]


def _action_ids(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[str]:
    """Ids of actions that begin like this, for the shell to complete."""
    with suppress(Exception):  # a shell has no use for an error while someone types
        page = ctx.ensure_object(Ctl).call(ScheduleList(limit=1000), timeout=1)
        return [found.id for found in page.actions if found.id.startswith(incomplete)]
    return []


@click.group()
def schedule() -> None:
    """Have things done at set times, by the daemon itself or by a client that waits for them.

    \b
    When is one of
      HH:MM once            HH:MM daily            HH:MM weekly(mon)
      HH:MM custom(mon,thu) HH:MM monthly(31)      or a cron expression: 30 9 * * 1-5

    \b
    Examples:
      clankers-ctl schedule add "03:00 daily" "Nightly backup" --builtin backup
      clankers-ctl schedule list
      clankers-ctl schedule history
    """


@schedule.command("list")
@click.option("--enabled/--disabled", default=None, help="Only those that run, or only those that do not.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many.")
@common_options
def list_actions(ctl: Ctl, enabled: bool | None, limit: int) -> None:
    """List scheduled actions, the one due next first.

    \b
    Examples:
      clankers-ctl schedule list
      clankers-ctl schedule list --disabled
    """
    page = ctl.call(ScheduleList(enabled=enabled, limit=limit))
    if ctl.json:
        print_json(page)
        return
    _print_actions(page.actions)
    if page.cursor:
        echo("There are more: --limit N shows them.", err=True)


def _print_actions(actions: list[ScheduledAction]) -> None:
    if not actions:
        echo("No scheduled actions.", err=True)
        return
    ids = display_ids([found.id for found in actions])
    print_table(COLUMNS, [_row(shown, found) for shown, found in zip(ids, actions, strict=True)])


def _row(shown: str, found: ScheduledAction) -> list[str]:
    return [
        one_line(shown),
        format_time(found.next_run) if found.next_run else ("over" if found.enabled else "off"),
        one_line(found.description),
        one_line(found.schedule),
        one_line(found.timezone),
        found.builtin or "client",
    ]


@schedule.command()
@click.argument("when")
@click.argument("description")
@click.option("--zone", metavar="ZONE", help="The IANA time zone of WHEN, as Europe/Berlin; else the daemon's own.")
@click.option("--missed", type=click.Choice(get_args(Missed)), default="once", show_default=True, help="If missed.")
@click.option("--builtin", metavar="NAME", help="What the daemon does: backup, maintain, reindex or sync.")
@click.option("--prompt", help="What a client shall make of it.")
@click.option("--tool-calls", metavar="JSON", help="A list of tool calls for a client.")
@click.option("--skill", metavar="NAME", help="The skill a client shall use.")
@click.option("--disabled", is_flag=True, help="Do not run it yet.")
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
        tool_calls=_calls(tool_calls),
        synthesis_prompt=prompt,
        skill_id=skill,
        enabled=not disabled,
    )
    _print_action(ctl, ctl.call(request))


@schedule.command()
@click.argument("id", shell_complete=_action_ids)
@common_options
def show(ctl: Ctl, id: str) -> None:  # noqa: A002  # the name on the command line
    """Show a scheduled action.

    \b
    Examples:
      clankers-ctl schedule show 0199c5a2
    """
    _print_action(ctl, ctl.call(ScheduleGet(id)))


@schedule.command()
@click.argument("id", shell_complete=_action_ids)
@click.option("--when", help="When it runs.")
@click.option("--description", help="What it is for.")
@click.option("--zone", metavar="ZONE", help="The IANA time zone.")
@click.option("--missed", type=click.Choice(get_args(Missed)), help="If missed.")
@common_options
def update(
    ctl: Ctl,
    id: str,  # noqa: A002
    when: str | None,
    description: str | None,
    zone: str | None,
    missed: Missed | None,
) -> None:
    """Change when a scheduled action runs, or what it is for.

    \b
    Examples:
      clankers-ctl schedule update 0199c5a2 --when "04:00 daily"
    """
    given = {"schedule": when, "description": description, "timezone": zone, "missed": missed}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("say what to change: --when, --description, --zone or --missed")
    _print_action(ctl, ctl.call(ScheduleUpdate(id, **changes)))  # type: ignore[arg-type]  # each has its own type


@schedule.command()
@click.argument("id", shell_complete=_action_ids)
@common_options
def enable(ctl: Ctl, id: str) -> None:  # noqa: A002
    """Let a scheduled action run from now on.

    \b
    Examples:
      clankers-ctl schedule enable 0199c5a2
    """
    _print_action(ctl, ctl.call(ScheduleEnable(id, enabled=True)))


@schedule.command()
@click.argument("id", shell_complete=_action_ids)
@common_options
def disable(ctl: Ctl, id: str) -> None:  # noqa: A002
    """Let a scheduled action rest; it is kept.

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
        _print_actions(found)


@schedule.command()
@common_options
def due(ctl: Ctl) -> None:
    """List scheduled actions that are due and not yet taken.

    \b
    Examples:
      clankers-ctl schedule due
    """
    found = ctl.call(ScheduleDue())
    if ctl.json:
        print_json(found)
    else:
        _print_actions(found)


@schedule.command()
@click.argument("id", required=False, shell_complete=_action_ids)
@click.option("--state", type=click.Choice(get_args(RunState)), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@common_options
def history(ctl: Ctl, id: str | None, state: RunState | None, limit: int) -> None:  # noqa: A002
    """List what ran, newest first: of one action, or of all.

    \b
    Examples:
      clankers-ctl schedule history
      clankers-ctl schedule history 0199c5a2 --state failed
    """
    page = ctl.call(ScheduleHistory(action_id=id, state=state, limit=limit))
    if ctl.json:
        print_json(page)
    elif not page.runs:
        echo("No runs.", err=True)
    else:
        columns = [
            Column("Due"),
            Column("State"),
            Column("Description", min_width=20),
            Column("Attempts", align_right=True, optional=True),
            Column("Took", align_right=True, optional=True),
            Column("Error", min_width=12, optional=True),
            Column("Run", optional=True, style="cyan"),
        ]
        print_table(columns, [_run(run) for run in page.runs])


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
@click.argument("id", required=False, shell_complete=_action_ids)
@click.option("--all", "everything", is_flag=True, help="Every scheduled action.")
@deletion_options
@common_options
def delete(ctl: Ctl, id: str | None, everything: bool, dry_run: bool, yes: bool) -> None:  # noqa: A002
    """Delete a scheduled action and its history, or all of them. Asks first.

    \b
    Examples:
      clankers-ctl schedule delete 0199c5a2
      clankers-ctl schedule delete --all --dry-run
    """
    if (id is None) != everything:
        raise click.UsageError("name one scheduled action, or say --all")
    found = None if id is None else ctl.call(ScheduleGet(id))
    count = 1 if found else ctl.call(ScheduleDeleteAll(dry_run=True)).deleted
    what = f"{found.id} ({one_line(found.description)})" if found else plural(count, "scheduled action")
    if not dry_run and not yes:
        confirm(f"Delete {what}?", abort=True)
    if not dry_run and found:
        ctl.call(ScheduleDelete(found.id))
    elif not dry_run:
        count = ctl.call(ScheduleDeleteAll()).deleted
    if ctl.json:
        print_json({"deleted": count, "dryRun": dry_run})
    else:
        echo(f"{'Would delete' if dry_run else 'Deleted'} {what}.")


def _print_action(ctl: Ctl, found: ScheduledAction) -> None:
    if ctl.json:
        print_json(found)
        return
    calls = found.tool_calls and one_line(msgspec.json.encode(found.tool_calls).decode())
    print_facts(
        [
            ("id", found.id),
            ("description", one_line(found.description)),
            ("schedule", f"{one_line(found.schedule)} ({one_line(found.timezone)})"),
            ("next run", format_time(found.next_run) or ("over" if found.enabled else "off")),
            ("if missed", "runs once" if found.missed == "once" else "is skipped"),
            ("does", found.builtin or "what a client makes of it"),
            ("prompt", found.synthesis_prompt and one_line(found.synthesis_prompt)),
            ("tool calls", calls or None),
            ("skill", found.skill_id),
        ]
    )


def _calls(text: str | None) -> list[dict[str, object]] | None:
    """Reads --tool-calls."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=list[dict[str, object]])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"{text!r} is no JSON list of objects: {error}") from error
