"""`import.lines`: store the records of an export."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import apsw
import structlog

from clankers_protocol import transfer as records
from clankers_protocol.errors import InvalidParams
from clankers_protocol.exports import ImportedLines, ImportLines, RejectedLine
from clankersd.admin.projects import follow_merge
from clankersd.db import Db
from clankersd.documents.store import LARGE_DOCUMENT_CHUNKS, delete_large_document
from clankersd.transfer.merging import store_record
from clankersd.transfer.parsing import ParsedRecord, parse_line
from clankersd.transfer.projects import Stored
from clankersd.transfer.references import OlderState, outdated_documents
from clankersd.wire.preparation import HUGE_REQUEST_BYTES, thread_limiter
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

log = structlog.get_logger(component="import")


@handles(ImportLines)
async def import_lines(daemon: "Daemon", request: ImportLines) -> ImportedLines:
    rejected: list[RejectedLine] = []
    counts: Counter[str] = Counter()
    parsed = await anyio.to_thread.run_sync(
        partial(_parse, request.lines, rejected),
        abandon_on_cancel=True,
        limiter=thread_limiter(HUGE_REQUEST_BYTES),
    )
    await _delete_large_documents(daemon, parsed)
    results = await daemon.store.write_all(partial(store_record, parsed=one) for one in parsed)
    for one, result in zip(parsed, results, strict=True):
        if result.error is not None:
            rejected.append(RejectedLine(one.position, _explain(result.error)))
            continue
        stored: Stored = result.value
        for merge in stored.merges:
            follow_merge(daemon, merge)
        counts[stored.result] += 1
        if isinstance(one.record, records.MessageRecord):
            daemon.index.add_speaker(one.row["role"])
    if counts["new"] or counts["updated"]:
        daemon.index.wake()
    if any(isinstance(one.record, records.ScheduleRecord) for one in parsed):
        daemon.scheduler.wake()
    rejected.sort(key=lambda line: line.position)
    return ImportedLines(counts["new"], counts["updated"], counts["unchanged"], rejected)


def _parse(lines: list[str | dict[str, Any]], rejected: list[RejectedLine]) -> list[ParsedRecord]:
    parsed = []
    for position, line in enumerate(lines):
        try:
            parsed.append(parse_line(position, line))
        except InvalidParams as error:
            rejected.append(RejectedLine(position, error.message))
    return parsed


def _explain(error: Exception) -> str:
    """Say why a record was not stored; raises the errors that are not its own."""
    if isinstance(error, InvalidParams):
        return error.message
    if isinstance(error, apsw.ConstraintError):
        log.warning("record not stored", problem=str(error))
        return "it contradicts what is stored here: the log of the daemon says how"
    raise error


async def _delete_large_documents(daemon: "Daemon", parsed: list[ParsedRecord]) -> None:
    """Delete large documents that imported ones replace, in steps that let events in between."""

    def find(db: Db, row: dict[str, Any]) -> list[str]:
        try:
            outdated = outdated_documents(db, row)
        except OlderState:
            return []
        sql = "SELECT count(*) FROM document_chunks WHERE document_id = :id"
        return [one for one in outdated if db.value(sql, {"id": one}) > LARGE_DOCUMENT_CHUNKS]

    for one in parsed:
        if isinstance(one.record, records.DocumentRecord):
            for document_id in await daemon.store.read(partial(find, row=one.row)):
                await delete_large_document(daemon.store, document_id)
