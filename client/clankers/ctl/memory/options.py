"""Options and arguments that several memory commands share."""

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

ALL_SCOPES = ["*"]
"""The user at the command line may read and write memories of every scope."""

OTHER_STATES: list[State] = [state for state in get_args(State) if state != "current"]


def _parse_scopes(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> list[str]:
    try:
        return msgspec.convert(list(value), list[ScopeSelector]) or ALL_SCOPES
    except msgspec.ValidationError as error:
        raise click.BadParameter("write global, agent:NAME, project:NAME, user:NAME or custom:NAME.") from error


def _parse_states(_: click.Context, __: click.Parameter, value: tuple[State | Literal["all"], ...]) -> list[State]:
    return OTHER_STATES if "all" in value else [state for state in value if state != "all"]


scope_option = click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    callback=_parse_scopes,
    help="Only memories in this scope: global, agent:NAME, project:NAME, user:NAME or custom:NAME. Repeatable.",
)
project_option = click.option(
    "--project",
    metavar="PROJECT",
    callback=normalize_project,
    help="Only memories of this project: a folder, or its name or id.",
)
query_option = click.option("--query", metavar="WORDS", help="Only memories that contain all of these words.")
as_of_option = click.option(
    "--as-of",
    metavar="TIME",
    callback=until_callback,
    help="Show what was known at this time: 2h, 3d, yesterday, 2025-01-31 …",
)
valid_at_option = click.option(
    "--valid-at",
    metavar="TIME",
    callback=until_callback,
    help="Show what was true at this time, by what is known now or at --as-of.",
)
include_option = click.option(
    "--include",
    multiple=True,
    type=click.Choice([*OTHER_STATES, "all"]),
    callback=_parse_states,
    help="Include memories in this state, in addition to current ones. Repeatable.",
)

_FILTER_OPTIONS = [
    project_option,
    scope_option,
    click.option("--sector", type=click.Choice(get_args(Sector)), help="Only memories of this sector."),
    click.option("--tier", type=click.Choice(get_args(Tier)), help="Only memories of this tier."),
    click.option("--category", help="Only memories of this category, such as decision or preference."),
    click.option("--tag", help="Only memories with this tag."),
    click.option("--entity", metavar="NAME", help="Only memories that mention this entity (its name or id)."),
    click.option("--session", metavar="ID", help="Only memories that this session created or used."),
    click.option("--pinned/--not-pinned", default=None, help="Only pinned memories, or only memories not pinned."),
    click.option("--min-salience", type=click.FloatRange(0, 1), help="Only memories with at least this salience."),
    click.option(
        "--since",
        metavar="TIME",
        callback=since_callback,
        help="Only memories created since this time: 2h, 3d, today …",
    ),
    click.option("--until", metavar="TIME", callback=until_callback, help="Only memories created until this time."),
]


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select memories to a command, which receives them as keyword arguments."""
    for option in reversed(_FILTER_OPTIONS):
        command = option(command)
    return command


def filter_fields(ctl: Ctl, filters: dict[str, Any]) -> dict[str, Any]:
    """Convert the values of `filter_options` to request fields, resolving the session and the entity to their ids."""
    fields = dict(filters)
    session, entity = fields.pop("session"), fields.pop("entity")
    fields["session_id"] = session and ctl.call(SessionGet(session)).id
    fields["entity"] = entity and resolve_entity(ctl, entity)
    fields["created_after"] = fields.pop("since")
    fields["created_before"] = fields.pop("until")
    return fields


def has_filters(filters: dict[str, Any]) -> bool:
    """Return whether any option of `filter_options` is set."""
    for name, value in filters.items():
        is_default = value is None or (name == "scopes" and value == ALL_SCOPES)
        if not is_default:
            return True
    return False


def resolve_entity(ctl: Ctl, id_or_name: str) -> str:
    """Return the id of the entity that has this id or, failing that, this name."""
    try:
        return ctl.call(EntityGet(id=id_or_name, scopes=ALL_SCOPES, limit=1)).entity.id
    except NotFound:
        return ctl.call(EntityGet(name=id_or_name, scopes=ALL_SCOPES, limit=1)).entity.id


def complete_memory_id(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return ids of recent memories that start with `incomplete`, for shell completion."""
    with suppress(Exception):  # shell completion has no place to show an error
        request = MemoryList(scopes=ALL_SCOPES, include=OTHER_STATES, limit=100)
        page = ctx.ensure_object(Ctl).call(request, timeout=1)
        return [memory.id for memory in page.memories if memory.id.startswith(incomplete)]
    return []


id_argument = click.argument("id", shell_complete=complete_memory_id)
ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=complete_memory_id)
