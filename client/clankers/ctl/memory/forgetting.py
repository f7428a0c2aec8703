"""`clankers-ctl memory forget` and `restore`."""

from collections.abc import Sequence
from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.memory.options import (
    EVERYTHING,
    conditions,
    ids_argument,
    memory_ids,
    narrowed,
    query_option,
    selected,
)
from clankers.ctl.memory.showing import memories, named, print_memories
from clankers.ctl.output import confirm, echo, print_json
from clankers_protocol.memories import Memory, MemoryGet
from clankers_protocol.memory_changes import Changed, MemoryBulkDelete, MemoryDelete, MemoryPurge, MemoryRestore

SHOWN = 20
"""Of many memories that would go, so many are shown."""

PATIENCE = 600
"""Seconds that forgetting many may take."""


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]…", shell_complete=memory_ids)
@query_option
@conditions
@click.option("--purge", is_flag=True, help="For good, with history and links: nothing brings them back.")
@click.option("--reason", help="Why, for the history; with ids.")
@click.option("--dry-run", is_flag=True, help="Show which; forget nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def forget(
    ctl: Ctl, ids: tuple[str, ...], purge: bool, reason: str | None, dry_run: bool, yes: bool, **given: Any
) -> None:
    """Forget memories: those with these ids, or all that meet the conditions. Asks first.

    What is forgotten is found no more, and `restore` brings it back, unless it was purged.

    \b
    Examples:
      clankers-ctl memory forget 0199c5a2-1b3c --reason "the team moved to Postgres"
      clankers-ctl memory forget --tag scratch --until 30d --dry-run
      clankers-ctl memory forget --scope custom:experiment --purge
    """
    if bool(ids) == narrowed(given):
        raise click.UsageError("Say which: ids, or conditions as --tag; not both.")
    if reason and (purge or not ids):
        raise click.UsageError("--reason goes with ids, and not with --purge: that leaves no history.")
    bulk = None if ids else MemoryBulkDelete(**selected(ctl, given), purge=purge, dry_run=True)
    planned = _found(ctl, ids) if bulk is None else ctl.call(bulk, timeout=PATIENCE).ids
    if dry_run or not yes:
        _show(ctl, planned, purge, dry_run)
    if planned and not dry_run:
        if not yes:
            confirm(f"{'Purge' if purge else 'Forget'} {memories(len(planned))}?", abort=True)
        planned = _forget(ctl, planned, purge, reason) if bulk is None else _forget_all(ctl, bulk)
    _print_done(ctl, planned, purge, dry_run)


def _found(ctl: Ctl, ids: Sequence[str]) -> list[str]:
    """The whole ids: a wrong one among them is an error before anything is forgotten."""
    return list(dict.fromkeys(ctl.call(MemoryGet(id=given, scopes=EVERYTHING)).id for given in ids))


def _show(ctl: Ctl, ids: Sequence[str], purge: bool, dry_run: bool) -> None:
    if ctl.json or not ids:
        return
    found = [ctl.call(MemoryGet(id=each, scopes=EVERYTHING)) for each in ids[:SHOWN]]
    if dry_run:
        print_memories(found)
    else:
        for memory in found:
            echo(f"  {named(memory)}", err=True)
    if len(ids) > SHOWN:
        echo(f"  … and {len(ids) - SHOWN:,} more", err=True)
    if purge and not dry_run:
        echo("Nothing brings them back.", err=True)


def _forget(ctl: Ctl, ids: Sequence[str], purge: bool, reason: str | None) -> list[str]:
    gone: list[str] = []
    for each in ids:
        if purge:
            gone += ctl.call(MemoryPurge(id=each, scopes=EVERYTHING)).ids
        else:
            gone += ctl.call(MemoryDelete(id=each, reason=reason, scopes=EVERYTHING)).ids
    return gone


def _forget_all(ctl: Ctl, request: MemoryBulkDelete) -> list[str]:
    request.dry_run = False
    return ctl.call(request, timeout=PATIENCE).ids


def _print_done(ctl: Ctl, ids: list[str], purge: bool, dry_run: bool) -> None:
    if ctl.json:
        print_json(Changed(len(ids), ids))
    elif not ids:
        echo("There is nothing to forget.", err=True)
    else:
        done = ("purge" if purge else "forget") if dry_run else ("Purged" if purge else "Forgot")
        echo(f"{'Would ' if dry_run else ''}{done} {memories(len(ids))}.")


@click.command()
@ids_argument
@common_options
def restore(ctl: Ctl, ids: tuple[str, ...]) -> None:
    """Bring forgotten or archived memories back.

    \b
    Examples:
      clankers-ctl memory restore 0199c5a2-1b3c
      clankers-ctl memory list --include deleted
    """
    restored: list[Memory] = [ctl.call(MemoryRestore(id=each, scopes=EVERYTHING)) for each in ids]
    if ctl.json:
        print_json(restored)
        return
    for memory in restored:
        state = "" if memory.state == "current" else f": it is {memory.state} now"
        echo(f"Restored {named(memory)}{state}.")
