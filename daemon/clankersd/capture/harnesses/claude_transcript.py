"""Claude Code's transcripts: lines of JSON, one or more a message, which fill in what hooks missed."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.capture.apply import UNKNOWN_TOOL
from clankersd.capture.harnesses import payload
from clankersd.capture.harnesses.claude_code import HARNESS, PROVIDER, failure, summary_of
from clankersd.capture.harnesses.payload import Fact, identifier, number, record, records, text

SYNTHETIC = "<synthetic>"
_COMMAND = re.compile(r"<command-message>.*?</command-message>\s*<command-name>(.*?)</command-name>(.*)\Z", re.S)
_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.S)
_NO_PROMPT = re.compile(
    r"\s*(?:<command-name>|<local-command-|<bash-(?:input|stdout|stderr)>|<task-notification>|"
    r"\[Request interrupted by user)"
)
_CONTINUED = re.compile(r"\A.*?(?:</system-reminder>\s*)?Summary:\s*", re.S)


@dataclass
class _Message:
    """An API message while its lines come in: each holds a block, and all of them the same usage."""

    id: str
    offset: int
    before: dict[str, Any]
    line: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    uses_tools: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    ended_at: int | None = None


class ClaudeReading:
    """Lines in, facts out. `safe` is the offset, and `state` what to know, from where to go on when more is there."""

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        self._default = session_id
        self.facts: list[Fact] = []
        self.state = dict(state)
        self.safe = offset
        self._from_start = offset == 0
        self._now = dict(state)
        self._open: _Message | None = None
        self._boundary: tuple[int, dict[str, Any]] | None = None
        self._sessions: dict[str, SessionEvent] = {}
        self._begun: dict[str, int | None] = {}

    def line(self, offset: int, line: dict[str, Any]) -> None:
        """Take in one line."""
        kind = line.get("type")
        if kind == "user":
            self._user(line)
        elif kind == "assistant":
            self._assistant(offset, line)
        elif kind == "system" and line.get("subtype") == "compact_boundary":
            self._boundary = offset, line
        elif kind == "cost-state":
            self._cost(line)
        elif kind in ("summary", "custom-title", "ai-title"):
            self._title(line)

    def end(self, offset: int) -> None:
        """No more lines at present: what may go on is told as far as it goes, and read again."""
        self._close_message()
        self.safe, self.state = offset, self._now
        if self._boundary:
            self.safe = self._boundary[0]
        if self._open and self._open.offset < self.safe:
            self.safe, self.state = self._open.offset, self._open.before
        self.facts = [payload.session(event) for event in self._sessions.values()] + self.facts

    # -- users

    def _user(self, line: dict[str, Any]) -> None:
        session_id = self._session(line)
        at = moment(line)
        if prompt_id := identifier(line, "promptId"):
            self._now["promptId"] = prompt_id
        self._now["userAt"] = at
        content = record(line, "message").get("content")
        if line.get("isCompactSummary"):
            self._compacted(line, session_id, content)
        elif isinstance(content, list) and any(_type(block) == "tool_result" for block in content):
            self._results(line, session_id, content)
        elif not line.get("isMeta") and not line.get("isSidechain") and (prompt := prompt_of(content)):
            self._prompt(line, session_id, prompt)

    def _prompt(self, line: dict[str, Any], session_id: str, prompt: str) -> None:
        line_id = identifier(line, "uuid")
        if not line_id:
            return
        settle = payload.by_transcript("prompt", identifier(line, "promptId") or "", line_id)
        said = MessageEvent(line_id, session_id, "user", prompt, source=HARNESS, created_at=moment(line))
        self.facts += (payload.message(said, settle), payload.first_prompt(session_id, prompt))

    def _results(self, line: dict[str, Any], session_id: str, content: list[Any]) -> None:
        for block in content:
            if _type(block) == "tool_result" and (tool_id := identifier(block, "tool_use_id")):
                self.facts.append(payload.tool_of_transcript(self._result(line, session_id, tool_id, block)))

    def _result(self, line: dict[str, Any], session_id: str, tool_id: str, block: dict[str, Any]) -> ToolEvent:
        failed = block.get("is_error") is True
        output, began, at = payload.readable(block.get("content")), self._begun.get(tool_id), moment(line)
        return ToolEvent(
            tool_id,
            session_id,
            tool_name=UNKNOWN_TOOL,  # of a call that was told of before
            tool_output=None if failed else output,
            success=not failed,
            error_message=(output or "failed") if failed else None,
            duration_ms=at - began if at and began and at >= began else None,
            created_at=at,
        )

    # -- the assistant

    def _assistant(self, offset: int, line: dict[str, Any]) -> None:
        message, session_id = record(line, "message"), self._session(line)
        if line.get("isApiErrorMessage"):
            words, kind = payload.readable(message.get("content")), text(line, "error") or text(line, "apiErrorType")
            self.facts.append(
                payload.error(failure(session_id, self._now.get("promptId", ""), kind, words, moment(line)))
            )
            return
        message_id = identifier(message, "id") or identifier(line, "uuid")
        if not message_id or message.get("model") == SYNTHETIC:
            return
        if self._open is None or self._open.id != message_id:
            self._close_message()
            self._open = _Message(message_id, offset, dict(self._now), line)
        self._take(self._open, line, session_id)

    def _take(self, open_: _Message, line: dict[str, Any], session_id: str) -> None:
        message = record(line, "message")
        open_.usage = record(message, "usage") or open_.usage
        open_.line, open_.ended_at = {**open_.line, "message": message}, moment(line)
        for block in records(message, "content"):
            if _type(block) == "text" and (words := text(block, "text")):
                open_.texts.append(words)
            elif _type(block) == "tool_use" and (tool_id := identifier(block, "id")):
                open_.uses_tools, self._begun[tool_id] = True, moment(line)
                self.facts.append(payload.tool_of_transcript(_call(tool_id, session_id, open_.id, block, moment(line))))

    def _close_message(self) -> None:
        """Tell of the message as far as it has come; its later lines tell of it again."""
        if self._open is None:
            return
        open_, line = self._open, self._open.line
        said = self._said(open_)
        answers = open_.texts and not open_.uses_tools and not line.get("isSidechain")
        prompt_id = str(open_.before.get("promptId") or "")
        settle = payload.by_transcript("answer", prompt_id, open_.id) if answers else payload.where_it_was_said
        self.facts.append(payload.message(said, settle))

    def _said(self, open_: _Message) -> MessageEvent:
        line, usage = open_.line, open_.usage
        began, ended, asked = moment(line), open_.ended_at, open_.before.get("userAt")
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        given = {
            "promptId": open_.before.get("promptId"),
            "agentId": line.get("agentId"),
            "agentType": line.get("attributionAgent"),
        }
        return MessageEvent(
            open_.id,
            self._session(line),
            "assistant",
            "\n\n".join(open_.texts) or None,
            model=text(record(line, "message"), "model"),
            source=HARNESS,
            prompt_tokens=sum(number(usage, kind) or 0 for kind in kinds) if usage else None,
            completion_tokens=number(usage, "output_tokens"),
            duration_ms=ended - asked if ended and asked and ended >= asked else None,
            created_at=began,
            completed_at=ended,
            metadata={key: value for key, value in given.items() if value} or None,
        )

    # -- sessions

    def _compacted(self, line: dict[str, Any], session_id: str, content: Any) -> None:
        if self._boundary is None:
            return
        boundary = self._boundary[1]
        facts, line_id = record(boundary, "compactMetadata"), identifier(boundary, "uuid") or ""
        summary = summary_of(_CONTINUED.sub("", payload.readable(content) or "", count=1))
        row = CompactionEvent(
            line_id,
            session_id,
            tokens_before=number(facts, "preTokens"),
            tokens_after=number(facts, "postTokens"),
            cause=text(facts, "trigger"),
            summary=summary,
            created_at=moment(boundary),
        )
        settle = payload.by_transcript("compaction", identifier(line, "promptId") or "", line_id)
        self.facts.append(payload.compaction(row, settle))
        if summary:
            self.facts.append(payload.summarised(session_id, summary))
        self._boundary = None

    def _cost(self, line: dict[str, Any]) -> None:
        session_id = identifier(line, "sessionId")
        models = [each for each in record(line, "modelUsage").values() if isinstance(each, dict)]
        cost = line.get("totalCostUSD")
        if not session_id or not models:
            return
        kinds = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        read = sum(number(each, kind) or 0 for each in models for kind in kinds)
        written = sum(number(each, "outputTokens") or 0 for each in models)
        self.facts.append(
            payload.used(session_id, read, written, float(cost) if isinstance(cost, int | float) else 0.0)
        )

    def _title(self, line: dict[str, Any]) -> None:
        title = text(line, "customTitle") or text(line, "aiTitle") or text(line, "summary")
        if title and (session_id := identifier(line, "sessionId")):
            self._known(session_id).title = title

    def _session(self, line: dict[str, Any]) -> str:
        """The session a line belongs to; what it tells of that is remembered."""
        session_id, at = identifier(line, "sessionId") or self._default, moment(line)
        known = self._known(session_id)
        known.updated_at = max(int(known.updated_at or 0), at or 0) or None
        if self._from_start and not line.get("isSidechain"):
            known.created_at = min(int(known.created_at or at or 0), at or 0) or None
            known.project_path = known.project_path or text(line, "cwd")
        known.permission_mode = text(line, "permissionMode") or known.permission_mode
        model = text(record(line, "message"), "model")
        if model and model != SYNTHETIC and not line.get("isSidechain"):
            known.model = model
        return session_id

    def _known(self, session_id: str) -> SessionEvent:
        if session_id not in self._sessions:
            self._sessions[session_id] = SessionEvent(session_id, provider=PROVIDER, source=HARNESS)
        return self._sessions[session_id]


def moment(line: dict[str, Any]) -> int | None:
    """When a line was written, in milliseconds."""
    try:
        return round(datetime.fromisoformat(str(line.get("timestamp"))).timestamp() * 1000)
    except ValueError:
        return None


def prompt_of(content: Any) -> str | None:
    """What a user typed: a command as it was typed, nothing of what the harness put in."""
    if isinstance(content, list):
        content = "\n".join(block["text"] for block in content if _type(block) == "text" and text(block, "text"))
    if not isinstance(content, str) or not content.strip() or _NO_PROMPT.match(content):
        return None
    if command := _COMMAND.match(content.strip()):
        arguments = _ARGUMENTS.search(command[2])
        return f"{command[1]} {arguments[1] if arguments else ''}".strip()
    return content


def _call(tool_id: str, session_id: str, message_id: str, block: dict[str, Any], at: int | None) -> ToolEvent:
    return ToolEvent(
        tool_id,
        session_id,
        message_id,
        tool_name=text(block, "name") or UNKNOWN_TOOL,
        tool_input=payload.readable(block.get("input")),
        file_path=payload.file_of(record(block, "input")),
        created_at=at,
    )


def _type(block: Any) -> str | None:
    return text(block, "type") if isinstance(block, dict) else None
