"""`clankers-ctl memory export` and `import`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.memory.files import progress, whole_file
from clankers.ctl.memory.foreign import Entry, adopted, entries
from clankers.ctl.memory.options import EVERYTHING, project_option, scope_option
from clankers.ctl.memory.showing import memories
from clankers.ctl.output import echo, one_line, print_json, secho
from clankers_protocol.errors import InternalError, InvalidParams, InvalidRequest, ParseError
from clankers_protocol.memories import MemoryStatsOf
from clankers_protocol.memory_transfer import MemoryExport, MemoryImport, MemoryRecord
from clankers_protocol.terminal import escape_json

PAGE = 50
"""Memories that are exported at once: the largest still fit into a frame."""

MOST, MOST_BYTES = 200, 4 * 2**20
"""What is imported at once."""

PATIENCE = 120
"""Seconds that one such part may take."""

STDOUT = "-"


# -- export


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@project_option
@scope_option
@common_options
def export(ctl: Ctl, file: str, project: str | None, scopes: list[str]) -> None:
    """Write all memories, in every state, into a file: one as JSON in each line. With - to standard output.

    The file appears whole or not at all, and only you can read it.

    \b
    Examples:
      clankers-ctl memory export memories.jsonl
      clankers-ctl memory export - --scope global | jq .content
    """
    if file == STDOUT:
        for _ in _write(ctl, sys.stdout, project, scopes):
            pass
        return
    total = ctl.call(MemoryStatsOf(scopes=scopes, project=project)).total
    count = 0
    with whole_file(Path(file)) as lines, progress(ctl, "exporting", total) as seen:
        for count in _write(ctl, lines, project, scopes):
            seen(count)
    if ctl.json:
        print_json({"path": str(Path(file).absolute()), "memories": count})
    else:
        echo(f"{memories(count)} exported to {file}.")


def _write(ctl: Ctl, lines: TextIO, project: str | None, scopes: list[str]) -> Iterator[int]:
    """Tells after each page how many are written."""
    request = MemoryExport(scopes=scopes, project=project, limit=PAGE)
    count = 0
    while True:
        page = ctl.call(request, timeout=PATIENCE)
        for record in page.memories:
            line = msgspec.json.encode(record).decode()
            lines.write(f"{escape_json(line) if lines.isatty() else line}\n")
        count += len(page.memories)
        yield count
        if page.cursor is None:
            return
        request = msgspec.structs.replace(request, cursor=page.cursor)


# -- import


@dataclass
class Outcome:
    """What became of a file's memories; `refused` says where and why."""

    created: int = 0
    relations: int = 0
    unchanged: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


@click.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@common_options
def import_(ctl: Ctl, file: Path) -> None:
    """Take over memories that were exported, with their ids, times and links. What is there stays as it is.

    Each line of the file is a memory. A line that cannot be taken fails alone and is told with its number; the exit
    code is then 4. Exports of mem0, OpenMemory and mcp-memory-service (JSON) are taken as well.

    \b
    Examples:
      clankers-ctl memory import memories.jsonl
      clankers-ctl memory import mem0.json --json | jq .refused
    """
    outcome = Outcome()
    with progress(ctl, "importing", file.stat().st_size) as seen:
        for batch in _batches(file, outcome):
            _send(ctl, batch, outcome)
            seen(batch[-1].end)
    _print_outcome(ctl, outcome)


def _batches(file: Path, outcome: Outcome) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries(file):
        if (reason := _refusal(entry)) is not None:
            outcome.refused.append((entry.where, reason))
            continue
        if batch and (len(batch) == MOST or size + entry.size > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def _refusal(entry: Entry) -> str | None:
    """Why the entry is no memory; else it is made one of ours."""
    if entry.problem:
        return entry.problem
    try:
        entry.record = adopted(entry.record)
        msgspec.convert(entry.record, MemoryRecord)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _send(ctl: Ctl, batch: list[Entry], outcome: Outcome) -> None:
    """Import them; what the daemon refuses as a whole is halved until the bad one stands alone."""
    records: list[dict[str, Any]] = [entry.record for entry in batch]
    try:
        done = ctl.call(MemoryImport(memories=records, scopes=EVERYTHING), timeout=PATIENCE)
    except (ParseError, InvalidRequest, InvalidParams, InternalError) as error:
        if len(batch) == 1:
            outcome.refused.append((batch[0].where, error.message))
            return
        for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
            _send(ctl, half, outcome)
        return
    outcome.created += done.created
    outcome.relations += done.relations
    outcome.unchanged += done.unchanged
    places = {entry.record["id"]: entry.where for entry in batch}
    outcome.refused += [(places.get(given, given), reason) for given, reason in done.refused.items()]


def _print_outcome(ctl: Ctl, outcome: Outcome) -> None:
    if ctl.json:
        refused = [{"where": where, "reason": reason} for where, reason in outcome.refused]
        print_json(
            {
                "created": outcome.created,
                "relations": outcome.relations,
                "unchanged": outcome.unchanged,
                "refused": refused,
            }
        )
    else:
        known = f", {outcome.unchanged:,} were there already" if outcome.unchanged else ""
        failed = f", {len(outcome.refused):,} refused" if outcome.refused else ""
        echo(f"{memories(outcome.created)} imported{known}{failed}.")
        for where, reason in outcome.refused:
            secho(f"  {where}: {one_line(reason)}", fg="red", err=True)
    sys.exit(EXIT_PROBLEM if outcome.refused else 0)
