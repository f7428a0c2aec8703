"""Memory commands that make a memory stronger, weaker or wider, and the summary of a session."""

from typing import Literal

import click
import msgspec

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.memory.display import memory_title, scope_name
from clankers.ctl.memory.options import ALL_SCOPES, id_argument, ids_argument
from clankers.ctl.output import echo, plain, print_json
from clankers.ctl.sessions import complete_session_ids
from clankers_protocol.memories import Memory
from clankers_protocol.memory_changes import MemoryDeemphasize, MemoryPromote, MemoryReinforce
from clankers_protocol.memory_maintenance import MemorySummarize
from clankers_protocol.sessions import SessionGet
from clankers_protocol.wire import Scope

WiderTier = Literal["project", "global"]


@click.command()
@ids_argument
@click.option(
    "--amount",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="Raise the salience by this share of what is missing to 1.",
)
@common_options
def reinforce(ctl: Ctl, ids: tuple[str, ...], amount: float) -> None:
    """Reinforce memories: raise their salience, so that they fade later.

    \b
    Examples:
      clankers-ctl memory reinforce 4f1c02d7
      clankers-ctl memory reinforce 4f1c02d7 --amount 0.5
    """
    changed = [ctl.call(MemoryReinforce(id=each, amount=amount, scopes=ALL_SCOPES)) for each in ids]
    _print_salience(ctl, changed)


@click.command()
@ids_argument
@click.option(
    "--amount",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.2,
    show_default=True,
    help="Lower the salience by this much.",
)
@common_options
def deemphasize(ctl: Ctl, ids: tuple[str, ...], amount: float) -> None:
    """Lower the salience of memories, so that they are recalled less.

    \b
    Examples:
      clankers-ctl memory deemphasize 4f1c02d7
    """
    changed = [ctl.call(MemoryDeemphasize(id=each, amount=amount, scopes=ALL_SCOPES)) for each in ids]
    _print_salience(ctl, changed)


def _print_salience(ctl: Ctl, changed: list[Memory]) -> None:
    if ctl.json:
        print_json(changed)
        return
    for memory in changed:
        echo(f"{memory_title(memory)} has salience {memory.salience:.2f}.")


@click.command()
@id_argument
@click.option(
    "--tier", type=click.Choice(["project", "global"]), default="global", show_default=True, help="The new tier."
)
@click.option("--scope", metavar="SCOPE", help="Move it to this scope as well, for example global.")
@click.option("--reason", help="Why, for its history.")
@common_options
def promote(ctl: Ctl, id: str, tier: WiderTier, scope: str | None, reason: str | None) -> None:  # noqa: A002
    """Promote a memory to a wider tier and, with --scope, to another scope.

    \b
    Examples:
      clankers-ctl memory promote 4f1c02d7 --tier project
      clankers-ctl memory promote 4f1c02d7 --scope global --reason "true of every project"
    """
    try:
        new_scope = msgspec.convert(scope, Scope | None)
    except msgspec.ValidationError as error:
        message = "write global, agent:NAME, project:ID, user:NAME or custom:NAME."
        raise click.BadParameter(message, param_hint="--scope") from error
    memory = ctl.call(MemoryPromote(id=id, tier=tier, scope=new_scope, reason=reason, scopes=ALL_SCOPES))
    ctl.report(memory, f"{memory_title(memory)} is now {memory.tier}, in scope {scope_name(memory)}.")


@click.command()
@click.argument("session", shell_complete=complete_session_ids)
@common_options
def summarize(ctl: Ctl, session: str) -> None:
    """Summarise a session with the configured chat model, and store the summary.

    \b
    Examples:
      clankers-ctl memory summarize 4f1c02d7
    """
    session_id = ctl.call(SessionGet(session)).id
    job = run_job_or_exit(ctl, MemorySummarize(session_id))
    if ctl.json:
        print_json(job)
    else:
        echo(plain(ctl.call(SessionGet(session_id)).summary or ""))
