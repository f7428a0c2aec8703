"""Codex's rollouts: JSON lines, one file for each thread, sub-agents' too. They record what hooks do not report."""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    UNKNOWN_TOOL,
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    MessageReported,
    SessionNote,
    SessionReported,
    SessionSummary,
    ToolReported,
)
from clankersd.capture.harnesses.base import PastSession, Payload
from clankersd.capture.harnesses.codex.hooks import DEFAULT_AGENT, NAME, message_id, turn_failure
from clankersd.capture.harnesses.codex.tools import (
    INNER_CALL,
    PATCH,
    SHELL,
    patched_file,
    read_output,
    shell_script,
    tool_input,
    tool_name,
)
from clankersd.capture.harnesses.payload import (
    duration,
    identifier,
    millis,
    number,
    readable,
    record,
    text,
    without_empty,
)
from clankersd.capture.harnesses.session_files import list_past_sessions

MAX_ORDINALS = 64
"""Latest lines that are remembered by their number, to recognise one that was written twice."""


@dataclass
class _Response:
    """A response of the model while its lines are read. Its usage comes last, and is the usage of all of it."""

    offset: int
    state_before: dict[str, Any]
    messages: list[MessageEvent] = field(default_factory=list)
    tools: list[ToolEvent] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    began: int | None = None


class RolloutReader:
    """Reads lines into events; a TranscriptReader.

    `state` holds the thread (its first line), the current turn with the number of times that each text was said in it,
    and the tokens spent so far.
    """

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        self.events: list[CapturedEvent] = []
        self.state = deepcopy(state)
        self.safe_offset = offset
        self._default_id = session_id
        self._response: _Response | None = None
        self._updated_at: int | None = None

    @property
    def _session_id(self) -> str:
        return str(self.state.get("thread") or self._default_id)

    @property
    def _turn_id(self) -> str:
        return str(self.state.get("turn") or "")

    def read_line(self, offset: int, line: Payload) -> None:
        kind, payload, at = line.get("type"), record(line, "payload"), millis(line.get("timestamp"))
        ordinal, seen = number(line, "ordinal"), self.state.get("ordinals") or []
        if not payload or ordinal in seen:  # a line that was written twice would count as another message
            return
        if kind == "session_meta" and "thread" not in self.state:
            self._read_thread(payload, at)
        elif kind == "turn_context":
            self._begin_turn(payload)
            self.state["model"] = text(payload, "model") or self.state.get("model")
            self.state["cwd"] = text(payload, "cwd") or self.state.get("cwd")
        elif kind == "response_item":
            self._read_item(offset, payload, at)
        elif kind == "event_msg":
            self._read_event(offset, payload, at)
        elif kind == "token_usage_record":
            self._read_usage(payload, at)
        elif kind == "compacted":
            self._read_compaction(payload, at)
        if self.state.get("turn"):
            self._updated_at = max(self._updated_at or 0, at or 0) or None
        if ordinal is not None:  # only now: a response that begins with this line is read again from it
            self.state["ordinals"] = [*seen, ordinal][-MAX_ORDINALS:]

    def end(self, offset: int) -> None:
        """Report a response that is not complete as far as it goes; it is read again when there are more lines."""
        session = self._session_events() if self._updated_at else []
        if self._response:
            self._give_reasoning(self._response)
            self.safe_offset, self.state = self._response.offset, self._response.state_before
        else:
            self.safe_offset = offset
        self.events = [*session, *self.events]

    # -- the thread

    def _read_thread(self, payload: Payload, at: int | None) -> None:
        spawn = record(record(record(payload, "source"), "subagent"), "thread_spawn")
        parent = identifier(payload, "parent_thread_id") or identifier(spawn, "parent_thread_id")
        self.state |= {
            "thread": identifier(payload, "id") or self._default_id,
            "created": millis(payload.get("timestamp")) or at,
            "cwd": text(payload, "cwd"),
            "project": text(payload, "cwd"),
            "provider": text(payload, "model_provider"),
            "title": text(payload, "agent_path"),
        }
        facts: dict[str, Any] = {"entrypoint": text(payload, "source")}  # cli, exec, mcp, an editor
        if parent:
            role = text(payload, "agent_role") or DEFAULT_AGENT
            facts |= {"parentId": parent, "agent": role, "agentName": text(payload, "agent_nickname")}
        elif base := identifier(payload, "forked_from_id"):
            facts |= {"startedBy": "fork", "forkedFrom": base}
        self.state["facts"] = without_empty(facts)

    def _session_events(self) -> list[CapturedEvent]:
        """Return the events of the session itself; none for a thread in which no turn began."""
        spent = self.state.get("spent") or [None, None]
        session = SessionEvent(
            self._session_id,
            title=self.state.get("title"),
            project_path=self.state.get("project"),
            model=self.state.get("model"),
            provider=self.state.get("provider"),
            source=NAME,
            prompt_tokens=spent[0],
            completion_tokens=spent[1],
            created_at=self.state.get("created"),
            updated_at=self._updated_at,
        )
        events: list[CapturedEvent] = [SessionReported(session)]
        if facts := self.state.get("facts"):
            events.append(SessionNote(self._session_id, facts))
        return events

    # -- turns

    def _begin_turn(self, payload: Payload) -> None:
        turn_id = identifier(payload, "turn_id")
        if turn_id and turn_id != self._turn_id:
            self._close_response()
            self.state |= {"turn": turn_id, "said": {}, "done": [], "compactions": 0, "prompted": False}

    def _read_event(self, offset: int, payload: Payload, at: int | None) -> None:
        kind = text(payload, "type")
        if kind == "task_started":
            self._begin_turn(payload)
        elif kind in ("task_complete", "turn_aborted"):
            self._close_response()
            if error := record(payload, "error"):
                turn_id = identifier(payload, "turn_id") or self._turn_id
                failure = turn_failure(self._session_id, turn_id, _error_kind(error), text(error, "message"), at)
                self.events.append(ErrorReported(failure))
        elif kind == "item_completed":
            self.state["items"] = True
            self._read_completed(offset, payload, at)
        elif kind in ("user_message", "agent_message") and not self.state.get("items"):  # of older versions
            message = text(payload, "message")
            if message and kind == "user_message":
                self._read_prompt(message, self._turn_id, at)
            elif message:
                self._read_answer(offset, message, self._turn_id, at, at)

    def _read_completed(self, offset: int, payload: Payload, at: int | None) -> None:
        item, turn_id = record(payload, "item"), identifier(payload, "turn_id") or self._turn_id
        began, ended = number(payload, "started_at_ms") or at, number(payload, "completed_at_ms") or at
        kind = text(item, "type")
        if kind == "UserMessage" and (prompt := _text_of(item.get("content"))):
            self._read_prompt(prompt, turn_id, began)
        elif kind == "AgentMessage" and (answer := _text_of(item.get("content"))):
            self._read_answer(offset, answer, turn_id, began, ended)
        elif kind == "Reasoning":
            summary = item.get("summary_text")
            parts = [each for each in summary if isinstance(each, str)] if isinstance(summary, list) else []
            self._open_response(offset, began).reasoning += parts
        elif tool := self._completed_tool(item, kind, began, ended):
            if kind != "CollabAgentToolCall" or not tool.success:  # what that answered is only in the output
                self.state.setdefault("done", []).append(tool.id)
            self.events.append(ToolReported(tool, "record"))

    def _read_prompt(self, prompt: str, turn_id: str, at: int | None) -> None:
        self._close_response()
        self.state["prompted"] = True
        identity = message_id(self._session_id, turn_id, "prompt", prompt, self._count("prompt", prompt))
        message = MessageEvent(identity, self._session_id, "user", prompt, source=NAME, created_at=at)
        self.events += (MessageReported(message, from_record=True), FirstPrompt(self._session_id, prompt, at))

    def _read_answer(self, offset: int, answer: str, turn_id: str, began: int | None, ended: int | None) -> None:
        response = self._open_response(offset, began)
        identity = message_id(self._session_id, turn_id, "answer", answer, self._count("answer", answer))
        message = self._assistant_message(identity, answer, began, ended)
        response.messages.append(message)
        self.events.append(MessageReported(message, from_record=True))

    def _count(self, kind: str, content: str) -> int:
        """Return how many times a text was said in this turn: a repeated one is another message."""
        said, key = self.state.setdefault("said", {}), message_id("", "", kind, content)
        said[key] = said.get(key, 0) + 1
        return int(said[key])

    # -- responses of the model

    def _open_response(self, offset: int, began: int | None) -> _Response:
        if self._response is None:
            self._response = _Response(offset, deepcopy(self.state), began=began)
        return self._response

    def _read_usage(self, payload: Payload, at: int | None) -> None:
        self.state["records"] = True
        usage = record(payload, "usage")
        prompt_tokens, completion_tokens = number(usage, "input_tokens"), number(usage, "output_tokens")
        before = self.state.get("spent") or [0, 0]
        self.state["spent"] = [before[0] + (prompt_tokens or 0), before[1] + (completion_tokens or 0)]
        response = self._response
        if response is None:  # that of a compaction
            return
        if not response.messages:
            identity = identifier(payload, "response_id") or f"{self._session_id}-{self._turn_id}-{response.offset}"
            message = self._assistant_message(identity, None, response.began or at, at)
            response.messages.append(message)
            self.events.append(MessageReported(message, from_record=True))
        message = response.messages[-1]
        message.prompt_tokens, message.completion_tokens = prompt_tokens, completion_tokens
        self.state["context"] = (prompt_tokens or 0) + (completion_tokens or 0)
        if compaction_id := self.state.pop("compaction", None):
            after = CompactionEvent(compaction_id, self._session_id, tokens_after=prompt_tokens)
            self.events.append(CompactionReported(after))
        self._close_response()

    def _close_response(self) -> None:
        """End the response: its tools belong to its last message."""
        response, self._response = self._response, None
        if response and response.messages:
            self._give_reasoning(response)
            for tool in response.tools:
                tool.message_id = response.messages[-1].id

    def _give_reasoning(self, response: _Response) -> None:
        if response.reasoning and response.messages:
            message = response.messages[0]
            message.metadata = {**(message.metadata or {}), "reasoning": "\n\n".join(response.reasoning)}

    def _assistant_message(
        self, identity: str, answer: str | None, began: int | None, ended: int | None
    ) -> MessageEvent:
        return MessageEvent(
            identity,
            self._session_id,
            "assistant",
            answer,
            model=self.state.get("model"),
            source=NAME,
            created_at=began,
            completed_at=ended,
            metadata=without_empty({"turnId": self._turn_id}),
        )

    # -- tools

    def _read_item(self, offset: int, payload: Payload, at: int | None) -> None:
        kind, call_id = text(payload, "type"), identifier(payload, "call_id")
        if not call_id:
            return
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            given_name = text(payload, "name") or ("local_shell" if kind == "local_shell_call" else UNKNOWN_TOOL)
            name, arguments = tool_name(given_name, text(payload, "namespace")), _arguments(payload)
            tool = ToolEvent(
                call_id,
                self._session_id,
                tool_name=name,
                tool_input=tool_input(name, arguments),
                file_path=patched_file(arguments, self.state.get("cwd")) if name in (SHELL, PATCH) else None,
                created_at=at,
            )
            self._open_response(offset, at).tools.append(tool)
            self.events.append(ToolReported(tool, "record"))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._read_tool_output(call_id, payload)

    def _read_tool_output(self, call_id: str, payload: Payload) -> None:
        """Read the output of a tool: of failures and harness tools only, since other calls have a better record."""
        if not self.state.get("records"):
            self._close_response()  # versions that do not record the usage of each response
        done = self.state.setdefault("done", [])
        if call_id in done:
            done.remove(call_id)
            return
        output = payload.get("output")
        success, answer, error = read_output(_answer_of(output))
        tool = ToolEvent(
            call_id,
            self._session_id,
            tool_name=UNKNOWN_TOOL,
            tool_output=answer,
            success=success,
            error_message=error,
        )
        self.events.append(ToolReported(tool, "record"))

    def _completed_tool(
        self, item: Payload, kind: str | None, began: int | None, ended: int | None
    ) -> ToolEvent | None:
        tool_id = identifier(item, "id")
        if not tool_id or kind not in ("CommandExecution", "FileChange", "McpToolCall", "CollabAgentToolCall"):
            return None
        is_inner = tool_id.startswith(INNER_CALL)
        tool = ToolEvent(tool_id, self._session_id, tool_name=UNKNOWN_TOOL, success=item.get("status") == "completed")
        tool.created_at = began if is_inner else None
        tool.duration_ms = _milliseconds(record(item, "duration"))
        if tool.duration_ms is None:
            tool.duration_ms = duration(began, ended)
        error = text(item, "status") or "failed"
        if kind == "CommandExecution":
            command = item.get("command")
            script = shell_script([str(each) for each in command]) if isinstance(command, list) else command
            tool.tool_name, tool.tool_input = SHELL, tool_input(SHELL, {"command": script})
            tool.tool_output = text(item, "aggregated_output")
            code = item.get("exit_code")
            if isinstance(code, int):
                tool.success, error = code == 0, f"exit code {code}"
        elif kind == "FileChange":
            changes = record(item, "changes")
            if is_inner:  # the call itself is inside of a script
                tool.tool_name, tool.tool_input = PATCH, readable({"changes": changes})
                tool.file_path = next(iter(changes), None)
            tool.tool_output = text(item, "stdout")
            error = text(item, "stderr") or tool.tool_output or error
        elif kind == "McpToolCall":
            result = record(item, "result")
            tool.tool_name = f"mcp__{item.get('server')}__{item.get('tool')}"
            tool.tool_input = readable(item.get("arguments"))
            output = readable(result.get("content", result) or None)
            tool.success = tool.success and result.get("isError") is not True
            error = output or text(record(item, "error"), "message") or error
            tool.tool_output = output if tool.success else None
        if is_inner and self._response:
            self._response.tools.append(tool)
        tool.error_message = None if tool.success else error
        return tool

    # -- compactions

    def _read_compaction(self, payload: Payload, at: int | None) -> None:
        """Read a compaction. One that the user asked for is a turn without a prompt."""
        self._close_response()
        count = self.state["compactions"] = int(self.state.get("compactions") or 0) + 1
        compaction_id = f"{self._session_id}-{self._turn_id}-compaction-{count}"
        preamble, _, summary = (text(payload, "message") or "").partition("\n")
        summary = summary.strip() or preamble
        compaction = CompactionEvent(
            compaction_id,
            self._session_id,
            tokens_before=self.state.get("context"),
            cause="auto" if self.state.get("prompted") else "manual",
            summary=summary or None,
            created_at=at,
        )
        self.state["compaction"] = compaction_id
        self.events.append(CompactionReported(compaction))
        if summary:
            self.events.append(SessionSummary(self._session_id, summary, at))


def _text_of(content: Any) -> str | None:
    """Return the text of a message: `content` is a list of parts, of which some may be images."""
    if isinstance(content, str):
        return content if content.strip() else None
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    joined = "\n".join(part["text"] for part in parts if text(part, "text"))
    return joined or None


def _answer_of(output: Any) -> str | None:
    """Return the output of a tool as one text, whose header is followed by `Output:` and a newline."""
    if isinstance(output, list):
        pieces = [str(part.get("text") or "") for part in output if isinstance(part, dict)]
        return "\n".join(piece.removesuffix("\n") for piece in pieces) or None
    if isinstance(output, str) and output.startswith('{"output":'):  # of older versions
        try:
            found = msgspec.json.decode(output)
        except (msgspec.DecodeError, RecursionError):
            return output
        if isinstance(found, dict) and isinstance(found.get("output"), str):
            code = number(record(found, "metadata"), "exit_code")
            return found["output"] if code is None else f"Exit code: {code}\nOutput:\n{found['output']}"
    return output if isinstance(output, str) else readable(output)


def _arguments(payload: Payload) -> Any:
    given = payload.get("arguments", payload.get("input", record(payload, "action")))
    if text(payload, "type") != "function_call" or not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return given


def _error_kind(error: Payload) -> str | None:
    """Return the kind of an error: a name, or an object whose key is the name."""
    kind = error.get("codex_error_info")
    if isinstance(kind, dict):
        return next(iter(kind), None)
    return kind if isinstance(kind, str) else None


def _milliseconds(value: Payload) -> int | None:
    seconds, nanos = number(value, "secs"), number(value, "nanos")
    return None if seconds is None else seconds * 1000 + round((nanos or 0) / 1_000_000)


# -- import


def find_rollouts(roots: list[Path], since: int) -> list[PastSession]:
    """List every rollout that changed since, archived ones too, in the order in which the threads began."""
    folders = ("archived_sessions", "sessions")
    files = ((root, path) for root in roots for name in folders for path in (root / name).rglob("rollout-*.jsonl"))
    found = list_past_sessions(files, since, _describe)
    return sorted(found, key=lambda session: session.path.name)


def _describe(path: Path, first: Payload) -> tuple[str, str | None]:
    """Read the thread and the project of a rollout from its first line."""
    meta = record(first, "payload")
    return text(meta, "id") or "-".join(path.stem.split("-")[-5:]), text(meta, "cwd")
