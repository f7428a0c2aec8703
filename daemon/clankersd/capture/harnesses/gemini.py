"""Gemini CLI. Its hooks give messages and tool calls no ids, but a time: ids are made of that."""

from functools import partial

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    FirstPrompt,
    HookReading,
    MessageReported,
    SessionEnded,
    SessionOpened,
    SessionReported,
    ToolReported,
    text_digest,
)
from clankersd.capture.harnesses.base import Harness, Payload, find_hook_occasion
from clankersd.capture.harnesses.payload import file_of, identifier, millis, readable, record, text

NAME = "gemini"
PROVIDER = "google"


def read_hook(payload: Payload, at: int) -> HookReading:
    name, session_id = text(payload, "hook_event_name") or "", identifier(payload, "session_id") or ""
    reading = HookReading(name, session_id, text(payload, "cwd"))
    if session_id:
        reading.events = _read_events(name, payload, session_id, millis(payload.get("timestamp")) or at)
    return reading


def _read_events(name: str, payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    session = SessionEvent(session_id, project_path=text(payload, "cwd"), provider=PROVIDER, source=NAME)
    prompt, answer = text(payload, "prompt"), text(payload, "prompt_response")
    if name == "SessionStart":
        return [SessionReported(session), SessionOpened(session_id, at)]
    if name == "SessionEnd":
        ended = SessionEnded(session_id, at, text(payload, "reason"))
        return [SessionReported(session, only_without_project=True), ended]
    if name == "BeforeAgent" and prompt:
        return [
            SessionReported(session, only_without_project=True),
            SessionOpened(session_id, at),
            MessageReported(_message(session_id, "user", prompt, at)),
            FirstPrompt(session_id, prompt),
        ]
    if name == "AfterAgent" and answer:
        return [MessageReported(_message(session_id, "assistant", answer, at))]
    if name == "AfterTool":
        return _read_tool(payload, session_id, at)
    if name == "PreCompress":
        cause = text(payload, "trigger")
        compaction = CompactionEvent(f"{session_id}-compaction-{at}", session_id, cause=cause, created_at=at)
        return [CompactionReported(compaction)]
    return []


def _read_tool(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    name, tool_input = text(payload, "tool_name"), readable(payload.get("tool_input"))
    if not name:
        return []
    response = record(payload, "tool_response")
    error = readable(response.get("error")) if response.get("error") else None
    output = response.get("llmContent", response.get("returnDisplay")) if response else payload.get("tool_response")
    tool = ToolEvent(
        f"{session_id}-{at}-{text_digest(f'{name} {tool_input}')[:12]}",
        session_id,
        tool_name=name,
        tool_input=tool_input,
        tool_output=readable(output) if output else None,
        file_path=file_of(record(payload, "tool_input")),
        success=error is None,
        error_message=error,
        created_at=at,
    )
    return [ToolReported(tool)]


def _message(session_id: str, role: str, content: str, at: int) -> MessageEvent:
    message_id = f"{session_id}-{role}-{at}-{text_digest(content)[:12]}"
    return MessageEvent(message_id, session_id, role, content, source=NAME, created_at=at)


HARNESS = Harness(NAME, read_hook, partial(find_hook_occasion, NAME))
