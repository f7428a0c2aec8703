"""What the memory commands share: whose memories, which of them, and ids that the shell completes."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, get_args

import click
import msgspec

from clankers.ctl.command import Ctl, normalize_project
from clankers.ctl.formatting import since_callback, until_callback
from clankers_protocol.entities import EntityGet
from clankers_protocol.errors import NotFound
from clankers_protocol.memories import MemoryList, Sector, State, Tier
from clankers_protocol.sessions import SessionGet
from clankers_protocol.wire import ScopeSelector

EVERYTHING = ["*"]
"""The scopes of the owner: all there are."""

OTHER_STATES: list[State] = [state for state in get_args(State) if state != "current"]


def _scopes(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> list[str]:
    try:
        return msgspec.convert(list(value), list[ScopeSelector]) or EVERYTHING
    except msgspec.ValidationError as error:
        raise click.BadParameter("write global, agent:NAME, project:ID, user:NAME or custom:NAME.") from error


def _states(_: click.Context, __: click.Parameter, value: tuple[State | Literal["all"], ...]) -> list[State]:
    return OTHER_STATES if "all" in value else [state for state in value if state != "all"]


scope_option = click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    callback=_scopes,
    help="Only this scope: global, agent:NAME, project:ID, user:NAME or custom:NAME. May be given twice.",
)
project_option = click.option(
    "--project",
    metavar="FOLDER",
    callback=normalize_project,
    help="Only memories of this project (a folder in it, or its id).",
)
query_option = click.option("--query", metavar="WORDS", help="Only those in which all these words stand.")
as_of_option = click.option(
    "--as-of",
    metavar="TIME",
    callback=until_callback,
    help="What was known and true then: 2h, 3d, yesterday, 2025-01-31 …",
)
include_option = click.option(
    "--include",
    multiple=True,
    type=click.Choice([*OTHER_STATES, "all"]),
    callback=_states,
    help="Those in this state too, not just the current ones. May be given twice.",
)

_CONDITIONS = [
    project_option,
    scope_option,
    click.option("--sector", type=click.Choice(get_args(Sector)), help="Only those of this sector."),
    click.option("--tier", type=click.Choice(get_args(Tier)), help="Only those of this tier."),
    click.option("--category", help="Only those of this category, as decision or preference."),
    click.option("--tag", help="Only those with this tag."),
    click.option("--entity", metavar="NAME", help="Only those that speak of this entity (its name or id)."),
    click.option("--session", metavar="ID", help="Only those that this session made or used."),
    click.option("--pinned/--not-pinned", default=None, help="Only those that are pinned, or are not."),
    click.option("--min-salience", type=click.FloatRange(0, 1), help="Only those at least so strong."),
    click.option("--since", metavar="TIME", callback=since_callback, help="Only those made since: 2h, 3d, today …"),
    click.option("--until", metavar="TIME", callback=until_callback, help="Only those made until."),
]


def conditions(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which memories; it takes them as keywords, for `selected`."""
    for option in reversed(_CONDITIONS):
        command = option(command)
    return command


def selected(ctl: Ctl, given: dict[str, Any]) -> dict[str, Any]:
    """The conditions as the daemon's methods take them."""
    known = dict(given)
    session, entity = known.pop("session"), known.pop("entity")
    return known | {
        "session_id": session and ctl.call(SessionGet(session)).id,
        "entity": entity and entity_id(ctl, entity),
        "created_after": known.pop("since"),
        "created_before": known.pop("until"),
    }


def narrowed(given: dict[str, Any]) -> bool:
    """Whether the conditions say anything at all."""
    return any(value is not None and not (name == "scopes" and value == EVERYTHING) for name, value in given.items())


def entity_id(ctl: Ctl, given: str) -> str:
    """The id of the entity that has this id or this name."""
    try:
        return ctl.call(EntityGet(id=given, scopes=EVERYTHING, limit=1)).entity.id
    except NotFound:
        return ctl.call(EntityGet(name=given, scopes=EVERYTHING, limit=1)).entity.id


def memory_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The newest memories' ids that begin like this, for the shell to complete."""
    with suppress(Exception):  # a shell has no use for an error while someone types
        request = MemoryList(scopes=EVERYTHING, include=OTHER_STATES, limit=100)
        page = ctx.ensure_object(Ctl).call(request, timeout=1)
        return [memory.id for memory in page.memories if memory.id.startswith(incomplete)]
    return []


id_argument = click.argument("id", shell_complete=memory_ids)
ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=memory_ids)
