"""Claude Code's hook payloads. They carry no time and no message ids; the transcript has both, a moment later."""

from collections.abc import Callable

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    HookIdentity,
    HookReading,
    MessageReported,
    SessionClearedFrom,
    SessionEnded,
    SessionNote,
    SessionOpened,
    SessionReported,
    SessionSummary,
    ToolReported,
)
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import file_of, identifier, number, readable, record, records, text

NAME = "claude-code"
PROVIDER = "anthropic"

NEW_SESSION_SOURCES = ("startup", "clear", "fork")
"""Sources of SessionStart that begin a session; any other continues one."""

_WRITES_TRANSCRIPT = frozenset(
    {"SessionStart", "UserPromptSubmit", "Stop", "StopFailure", "SubagentStop", "PostCompact", "SessionEnd"}
)
"""Events after which the transcript has something new, or that begin or continue a session whose end may be missed."""


def read_hook(payload: Payload, at: int) -> HookReading:
    name, session_id = text(payload, "hook_event_name") or "", identifier(payload, "session_id") or ""
    is_start_or_end = name in ("SessionStart", "SessionEnd")
    reading = HookReading(name, session_id, text(payload, "cwd"), opens_or_closes=is_start_or_end)
    if not session_id:
        return reading
    if read := _READERS.get(name):
        reading.events = read(payload, session_id, at)
    if name in _WRITES_TRANSCRIPT:
        paths = (text(payload, key) for key in ("transcript_path", "agent_transcript_path"))
        reading.transcripts = [path for path in paths if path]
    return reading


def _session_start(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    source = text(payload, "source")
    session = _session(payload, session_id)
    events: list[CapturedEvent] = [SessionReported(session), SessionOpened(session_id, at)]
    if source in NEW_SESSION_SOURCES:
        session.created_at = at
        events.append(SessionNote(session_id, {"startedBy": source}))
    if source == "clear":
        events.append(SessionClearedFrom(session_id, text(payload, "cwd")))
    return events


def _prompt(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    session = SessionReported(_session(payload, session_id), only_without_project=True)
    events: list[CapturedEvent] = [session, SessionOpened(session_id, at)]
    prompt, prompt_id = text(payload, "prompt"), identifier(payload, "prompt_id")
    if prompt and prompt_id:
        message = MessageEvent(prompt_id, session_id, "user", prompt, source=NAME, created_at=at)
        events.append(MessageReported(message, HookIdentity("prompt", prompt_id)))
    if prompt:
        events.append(FirstPrompt(session_id, prompt, at))
    return events


def _tool_called(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    tool = _tool(payload, session_id, at)
    return [ToolReported(tool)] if tool else []


def _tool_succeeded(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    tool = _tool(payload, session_id, at)
    if tool is None:
        return []
    tool.tool_output, tool.success = readable(payload.get("tool_response")), True
    return [ToolReported(tool, "success")]


def _tool_failed(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    tool = _tool(payload, session_id, at)
    if tool is None:
        return []
    tool.success, tool.error_message = False, text(payload, "error") or "failed"
    return [ToolReported(tool)]


def _tool_batch(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    events: list[CapturedEvent] = []
    for call in records(payload, "tool_calls"):
        if tool := _tool(call, session_id, at):
            tool.success, tool.error_message = False, readable(call.get("tool_response")) or "denied"
            events.append(ToolReported(tool, "batch"))
    return events


def _stop(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    answer, prompt_id = text(payload, "last_assistant_message"), identifier(payload, "prompt_id")
    if not answer or not prompt_id:
        return []
    metadata = {"promptId": prompt_id}
    message = MessageEvent(prompt_id, session_id, "assistant", answer, source=NAME, created_at=at, metadata=metadata)
    session = SessionReported(_session(payload, session_id), only_without_project=True)
    return [session, MessageReported(message, HookIdentity("answer", prompt_id))]


def _stop_failure(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    prompt_id, error = identifier(payload, "prompt_id") or "", text(payload, "error")
    message = text(payload, "last_assistant_message") or text(payload, "error_details")
    return [ErrorReported(turn_failure(session_id, prompt_id, error, message, at))]


def turn_failure(
    session_id: str, prompt_id: str, kind: str | None, message: str | None, at: int | None
) -> SessionErrorEvent:
    """Make the error that ended a turn. A turn has at most one: hook and transcript report it by the prompt's id."""
    return SessionErrorEvent(f"{prompt_id or session_id}-failure", session_id, kind, message, at)


def _compacted(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    prompt_id, summary = identifier(payload, "prompt_id") or "", summary_of(text(payload, "compact_summary"))
    compaction = CompactionEvent(session_id, session_id, cause=text(payload, "trigger"), summary=summary, created_at=at)
    events: list[CapturedEvent] = [CompactionReported(compaction, HookIdentity("compaction", prompt_id))]
    if summary:
        events.append(SessionSummary(session_id, summary, at))
    return events


def summary_of(content: str | None) -> str | None:
    """Extract the summary proper: without the thinking before it, and without its tags."""
    if not content or "<summary>" not in content:
        return content
    return content.partition("<summary>")[2].partition("</summary>")[0].strip() or content


def _model_switched(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    return [SessionReported(SessionEvent(session_id, model=text(payload, "to_model"), source=NAME, updated_at=at))]


def _session_end(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    session = SessionReported(_session(payload, session_id), only_without_project=True)
    return [session, SessionEnded(session_id, at, text(payload, "reason"))]


def _session(payload: Payload, session_id: str) -> SessionEvent:
    return SessionEvent(
        session_id,
        project_path=text(payload, "cwd"),
        model=text(payload, "model"),
        provider=PROVIDER,
        source=NAME,
        permission_mode=text(payload, "permission_mode"),
    )


def _tool(payload: Payload, session_id: str, at: int) -> ToolEvent | None:
    tool_id, name = identifier(payload, "tool_use_id"), text(payload, "tool_name")
    if not tool_id or not name:
        return None
    duration_ms = number(payload, "duration_ms")
    return ToolEvent(
        tool_id,
        session_id,
        tool_name=name,
        tool_input=readable(payload.get("tool_input")),
        file_path=file_of(record(payload, "tool_input")),
        duration_ms=duration_ms,
        created_at=at - (duration_ms or 0),
    )


_READERS: dict[str, Callable[[Payload, str, int], list[CapturedEvent]]] = {
    "SessionStart": _session_start,
    "UserPromptSubmit": _prompt,
    "PreToolUse": _tool_called,
    "PostToolUse": _tool_succeeded,
    "PostToolUseFailure": _tool_failed,
    "PostToolBatch": _tool_batch,
    "Stop": _stop,
    "StopFailure": _stop_failure,
    "PostCompact": _compacted,
    "PostModelSwitch": _model_switched,
    "SessionEnd": _session_end,
}
