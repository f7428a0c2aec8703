"""Import of the history in a harness's own files, as a job. What is stored already stays as it is."""

from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.capture import ImportStart, ImportSummary
from clankers_protocol.errors import InvalidParams, RpcError
from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.apply import apply_unless_paused
from clankersd.capture.events import SessionInactive
from clankersd.capture.harnesses import HARNESSES, data_folders
from clankersd.capture.harnesses.base import Harness, PastSession
from clankersd.capture.pause import Pauses
from clankersd.capture.prepared import PreparedEvent, prepare_event
from clankersd.capture.transcripts import Piece, Position, prepare_complete, record_position
from clankersd.db import Db
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

EVENTS_PER_CHANGE = 16
"""Events that are stored together before single events of others get their turn."""

INACTIVE_AFTER_MS = 3_600_000
"""A session whose file has not changed for this long has ended."""

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
        self._files = self._redacted = self._malformed = self._opted_out = self._unreadable = 0

    async def run(self, progress: Progress) -> ImportSummary:
        """Import every past session, oldest first."""
        assert self._harness.find_history
        roots = data_folders(self._harness, self._daemon.config.transcript_folders)
        since = clock.to_ms(self._request.since) or 0
        sessions = await anyio.to_thread.run_sync(self._harness.find_history, roots, since)
        for done, past in enumerate(sessions):
            await progress(done, len(sessions), past.label)
            if past.project and opt_out.is_opted_out(past.project):
                self._opted_out += 1
                continue
            try:
                await self._import_session(past)
                self._files += 1
            except RpcError:
                raise
            except Exception as error:  # the other sessions are imported all the same
                log.warning("history not read", problem=repr(error))
                self._unreadable += 1
        await progress(len(sessions), len(sessions), "done")
        self._daemon.index.wake()
        return ImportSummary(
            harness=self._request.harness,
            dry_run=self._request.dry_run,
            files=self._files,
            redacted=self._redacted,
            malformed=self._malformed,
            opted_out=self._opted_out,
            unreadable=self._unreadable,
            folders=[str(root) for root in roots],
            **{name: len(ids) for name, ids in self._new.items()},
        )

    async def _import_session(self, past: PastSession) -> None:
        if self._harness.read_history:
            await self._store(await anyio.to_thread.run_sync(self._read_history, past))
        else:
            position = Position(str(past.path), self._harness.name, past.session_id)
            await self._daemon.transcripts.read(position, self._store_piece)
        if not self._request.dry_run:
            self._daemon.files.add_project(past.project)  # its memory files are history, too
        if clock.now() - past.updated_at > INACTIVE_AFTER_MS:
            await self._store([prepare_event(self._daemon.index, SessionInactive(past.session_id))])

    def _read_history(self, past: PastSession) -> list[PreparedEvent]:
        assert self._harness.read_history
        history = self._harness.read_history(past)
        self._malformed += history.malformed
        return prepare_complete(self._daemon.index, history.events)

    async def _store_piece(self, piece: Piece) -> None:
        self._malformed += piece.malformed
        await self._store(piece.events)
        if not self._request.dry_run:
            await self._daemon.store.write(lambda db: record_position(db, piece), bulk=True)

    async def _store(self, events: list[PreparedEvent]) -> None:
        changes = [
            partial(
                _apply_and_count,
                events=events[start : start + EVENTS_PER_CHANGE],
                dry_run=self._request.dry_run,
                pauses=self._daemon.pauses,
            )
            for start in range(0, len(events), EVENTS_PER_CHANGE)
        ]
        for outcome in await self._daemon.store.write_all(changes):
            if isinstance(outcome.error, _DryRun):
                new, redacted = outcome.error.new, outcome.error.redacted
            elif outcome.error is not None:
                raise outcome.error
            else:
                new, redacted = outcome.value
            self._redacted += redacted
            for name, ids in new.items():
                self._new[name].update(ids)


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
