"""Gemini CLI's hooks. They name no messages and no tool calls, but say when they happened: ids are made of that."""

from datetime import datetime
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.capture.harnesses import payload
from clankersd.capture.harnesses.payload import Fact, Told, identifier, record, text

HARNESS = "gemini"
PROVIDER = "google"


def read(event: dict[str, Any], at: int) -> Told:
    """What an event tells."""
    name, session_id = text(event, "hook_event_name") or "", identifier(event, "session_id") or ""
    result = Told(name, session_id, text(event, "cwd"))
    if session_id:
        result.facts = _facts(name, event, session_id, _moment(event) or at)
    return result


def _facts(name: str, event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    prompt, answer = text(event, "prompt"), text(event, "prompt_response")
    if name == "SessionStart":
        return [payload.session(_session(event)), payload.opened(session_id, at)]
    if name == "SessionEnd":
        return [payload.placed(_session(event)), payload.ended(session_id, at, text(event, "reason"))]
    if name == "BeforeAgent" and prompt:
        return [
            payload.placed(_session(event)),
            payload.opened(session_id, at),
            payload.message(_said(session_id, "user", prompt, at)),
            payload.first_prompt(session_id, prompt),
        ]
    if name == "AfterAgent" and answer:
        return [payload.message(_said(session_id, "assistant", answer, at))]
    if name == "AfterTool":
        return _tool(event, session_id, at)
    if name == "PreCompress":
        row = CompactionEvent(f"{session_id}-compaction-{at}", session_id, cause=text(event, "trigger"), created_at=at)
        return [payload.compaction(row)]
    return []


def _tool(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    name, given, response = (
        text(event, "tool_name"),
        payload.readable(event.get("tool_input")),
        record(event, "tool_response"),
    )
    if not name:
        return []
    problem = payload.readable(response.get("error")) if response.get("error") else None
    output = response.get("llmContent", response.get("returnDisplay")) if response else event.get("tool_response")
    call = ToolEvent(
        f"{session_id}-{at}-{payload.digest(f'{name} {given}')[:12]}",
        session_id,
        tool_name=name,
        tool_input=given,
        tool_output=payload.readable(output) if output else None,
        file_path=payload.file_of(record(event, "tool_input")),
        success=problem is None,
        error_message=problem,
        created_at=at,
    )
    return [payload.tool(call)]


def _said(session_id: str, role: str, words: str, at: int) -> MessageEvent:
    message_id = f"{session_id}-{role}-{at}-{payload.digest(words)[:12]}"
    return MessageEvent(message_id, session_id, role, words, source=HARNESS, created_at=at)


def _session(event: dict[str, Any]) -> SessionEvent:
    return SessionEvent(
        identifier(event, "session_id") or "", project_path=text(event, "cwd"), provider=PROVIDER, source=HARNESS
    )


def _moment(event: dict[str, Any]) -> int | None:
    try:
        return round(datetime.fromisoformat(text(event, "timestamp") or "").timestamp() * 1000)
    except ValueError:
        return None
