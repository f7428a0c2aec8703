"""Extraction of memories from sessions: in the background once a session is quiet, or on request, never during capture.

The read position of a session is saved after its memories are stored. A crash in between makes one part of a session be
read again, which changes nothing: a memory that a session created or confirmed once does not count again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import anyio
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.errors import Conflict, InvalidParams, NotFound, StorageUnavailable
from clankers_protocol.events import SessionEvent
from clankers_protocol.memory_maintenance import Candidate, Extraction, MemoryExtract, MemorySummarize
from clankersd.capture.apply import apply_event
from clankersd.capture.events import SessionReported
from clankersd.capture.prepared import prepare_event
from clankersd.db import Db
from clankersd.memories.extraction import model, rules
from clankersd.memories.extraction.candidates import Caller, resolve_candidates
from clankersd.memories.extraction.chat import (
    Chat,
    ChatRefused,
    ChatSettings,
    ChatUnavailable,
    SessionBudgetSpent,
    chat_settings,
)
from clankersd.memories.extraction.model import ExtractionResult
from clankersd.memories.extraction.pending_sessions import PendingSessions
from clankersd.memories.extraction.session_parts import (
    MAX_MESSAGES,
    START,
    Position,
    Session,
    SessionPart,
    find_session,
    read_first_and_last,
    read_part,
    save_position,
    saved_position,
)
from clankersd.projects import find_project_id
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

Method = Literal["rules", "model"]

MAX_CHECK_INTERVAL_SECONDS = 15.0
MIN_CHECK_INTERVAL_SECONDS = 0.2
MAX_FAILURES_PER_PART = 2
"""Failed requests about one part of a session before it is skipped."""

MIN_PAUSE_SECONDS = 60.0
MAX_PAUSE_SECONDS = 3600.0

_UNLIMITED_RULES = ("remember", "from-now-on")
"""Rules for what users ask to remember: their candidates are never left out."""

log = structlog.get_logger(component="extract")


class Extractor:
    """Extracts memories from sessions. At most one extraction per session runs at a time."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._pending = PendingSessions()
        self._in_progress: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._chat: Chat | None = None
        self._pause_seconds = MIN_PAUSE_SECONDS
        self._paused_until = 0.0
        self._paused_settings: ChatSettings | None = None

    # -- in the background

    async def run(self) -> None:
        """Extract from quiet sessions for as long as the daemon runs; does nothing while `extract` is off."""
        try:
            while True:
                await self._extract_pending()
                quiet_seconds = self._daemon.config.extract_quiet_minutes * 60
                interval = max(MIN_CHECK_INTERVAL_SECONDS, quiet_seconds / 2)
                await anyio.sleep(min(MAX_CHECK_INTERVAL_SECONDS, interval))
        finally:
            if self._chat:
                with anyio.move_on_after(1, shield=True):
                    await self._chat.close()

    async def _extract_pending(self) -> None:
        """Extract from the sessions that are ready, until the model is unavailable."""
        config = self._daemon.config
        if config.extract == "off":
            self._pending.reset()
            return
        if config.extract == "model" and self._is_paused():
            return
        try:
            ready = await self._pending.ready(self._daemon.store, config.extract_quiet_minutes, config.extract_days)
            for session_id in ready:
                if anyio.current_time() < self._retry_at.get(session_id, 0):
                    continue
                self._retry_at.pop(session_id, None)
                try:
                    with self._exclusive(session_id):
                        await self._extract_unread(session_id, config.extract)
                except (Conflict, NotFound) as error:  # a request extracts from it, or it was deleted
                    log.debug("session skipped", session_id=session_id, problem=error.message)
        except ChatUnavailable as error:
            self._pause(error)
        except StorageUnavailable as error:
            log.debug("extraction waits", problem=error.message)

    def _is_paused(self) -> bool:
        """Check whether requests are paused after an error; a change of the chat settings ends the pause."""
        if self._paused_settings != chat_settings(self._daemon.config):
            self._pause_seconds = MIN_PAUSE_SECONDS
            return False
        return anyio.current_time() < self._paused_until

    def _pause(self, error: ChatUnavailable) -> None:
        """Send no requests for a while, longer each time."""
        if error.permanent:
            seconds = MAX_PAUSE_SECONDS
        else:
            seconds = min(MAX_PAUSE_SECONDS, max(self._pause_seconds, error.retry_after or 0))
        self._paused_until = anyio.current_time() + seconds
        self._paused_settings = chat_settings(self._daemon.config)
        self._pause_seconds = min(self._pause_seconds * 2, MAX_PAUSE_SECONDS)
        log.warning("chat model paused", seconds=round(seconds), problem=error.reason)

    async def _extract_unread(self, session_id: str, method: Method) -> None:
        """Extract from the unread messages of a session, part by part."""
        position, read_at = await self._daemon.store.read(lambda db: saved_position(db, session_id))
        while (part := await self._read_part(session_id, position, method)).messages:
            result = await self._find_or_skip(part, method, read_at)
            if result is None:
                self._retry_at[session_id] = anyio.current_time() + self._daemon.config.extract_quiet_minutes * 60
                return
            await resolve_candidates(self._daemon, self._open_chat, part, result, Caller(), store=True)
            stored = sum(1 for candidate in result.candidates if candidate.outcome in ("created", "superseded"))
            log.info(
                "session read", session_id=session_id, by=method, messages=len(part.messages),
                memories=stored, calls=result.calls, tokens=result.tokens, notes=result.notes or None,
            )  # fmt: skip
            position = part.end
            await self._save_position(session_id, position)
            if not part.has_more:
                return

    async def _find_or_skip(self, part: SessionPart, method: Method, read_at: int) -> ExtractionResult | None:
        """Find candidates; None to retry later. A part that the model fails on repeatedly is only read by rules."""
        try:
            result = await self._find_candidates(part, method)
        except ChatRefused as refusal:
            assert self._chat
            failures = await self._chat.count_failures(part.session.id, read_at)
            if not isinstance(refusal, SessionBudgetSpent) and failures < MAX_FAILURES_PER_PART:
                log.warning("model answer refused", session_id=part.session.id, problem=refusal.reason)
                return None
            return ExtractionResult(_find_in_tool_calls(part), notes=[f"not read by the model: {refusal.reason}"])
        self._pause_seconds = MIN_PAUSE_SECONDS
        return result

    # -- on request

    async def extract(self, request: MemoryExtract, method: Method) -> Extraction:
        """Extract from a session, from its first message on."""
        session = await self._daemon.store.read(lambda db: _find_permitted_session(db, request))
        caller = Caller(request.scopes, request.agent)
        extraction = Extraction([], method, 0, 0, 0, None)
        notes: dict[str, None] = {}
        with self._exclusive(session.id):
            position = START
            while (part := await self._read_part(session.id, position, method)).messages:
                try:
                    result = await self._find_candidates(part, method)
                except (ChatRefused, ChatUnavailable) as error:
                    if position == START:
                        raise Conflict(error.reason) from error
                    notes[f"not read to its end: {error.reason}"] = None
                    break
                await resolve_candidates(self._daemon, self._open_chat, part, result, caller, store=not request.dry_run)
                extraction.candidates += result.candidates
                extraction.read_messages += len(part.messages)
                extraction.calls += result.calls
                extraction.tokens += result.tokens
                notes |= dict.fromkeys(result.notes)
                position = part.end
                if not request.dry_run and method == self._daemon.config.extract:
                    await self._save_position(session.id, position)
                if not part.has_more:
                    break
        extraction.note = "; ".join(notes) or None
        return extraction

    async def summarize(self, session_id: str, progress: Progress) -> dict[str, Any]:
        """Let the model summarize a session, and store the summary with the session."""
        config = self._daemon.config
        messages, count = await self._daemon.store.read(
            lambda db: read_first_and_last(db, session_id, config.chat_messages)
        )
        await progress(0, 1, "asking the model")
        try:
            chat = await self._open_chat()
            summary, tokens = await model.summarize(
                chat, session_id, messages, count, config.chat_messages, config.chat_characters
            )
        except (ChatRefused, ChatUnavailable) as error:
            raise Conflict(error.reason) from error
        event = prepare_event(self._daemon.index, SessionReported(SessionEvent(id=session_id, summary=summary)))

        def store_summary(db: Db) -> None:
            find_session(db, session_id)  # it may have been deleted, and must not be created again
            apply_event(db, event)

        await self._daemon.store.write(store_summary)
        await progress(1, 1)
        return {"sessionId": session_id, "summary": summary, "tokens": tokens}

    async def require_chat(self) -> None:
        """Raise Conflict when no chat model is configured."""
        try:
            await self._open_chat()
        except ChatUnavailable as error:
            raise Conflict(error.reason) from error

    # -- shared

    @contextmanager
    def _exclusive(self, session_id: str) -> Iterator[None]:
        """Raise Conflict when an extraction from this session is in progress."""
        if session_id in self._in_progress:
            raise Conflict(f"session {session_id} is being read for memories just now: try again")
        self._in_progress.add(session_id)
        try:
            yield
        finally:
            self._in_progress.discard(session_id)

    async def _open_chat(self) -> Chat:
        """Return a client with the current chat settings; raises ChatUnavailable."""
        settings = chat_settings(self._daemon.config)
        if self._chat is None or self._chat.settings != settings:
            old, self._chat = self._chat, Chat(settings, self._daemon.jobs)
            if old:
                self._daemon.background(old.close)  # it waits for the request in progress
        return self._chat

    async def _read_part(self, session_id: str, after: Position, method: Method) -> SessionPart:
        """Read the next part of a session; for the model, as much as fits in one request."""
        config = self._daemon.config
        limit = config.chat_messages if method == "model" else MAX_MESSAGES
        part = await self._daemon.store.read(lambda db: read_part(db, session_id, after, limit))
        if method == "rules" or not part.messages:
            return part
        count = model.count_fitting(part.messages, limit, config.chat_characters)
        if count == len(part.messages):
            return part
        messages = part.messages[:count]
        calls = [call for call in part.calls if call.at <= messages[-1].at]
        return replace(part, messages=messages, calls=calls, file_groups=[], has_more=True)

    async def _find_candidates(self, part: SessionPart, method: Method) -> ExtractionResult:
        """Find the best candidates in a part of a session; raises ChatRefused or ChatUnavailable."""
        limit = self._daemon.config.extract_memories
        if method == "rules":
            result = ExtractionResult(await anyio.to_thread.run_sync(rules.find_statements, part.messages))
        else:
            chat = await self._open_chat()
            result = await model.find_memories(chat, part.session.id, part.messages, limit)
        candidates = result.candidates + _find_in_tool_calls(part)
        limited = [candidate for candidate in candidates if candidate.rule not in _UNLIMITED_RULES]
        best = sorted(limited, key=lambda candidate: -candidate.importance * candidate.confidence)[:limit]
        result.candidates = [each for each in candidates if each.rule in _UNLIMITED_RULES or each in best]
        if left_out := len(candidates) - len(result.candidates):
            result.notes.append(f"{left_out} weaker candidates were left out")
        return result

    async def _save_position(self, session_id: str, position: Position) -> None:
        await self._daemon.store.write(lambda db: save_position(db, session_id, position))


def _find_permitted_session(db: Db, request: MemoryExtract) -> Session:
    """Return the session; raises InvalidParams if its memories would be in a scope that the caller may not write."""
    session = find_session(db, request.session_id)
    if request.project is not None and find_project_id(db, request.project) != session.project_id:
        raise InvalidParams("invalid params: the session is of another project - at `$.project`")
    try:
        Caller(request.scopes, request.agent).scope_for(db, session.project_id)
    except InvalidParams as error:
        raise InvalidParams(error.message.replace("$.scope`", "$.scopes`")) from error
    return session


def _find_in_tool_calls(part: SessionPart) -> list[Candidate]:
    groups = rules.describe_file_groups(part.file_groups, part.session.project_path)
    return rules.find_fixes(part.calls) + groups


@handles(MemoryExtract)
async def memory_extract(daemon: "Daemon", request: MemoryExtract) -> Extraction:
    configured = daemon.config.extract
    return await daemon.extractor.extract(request, request.by or ("rules" if configured == "off" else configured))


@handles(MemorySummarize)
async def memory_summarize(daemon: "Daemon", request: MemorySummarize) -> JobStarted:
    await daemon.store.read(lambda db: find_session(db, request.session_id))
    await daemon.extractor.require_chat()

    async def work(progress: Progress) -> dict[str, Any]:
        return await daemon.extractor.summarize(request.session_id, progress)

    return JobStarted(await daemon.jobs.start("summarize", work))
