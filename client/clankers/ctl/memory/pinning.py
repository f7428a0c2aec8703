"""`clankers-ctl memory pin` and `unpin`."""

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.memory.options import EVERYTHING, ids_argument
from clankers.ctl.memory.showing import named
from clankers.ctl.output import echo, print_json
from clankers_protocol.memories import Memory
from clankers_protocol.memory_changes import MemoryPin


@click.command()
@ids_argument
@common_options
def pin(ctl: Ctl, ids: tuple[str, ...]) -> None:
    """Keep memories from fading.

    \b
    Examples:
      clankers-ctl memory pin 0199c5a2-1b3c
    """
    _print_pinned(ctl, [ctl.call(MemoryPin(id=each, pinned=True, scopes=EVERYTHING)) for each in ids])


@click.command()
@ids_argument
@common_options
def unpin(ctl: Ctl, ids: tuple[str, ...]) -> None:
    """Let memories fade again.

    \b
    Examples:
      clankers-ctl memory unpin 0199c5a2-1b3c
    """
    _print_pinned(ctl, [ctl.call(MemoryPin(id=each, pinned=False, scopes=EVERYTHING)) for each in ids])


def _print_pinned(ctl: Ctl, memories: list[Memory]) -> None:
    if ctl.json:
        print_json(memories)
        return
    for memory in memories:
        echo(f"{'Pinned' if memory.pinned else 'Unpinned'} {named(memory)}.")
