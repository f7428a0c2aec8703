"""`clankers-ctl memory edit`: a memory in an editor. What was typed is never lost."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.memory.form import Mistake, changes, form, mistake
from clankers.ctl.memory.options import EVERYTHING, id_argument
from clankers.ctl.memory.showing import named
from clankers.ctl.output import confirm, echo, one_line, print_json, secho
from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Memory, MemoryGet
from clankers_protocol.memory_changes import MemoryUpdate
from clankers_protocol.paths import default_paths


@click.command()
@id_argument
@click.option(
    "--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Go on with a draft that was kept."
)
@common_options
def edit(ctl: Ctl, id: str, draft: Path | None) -> None:  # noqa: A002  # the name on the command line
    """Correct a memory in $VISUAL or $EDITOR. What it said before is in its `history`.

    Closing the editor without a change sends nothing. After a mistake the editor opens again; what you wrote is kept
    in a file until it is stored. Something that is no longer true is better superseded: `memory add --supersedes`.

    \b
    Examples:
      clankers-ctl memory edit 0199c5a2-1b3c
      EDITOR=nano clankers-ctl memory edit 0199c5a2-1b3c
    """
    memory = ctl.call(MemoryGet(id=id, scopes=EVERYTHING))
    text = form(memory)
    path = draft or _begin(memory, text)
    try:
        updated = _edited(ctl, memory, text, path)
    except BaseException:
        _keep(memory, text, path)
        raise
    if path.parent == _drafts():
        path.unlink(missing_ok=True)
    _print_edited(ctl, memory, updated)


def _drafts() -> Path:
    return default_paths().data / "drafts"


def _begin(memory: Memory, text: str) -> Path:
    """A new draft in the owner's own folder, where it outlives a crash."""
    try:
        _drafts().mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f"{_plain_name(memory.id)}-", suffix=".md", dir=_drafts())
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"No draft can be written: {error}") from error
    return Path(name)


def _plain_name(memory_id: str) -> str:
    """As much of an id as may be part of a file's name: imported ones may hold anything."""
    return "".join(letter if letter.isalnum() else "-" for letter in memory_id[:36])


def _keep(memory: Memory, text: str, path: Path) -> None:
    """Throw an untouched draft away; say where any other is."""
    if not path.exists():
        return
    if path.parent == _drafts() and path.read_bytes() == text.encode():
        path.unlink()
    else:
        again = f"clankers-ctl memory edit {shlex.quote(memory.id)} --draft {shlex.quote(str(path))}"
        echo(f"What you wrote is kept: `{one_line(again)}` goes on with it.", err=True)


def _edited(ctl: Ctl, memory: Memory, before: str, path: Path) -> Memory | None:
    """The memory as changed, or None when nothing was; asks again after each mistake."""
    while True:
        _open_editor(path)
        try:
            return _send(ctl, memory, before, path)
        except Mistake as error:
            secho(f"Not taken: {one_line(str(error))}.", fg="red", err=True)
            again = _ask(str(error))
        if not again:
            raise click.ClickException("Nothing was changed.")


def _ask(problem: str) -> bool:
    try:
        return confirm("Edit again?", default=True)
    except click.Abort as error:
        raise click.ClickException(f"Nothing was changed: {one_line(problem)}.") from error


def _send(ctl: Ctl, memory: Memory, before: str, path: Path) -> Memory | None:
    try:
        text = path.read_bytes().decode()  # every byte as it is: the memory may hold any kind of line end
    except OSError as error:
        raise click.ClickException(f"Nothing was changed: the draft cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise Mistake("it is not UTF-8") from error
    update = changes(memory, before, text)
    if update is None:
        return None
    if form(ctl.call(MemoryGet(id=memory.id, scopes=EVERYTHING))) != before:
        raise click.ClickException("Nothing was changed: somebody else has changed the memory meanwhile.")
    return _update(ctl, update, text)


def _update(ctl: Ctl, update: MemoryUpdate, text: str) -> Memory:
    try:
        return ctl.call(update)
    except InvalidParams as error:
        raise mistake(error.message, text) from error


def _open_editor(path: Path) -> None:
    """Wait until the editor is closed; raises when it says that the draft should not be used."""
    said = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # Ctrl-C is the editor's while it runs. A handler, not SIG_IGN: that one the editor would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        # An editor draws on its standard output; where ours is piped it gets the terminal that stderr may be.
        out = None if sys.stdout.isatty() else sys.stderr
        code = subprocess.run([*shlex.split(said), str(path)], stdout=out, check=False).returncode  # noqa: S603  # the owner's own editor
    except (OSError, ValueError) as error:
        raise click.ClickException(f"The editor {said!r} cannot be started ({error}): set EDITOR.") from error
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise click.ClickException(f"Nothing was changed: the editor ended with {code}.")


def _print_edited(ctl: Ctl, memory: Memory, updated: Memory | None) -> None:
    if updated is None:
        echo("Nothing was changed.", err=True)
    if ctl.json:
        print_json(updated or memory)
    elif updated:
        echo(f"Changed {named(updated)}.")
