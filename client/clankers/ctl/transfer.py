"""`clankers-ctl export` and `clankers-ctl import FILE`: everything durable in one file of JSON lines."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import click
import msgspec

from clankers.ctl.batches import split_batches
from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options
from clankers.ctl.formatting import format_bytes, plural
from clankers.ctl.output import echo, one_line, print_json, progress_bar, secho
from clankers.ctl.replacement import replace_file
from clankers_protocol.admin import JobCancel
from clankers_protocol.errors import InternalError, InvalidParams, InvalidRequest, ParseError, RpcError
from clankers_protocol.exports import ExportRead, ExportStart, ImportedLines, ImportLines
from clankers_protocol.transfer import FORMAT, VERSION, Header

STDOUT = "-"
COMPRESSED_SUFFIX = ".zst"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
REQUEST_TIMEOUT_SECONDS = 120
MAX_BATCH_LINES = 500
MAX_BATCH_BYTES = 2**20
MAX_LINE_BYTES = 64 * 2**20
MAX_QUOTED_BYTES = 8 * 2**20
"""A longer line is sent as an object: as a text inside JSON it could become too long for a request."""

MAX_HEADER_BYTES = 64 * 1024
MAX_LISTED_LINES = 20


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@common_options
def export(ctl: Ctl, file: str) -> None:
    """Export everything that is stored to a file.

    Writes one JSON object per line: projects, sessions with all their parts, memories with their history, entities,
    relations, documents, skills, schedules and client settings, with their ids and times. The index and the settings
    in clankers.toml are not exported. A name that ends in .zst is compressed; with - as FILE, writes to standard
    output. The file is written completely or not at all, and only you can read it. `clankers-ctl import` reads it.

    \b
    Examples:
      clankers-ctl export clankers.jsonl.zst
      clankers-ctl export - | jq -r 'select(.kind == "memory").content'
    """
    if file == STDOUT:
        output = cast("IO[bytes]", sys.stdout.buffer)
        for _ in _write_export(ctl, output):
            pass
        output.flush()
        return
    path = Path(file)
    rows = 0
    with (
        replace_file(path) as target,
        _compressing(target, path) as output,
        progress_bar(ctl.json, "exporting") as show,
    ):
        for rows, total in _write_export(ctl, output):
            show(rows, total)
    size = path.stat().st_size
    ctl.report(
        {"path": str(path.absolute()), "rows": rows, "bytes": size},
        f"Exported {plural(rows, 'row')} to {file} ({format_bytes(size)}).",
    )


def _write_export(ctl: Ctl, output: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Write the export, and yield after each piece the number of rows so far and of all."""
    started = ctl.call(ExportStart(), timeout=REQUEST_TIMEOUT_SECONDS)
    try:
        while True:
            piece = ctl.call(ExportRead(started.job_id), timeout=REQUEST_TIMEOUT_SECONDS)
            output.write(piece.text.encode())
            yield piece.rows, started.rows
            if piece.is_last:
                return
    except BaseException:
        with suppress(RpcError, OSError):  # it has ended, or the daemon has
            ctl.call(JobCancel(started.job_id), start=False)
        raise


@contextmanager
def _compressing(output: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != COMPRESSED_SUFFIX:
        yield output
        return
    with _zstd().ZstdFile(output, "w") as compressed:
        yield compressed


def _zstd() -> Any:
    """Return the zstd module: that of Python 3.14, or its backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


# -- import


@dataclass
class ImportReport:
    """Counts of an import; `rejected` has the number and the reason of each line that was not imported."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0
    rejected: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Line:
    """A line of a file with its number, from 1, and the byte offset after it in the file as it is on disk."""

    number: int
    text: bytes
    end: int


def is_export(path: Path) -> bool:
    """Tell whether a file begins with the header of an export, or is compressed, as only exports are."""
    with path.open("rb") as file:
        first = file.readline(MAX_HEADER_BYTES)
    if first.startswith(ZSTD_MAGIC):
        return True
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(first, type=dict[str, Any]).get("format") == FORMAT
    return False


def import_export(ctl: Ctl, path: Path) -> None:
    """Import a file that `clankers-ctl export` has written, and report what became of its records."""
    report = ImportReport()
    size = path.stat().st_size
    with _opened(path) as (stream, position), progress_bar(ctl.json, "importing") as show_progress:
        lines = _lines(stream, position, report)
        for batch in split_batches(lines, lambda line: len(line.text), MAX_BATCH_LINES, MAX_BATCH_BYTES):
            _send(ctl, batch, report)
            show_progress(batch[-1].end, size)
    _print_report(ctl, report)
    sys.exit(EXIT_PROBLEM if report.rejected else 0)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """Open a file that may be compressed; also return the function that tells how much of it was read."""
    with path.open("rb") as file:
        is_compressed = file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
        file.seek(0)
        if not is_compressed:
            yield file, file.tell
            return
        zstd = _zstd()
        try:
            with zstd.ZstdFile(file) as raw, io.BufferedReader(raw) as stream:
                yield cast("IO[bytes]", stream), file.tell
        except (zstd.ZstdError, EOFError) as error:
            raise click.ClickException(f"{path} is damaged or incomplete: {error}") from error


def _lines(stream: IO[bytes], position: Callable[[], int], report: ImportReport) -> Iterator[Line]:
    """Check the header, and yield the lines after it."""
    header = _parse_header(stream.readline(MAX_LINE_BYTES))
    number = 1
    while text := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(text) == MAX_LINE_BYTES and not text.endswith(b"\n"):
            report.rejected.append((number, f"it is longer than {format_bytes(MAX_LINE_BYTES)}"))
            while text and not text.endswith(b"\n"):
                text = stream.readline(MAX_LINE_BYTES)
        elif text.strip():
            yield Line(number, text, position())
    expected = sum(header.rows.values())
    if number - 1 < expected:
        report.rejected.append((number + 1, f"the file ends here, but its header announces {expected:,} records"))


def _parse_header(line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"Line 1 is no header of an export: {error}") from error
    if header.version > VERSION:
        raise click.ClickException(
            f"The export has format version {header.version}, and this program reads up to {VERSION}. "
            f"Upgrade clankers, then import it (it was written by clankers {one_line(header.clankers)})."
        )
    return header


def _send(ctl: Ctl, batch: list[Line], report: ImportReport) -> None:
    """Send a batch. If the daemon rejects the request as a whole, split it until the bad line is alone."""
    lines: list[str | dict[str, Any]] = []
    sent: list[Line] = []
    for line in batch:
        try:
            text = line.text.decode()
            lines.append(text if len(line.text) <= MAX_QUOTED_BYTES else msgspec.json.decode(text, type=dict))
            sent.append(line)
        except (UnicodeDecodeError, msgspec.DecodeError) as error:
            report.rejected.append((line.number, f"it is not valid JSON ({error})"))
    if not sent:
        return
    try:
        result = ctl.call(ImportLines(lines), timeout=REQUEST_TIMEOUT_SECONDS)
    except (ParseError, InvalidRequest, InvalidParams, InternalError) as error:
        if len(sent) == 1:
            report.rejected.append((sent[0].number, error.message))
            return
        middle = len(sent) // 2
        _send(ctl, sent[:middle], report)
        _send(ctl, sent[middle:], report)
        return
    _add(report, result, sent)


def _add(report: ImportReport, result: ImportedLines, sent: list[Line]) -> None:
    report.new += result.new
    report.updated += result.updated
    report.unchanged += result.unchanged
    report.rejected += [(sent[line.position].number, line.reason) for line in result.rejected]


def _print_report(ctl: Ctl, report: ImportReport) -> None:
    if ctl.json:
        rejected = [{"line": number, "reason": reason} for number, reason in report.rejected]
        counts = {"new": report.new, "updated": report.updated, "unchanged": report.unchanged}
        print_json(counts | {"rejected": rejected})
        return
    counts_text = f"{report.new:,} new, {report.updated:,} updated, {report.unchanged:,} unchanged"
    echo(f"Imported: {counts_text}, {len(report.rejected):,} rejected.")
    for number, reason in report.rejected[:MAX_LISTED_LINES]:
        secho(f"  line {number}: {one_line(reason)}", fg="red", err=True)
    if len(report.rejected) > MAX_LISTED_LINES:
        secho(f"  … and {len(report.rejected) - MAX_LISTED_LINES:,} more: --json lists them all", fg="red", err=True)
