"""Messages and transcript entries of OpenClaw. Hooks and transcripts have the same ones, so that both give equal rows.

A message has no id in a hook. Its session, time and role identify it.
"""

from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    MessageReported,
    SessionReported,
    SessionSummary,
    SessionTotals,
    ToolReported,
)
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import (
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

NAME = "openclaw"

SUBAGENT_PREAMBLE = "[Subagent Context]"
INTERNAL_PROMPTS = (
    "[Inter-session message]",
    "A background task completed.",
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>",
    "[OpenClaw heartbeat poll]",
    "[OpenClaw exec completion]",
    "[OpenClaw cron wake]",
    "[OpenClaw session event]",
    "Follow the heartbeat monitor scratch context",
    "Read HEARTBEAT.md if it exists",
)
"""Beginnings of prompts that OpenClaw writes itself, such as its heartbeats or the report of a sub-agent."""

SILENT_ANSWERS = ("NO_REPLY", "HEARTBEAT_OK")
"""Answers to a heartbeat that OpenClaw shows to nobody."""

_TASK_HEADING = "\n[Subagent Task]"
_TASK_ORDER = "Begin. Execute the assigned task"


def is_internal_prompt(prompt: str) -> bool:
    """Return whether OpenClaw wrote a prompt itself."""
    return prompt.lstrip().startswith(INTERNAL_PROMPTS)


def read_entry(entry: Payload, session_id: str) -> list[CapturedEvent]:
    """Read an entry of a transcript: the session itself, a change of its model, a message or a compaction."""
    at = millis(entry.get("timestamp"))
    match text(entry, "type"):
        case "session":
            session = SessionEvent(session_id, project_path=text(entry, "cwd"), source=NAME, created_at=at)
            return [SessionReported(session)]
        case "model_change":
            model, provider = text(entry, "modelId"), text(entry, "provider")
            return [SessionReported(SessionEvent(session_id, model=model, provider=provider, source=NAME))]
        case "session_info" if title := text(entry, "name"):
            return [SessionReported(SessionEvent(session_id, title=title, source=NAME))]
        case "message":
            return read_message(record(entry, "message"), session_id, at)
        case "compaction":
            return _read_compaction(entry, session_id, at)
        case _:
            return []


def read_message(message: Payload, session_id: str, at: int | None) -> list[CapturedEvent]:
    """Read a message of the user or the assistant, or the result of a tool; `at` is its time if it has none."""
    at = number(message, "timestamp") or at
    match text(message, "role"):
        case "user":
            return _read_prompt(message, session_id, at)
        case "assistant":
            return _read_answer(message, session_id, at)
        case "toolResult":
            return _read_result(message, session_id)
        case _:
            return []


def _read_prompt(message: Payload, session_id: str, at: int | None) -> list[CapturedEvent]:
    prompt = _content_text(message)
    is_own = text(record(message, "provenance"), "kind") not in ("inter_session", "internal", "internal_system")
    if not prompt or not is_own or is_internal_prompt(prompt):
        return []
    if prompt.startswith(SUBAGENT_PREAMBLE) and _TASK_HEADING in prompt:
        task = prompt.partition(_TASK_HEADING)[2].strip()
        before, _, last_line = task.rpartition("\n")
        prompt = (before.rstrip() if last_line.lstrip().startswith(_TASK_ORDER) else task) or prompt
    event = MessageEvent(f"{session_id}-{at}-user", session_id, "user", prompt, source=NAME, created_at=at)
    return [MessageReported(event, from_record=True), FirstPrompt(session_id, prompt, at)]


def _read_answer(message: Payload, session_id: str, at: int | None) -> list[CapturedEvent]:
    answer_id = f"{session_id}-{at}-assistant"
    calls = [block for block in records(message, "content") if text(block, "type") == "toolCall"]
    answer = _content_text(message)
    events: list[CapturedEvent] = []
    if calls or (answer and answer.strip() not in SILENT_ANSWERS):
        event = MessageEvent(
            answer_id,
            session_id,
            "assistant",
            answer,
            model=text(message, "model"),
            source=NAME,
            created_at=at,
            metadata=without_empty({"costUsd": record(record(message, "usage"), "cost").get("total")}),
            **_usage(message),
        )
        events += [MessageReported(event, from_record=True), SessionTotals(session_id)]
    for call in calls:
        call_id, name, arguments = identifier(call, "id"), text(call, "name"), record(call, "arguments")
        if not call_id or not name:
            continue
        tool = ToolEvent(
            f"{session_id}-{call_id}",
            session_id,
            message_id=answer_id,
            tool_name=name,
            tool_input=readable(arguments) if arguments else None,
            file_path=file_of(arguments),
            created_at=at,
        )
        events.append(ToolReported(tool, "record"))
    if text(message, "stopReason") == "error":
        problem = text(message, "errorMessage") or "the request to the model failed"
        error = SessionErrorEvent(f"{answer_id}-error", session_id, text(message, "errorType"), problem, at)
        events.append(ErrorReported(error))
    return events


def _read_result(message: Payload, session_id: str) -> list[CapturedEvent]:
    """Read the result of a tool. A command that exits with 3 is no error to OpenClaw."""
    call_id, name = identifier(message, "toolCallId"), text(message, "toolName")
    if not call_id or not name:
        return []
    details, output = record(message, "details"), _content_text(message)
    exit_code = details.get("exitCode")
    is_failed_command = isinstance(exit_code, int) and exit_code != 0
    success: bool | None = not (message.get("isError") is True or is_failed_command)
    if success and text(details, "status") == "running":
        success = None
    error = None
    if success is False:
        error = f"exit code {exit_code}" if is_failed_command else text(details, "error") or output or "failed"
    tool = ToolEvent(
        f"{session_id}-{call_id}",
        session_id,
        tool_name=name,
        tool_output=output,
        success=success,
        error_message=error,
        duration_ms=number(details, "durationMs"),
    )
    return [ToolReported(tool, "record")]


def _read_compaction(entry: Payload, session_id: str, at: int | None) -> list[CapturedEvent]:
    compaction_id, summary = identifier(entry, "id"), text(entry, "summary")
    if not compaction_id:
        return []
    compaction = CompactionEvent(
        compaction_id,
        session_id,
        tokens_before=number(entry, "tokensBefore"),
        tokens_after=number(entry, "tokensAfter"),
        summary=summary,
        created_at=at,
    )
    events: list[CapturedEvent] = [CompactionReported(compaction, replaces_provisional=True)]
    if summary:
        events.append(SessionSummary(session_id, summary, at))
    return events


def _content_text(message: Payload) -> str | None:
    """Return the text of a message, without tool calls, reasoning and images."""
    content = message.get("content")
    if isinstance(content, str):
        return content or None
    texts = [text(block, "text") for block in records(message, "content") if text(block, "type") == "text"]
    return "\n\n".join(each for each in texts if each) or None


def _usage(message: Payload) -> dict[str, Any]:
    usage = record(message, "usage")
    prompt = sum(number(usage, key) or 0 for key in ("input", "cacheRead", "cacheWrite"))
    return {"prompt_tokens": prompt or None, "completion_tokens": number(usage, "output") or None}
