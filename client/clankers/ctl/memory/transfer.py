"""`clankers-ctl memory export` and `import`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from clankers.ctl.batches import split_batches
from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.memory.display import count_memories
from clankers.ctl.memory.files import Entry, convert_record, read_entries, to_lancedb_pro
from clankers.ctl.memory.options import ALL_SCOPES, project_option, scope_option
from clankers.ctl.output import echo, one_line, print_json, progress_bar, secho
from clankers.ctl.replacement import replace_text_file
from clankers_protocol.errors import InternalError, InvalidParams, InvalidRequest, ParseError
from clankers_protocol.memories import MemoryStatsOf
from clankers_protocol.memory_transfer import MemoryExport, MemoryImport, MemoryRecord
from clankers_protocol.terminal import escape_json

EXPORT_PAGE_SIZE = 50
"""Memories per export request: even the largest 50 fit into a frame."""

MAX_BATCH_MEMORIES = 200
MAX_BATCH_BYTES = 4 * 2**20
REQUEST_TIMEOUT_SECONDS = 120
STDOUT = "-"


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@project_option
@scope_option
@click.option(
    "--format",
    "row_format",
    type=click.Choice(["clankers", "lancedb-pro"]),
    default="clankers",
    help="Write the rows of memory-lancedb-pro instead of ours: id, text, category, scope, importance, timestamp.",
)
@common_options
def export(ctl: Ctl, file: str, project: str | None, scopes: list[str], row_format: str) -> None:
    """Export all memories to a file.

    Writes one JSON object per line, for memories in every state. With - as FILE, writes to standard output. The file is
    written completely or not at all, and only you can read it. `clankers-ctl export` exports everything.

    \b
    Examples:
      clankers-ctl memory export memories.jsonl
      clankers-ctl memory export - --scope global | jq .content
      clankers-ctl memory export memory-backup-2025-01-31.jsonl --format lancedb-pro
    """
    request = MemoryExport(scopes=scopes, project=project, limit=EXPORT_PAGE_SIZE)
    if file == STDOUT:
        for _ in _write_memories(ctl, request, sys.stdout, row_format):
            pass
        return
    total = ctl.call(MemoryStatsOf(scopes=scopes, project=project)).total
    count = 0
    with replace_text_file(Path(file)) as output, progress_bar(ctl.json, "exporting") as show_progress:
        for count in _write_memories(ctl, request, output, row_format):
            show_progress(count, total)
    ctl.report({"path": str(Path(file).absolute()), "memories": count}, f"{count_memories(count)} exported to {file}.")


def _write_memories(ctl: Ctl, request: MemoryExport, output: TextIO, row_format: str) -> Iterator[int]:
    """Write all memories, and yield after each page the number written so far."""
    count = 0
    while True:
        page = ctl.call(request, timeout=REQUEST_TIMEOUT_SECONDS)
        for record in page.memories:
            row = to_lancedb_pro(record) if row_format == "lancedb-pro" else record
            line = msgspec.json.encode(row).decode()
            output.write(f"{escape_json(line) if output.isatty() else line}\n")
        count += len(page.memories)
        yield count
        if page.cursor is None:
            return
        request = msgspec.structs.replace(request, cursor=page.cursor)


@dataclass
class ImportReport:
    """Counts of an import; `refused` lists location and reason of each memory that was not imported."""

    created: int = 0
    relations: int = 0
    unchanged: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


@click.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@common_options
def import_(ctl: Ctl, file: Path) -> None:
    """Import memories from a file.

    Reads files written by `memory export`, backups of memory-lancedb-pro (memory-backup-YYYY-MM-DD.jsonl), and JSON
    exports of mem0, OpenMemory and mcp-memory-service. Imported memories retain their ids, times and links. Memories
    that already exist are not changed.

    A line that cannot be imported is reported with its number and does not affect the others; the exit code is then 4.

    \b
    Examples:
      clankers-ctl memory import memories.jsonl
      clankers-ctl memory import mem0.json --json | jq .refused
    """
    import_memories(ctl, file)


def import_memories(ctl: Ctl, file: Path) -> None:
    """Import the memories of a file, and report what became of them."""
    report = ImportReport()
    size = file.stat().st_size
    with progress_bar(ctl.json, "importing") as show_progress:
        entries = _read_valid(file, report)
        for batch in split_batches(entries, lambda entry: entry.size, MAX_BATCH_MEMORIES, MAX_BATCH_BYTES):
            _import_batch(ctl, batch, report)
            show_progress(batch[-1].end, size)
    _print_report(ctl, report)
    sys.exit(EXIT_PROBLEM if report.refused else 0)


def _read_valid(file: Path, report: ImportReport) -> Iterator[Entry]:
    """Iterate over the file's valid memories, and add the invalid ones to the report."""
    for entry in read_entries(file):
        problem = entry.problem
        if problem is None:
            try:
                entry.record = convert_record(entry.record)
                msgspec.convert(entry.record, MemoryRecord)
            except msgspec.ValidationError as error:
                problem = str(error)
        if problem is None:
            yield entry
        else:
            report.refused.append((entry.location, problem))


def _import_batch(ctl: Ctl, batch: list[Entry], report: ImportReport) -> None:
    """Import a batch. If the daemon rejects the request, split the batch until the bad memory is alone."""
    records: list[dict[str, Any]] = [entry.record for entry in batch]
    try:
        result = ctl.call(MemoryImport(memories=records, scopes=ALL_SCOPES), timeout=REQUEST_TIMEOUT_SECONDS)
    except (ParseError, InvalidRequest, InvalidParams, InternalError) as error:
        if len(batch) == 1:
            report.refused.append((batch[0].location, error.message))
            return
        middle = len(batch) // 2
        _import_batch(ctl, batch[:middle], report)
        _import_batch(ctl, batch[middle:], report)
        return
    report.created += result.created
    report.relations += result.relations
    report.unchanged += result.unchanged
    locations = {entry.record["id"]: entry.location for entry in batch}
    for memory_id, reason in result.refused.items():
        report.refused.append((locations.get(memory_id, memory_id), reason))


def _print_report(ctl: Ctl, report: ImportReport) -> None:
    if ctl.json:
        refused = [{"where": location, "reason": reason} for location, reason in report.refused]
        print_json(
            {
                "created": report.created,
                "relations": report.relations,
                "unchanged": report.unchanged,
                "refused": refused,
            }
        )
        return
    unchanged = f", {report.unchanged:,} already existed" if report.unchanged else ""
    failed = f", {len(report.refused):,} refused" if report.refused else ""
    echo(f"{count_memories(report.created)} imported{unchanged}{failed}.")
    for location, reason in report.refused:
        secho(f"  {location}: {one_line(reason)}", fg="red", err=True)
