"""Gemini CLI's hooks. They name no messages and no tool calls, but say when they happened: ids are made of that."""

from datetime import datetime
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.harnesses import told
from clankersd.harnesses.told import Fact, Told, identifier, record, text

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
        return [told.session(_session(event)), told.opened(session_id, at)]
    if name == "SessionEnd":
        return [told.placed(_session(event)), told.ended(session_id, at, text(event, "reason"))]
    if name == "BeforeAgent" and prompt:
        return [
            told.placed(_session(event)),
            told.opened(session_id, at),
            told.message(_said(session_id, "user", prompt, at)),
            told.first_prompt(session_id, prompt),
        ]
    if name == "AfterAgent" and answer:
        return [told.message(_said(session_id, "assistant", answer, at))]
    if name == "AfterTool":
        return _tool(event, session_id, at)
    if name == "PreCompress":
        row = CompactionEvent(f"{session_id}-compaction-{at}", session_id, cause=text(event, "trigger"), created_at=at)
        return [told.compaction(row)]
    return []


def _tool(event: dict[str, Any], session_id: str, at: int) -> list[Fact]:
    name, given, response = (
        text(event, "tool_name"),
        told.readable(event.get("tool_input")),
        record(event, "tool_response"),
    )
    if not name:
        return []
    problem = told.readable(response.get("error")) if response.get("error") else None
    output = response.get("llmContent", response.get("returnDisplay")) if response else event.get("tool_response")
    call = ToolEvent(
        f"{session_id}-{at}-{told.digest(f'{name} {given}')[:12]}",
        session_id,
        tool_name=name,
        tool_input=given,
        tool_output=told.readable(output) if output else None,
        file_path=told.file_of(record(event, "tool_input")),
        success=problem is None,
        error_message=problem,
        created_at=at,
    )
    return [told.tool(call)]


def _said(session_id: str, role: str, words: str, at: int) -> MessageEvent:
    message_id = f"{session_id}-{role}-{at}-{told.digest(words)[:12]}"
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
