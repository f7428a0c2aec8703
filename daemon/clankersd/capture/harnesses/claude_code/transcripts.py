"""Claude Code's transcripts: JSON lines, one or more per message, which fill in what hooks missed."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    UNKNOWN_TOOL,
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    FirstSession,
    Identity,
    MessageReported,
    SessionNote,
    SessionReported,
    SessionSummary,
    SessionTotals,
    SessionUsage,
    ToolReported,
    TranscriptIdentity,
)
from clankersd.capture.harnesses.base import PastSession, Payload
from clankersd.capture.harnesses.claude_code.hooks import NAME, PROVIDER, summary_of, turn_failure
from clankersd.capture.harnesses.claude_code.prices import message_cost
from clankersd.capture.harnesses.payload import (
    decode_object,
    duration,
    file_of,
    identifier,
    millis,
    number,
    readable,
    record,
    records,
    text,
    without_empty,
)
from clankersd.safe_files import UnsafeFile, open_below

SYNTHETIC_MODEL = "<synthetic>"
WARM_UP_PROMPT = "Warmup"
INTERACTIVE = "cli"
"""Entrypoint of a session in a terminal. Others are `sdk-cli` (claude -p), other SDKs and editors."""

MAX_SEEN_LINES = 32
"""Latest lines that are remembered by their ids, to recognise one that was written twice."""

PEEK_BYTES = 256 * 1024
"""Beginning of a transcript that is searched for its session, project and first time."""

UNKNOWN_BEGINNING = "9999"
_NO_PROMPT = re.compile(
    r"\s*(?:<command-name>|<local-command-|<bash-(?:input|stdout|stderr)>|<task-notification>|"
    r"\[Request interrupted by user)"
)

log = structlog.get_logger(component="import")


@dataclass
class _OpenMessage:
    """An API message while its lines are read: each line holds one block, and all of them the same usage."""

    id: str
    offset: int
    state_before: dict[str, Any]
    line: Payload
    texts: list[str] = field(default_factory=list)
    uses_tools: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    ended_at: int | None = None


class ClaudeTranscriptReader:
    """Reads lines into events; a TranscriptReader."""

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        self.events: list[CapturedEvent] = []
        self.state = dict(state)
        self.safe_offset = offset
        self._default_session_id = session_id
        self._is_from_start = offset == 0
        self._current = dict(state)
        self._open: _OpenMessage | None = None
        self._boundary: tuple[int, Payload, dict[str, Any]] | None = None
        self._sessions: dict[str, SessionEvent] = {}
        self._tools_began: dict[str, int | None] = {}

    def read_line(self, offset: int, line: Payload) -> None:
        kind = line.get("type")
        if line.get("isSidechain") and self._is_warm_up(line):
            return
        if kind in ("user", "assistant"):
            line_id, seen = identifier(line, "uuid"), self._current.get("seen") or []
            if line_id in seen:  # a line that was written twice would repeat its text
                return
            if kind == "user":
                self._read_user(line)
            else:
                self._read_assistant(offset, line)
            if line_id:  # only now: a message that begins with this line is read again from it
                self._current["seen"] = [*seen, line_id][-MAX_SEEN_LINES:]
        elif kind == "system" and line.get("subtype") == "compact_boundary":
            self._boundary = offset, line, dict(self._current)
        elif kind == "cost-state":
            self._read_cost(line)
        elif kind in ("summary", "custom-title", "ai-title"):
            title = text(line, "customTitle") or text(line, "aiTitle") or text(line, "summary")
            session_id = identifier(line, "sessionId")
            if title and session_id:
                self._session(session_id).title = title

    def end(self, offset: int) -> None:
        """Report what is incomplete as far as it goes. It is read again when there are more lines."""
        self._close_message()
        self.safe_offset, self.state = offset, self._current
        if self._boundary:
            self.safe_offset, _, self.state = self._boundary
        if self._open and self._open.offset < self.safe_offset:
            self.safe_offset, self.state = self._open.offset, self._open.state_before
        messages = (event.message for event in self.events if isinstance(event, MessageReported))
        spent = {message.session_id for message in messages if message.prompt_tokens or message.completion_tokens}
        sessions: list[CapturedEvent] = [SessionReported(session) for session in self._sessions.values()]
        if self._default_session_id in self._sessions and (entrypoint := self._current.get("entrypoint")):
            sessions.append(SessionNote(self._default_session_id, {"entrypoint": entrypoint}))
        self.events = [*sessions, *self.events, *(SessionTotals(session_id) for session_id in sorted(spent))]

    def _is_warm_up(self, line: Payload) -> bool:
        """Tell whether a line belongs to an agent that Claude Code starts only to fill its cache, as it did in 2.0."""
        agent_id = identifier(line, "agentId")
        if record(line, "message").get("content") == WARM_UP_PROMPT and not line.get("parentUuid"):
            self._current["warmUp"] = agent_id
        return agent_id is not None and self._current.get("warmUp") == agent_id

    # -- lines of the user

    def _read_user(self, line: Payload) -> None:
        session_id = self._note_session(line)
        if prompt_id := identifier(line, "promptId"):
            self._current["promptId"] = prompt_id
        self._current["userAt"] = _time(line) or self._current.get("userAt")
        content = record(line, "message").get("content")
        if line.get("isCompactSummary"):
            self._read_compaction(line, session_id, content)
        elif isinstance(content, list) and any(_type(block) == "tool_result" for block in content):
            for block in content:
                if _type(block) == "tool_result" and (tool_id := identifier(block, "tool_use_id")):
                    self._read_tool_result(line, session_id, tool_id, block)
        elif not line.get("isMeta") and not line.get("isSidechain") and (prompt := prompt_of(content)):
            self._read_prompt(line, session_id, prompt)

    def _read_prompt(self, line: Payload, session_id: str, prompt: str) -> None:
        line_id = identifier(line, "uuid")
        if not line_id:
            return
        message = MessageEvent(line_id, session_id, "user", prompt, source=NAME, created_at=_time(line))
        identity = TranscriptIdentity("prompt", identifier(line, "promptId") or "", line_id)
        self.events += (MessageReported(message, identity), FirstPrompt(session_id, prompt, _time(line)))

    def _read_tool_result(self, line: Payload, session_id: str, tool_id: str, block: Payload) -> None:
        failed = block.get("is_error") is True
        output, at = readable(block.get("content")), _time(line)
        tool = ToolEvent(
            tool_id,
            session_id,
            tool_name=UNKNOWN_TOOL,  # the call was reported before, with its name
            tool_output=None if failed else output,
            success=not failed,
            error_message=(output or "failed") if failed else None,
            duration_ms=duration(self._tools_began.get(tool_id), at),
            created_at=at,
        )
        self.events.append(ToolReported(tool, "transcript"))

    # -- lines of the assistant

    def _read_assistant(self, offset: int, line: Payload) -> None:
        message, session_id = record(line, "message"), self._note_session(line)
        if line.get("isApiErrorMessage"):
            content, kind = readable(message.get("content")), text(line, "error") or text(line, "apiErrorType")
            error = turn_failure(session_id, self._current.get("promptId", ""), kind, content, _time(line))
            self.events.append(ErrorReported(error))
            return
        message_id = identifier(message, "id") or identifier(line, "uuid")
        if not message_id or message.get("model") == SYNTHETIC_MODEL:
            return
        if self._open is None or self._open.id != message_id:
            self._close_message()
            self._open = _OpenMessage(message_id, offset, dict(self._current), line)
        self._add_line(self._open, line, session_id)

    def _add_line(self, open_: _OpenMessage, line: Payload, session_id: str) -> None:
        message, at = record(line, "message"), _time(line)
        open_.usage = record(message, "usage") or open_.usage
        open_.line, open_.ended_at = {**open_.line, "message": message}, at
        for block in records(message, "content"):
            if _type(block) == "text" and (content := text(block, "text")):
                open_.texts.append(content)
            elif _type(block) == "tool_use" and (tool_id := identifier(block, "id")):
                open_.uses_tools, self._tools_began[tool_id] = True, at
                tool = ToolEvent(
                    tool_id,
                    session_id,
                    open_.id,
                    tool_name=text(block, "name") or UNKNOWN_TOOL,
                    tool_input=readable(block.get("input")),
                    file_path=file_of(record(block, "input")),
                    created_at=at,
                )
                self.events.append(ToolReported(tool, "transcript"))

    def _close_message(self) -> None:
        """Report the open message as far as it was read; later lines report it again."""
        open_ = self._open
        if open_ is None:
            return
        line, state, usage = open_.line, open_.state_before, open_.usage
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        facts = {
            "promptId": state.get("promptId"),
            "agentId": line.get("agentId"),
            "agentType": line.get("attributionAgent"),
            "costUsd": message_cost(text(record(line, "message"), "model"), usage),
        }
        message = MessageEvent(
            open_.id,
            self._note_session(line),
            "assistant",
            "\n\n".join(open_.texts) or None,
            model=text(record(line, "message"), "model"),
            source=NAME,
            prompt_tokens=sum(number(usage, kind) or 0 for kind in kinds) if usage else None,
            completion_tokens=number(usage, "output_tokens"),
            duration_ms=duration(state.get("userAt"), open_.ended_at),
            created_at=_time(line),
            completed_at=open_.ended_at,
            metadata=without_empty(facts),
        )
        identity: Identity = FirstSession()
        if open_.texts and not open_.uses_tools and not line.get("isSidechain"):
            identity = TranscriptIdentity("answer", str(state.get("promptId") or ""), open_.id)
        self.events.append(MessageReported(message, identity))

    # -- lines about the session

    def _read_compaction(self, line: Payload, session_id: str, content: Any) -> None:
        if self._boundary is None:
            return
        boundary = self._boundary[1]
        facts, line_id = record(boundary, "compactMetadata"), identifier(boundary, "uuid") or ""
        continued = readable(content) or ""
        _, has_summary, summarised = continued.partition("Summary:")
        summary = summary_of(summarised.lstrip() if has_summary else continued)
        compaction = CompactionEvent(
            line_id,
            session_id,
            tokens_before=number(facts, "preTokens"),
            tokens_after=number(facts, "postTokens"),
            cause=text(facts, "trigger"),
            summary=summary,
            created_at=_time(boundary),
        )
        identity = TranscriptIdentity("compaction", identifier(line, "promptId") or "", line_id)
        self.events.append(CompactionReported(compaction, identity))
        if summary:
            self.events.append(SessionSummary(session_id, summary, _time(boundary)))
        self._boundary = None

    def _read_cost(self, line: Payload) -> None:
        session_id = identifier(line, "sessionId")
        models = [each for each in record(line, "modelUsage").values() if isinstance(each, dict)]
        if not session_id or not models:
            return
        kinds = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        prompt_tokens = sum(number(model, kind) or 0 for model in models for kind in kinds)
        completion_tokens = sum(number(model, "outputTokens") or 0 for model in models)
        cost = line.get("totalCostUSD")
        cost_usd = float(cost) if isinstance(cost, int | float) else 0.0
        self.events.append(SessionUsage(session_id, prompt_tokens, completion_tokens, cost_usd))

    def _note_session(self, line: Payload) -> str:
        """Return the session of a line, and remember what the line says about it."""
        session_id, at = identifier(line, "sessionId") or self._default_session_id, _time(line)
        session = self._session(session_id)
        session.updated_at = max(int(session.updated_at or 0), at or 0) or None
        if self._is_from_start and not line.get("isSidechain"):
            session.created_at = min(int(session.created_at or at), at) if at else session.created_at
            session.project_path = session.project_path or text(line, "cwd")
        session.permission_mode = text(line, "permissionMode") or session.permission_mode
        entrypoint = text(line, "entrypoint")
        # A session that somebody continued in a terminal is no script's any more, whatever else runs it.
        if entrypoint and session_id == self._default_session_id and self._current.get("entrypoint") != INTERACTIVE:
            self._current["entrypoint"] = entrypoint
        model = text(record(line, "message"), "model")
        if model and model != SYNTHETIC_MODEL and not line.get("isSidechain"):
            session.model = model
        return session_id

    def _session(self, session_id: str) -> SessionEvent:
        if session_id not in self._sessions:
            self._sessions[session_id] = SessionEvent(session_id, provider=PROVIDER, source=NAME)
        return self._sessions[session_id]


def prompt_of(content: Any) -> str | None:
    """Extract what the user typed: a command as it was typed, nothing that the harness added."""
    if isinstance(content, list):
        content = "\n".join(block["text"] for block in content if _type(block) == "text" and text(block, "text"))
    if not isinstance(content, str) or not content.strip() or _NO_PROMPT.match(content):
        return None
    if content.lstrip().startswith("<command-message>"):
        _, _, rest = content.partition("</command-message>")
        name, is_closed, rest = rest.lstrip().partition("</command-name>")
        if is_closed and name.startswith("<command-name>"):
            arguments, is_closed, _ = rest.partition("<command-args>")[2].partition("</command-args>")
            return f"{name.removeprefix('<command-name>')} {arguments if is_closed else ''}".strip()
    return content


def _time(line: Payload) -> int | None:
    return millis(line.get("timestamp"))


def _type(block: Any) -> str | None:
    return text(block, "type") if isinstance(block, dict) else None


# -- import


def find_transcripts(roots: list[Path], since: int) -> list[PastSession]:
    """List every transcript that changed since, oldest first, those of sub-agents after the session's own.

    Oldest first, because what a fork repeats belongs to the session that said it.
    """
    found: list[tuple[str, PastSession]] = []
    for root in roots:
        for path in sorted((root / "projects").rglob("*.jsonl")):
            try:
                began, session = _peek(path, root)
            except (OSError, UnsafeFile) as error:
                log.warning("transcript not read", path=str(path), problem=str(error))
                continue
            if session.updated_at >= since:
                found.append((began, session))
    found.sort(key=lambda each: (each[0], each[1].updated_at))
    return [session for _, session in found]


def _peek(path: Path, root: Path) -> tuple[str, PastSession]:
    """Read from its first lines when a transcript begins, and in which session and project."""
    with open_below(str(path), [root]) as file:
        updated_at = round(os.fstat(file.fileno()).st_mtime * 1000)
        lines = file.read(PEEK_BYTES).split(b"\n")
    began = project = session_id = None
    for raw in lines:
        line = decode_object(raw) or {}
        began = began or _string(line, "timestamp")
        project = project or _string(line, "cwd")
        session_id = session_id or _string(line, "sessionId")
    session = PastSession(session_id or path.stem, root, path, project, updated_at, label=path.parent.name[-30:])
    return began or UNKNOWN_BEGINNING, session


def _string(line: Payload, key: str) -> str | None:
    value = line.get(key)
    return value if isinstance(value, str) else None
