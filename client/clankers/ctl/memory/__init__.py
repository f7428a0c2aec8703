"""`clankers-ctl memory`: what is remembered for good, to see, correct, forget and carry elsewhere."""

import click

from clankers.ctl.memory.adding import add
from clankers.ctl.memory.editing import edit
from clankers.ctl.memory.forgetting import forget, restore
from clankers.ctl.memory.graph import graph
from clankers.ctl.memory.history import history
from clankers.ctl.memory.pinning import pin, unpin
from clankers.ctl.memory.reading import context, list_, related, show
from clankers.ctl.memory.searching import search
from clankers.ctl.memory.stats import stats
from clankers.ctl.memory.transfer import export, import_
from clankers.ctl.memory.upkeep import extract, maintain


class MemoryGroup(click.Group):
    """Lists its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=MemoryGroup)
def memory() -> None:
    """See, add, correct and forget what is remembered for good.

    All scopes are seen, unless --scope or --project says otherwise. An id may be cut to a beginning of 8 characters
    or more, if that names one memory only.

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
    history,
    related,
    graph,
    context,
    extract,
    maintain,
    stats,
    export,
    import_,
):
    memory.add_command(command)
