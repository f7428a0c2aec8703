"""Claude Code's hooks. Payloads carry no time, and no id of a message: the transcript has both, a moment later."""

from collections.abc import Callable
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.capture.harnesses import payload
from clankersd.capture.harnesses.payload import Fact, Told, identifier, number, record, records, text

HARNESS = "claude-code"
PROVIDER = "anthropic"

NEW = ("startup", "clear", "fork")
"""What begins a session; anything else goes on with one."""


def read(event: dict[str, Any], at: int) -> Told:
    """What an event tells."""
    name, session_id = text(event, "hook_event_name") or "", identifier(event, "session_id") or ""
    result = Told(name, session_id, text(event, "cwd"), begins_or_ends=name in ("SessionStart", "SessionEnd"))
    tell = _EVENTS.get(name)
    if tell and session_id:
        result.facts = tell(event, session_id, at)
    if session_id and name in _TRANSCRIBED:
        paths = (text(event, key) for key in ("transcript_path", "agent_transcript_path"))
        result.transcripts = [path for path in paths if path]
    return result


def _session_start(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    source = text(event, "source")
    began = at if source in NEW else None
    facts = [payload.session(_session(event, created_at=began)), payload.opened(session_id, at)]
    if source in NEW:
        facts.append(payload.noted(session_id, startedBy=source))
    if source == "clear":
        facts.append(payload.cleared_from(session_id, text(event, "cwd")))
    return facts


def _prompt(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    facts = [payload.placed(_session(event)), payload.opened(session_id, at)]
    prompt, prompt_id = text(event, "prompt"), identifier(event, "prompt_id")
    if prompt and prompt_id:
        said = MessageEvent(prompt_id, session_id, "user", prompt, source=HARNESS, created_at=at)
        facts.append(payload.message(said, payload.by_hook("prompt", prompt_id)))
    if prompt:
        facts.append(payload.first_prompt(session_id, prompt))
    return facts


def _tool_begun(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return [payload.tool(call)] if (call := _tool(event, session_id, at)) else []


def _tool_done(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    call = _tool(event, session_id, at)
    if call is None:
        return []
    call.tool_output, call.success = payload.readable(event.get("tool_response")), True
    return [payload.tool(call), payload.succeeded(call.id)]


def _tool_failed(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    call = _tool(event, session_id, at)
    if call is None:
        return []
    call.success, call.error_message = False, text(event, "error") or "failed"
    return [payload.tool(call)]


def _batch(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    calls = ((call, _tool(call, session_id, at)) for call in records(event, "tool_calls"))
    return [payload.unanswered(_denied(call, tool)) for call, tool in calls if tool]


def _denied(call: dict[str, Any], tool: ToolEvent) -> ToolEvent:
    tool.success, tool.error_message = False, payload.readable(call.get("tool_response")) or "denied"
    return tool


def _stop(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    answer, prompt_id = text(event, "last_assistant_message"), identifier(event, "prompt_id")
    if not answer or not prompt_id:
        return []
    said = MessageEvent(
        prompt_id, session_id, "assistant", answer, source=HARNESS, created_at=at, metadata={"promptId": prompt_id}
    )
    return [payload.placed(_session(event)), payload.message(said, payload.by_hook("answer", prompt_id))]


def _stop_failure(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    message = text(event, "last_assistant_message") or text(event, "error_details")
    return [payload.error(failure(session_id, identifier(event, "prompt_id") or "", text(event, "error"), message, at))]


def failure(
    session_id: str, prompt_id: str, kind: str | None, message: str | None, at: int | None
) -> SessionErrorEvent:
    """A turn ends by at most one failure: hook and transcript tell of the same by the prompt's id."""
    return SessionErrorEvent(f"{prompt_id or session_id}-failure", session_id, kind, message, at)


def _compacted(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    prompt_id, summary = identifier(event, "prompt_id") or "", summary_of(text(event, "compact_summary"))
    row = CompactionEvent(session_id, session_id, cause=text(event, "trigger"), summary=summary, created_at=at)
    facts = [payload.compaction(row, payload.by_hook("compaction", prompt_id))]
    return [*facts, payload.summarised(session_id, summary)] if summary else facts


def summary_of(words: str | None) -> str | None:
    """The summary proper: without the thinking before it, and without its tags."""
    if not words or "<summary>" not in words:
        return words
    return words.partition("<summary>")[2].partition("</summary>")[0].strip() or words


def _model_switched(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return [payload.session(SessionEvent(session_id, model=text(event, "to_model"), source=HARNESS, updated_at=at))]


def _session_end(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    return [payload.placed(_session(event)), payload.ended(session_id, at, text(event, "reason"))]


def _session(event: dict[str, Any], created_at: int | None = None) -> SessionEvent:
    return SessionEvent(
        identifier(event, "session_id") or "",
        project_path=text(event, "cwd"),
        model=text(event, "model"),
        provider=PROVIDER,
        source=HARNESS,
        permission_mode=text(event, "permission_mode"),
        created_at=created_at,
    )


def _tool(event: dict[str, Any], session_id: str, at: int) -> ToolEvent | None:
    tool_id, name = identifier(event, "tool_use_id"), text(event, "tool_name")
    if not tool_id or not name:
        return None
    duration = number(event, "duration_ms")
    return ToolEvent(
        tool_id,
        session_id,
        tool_name=name,
        tool_input=payload.readable(event.get("tool_input")),
        file_path=payload.file_of(record(event, "tool_input")),
        duration_ms=duration,
        created_at=at - (duration or 0),
    )


_EVENTS: dict[str, Callable[[dict[str, Any], str, int], list[Fact]]] = {
    "SessionStart": _session_start,
    "UserPromptSubmit": _prompt,
    "PreToolUse": _tool_begun,
    "PostToolUse": _tool_done,
    "PostToolUseFailure": _tool_failed,
    "PostToolBatch": _batch,
    "Stop": _stop,
    "StopFailure": _stop_failure,
    "PostCompact": _compacted,
    "PostModelSwitch": _model_switched,
    "SessionEnd": _session_end,
}

_TRANSCRIBED = ("SessionStart", "Stop", "StopFailure", "SubagentStop", "PostCompact", "SessionEnd")
"""After these the transcript has something new, or a session goes on whose end was missed."""
