"""Session files that harnesses write as JSON lines: what their readers share, and how past sessions are listed."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import structlog

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd import clock
from clankersd.capture.events import (
    UNKNOWN_TOOL,
    CapturedEvent,
    CompactionReported,
    FirstPrompt,
    MessageReported,
    SessionEnded,
    SessionNote,
    SessionReported,
    SessionSummary,
    SessionTotals,
    ToolReported,
)
from clankersd.capture.harnesses.base import PastSession, Payload
from clankersd.capture.harnesses.payload import decode_object, file_of, readable, without_empty
from clankersd.safe_files import UnsafeFile, open_below

PEEK_BYTES = 256 * 1024
"""Beginning of a file that holds its first line, which may have the instructions of the model."""

log = structlog.get_logger(component="import")


class SessionFileReader:
    """Base of a TranscriptReader whose lines are complete in themselves, so that none is read twice.

    `state` holds what the lines so far said of the session: `session` (its id), `created`, `project`, `title`,
    `model`, `provider`, `parent`, `agent`, `forked_from`, `context` (tokens) and `started`. A session in which
    nothing was said is not reported.
    """

    source: ClassVar[str]

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        self.events: list[CapturedEvent] = []
        self.state = dict(state)
        self.safe_offset = offset
        self._given_id = session_id
        self._updated_at: int | None = None
        self._has_usage = self._is_renamed = False

    @property
    def session_id(self) -> str:
        return str(self.state.get("session") or self._given_id)

    def row_id(self, identity: str) -> str:
        """Return the id of a row for an id that is only unique in its session."""
        return identity if identity.startswith(self.session_id) else f"{self.session_id}-{identity}"

    def note_time(self, at: int | None) -> None:
        """Note that something was said in the session at this time."""
        self._updated_at = max(self._updated_at or 0, at or 0) or None
        self.state["started"] = True

    def rename(self, title: str | None) -> None:
        if title:
            self.state["title"], self._is_renamed = title, True

    def report_prompt(self, message_id: str, prompt: str, at: int | None) -> None:
        message = MessageEvent(message_id, self.session_id, "user", prompt, source=self.source, created_at=at)
        self.events += (MessageReported(message, from_record=True), FirstPrompt(self.session_id, prompt, at))

    def report_answer(self, message: MessageEvent) -> None:
        """Report an answer; the session has its model, and its tokens are those of the context by now."""
        if message.prompt_tokens is not None:
            self._has_usage = True
            self.state["context"] = message.prompt_tokens + (message.completion_tokens or 0)
        self.state["model"] = message.model or self.state.get("model")
        self.events.append(MessageReported(message, from_record=True))

    def report_call(self, call_id: str, message_id: str, name: str | None, arguments: Any, at: int | None) -> None:
        """Report that the model calls a tool."""
        tool = ToolEvent(
            self.row_id(call_id),
            self.session_id,
            message_id,
            tool_name=name or UNKNOWN_TOOL,
            tool_input=readable(arguments),
            file_path=file_of(arguments) if isinstance(arguments, dict) else None,
            created_at=at,
        )
        self.events.append(ToolReported(tool, "record"))

    def report_result(self, call_id: str, success: bool, output: str | None, error: str | None) -> None:
        """Report how a tool call ended."""
        tool = ToolEvent(
            self.row_id(call_id),
            self.session_id,
            tool_name=UNKNOWN_TOOL,
            tool_output=output,
            success=success,
            error_message=error,
        )
        self.events.append(ToolReported(tool, "record"))

    def report_compaction(self, compaction: CompactionEvent) -> None:
        self.events.append(CompactionReported(compaction))
        if compaction.summary:
            self.events.append(SessionSummary(self.session_id, compaction.summary, clock.to_ms(compaction.created_at)))

    def end(self, offset: int) -> None:
        """Report the session before what happened in it."""
        self.safe_offset = offset
        if not self.state.get("started") or not (self.events or self._is_renamed):
            return
        state = self.state
        session = SessionEvent(
            self.session_id,
            title=state.get("title"),
            project_path=state.get("project"),
            model=state.get("model"),
            provider=state.get("provider"),
            source=self.source,
            created_at=state.get("created"),
            updated_at=self._updated_at,
        )
        facts = without_empty(
            {
                "parentId": state.get("parent"),
                "agent": state.get("agent"),
                "startedBy": "fork" if state.get("forked_from") else None,
                "forkedFrom": state.get("forked_from"),
            }
        )
        notes = [SessionNote(self.session_id, facts)] if facts else []
        totals = [SessionTotals(self.session_id)] if self._has_usage else []
        self.events = [SessionReported(session), *notes, *self.events, *totals]


def end_agent(session: SessionEvent, parent: str, agent: str | None, at: int) -> list[CapturedEvent]:
    """Make the events of a sub-agent's end, which a hook reports before the session file was read."""
    facts = without_empty({"parentId": parent, "agent": agent}) or {}
    return [SessionReported(session), SessionNote(session.id, facts), SessionEnded(session.id, at, "completed")]


# -- import

Described = tuple[str, str | None]
"""The id and the project of a session."""


def list_past_sessions(
    files: Iterable[tuple[Path, Path]], since: int, describe: Callable[[Path, Payload], Described]
) -> list[PastSession]:
    """List the sessions of files, each given with the folder it must lie in, that changed since.

    `describe` reads the path and the first line of a file.
    """
    found: list[PastSession] = []
    for root, path in files:
        try:
            updated_at, first = _peek(path, root)
        except (OSError, UnsafeFile) as error:
            log.warning("session file not read", path=str(path), problem=str(error))
            continue
        if updated_at >= since:
            session_id, project = describe(path, first)
            found.append(PastSession(session_id, root, path, project, updated_at, label=session_id[-36:]))
    return found


def _peek(path: Path, root: Path) -> tuple[int, Payload]:
    """Read when a file was changed, and its first line."""
    with open_below(str(path), [root]) as file:
        updated_at = round(os.fstat(file.fileno()).st_mtime * 1000)
        return updated_at, decode_object(file.read(PEEK_BYTES).partition(b"\n")[0]) or {}
