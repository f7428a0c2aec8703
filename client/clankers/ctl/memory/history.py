"""`clankers-ctl memory history`."""

import json
from collections.abc import Sequence
from typing import Any

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_time
from clankers.ctl.memory.form import FIELDS, LISTS, TIMES
from clankers.ctl.memory.options import EVERYTHING, id_argument
from clankers.ctl.memory.showing import SHORT, short_ids, validity
from clankers.ctl.output import Column, console, echo, one_line, plain, print_json, print_table, shorten_ids
from clankers.ctl.transcript import MAX_TEXT_WIDTH
from clankers_protocol.memories import LogEntry, Memory, MemoryHistory

TOLD = ("content", *FIELDS, "scope", "metadata")
"""What is told of what a change replaced; the rest follows from it."""

LONGEST = 200
"""Characters that are shown of what a change replaced; --full shows all."""


@click.command()
@id_argument
@click.option("--full", is_flag=True, help="All of what each change replaced.")
@common_options
def history(ctl: Ctl, id: str, full: bool) -> None:  # noqa: A002  # the name on the command line
    """Show how a memory came to say what it says: its versions, and what happened to them.

    \b
    Examples:
      clankers-ctl memory history 0199c5a2-1b3c
      clankers-ctl memory history 0199c5a2-1b3c --json | jq '.log[].reason'
    """
    found = ctl.call(MemoryHistory(id=id, scopes=EVERYTHING))
    if ctl.json:
        print_json(found)
        return
    _print_versions(found.versions)
    if found.log:
        echo()
        print_log(found.log, full)


def _print_versions(versions: Sequence[Memory]) -> None:
    from rich.text import Text  # slow to load

    out = console()
    width = min(out.width, MAX_TEXT_WIDTH) if out.is_terminal else out.width
    for number, (shown, memory) in enumerate(zip(short_ids(versions), versions, strict=True), 1):
        facts = f"  {one_line(shown)}  {memory.state}, true {validity(memory)}"
        out.print(Text(f"{number}.", "bold").append(facts, "dim"), width=width)
        for line in Text(plain(memory.content.strip("\n"))).wrap(out, width - 3, overflow="fold"):
            line.rstrip()
            out.print("   ", line, sep="")


def print_log(log: Sequence[LogEntry], full: bool = True) -> None:
    """What happened, when, by whom and why."""
    ids = [entry.memory_id for entry in log]
    several = len(set(ids)) > 1
    columns = [
        Column("When"),
        Column("What"),
        Column("By", optional=True),
        *([Column("Memory", optional=True, style="cyan")] if several else []),
        Column("Why", min_width=16, wrap=True),
    ]
    rows = [
        [
            format_time(entry.at),
            one_line(entry.action),
            one_line(entry.by),
            *([one_line(shown)] if several else []),
            _why(entry, full),
        ]
        for entry, shown in zip(log, shorten_ids(ids, SHORT), strict=True)
    ]
    print_table(columns, rows)


def _why(entry: LogEntry, full: bool) -> str:
    before = {name.removesuffix("_json"): value for name, value in (entry.before or {}).items()}
    values = {name: _value(name, before[name], full) for name in TOLD if name in before}
    replaced = [f"{name.replace('_', ' ')} was {value}" for name, value in values.items() if value]
    return "; ".join(part for part in (one_line(entry.reason or ""), *replaced) if part)


def _value(name: str, value: Any, full: bool) -> str:
    if name in TIMES and value:
        return format_time(value)
    if name in LISTS and isinstance(value, str):
        value = ", ".join(json.loads(value))
    text = "" if value is None else one_line(value if isinstance(value, str) else json.dumps(value))
    return text if full or len(text) <= LONGEST else f"{text[:LONGEST]}…"
