"""Import of the history in a harness's own files, as a job. What is stored already stays as it is."""

from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.capture import ImportStart, ImportSummary
from clankers_protocol.errors import InvalidParams, RpcError
from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.apply import apply_unless_paused
from clankersd.capture.harnesses import HARNESSES, data_folders
from clankersd.capture.harnesses.base import Harness, PastSession
from clankersd.capture.history_reader import HistoryReader, SessionPart
from clankersd.capture.pause import Pauses
from clankersd.capture.prepared import PreparedEvent
from clankersd.capture.transcripts import Piece, record_position
from clankersd.db import Db
from clankersd.db.group_commit import Change, ChangeResult
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

EVENTS_PER_CHANGE = 32
"""Events that are stored together before single events of others get their turn."""

TABLES = {
    "sessions": "sessions",
    "messages": "messages",
    "tools": "tools",
    "errors": "session_errors",
    "compactions": "compaction_events",
}

log = structlog.get_logger(component="import")


@handles(ImportStart)
async def import_start(daemon: "Daemon", request: ImportStart) -> JobStarted:
    harness = HARNESSES.get(request.harness)
    if harness is None or harness.find_history is None:
        importable = ", ".join(name for name, each in HARNESSES.items() if each.find_history)
        raise InvalidParams(
            f"invalid params: there is no history of {request.harness!r} to import, only of {importable} "
            "- at `$.harness`"
        )
    work = _Import(daemon, request, harness)
    return JobStarted(await daemon.jobs.start("history import", work.run))


class _DryRun(Exception):
    """Rolls back what was tried, and carries what it would have added."""

    def __init__(self, new: dict[str, list[str]], redacted: int) -> None:
        super().__init__("dry run")
        self.new = new
        self.redacted = redacted


class _Import:
    """One import. New rows are counted by their ids, so that a dry run counts the same."""

    def __init__(self, daemon: "Daemon", request: ImportStart, harness: Harness) -> None:
        self._daemon = daemon
        self._request = request
        self._harness = harness
        self._new: dict[str, set[str]] = {name: set() for name in TABLES}
        self._redacted = self._malformed = self._opted_out = 0
        self._unreadable: set[PastSession] = set()
        self._stored_pieces: list[Piece] = []
        """Pieces of transcripts whose events are stored; that they were read is recorded with the next events."""

    async def run(self, progress: Progress) -> ImportSummary:
        """Import every past session, oldest first."""
        daemon, request = self._daemon, self._request
        roots = data_folders(self._harness, daemon.config.transcript_folders)
        sessions = await anyio.to_thread.run_sync(self._find_sessions, roots)
        reader = HistoryReader(daemon.index, self._harness.name, [str(root) for root in roots])
        async with reader.batches(sessions) as batches:
            done = 0
            async for parts in batches:
                await progress(done, len(sessions), parts[0].session.label)
                await self._store_parts(parts)
                done += sum(part.is_last for part in parts)
        await self._store_parts([])
        await progress(len(sessions), len(sessions), "done")
        daemon.index.wake()
        return ImportSummary(
            harness=request.harness,
            dry_run=request.dry_run,
            files=len(sessions) - len(self._unreadable),
            redacted=self._redacted,
            malformed=self._malformed,
            opted_out=self._opted_out,
            unreadable=len(self._unreadable),
            folders=[str(root) for root in roots],
            **{name: len(ids) for name, ids in self._new.items()},
        )

    def _find_sessions(self, roots: list[Path]) -> list[PastSession]:
        """Find the past sessions, without those of projects that have opted out."""
        assert self._harness.find_history
        found = self._harness.find_history(roots, clock.to_ms(self._request.since) or 0)
        sessions = [past for past in found if not past.project or not opt_out.is_opted_out(past.project)]
        self._opted_out = len(found) - len(sessions)
        return sessions

    async def _store_parts(self, parts: list[SessionPart]) -> None:
        """Store parts of sessions, and how far transcripts were read before them."""
        positions: list[Change] = [partial(_record_position, piece=piece) for piece in self._stored_pieces]
        self._stored_pieces.clear()
        changes_of = [self._changes_of(part) for part in parts]
        results = iter(await self._daemon.store.write_all([*positions, *chain.from_iterable(changes_of)]))
        for result in islice(results, len(positions)):
            if result.error is not None:
                raise result.error
        for part, changes in zip(parts, changes_of, strict=True):
            self._finish_part(part, list(islice(results, len(changes))))

    def _changes_of(self, part: SessionPart) -> list[Change]:
        """Return what stores the events of a part; nothing if one before it could not be stored."""
        if part.session in self._unreadable:
            return []
        events = self._with_current_chunks(part)
        return [
            partial(
                _apply_and_count,
                events=events[start : start + EVENTS_PER_CHANGE],
                dry_run=self._request.dry_run,
                pauses=self._daemon.pauses,
            )
            for start in range(0, len(events), EVENTS_PER_CHANGE)
        ]

    def _finish_part(self, part: SessionPart, results: list[ChangeResult]) -> None:
        """Count what a part has added. A transcript counts as read only up to the first part that failed."""
        session, problem = part.session, part.problem
        if session in self._unreadable:
            return
        self._malformed += part.malformed
        for result in results:
            if isinstance(result.error, RpcError):
                raise result.error
            if isinstance(result.error, _DryRun):
                new, redacted = result.error.new, result.error.redacted
            elif result.error is not None:
                problem = repr(result.error)  # the other sessions are imported all the same
                break
            else:
                new, redacted = result.value
            self._redacted += redacted
            for name, ids in new.items():
                self._new[name].update(ids)
        if problem:
            log.warning("history not read", path=str(session.path), problem=problem)
            self._unreadable.add(session)
        elif not self._request.dry_run:
            if part.piece:
                self._stored_pieces.append(part.piece)
            if part.is_last:
                self._daemon.files.add_project(session.project)  # its memory files are history, too

    def _with_current_chunks(self, part: SessionPart) -> list[PreparedEvent]:
        """Return the events; if the index is chunked in another way by now, their texts are chunked later."""
        if part.chunkings == self._daemon.index.chunkings("sessions"):
            return part.events
        return [msgspec.structs.replace(event, chunks=None) for event in part.events]


def _record_position(db: Db, piece: Piece) -> tuple[dict[str, list[str]], int]:
    record_position(db, piece)
    return {}, 0


def _apply_and_count(
    db: Db, events: list[PreparedEvent], dry_run: bool, pauses: Pauses
) -> tuple[dict[str, list[str]], int]:
    """Apply events; returns the ids of the rows that are new by table, and the number of redacted secrets."""
    last = {name: db.value(f"SELECT max(rowid) FROM {table}") or 0 for name, table in TABLES.items()}
    before = db.value("SELECT total(count) FROM redactions")
    for event in events:
        apply_unless_paused(db, event, pauses)
    new = {
        name: [row[0] for row in db.tuples(f"SELECT id FROM {table} WHERE rowid > :last", {"last": last[name]})]
        for name, table in TABLES.items()
    }
    redacted = int(db.value("SELECT total(count) FROM redactions") - before)
    if dry_run:
        raise _DryRun(new, redacted)
    return new, redacted
