"""Copilot CLI's event log, `session-state/ID/events.jsonl`: JSON lines of a session and of its sub-agents."""

import re
from pathlib import Path
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent
from clankersd.capture.events import CapturedEvent, ErrorReported, SessionEnded
from clankersd.capture.harnesses.base import PastSession, Payload, list_files, list_folders
from clankersd.capture.harnesses.copilot.hooks import EVENT_LOG, NAME, SESSIONS
from clankersd.capture.harnesses.payload import (
    identifier,
    millis,
    number,
    readable,
    record,
    records,
    text,
    without_empty,
)
from clankersd.capture.harnesses.session_files import SessionFileReader, list_past_sessions

_SHELL_END = re.compile(r"\n?<shellId: \S+ completed with exit code -?\d+>\Z")
MAX_SHELL_END_CHARACTERS = 400
_FROM_AGENT = "agent-"
"""Prefix of the source of a prompt that an agent gave, before the id of the agent."""


class EventLogReader:
    """Reads lines into events; a TranscriptReader. Lines of a sub-agent name it, and are a session of their own.

    `state` holds the state of the session under "main", and those of its sub-agents by their ids.
    """

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        self.events: list[CapturedEvent] = []
        self.state = state
        self.safe_offset = offset
        self._main = _SessionReader(session_id, state.get("main") or {}, offset)
        agents = state.get("agents") or {}
        self._agents = {agent: _SessionReader(agent, known, offset) for agent, known in agents.items()}

    def read_line(self, offset: int, line: Payload) -> None:
        agent = identifier(line, "agentId")
        if agent is None:
            self._main.read_line(line)
            return
        if agent not in self._agents:
            inherited = {"session": agent, "parent": self._main.session_id, "project": self._main.state.get("project")}
            self._agents[agent] = _SessionReader(agent, inherited, offset)
        self._agents[agent].read_line(line)

    def end(self, offset: int) -> None:
        self.safe_offset = offset
        for reader in (self._main, *self._agents.values()):
            reader.end(offset)
            self.events += reader.events
        self.state = {"main": self._main.state, "agents": {agent: each.state for agent, each in self._agents.items()}}


class _SessionReader(SessionFileReader):
    """Reads the lines of one session, or of one sub-agent.

    `usage` in `state` holds the tokens of requests, by their ids, until the answer is read.
    """

    source = NAME

    def read_line(self, line: Payload) -> None:
        kind, data, at = text(line, "type") or "", record(line, "data"), millis(line.get("timestamp"))
        line_id = identifier(line, "id")
        if line_id is None:
            return
        if kind in ("session.start", "subagent.started"):
            self._read_start(data, at)
        elif kind == "user.message":
            self._read_prompt(data, line_id, at)
        elif kind == "session.usage_record":
            self._read_usage(record(data, "usage"))
        elif kind == "assistant.message":
            self._read_answer(data, line_id, at)
        elif kind == "tool.execution_complete":
            self._read_result(data)
        elif kind == "session.error":
            error_type, message = text(data, "errorType"), text(data, "message")
            self.events.append(ErrorReported(SessionErrorEvent(line_id, self.session_id, error_type, message, at)))
        elif kind in ("subagent.completed", "subagent.failed") and at:
            self.events.append(SessionEnded(self.session_id, at, kind.partition(".")[2]))
        elif kind == "session.compaction_start":
            self.state["cause"] = text(data, "trigger")
        elif kind == "session.compaction_complete" and data.get("success") is True:
            self._read_compaction(data, line_id, at)
        if kind in ("user.message", "assistant.message", "tool.execution_complete"):
            self.note_time(at)

    def _read_start(self, data: Payload, at: int | None) -> None:
        context = record(data, "context")
        found = {
            "session": identifier(data, "sessionId"),
            "created": millis(data.get("startTime")) or at,
            "project": text(context, "cwd"),
            "model": text(data, "selectedModel") or text(data, "model"),
            "agent": text(data, "agentName"),
        }
        self.state |= {key: value for key, value in found.items() if value}

    def _read_prompt(self, data: Payload, line_id: str, at: int | None) -> None:
        """Read a prompt, unless the program wrote it, for example to load a skill."""
        source, prompt = text(data, "source"), text(data, "content")
        if source and source.startswith(_FROM_AGENT):
            self.state["parent"] = identifier({"id": source.removeprefix(_FROM_AGENT)}, "id")
        elif source not in (None, "user"):
            return
        if prompt:
            self.report_prompt(identifier(data, "messageId") or line_id, prompt, at)

    def _read_usage(self, usage: Payload) -> None:
        if request_id := text(usage, "apiCallId"):
            tokens = [number(usage, "inputTokens"), number(usage, "outputTokens")]
            self.state.setdefault("usage", {})[request_id] = tokens

    def _read_answer(self, data: Payload, line_id: str, at: int | None) -> None:
        tokens = self.state.get("usage", {}).pop(text(data, "apiCallId") or "", None) or (None, None)
        message_id = identifier(data, "messageId") or line_id
        message = MessageEvent(
            message_id,
            self.session_id,
            "assistant",
            text(data, "content"),
            model=text(data, "model"),
            source=NAME,
            prompt_tokens=tokens[0],
            completion_tokens=tokens[1],
            created_at=at,
            completed_at=at,
            metadata=without_empty({"reasoning": text(data, "reasoningText")}),
        )
        self.report_answer(message)
        for call in records(data, "toolRequests"):
            if call_id := identifier(call, "toolCallId"):
                self.report_call(call_id, message_id, text(call, "name"), call.get("arguments"), at)

    def _read_result(self, data: Payload) -> None:
        """Read the result of a tool. A shell command that fails is a success to Copilot."""
        call_id = identifier(data, "toolCallId")
        if call_id is None:
            return
        success = data.get("success") is True
        content = readable(record(data, "result").get("content")) or ""
        shown = content.rstrip()
        shell_end = _SHELL_END.search(shown, max(0, len(shown) - MAX_SHELL_END_CHARACTERS))
        output = (content[: shell_end.start()] if shell_end else content) or None
        error = None if success else text(record(data, "error"), "message") or output or "failed"
        code = record(data, "shellExecution").get("exitCode")
        if isinstance(code, int) and code != 0:
            success, error = False, f"exit code {code}"
        self.report_result(call_id, success, output, error)

    def _read_compaction(self, data: Payload, line_id: str, at: int | None) -> None:
        compaction = CompactionEvent(
            line_id,
            self.session_id,
            tokens_before=number(data, "preCompactionTokens"),
            tokens_after=number(data, "postCompactionTokens"),
            cause=self.state.pop("cause", None),
            summary=text(data, "summaryContent"),
            created_at=at,
        )
        self.report_compaction(compaction)


# -- import


def find_event_logs(roots: list[Path], since: int) -> list[PastSession]:
    """List every session that changed since, oldest first."""
    files = (
        (root, path)
        for root in roots
        for folder in list_folders(root / SESSIONS)
        for path in list_files(folder, EVENT_LOG, EVENT_LOG)
    )
    return sorted(list_past_sessions(files, since, _describe), key=lambda session: session.updated_at)


def _describe(path: Path, first: Payload) -> tuple[str, str | None]:
    data = record(first, "data")
    return text(data, "sessionId") or path.parent.name, text(record(data, "context"), "cwd")
