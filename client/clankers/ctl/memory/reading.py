"""`clankers-ctl memory list`, `show`, `related` and `context`."""

from pathlib import Path
from typing import Any, Literal, get_args

import click

from clankers.ctl.command import Ctl, common_options, normalize_project
from clankers.ctl.memory.options import (
    EVERYTHING,
    as_of_option,
    conditions,
    id_argument,
    include_option,
    query_option,
    scope_option,
    selected,
)
from clankers.ctl.memory.showing import memories, print_memories, print_memory, said, short_ids
from clankers.ctl.output import Column, echo, one_line, plain, print_json, print_table, secho
from clankers_protocol.memories import MemoryContext, MemoryGet, MemoryList, MemoryPage, MemoryRelated, Related, State

Sort = Literal["created", "updated", "salience", "importance", "accessed"]
AT_ONCE = 100
"""Memories that are asked for at a time, when all are wanted."""


@click.command(name="list")
@query_option
@conditions
@include_option
@as_of_option
@click.option("--sort", type=click.Choice(get_args(Sort)), default="created", show_default=True, help="By what.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@click.option("--all", "everything", is_flag=True, help="All of them, not just the first.")
@common_options
def list_(
    ctl: Ctl, include: list[State], as_of: int | None, sort: Sort, limit: int, everything: bool, **given: Any
) -> None:
    """List memories, newest first; ★ are pinned.

    \b
    Examples:
      clankers-ctl memory list --project . --category decision
      clankers-ctl memory list --sort salience --limit 50
      clankers-ctl memory list --include deleted --include archived
      clankers-ctl memory list --as-of 2025-01-31 --all --json
    """
    most = AT_ONCE if everything else limit
    request = MemoryList(**selected(ctl, given), include=include, as_of=as_of, sort=sort, limit=most)
    page = _all_memories(ctl, request) if everything else ctl.call(request)
    if ctl.json:
        print_json(page)
    elif not page.memories:
        echo("No memories.", err=True)
    else:
        print_memories(page.memories)
        if page.cursor:
            echo("There are more: --limit N or --all shows them.", err=True)


def _all_memories(ctl: Ctl, request: MemoryList) -> MemoryPage:
    return MemoryPage([memory for page in ctl.pages(request) for memory in page.memories])


@click.command()
@id_argument
@as_of_option
@common_options
def show(ctl: Ctl, id: str, as_of: int | None) -> None:  # noqa: A002  # the name on the command line
    """Show all about a memory, in whatever state it is.

    \b
    Examples:
      clankers-ctl memory show 0199c5a2-1b3c
      clankers-ctl memory show 0199c5a2-1b3c --as-of 3d
    """
    memory = ctl.call(MemoryGet(id=id, as_of=as_of, scopes=EVERYTHING))
    if ctl.json:
        print_json(memory)
    else:
        print_memory(memory)


@click.command()
@id_argument
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="How many.")
@common_options
def related(ctl: Ctl, id: str, limit: int) -> None:  # noqa: A002
    """Show what belongs to a memory: by a relation, by an entity they share, or by what they mean.

    \b
    Examples:
      clankers-ctl memory related 0199c5a2-1b3c
    """
    found = ctl.call(MemoryRelated(id=id, limit=limit, scopes=EVERYTHING))
    if ctl.json:
        print_json(found)
    elif not found:
        echo("Nothing belongs to it.", err=True)
    else:
        columns = [
            Column("Score", align_right=True, style="cyan"),
            Column("Id", style="cyan"),
            Column("Memory", min_width=24),
            Column("Via", optional=True, min_width=16),
        ]
        ids = short_ids([each.memory for each in found])
        print_table(columns, [_related_row(each, shown) for each, shown in zip(found, ids, strict=True)])


def _related_row(each: Related, shown: str) -> list[str]:
    via = f"{each.via}: {each.detail}" if each.detail else each.via
    return [f"{each.score:.3f}", one_line(shown), said(each.memory), one_line(via)]


@click.command()
@click.argument("words", nargs=-1)
@click.option(
    "--project", metavar="FOLDER", callback=normalize_project, help="Whose prompt.  [default: the folder you are in]"
)
@click.option("--agent", metavar="NAME", help="An agent that has memories of its own.")
@scope_option
@click.option("--max-characters", type=click.IntRange(200, 100_000), default=4000, show_default=True, help="How long.")
@click.option("--limit", type=click.IntRange(1, 100), default=15, show_default=True, help="How many memories.")
@common_options
def context(
    ctl: Ctl,
    words: tuple[str, ...],
    project: str | None,
    agent: str | None,
    scopes: list[str],
    max_characters: int,
    limit: int,
) -> None:
    """Print what would be put into a prompt: the memories that fit the words, or the pinned and strongest ones.

    It is what an agent in this project would get, so only its memories and the global ones, unless --scope says
    otherwise.

    \b
    Examples:
      clankers-ctl memory context
      clankers-ctl memory context fix the login test --project ~/src/shop
      clankers-ctl memory context --scope '*' --max-characters 1000
    """
    own = scopes is EVERYTHING  # nobody named a scope
    request = MemoryContext(
        query=" ".join(words) or None,
        project=project or (str(Path.cwd()) if own else None),
        agent=agent,
        scopes=None if own else scopes,
        max_characters=max_characters,
        limit=limit,
    )
    found = ctl.call(request)
    if ctl.json:
        print_json(found)
        return
    if found.text:
        echo(plain(found.text))
    left_out = f", {found.left_out:,} left out" if found.left_out else ""
    echo(f"{memories(len(found.ids))} in {len(found.text):,} characters{left_out}.", err=True)
    if found.degraded:
        secho(f"Incomplete: {one_line(found.degraded)}.", fg="yellow", err=True)
