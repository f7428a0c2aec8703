"""`clankers-ctl memory`: list, search, change, export and import memories."""

import click

from clankers.ctl.memory.browse import context, history, list_, related, search, show, stats
from clankers.ctl.memory.change import add, extract, forget, maintain, pin, restore, unpin
from clankers.ctl.memory.edit import edit
from clankers.ctl.memory.graph import graph
from clankers.ctl.memory.strength import deemphasize, promote, reinforce, summarize
from clankers.ctl.memory.transfer import export, import_


class MemoryGroup(click.Group):
    """Command group that lists its commands in the order in which they were added, not alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=MemoryGroup)
def memory() -> None:
    """List, search, add, edit and forget memories.

    All scopes are included unless --scope or --project is given. An id can be shortened to its first or last 8
    characters, or more if that is ambiguous.

    \b
    Examples:
      clankers-ctl memory add "We deploy on Tuesdays" --project . --category decision
      clankers-ctl memory search when do we deploy
      clankers-ctl memory list --sector procedural --sort salience
      clankers-ctl memory edit 0199c5a2-1b3c
      clankers-ctl memory forget 0199c5a2-1b3c
    """


for command in (
    add,
    list_,
    search,
    show,
    edit,
    forget,
    restore,
    pin,
    unpin,
    reinforce,
    deemphasize,
    promote,
    history,
    related,
    graph,
    context,
    extract,
    summarize,
    maintain,
    stats,
    export,
    import_,
):
    memory.add_command(command)
