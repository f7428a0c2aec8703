"""History that harnesses kept before we were here, brought in as a job. What is here already stays as it is."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.capture import ImportStart, ImportSummary
from clankers_protocol.errors import RpcError
from clankers_protocol.ids import encode_id
from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.apply import Change
from clankersd.capture.harnesses import opencode_storage
from clankersd.capture.harnesses.opencode_storage import Malformed, Stored
from clankersd.capture.transcripts import Piece, Place, folders, note_read, open_transcript
from clankersd.db import Db
from clankersd.safe_files import UnsafeFile
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

PEEK = 256 * 1024
CHANGES_PER_WRITE = 16
OVER_MS = 3_600_000
"""A session whose file rested for so long has ended, whether or not anything says so."""

TABLES = {
    "sessions": "sessions",
    "messages": "messages",
    "tools": "tools",
    "errors": "session_errors",
    "compactions": "compaction_events",
}
_OVER = "UPDATE sessions SET status = 'ended', ended_at = updated_at WHERE id = :id AND status IS NULL"

log = structlog.get_logger(component="import")


@handles(ImportStart)
async def import_start(daemon: "Daemon", request: ImportStart) -> JobStarted:
    work = _Import(daemon, request)
    return JobStarted(await daemon.jobs.start("history import", work.run))


class _DryRun(Exception):
    """Undoes what was tried, and tells what it would have brought."""

    def __init__(self, new: dict[str, list[str]], redacted: int) -> None:
        super().__init__("dry run")
        self.new = new
        self.redacted = redacted


@dataclass(frozen=True)
class _Transcript:
    path: Path
    session_id: str
    began: str
    changed_at: int
    project: str | None


class _Import:
    """One import: what is new is counted by its ids, so that a dry run counts the same."""

    def __init__(self, daemon: "Daemon", request: ImportStart) -> None:
        self._daemon = daemon
        self._request = request
        self._since = clock.to_ms(request.since) or 0
        self._new: dict[str, set[str]] = {name: set() for name in TABLES}
        self._files = self._redacted = self._malformed = self._opted_out = self._unreadable = 0

    async def run(self, progress: Progress) -> ImportSummary:
        """Bring in everything, oldest first: what a fork repeats belongs to the session that said it."""
        bring = self._claude_code if self._request.harness == "claude-code" else self._opencode
        await bring(progress)
        self._daemon.index.wake()
        return ImportSummary(
            harness=self._request.harness,
            dry_run=self._request.dry_run,
            files=self._files,
            redacted=self._redacted,
            malformed=self._malformed,
            opted_out=self._opted_out,
            unreadable=self._unreadable,
            **{name: len(ids) for name, ids in self._new.items()},
        )

    async def _claude_code(self, progress: Progress) -> None:
        roots = folders("claude-code", self._daemon.config.transcript_folders)
        found = await anyio.to_thread.run_sync(_transcripts, roots, self._since)
        for done, transcript in enumerate(found):
            await progress(done, len(found), transcript.path.parent.name[-30:])
            await self._unless_declined(transcript.project, partial(self._transcript, transcript))
        await progress(len(found), len(found), "done")

    async def _transcript(self, transcript: _Transcript) -> None:
        place = Place(str(transcript.path), "claude-code", transcript.session_id)
        await self._daemon.transcripts.read(place, self._keep_piece)
        if clock.now() - transcript.changed_at > OVER_MS:
            await self._keep([Change(lambda db: db.execute(_OVER, {"id": transcript.session_id}))])

    async def _keep_piece(self, piece: Piece) -> None:
        self._malformed += piece.malformed
        await self._keep([*piece.changes, Change(lambda db: note_read(db, piece))])

    async def _opencode(self, progress: Progress) -> None:
        roots = folders("opencode", self._daemon.config.transcript_folders)
        found = [each for root in roots for each in await anyio.to_thread.run_sync(opencode_storage.sessions, root)]
        found = [each for each in found if each.updated_at >= self._since]
        for done, stored in enumerate(found):
            await progress(done, len(found), (stored.project or stored.id)[-30:])
            await self._unless_declined(stored.project, partial(self._session, stored))
        await progress(len(found), len(found), "done")

    async def _session(self, stored: Stored) -> None:
        malformed = Malformed()

        def changes() -> list[Change]:
            return [fact(self._daemon.index) for fact in opencode_storage.facts_of(stored, malformed)]

        await self._keep(await anyio.to_thread.run_sync(changes))
        self._malformed += malformed.count
        if clock.now() - stored.updated_at > OVER_MS:
            await self._keep([Change(lambda db: db.execute(_OVER, {"id": encode_id(stored.id)}))])

    async def _unless_declined(self, project: str | None, bring: Callable[[], Awaitable[None]]) -> None:
        if project and opt_out.declines(project):
            self._opted_out += 1
            return
        try:
            await bring()
            self._files += 1
        except RpcError:
            raise
        except Exception as error:  # one of them; the others come in all the same
            log.warning("history not read", problem=repr(error))
            self._unreadable += 1

    async def _keep(self, changes: list[Change]) -> None:
        for start in range(0, len(changes), CHANGES_PER_WRITE):
            some = changes[start : start + CHANGES_PER_WRITE]
            try:
                new, redacted = await self._daemon.store.write(
                    partial(_measured, some, self._request.dry_run), bulk=True
                )
            except _DryRun as tried:
                new, redacted = tried.new, tried.redacted
            self._redacted += redacted
            for name, ids in new.items():
                self._new[name].update(ids)


def _measured(changes: list[Change], dry_run: bool, db: Db) -> tuple[dict[str, list[str]], int]:
    """Make the changes, and tell what is new by them."""
    last = {name: db.value(f"SELECT max(rowid) FROM {table}") or 0 for name, table in TABLES.items()}
    before = db.value("SELECT total(count) FROM redactions")
    for change in changes:
        change(db)
    new = {
        name: [row[0] for row in db.tuples(f"SELECT id FROM {table} WHERE rowid > :last", {"last": last[name]})]
        for name, table in TABLES.items()
    }
    redacted = int(db.value("SELECT total(count) FROM redactions") - before)
    if dry_run:
        raise _DryRun(new, redacted)
    return new, redacted


def _transcripts(roots: list[Path], since: int) -> list[_Transcript]:
    """Every transcript that changed since, oldest first, those of sub-agents after the session's own."""
    found = []
    for root in roots:
        for path in sorted((root / "projects").rglob("*.jsonl")):
            try:
                transcript = _peek(path, root)
            except (OSError, UnsafeFile) as error:
                log.warning("transcript not read", path=str(path), problem=str(error))
                continue
            if transcript.changed_at >= since:
                found.append(transcript)
    return sorted(found, key=lambda each: (each.began, each.changed_at))


def _peek(path: Path, root: Path) -> _Transcript:
    """When a transcript begins, and where: what is in its first lines."""
    with open_transcript(str(path), [root]) as file:
        changed = round(os.fstat(file.fileno()).st_mtime * 1000)
        lines = file.read(PEEK).split(b"\n")
    began = project = session_id = None
    for line in (_line(raw) for raw in lines):
        began = began or _text(line, "timestamp")
        project = project or _text(line, "cwd")
        session_id = session_id or _text(line, "sessionId")
    return _Transcript(path, encode_id(session_id or path.stem), began or "9999", changed, project)


def _line(raw: bytes) -> dict[str, Any]:
    try:
        line = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def _text(line: dict[str, Any], key: str) -> str | None:
    value = line.get(key)
    return value if isinstance(value, str) else None
