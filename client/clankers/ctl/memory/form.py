"""A memory as a text that one can edit: its fields as TOML, a line, and what it says."""

import re
import tomllib
from collections.abc import Iterable
from datetime import date
from typing import Any, get_args

import click
import msgspec

from clankers.ctl.formatting import format_time, future_wire_time, wire_time
from clankers_protocol.memories import Memory, Sector, Tier
from clankers_protocol.memory_changes import MemoryUpdate

LINE = "---- What it says stands below this line. ----"
TIMES = ("valid_from", "valid_until", "expires_at")
CLEARABLE = ("summary", "valid_until", "expires_at")
LISTS = ("tags", "concepts", "files")
FIELDS = ("summary", "sector", "tier", "category", "importance", "confidence", *LISTS, *TIMES)
HINTS = {
    "sector": ", ".join(get_args(Sector)),
    "tier": ", ".join(get_args(Tier)),
    "importance": "from 0 to 1",
    "confidence": "from 0 to 1",
    "valid_until": 'as "2026-01-31 18:00", or "2w": in two weeks',
    "reason": "why you change it, for its history",
}
CONTENT = "content"
WIRE = {field.name: field.encode_name for field in msgspec.structs.fields(MemoryUpdate)}
"""What the fields are called on the wire."""

_FIELD = re.compile(r"\s*(?:- at `\$\.(\w+)[^`]*`)?$")


class Mistake(Exception):
    """Something in the form that cannot be taken; says in which line."""


def form(memory: Memory) -> str:
    """The text to edit."""
    return "\n".join([*_heading(memory), "", LINE, memory.content.strip("\n"), ""])


def _heading(memory: Memory) -> Iterable[str]:
    import tomlkit  # slow to load

    yield "# Change what you like, save and close. What is as it was stays; nothing changed means nothing is sent."
    yield f"id = {tomlkit.item(memory.id).as_string()}"
    for name in (*FIELDS, "reason"):
        value = getattr(memory, name, None)
        shown = format_time(value, "%Y-%m-%d %H:%M:%S") if name in TIMES else "" if value is None else value
        hint = f"  # {HINTS[name]}" if name in HINTS else ""
        yield f"{name} = {tomlkit.item(shown).as_string()}{hint}"


def changes(memory: Memory, before: str, after: str) -> MemoryUpdate | None:
    """What the edited text asks for, or None when it asks for nothing; raises Mistake."""
    was, now = _read(before), _read(after)
    if now.get("id") != memory.id:
        raise Mistake(f"{_place(after, 'id')}: this is a draft of {now.get('id') or 'no memory'}, not of {memory.id}")
    for name in now:
        if name not in (*FIELDS, "id", "reason", CONTENT):
            raise Mistake(f"{_place(after, name)}: there is no field {name!r}")
    changed = {name: now[name] for name in (*FIELDS, CONTENT) if name in now and now[name] != was[name]}
    return _update(memory, changed, now.get("reason"), after) if changed else None


def _update(memory: Memory, changed: dict[str, Any], reason: Any, text: str) -> MemoryUpdate:
    cleared = [name for name in CLEARABLE if changed.get(name) == ""]
    wanted = {name: _value(name, value, text) for name, value in changed.items() if name not in cleared}
    wire = {WIRE[name]: value for name, value in wanted.items()} | {"id": memory.id, "scopes": ["*"]}
    wire |= {"reason": reason} if reason else {}
    wire |= {"clear": [WIRE[name] for name in cleared]} if cleared else {}
    try:
        return msgspec.convert(wire, MemoryUpdate)
    except msgspec.ValidationError as error:
        raise mistake(str(error), text) from error


def mistake(message: str, text: str) -> Mistake:
    """What the contract or the daemon finds wrong, with the line it is in."""
    message = message.removeprefix("invalid params: ")
    found = _FIELD.search(message)
    said = _FIELD.sub("", message)
    name = next((name for name, sent in WIRE.items() if found and sent == found[1]), "")
    return Mistake(f"{_place(text, name)}: {said}" if name else said)


def _read(text: str) -> dict[str, Any]:
    head, line, content = text.replace("\r\n", "\n").partition(f"\n{LINE}\n")
    if not line:
        raise Mistake(f"the line “{LINE}” is gone: it must stand between the fields and the text")
    try:
        fields = tomllib.loads(head)
    except tomllib.TOMLDecodeError as error:
        raise Mistake(f"the fields cannot be read: {error}") from error
    return fields | {CONTENT: content.strip("\n")}


def _value(name: str, value: Any, text: str) -> Any:
    if name not in TIMES:
        return value
    written = value.isoformat() if isinstance(value, date) else str(value)  # a time in TOML needs no quotes
    try:
        return wire_time(written) if name == "valid_from" else future_wire_time(written)
    except click.BadParameter as error:
        raise Mistake(f"{_place(text, name)}: {error.message}") from error


def _place(text: str, name: str) -> str:
    """Where a field stands, for people: its line and its name."""
    if name == CONTENT:
        return "below the line"
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
            return f"line {number}, {name}"
    return name
