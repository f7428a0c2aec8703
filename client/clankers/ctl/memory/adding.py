"""`clankers-ctl memory add`."""

import sys
from typing import Any, get_args

import click

from clankers.ctl.command import Ctl, common_options, normalize_project
from clankers.ctl.formatting import future_callback, since_callback
from clankers.ctl.memory.options import EVERYTHING, memory_ids
from clankers.ctl.memory.showing import scope as scope_of
from clankers.ctl.output import echo, one_line, print_json
from clankers_protocol.memories import Added, MemoryAdd, Sector, Tier
from clankers_protocol.sessions import SessionGet


@click.command()
@click.argument("words", nargs=-1, required=True)
@click.option(
    "--project", metavar="FOLDER", callback=normalize_project, help="The project it is about: . is the one you are in."
)
@click.option("--scope", help="Who it is for, if not the project or everyone: agent:NAME, user:NAME, custom:NAME.")
@click.option("--category", help="As fact, preference, decision, gotcha, fix; any word will do.")
@click.option("--sector", type=click.Choice(get_args(Sector)), help="Which kind.  [default: found from the text]")
@click.option("--tier", type=click.Choice(get_args(Tier)), help="How widely it holds.")
@click.option("--summary", help="The same in a line.")
@click.option(
    "--importance", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="What matters fades slowly."
)
@click.option("--confidence", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="How sure it is.")
@click.option("--pin", "pinned", is_flag=True, help="It never fades.")
@click.option("--tag", "tags", multiple=True, help="May be given twice.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A file it is about. May be given twice.")
@click.option("--valid-from", metavar="TIME", callback=since_callback, help="Since when it is true.  [default: now]")
@click.option("--valid-until", metavar="TIME", callback=future_callback, help="Until when it is true.")
@click.option(
    "--expires", "expires_at", metavar="TIME", callback=future_callback, help="When to let it go: 2w is in two weeks."
)
@click.option("--session", metavar="ID", help="The session it comes from.")
@click.option("--supersedes", metavar="ID", shell_complete=memory_ids, help="The memory that is no longer true.")
@click.option("--force", is_flag=True, help="Store it even if it is known.")
@common_options
def add(ctl: Ctl, words: tuple[str, ...], session: str | None, **fields: Any) -> None:
    """Remember something; with - for the words they are read from standard input.

    What is known already is made stronger instead, and what nearly says the same takes its place.

    \b
    Examples:
      clankers-ctl memory add "The staging database is read-only" --project . --tag database
      clankers-ctl memory add "Prefers tabs" --category preference --scope user:ada --pin
      clankers-ctl memory add "Port is 9090 now" --supersedes 0199c5a2-1b3c
      clankers-ctl memory add - --category decision < decision.md
    """
    content = sys.stdin.read() if words == ("-",) else " ".join(words)
    source = session and ctl.call(SessionGet(session)).id
    fields |= {"tags": list(fields["tags"]), "files": list(fields["files"])}
    added = ctl.call(MemoryAdd(content=content, session_id=source, scopes=EVERYTHING, **fields))
    if ctl.json:
        print_json(added)
    else:
        _print_added(added)


def _print_added(added: Added) -> None:
    memory = added.memory
    if added.outcome == "duplicate":
        echo(f"Known already, and now better: {one_line(memory.id)}.")
    else:
        instead = f", in place of {one_line(added.replaced)}" if added.replaced else ""
        echo(f"Remembered as {one_line(memory.id)} ({memory.sector}, {scope_of(memory)}){instead}.")
    if added.note:
        echo(one_line(added.note), err=True)
