"""`clankers-ctl recall`: what an agent would be told."""

from pathlib import Path

import click

from clankers.ctl.command import Ctl, common, project_option
from clankers.ctl.human import several
from clankers.ctl.output import echo, plain, print_json
from clankers_protocol.recall import RecallPreview


@click.command()
@click.argument("prompt", nargs=-1)
@project_option
@click.option("--session", "session_id", metavar="ID", help="Leave out what this session was told already.")
@common
def recall(ctl: Ctl, prompt: tuple[str, ...], project: str | None, session_id: str | None) -> None:
    """Show what an agent would be told with a PROMPT; without one, at the start of a session. Nothing is recorded.

    The project is the folder you are in, unless you name another.

    \b
    Examples:
      clankers-ctl recall "why is the watcher test flaky?"
      clankers-ctl recall --project ~/src/parser
    """
    query = " ".join(prompt)
    answer = ctl.call(
        RecallPreview(
            kind="prompt" if query else "start",
            query=query or None,
            project=project or str(Path.cwd()),
            session_id=session_id,
        )
    )
    if ctl.json:
        print_json(answer)
    elif answer.text:
        echo(plain(answer.text))
        echo(f"{several(answer.characters, 'character')} from {several(len(answer.ids), 'item')}", err=True)
    else:
        echo(f"Nothing would be told: {answer.reason or 'nothing fits'}.", err=True)
