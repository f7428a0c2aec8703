"""`clankers-ctl memory edit`: edit a memory in a text editor, without ever losing what was typed.

The draft is a text file: the fields of the memory as TOML, a separator line, and the content of the memory.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from datetime import date
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_time, future_wire_time, wire_time
from clankers.ctl.memory.display import EDITABLE_FIELDS, TIME_FIELDS, memory_title
from clankers.ctl.memory.options import ALL_SCOPES, id_argument
from clankers.ctl.output import confirm, echo, one_line, print_json, secho
from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Memory, MemoryGet, Sector, Tier
from clankers_protocol.memory_changes import MemoryUpdate
from clankers_protocol.paths import default_paths

SEPARATOR = "---- Content below this line ----"
CONTENT = "content"
CLEARABLE_FIELDS = ("summary", "valid_until", "expires_at")
FIELD_HINTS = {
    "sector": ", ".join(get_args(Sector)),
    "tier": ", ".join(get_args(Tier)),
    "importance": "from 0 to 1",
    "confidence": "from 0 to 1",
    "valid_until": 'for example "2026-01-31 18:00", or "2w" for in two weeks',
    "reason": "why you change the memory, for its history",
}
WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(MemoryUpdate)}

_ERROR_LOCATION = re.compile(r"\s*(?:- at `\$\.(\w+)[^`]*`)?$")
"""The end of a validation error, which names the field: "- at `$.validUntil`"."""


class DraftError(Exception):
    """A draft that cannot be stored; the message names the line where that is known."""


@click.command()
@id_argument
@click.option(
    "--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Continue with a saved draft."
)
@common_options
def edit(ctl: Ctl, id: str, draft: Path | None) -> None:  # noqa: A002  # the name on the command line
    """Edit a memory in $VISUAL or $EDITOR.

    The previous version is available in the memory's `history`. If you close the editor without a change, nothing is
    sent. If a field is invalid, the editor opens again. The draft is saved in a file until the change is stored. If the
    memory is no longer true, add a new memory that replaces it: `memory add --supersedes`.

    \b
    Examples:
      clankers-ctl memory edit 0199c5a2-1b3c
      EDITOR=nano clankers-ctl memory edit 0199c5a2-1b3c
    """
    memory = ctl.call(MemoryGet(id=id, scopes=ALL_SCOPES))
    text = format_draft(memory)
    path = draft or _create_draft(memory, text)
    try:
        updated = _edit_until_valid(ctl, memory, text, path)
    except BaseException:
        _report_draft(memory, text, path)
        raise
    if path.parent == _drafts_folder():
        path.unlink(missing_ok=True)
    if updated is None:
        echo("Nothing was changed.", err=True)
    if ctl.json:
        print_json(updated or memory)
    elif updated:
        echo(f"Changed {memory_title(updated)}.")


def _edit_until_valid(ctl: Ctl, memory: Memory, original: str, path: Path) -> Memory | None:
    """Open the editor and store the draft, again after each mistake; return None if nothing was changed."""
    while True:
        _open_editor(path)
        try:
            return _store_draft(ctl, memory, original, path)
        except DraftError as error:
            secho(f"Not stored: {one_line(str(error))}.", fg="red", err=True)
            try:
                edit_again = confirm("Edit again?", default=True)
            except click.Abort:
                raise click.ClickException(f"Nothing was changed: {one_line(str(error))}.") from error
        if not edit_again:
            raise click.ClickException("Nothing was changed.")


def _store_draft(ctl: Ctl, memory: Memory, original: str, path: Path) -> Memory | None:
    try:
        text = path.read_bytes().decode()  # not read_text: the memory may contain any kind of line ending
    except OSError as error:
        raise click.ClickException(f"Nothing was changed: the draft cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise DraftError("the draft is not UTF-8") from error
    update = parse_changes(memory, original, text)
    if update is None:
        return None
    if format_draft(ctl.call(MemoryGet(id=memory.id, scopes=ALL_SCOPES))) != original:
        raise click.ClickException("Nothing was changed: the memory was modified while you were editing it.")
    try:
        return ctl.call(update)
    except InvalidParams as error:
        raise locate_error(error.message, text) from error


def _open_editor(path: Path) -> None:
    """Run the editor and wait for it; raise if it exits with an error."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # Ctrl-C belongs to the editor while it runs. A handler, not SIG_IGN: the editor would inherit SIG_IGN.
    previous_handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        # Editors draw on standard output. If ours is piped, give them standard error, which may be the terminal.
        stdout = None if sys.stdout.isatty() else sys.stderr
        code = subprocess.run([*shlex.split(editor), str(path)], stdout=stdout, check=False).returncode  # noqa: S603  # the user's own editor
    except (OSError, ValueError) as error:
        raise click.ClickException(f"Cannot start the editor {editor!r} ({error}): set EDITOR.") from error
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    if code:
        raise click.ClickException(f"Nothing was changed: the editor exited with code {code}.")


# -- the draft file


def _drafts_folder() -> Path:
    return default_paths().data / "drafts"


def _create_draft(memory: Memory, text: str) -> Path:
    """Write a new draft in the data folder, where it survives a crash."""
    name = "".join(letter if letter.isalnum() else "-" for letter in memory.id[:36])  # imported ids may hold anything
    try:
        _drafts_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".md", dir=_drafts_folder())
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"Cannot write a draft: {error}") from error
    return Path(path)


def _report_draft(memory: Memory, original: str, path: Path) -> None:
    """Delete the draft if it was not changed; otherwise print the command that continues with it."""
    if not path.exists():
        return
    if path.parent == _drafts_folder() and path.read_bytes() == original.encode():
        path.unlink()
    else:
        command = f"clankers-ctl memory edit {shlex.quote(memory.id)} --draft {shlex.quote(str(path))}"
        echo(f"Your draft is saved. To continue with it, run `{one_line(command)}`.", err=True)


# -- the format of a draft


def format_draft(memory: Memory) -> str:
    """Return the text of a memory for editing."""
    import tomlkit  # slow to load

    lines = [
        "# Edit, save and close. Fields that you leave alone are not changed. Without any change, nothing is sent.",
        f"id = {tomlkit.item(memory.id).as_string()}",
    ]
    for name in (*EDITABLE_FIELDS, "reason"):
        value = getattr(memory, name, None)
        if name in TIME_FIELDS:
            value = format_time(value, "%Y-%m-%d %H:%M:%S")
        elif value is None:
            value = ""
        hint = f"  # {FIELD_HINTS[name]}" if name in FIELD_HINTS else ""
        lines.append(f"{name} = {tomlkit.item(value).as_string()}{hint}")
    return "\n".join([*lines, "", SEPARATOR, memory.content.strip("\n"), ""])


def parse_changes(memory: Memory, original: str, edited: str) -> MemoryUpdate | None:
    """Return the update that the edited draft asks for, or None if nothing was changed; raises DraftError."""
    before, after = _parse_draft(original), _parse_draft(edited)
    if after.get("id") != memory.id:
        draft_of = after.get("id") or "no memory"
        raise DraftError(f"{_locate(edited, 'id')}: this is a draft of {draft_of}, not of {memory.id}")
    for name in after:
        if name not in (*EDITABLE_FIELDS, "id", "reason", CONTENT):
            raise DraftError(f"{_locate(edited, name)}: there is no field {name!r}")
    changed = [name for name in (*EDITABLE_FIELDS, CONTENT) if name in after and after[name] != before[name]]
    if not changed:
        return None
    fields: dict[str, Any] = {"id": memory.id, "scopes": ALL_SCOPES}
    cleared = []
    for name in changed:
        if name in CLEARABLE_FIELDS and after[name] == "":
            cleared.append(WIRE_NAMES[name])
        elif name in TIME_FIELDS:
            fields[WIRE_NAMES[name]] = _parse_time(name, after[name], edited)
        else:
            fields[WIRE_NAMES[name]] = after[name]
    if cleared:
        fields["clear"] = cleared
    if after.get("reason"):
        fields["reason"] = after["reason"]
    try:
        return msgspec.convert(fields, MemoryUpdate)
    except msgspec.ValidationError as error:
        raise locate_error(str(error), edited) from error


def locate_error(message: str, draft: str) -> DraftError:
    """Turn a validation error, ours or the daemon's, into one that names the line of the draft."""
    message = message.removeprefix("invalid params: ")
    match = _ERROR_LOCATION.search(message)
    text = _ERROR_LOCATION.sub("", message)
    for name, wire_name in WIRE_NAMES.items():
        if match and match[1] == wire_name:
            return DraftError(f"{_locate(draft, name)}: {text}")
    return DraftError(text)


def _parse_draft(text: str) -> dict[str, Any]:
    head, separator, content = text.replace("\r\n", "\n").partition(f"\n{SEPARATOR}\n")
    if not separator:
        raise DraftError(f"the line “{SEPARATOR}” is missing: it must stand between the fields and the content")
    try:
        fields = tomllib.loads(head)
    except tomllib.TOMLDecodeError as error:
        raise DraftError(f"the fields are not valid TOML: {error}") from error
    return fields | {CONTENT: content.strip("\n")}


def _parse_time(name: str, value: Any, draft: str) -> int:
    text = value.isoformat() if isinstance(value, date) else str(value)  # TOML has dates and times without quotes
    try:
        return wire_time(text) if name == "valid_from" else future_wire_time(text)
    except click.BadParameter as error:
        raise DraftError(f"{_locate(draft, name)}: {error.message}") from error


def _locate(draft: str, name: str) -> str:
    """Return the line number and the name of a field in the draft."""
    if name == CONTENT:
        return "below the line"
    for number, line in enumerate(draft.splitlines(), 1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
            return f"line {number}, {name}"
    return name
