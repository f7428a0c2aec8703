"""`export.start` and `export.read`: everything durable as JSON lines, read from a snapshot piece by piece.

A thread reads the rows and waits until a piece is taken before it makes the next one, so that neither the daemon nor
the client holds more than a few pieces, however large the database is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Raw

from clankers_protocol.errors import NotFound, StorageUnavailable
from clankers_protocol.exports import ExportPiece, ExportRead, ExportStart, ExportStarted
from clankers_protocol.transfer import FORMAT, VERSION, Header
from clankersd import clock
from clankersd.db import Db
from clankersd.db.commit_priority import yield_to_commits
from clankersd.transfer.tables import TABLES
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

PIECE_CHARACTERS = 512 * 1024
IDLE_SECONDS = 60.0
"""An export that nobody reads ends after this time, because its snapshot keeps the write-ahead log from shrinking."""

_LISTS = ("repositories", "folders")
"""Fields that are rows of other tables, which SQL returns as JSON."""


@dataclass
class Export:
    """The export that was started last, and the end of it from which its pieces are read."""

    job_id: str = ""
    reader: MemoryObjectReceiveStream[ExportPiece] | None = None

    def end(self) -> None:
        """Let go of the pieces; a job that makes more of them fails."""
        if self.reader is not None:
            self.reader.close()
        self.job_id, self.reader = "", None


@handles(ExportStart)
async def start(daemon: "Daemon", request: ExportStart) -> ExportStarted:
    daemon.jobs.ensure_not_running("export")
    counts = await daemon.store.snapshot_read(count_records)
    sender, reader = anyio.create_memory_object_stream[ExportPiece](1)
    try:
        job_id = await daemon.jobs.start("export", partial(_run, daemon, sender, sum(counts.values())))
    except BaseException:
        sender.close()
        reader.close()
        raise
    daemon.export.end()
    daemon.export.job_id, daemon.export.reader = job_id, reader
    return ExportStarted(job_id, sum(counts.values()))


@handles(ExportRead)
async def read(daemon: "Daemon", request: ExportRead) -> ExportPiece:
    export = daemon.export
    if export.reader is None or export.job_id != request.job_id:
        raise NotFound(f"there is no running export {request.job_id}: see clankers-ctl jobs")
    try:
        piece = await export.reader.receive()
    except (anyio.EndOfStream, anyio.ClosedResourceError):
        job = await daemon.jobs.wait(request.job_id)
        raise StorageUnavailable(f"the export ended early: {job.error or job.state}") from None
    if piece.is_last:
        export.end()
        await daemon.jobs.wait(request.job_id)
    return piece


async def _run(
    daemon: "Daemon", sender: MemoryObjectSendStream[ExportPiece], total: int, progress: Progress
) -> dict[str, int]:
    """Read everything on a snapshot and hand it over piece by piece; return the number of records by kind."""

    async def deliver(piece: ExportPiece) -> None:
        await progress(piece.rows, total, "exporting")
        with anyio.fail_after(IDLE_SECONDS):
            await sender.send(piece)

    def read_all(db: Db) -> dict[str, int]:
        counts = count_records(db)
        for piece in pieces(lines(db, daemon.version, counts)):
            anyio.from_thread.run(deliver, piece)
        return counts

    with sender:
        try:
            return await daemon.store.snapshot_read(read_all)
        except TimeoutError as error:
            raise StorageUnavailable(f"nobody read the export for {IDLE_SECONDS:g} seconds") from error


def count_records(db: Db) -> dict[str, int]:
    """Count the records of each kind."""
    return {table.kind: int(db.value(table.count)) for table in TABLES}


def lines(db: Db, version: str, counts: dict[str, int]) -> Iterator[bytes]:
    """Yield the lines of the file: the header, then every record."""
    yield msgspec.json.encode(Header(FORMAT, VERSION, clock.now(), version, counts)) + b"\n"
    for table in TABLES:
        names = table.record.__struct_encode_fields__
        are_json = [name in table.json_fields or name in _LISTS for name in table.record.__struct_fields__]
        for _, values in db.stream(table.select):
            yield_to_commits()
            record: dict[str, Any] = {"kind": table.kind}
            for name, is_json, value in zip(names, are_json, values, strict=True):
                if value is not None:
                    record[name] = Raw(value) if is_json else value
            yield msgspec.json.encode(record) + b"\n"


def pieces(encoded: Iterator[bytes]) -> Iterator[ExportPiece]:
    """Join lines to pieces of PIECE_CHARACTERS at most; a longer line becomes several pieces."""
    waiting: list[str] = []
    size, rows = 0, -1  # the header is no record
    for line in encoded:
        rows += 1
        waiting.append(line.decode())
        size += len(waiting[-1])
        if size < PIECE_CHARACTERS:
            continue
        text = "".join(waiting)
        for start in range(0, len(text), PIECE_CHARACTERS):
            yield ExportPiece(text[start : start + PIECE_CHARACTERS], rows, False)
        waiting, size = [], 0
    yield ExportPiece("".join(waiting), rows, True)
