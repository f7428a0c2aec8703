"""Gemini CLI's hook payloads. They have no ids, and mix the user's words with what hooks injected.

So they only say that something happened, and the session file says what. A version that writes no such file has only
the hooks: ids are made of their times.
"""

import os
import re

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    FirstPrompt,
    HookReading,
    MessageReported,
    SessionClearedFrom,
    SessionEnded,
    SessionNote,
    SessionOpened,
    SessionReported,
    ToolReported,
    text_digest,
)
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.gemini.texts import read_result, strip_hook_context, text_for_model
from clankersd.capture.harnesses.payload import file_of, identifier, millis, readable, record, records, text

NAME = "gemini"
PROVIDER = "google"
SESSION_FILE = ".jsonl"
_AGENT_CALL = re.compile(r"\A([0-9A-Za-z-]+)#")

_BEFORE_A_STEP = ("BeforeModel", "BeforeToolSelection", "BeforeTool", "AfterModel", "Notification")
"""Events after which the session file has nothing new."""


def read_hook(payload: Payload, at: int) -> HookReading:
    name, session_id = text(payload, "hook_event_name") or "", identifier(payload, "session_id") or ""
    is_start_or_end = name in ("SessionStart", "SessionEnd")
    reading = HookReading(name, session_id, text(payload, "cwd"), opens_or_closes=is_start_or_end)
    if not session_id:
        return reading
    at = millis(payload.get("timestamp")) or at
    reading.events = _read_session(name, payload, session_id, at)
    path = text(payload, "transcript_path") or ""
    is_auto = name == "PreCompress" and text(payload, "trigger") != "manual"  # before every request to the model
    if not path.endswith(SESSION_FILE):
        reading.events += _read_content(name, payload, session_id, at)
    elif name not in _BEFORE_A_STEP and not is_auto:
        folder = os.path.join(os.path.dirname(path), text(payload, "session_id") or "")  # noqa: PTH118, PTH120
        reading.transcripts = [path, *(f"{folder}/{agent}.jsonl" for agent in _agents(payload))]
    return reading


def _read_session(name: str, payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    session = SessionEvent(session_id, project_path=text(payload, "cwd"), provider=PROVIDER, source=NAME)
    if name == "SessionStart":
        events: list[CapturedEvent] = [SessionReported(session), SessionOpened(session_id, at)]
        if text(payload, "source") == "clear":
            events.append(SessionNote(session_id, {"startedBy": "clear"}))
            events.append(SessionClearedFrom(session_id, text(payload, "cwd")))
        return events
    if name == "BeforeAgent":
        return [SessionReported(session, only_without_project=True), SessionOpened(session_id, at)]
    if name == "SessionEnd":
        ended = SessionEnded(session_id, at, text(payload, "reason"))
        return [SessionReported(session, only_without_project=True), ended]
    return []


def _agents(payload: Payload) -> list[str]:
    """Return the ids of the sub-agents that a tool ran: those of their calls begin with them."""
    display = record(record(payload, "tool_response"), "returnDisplay")
    calls = (_AGENT_CALL.match(text(activity, "id") or "") for activity in records(display, "recentActivity"))
    return list(dict.fromkeys(call[1] for call in calls if call))


def _read_content(name: str, payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    """Read what happened, where there is no session file."""
    prompt = strip_hook_context(text(payload, "prompt") or "")
    answer = (text(payload, "prompt_response") or "").strip()
    if name == "BeforeAgent" and prompt:
        return [MessageReported(_message(session_id, "user", prompt, at)), FirstPrompt(session_id, prompt, at)]
    if name == "AfterAgent" and answer:
        return [MessageReported(_message(session_id, "assistant", answer, at))]
    if name == "AfterTool":
        return _read_tool(payload, session_id, at)
    if name == "PreCompress" and text(payload, "trigger") == "manual":
        compaction = CompactionEvent(f"{session_id}-compaction-{at}", session_id, cause="manual", created_at=at)
        return [CompactionReported(compaction)]
    return []


def _read_tool(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    name, tool_input = text(payload, "tool_name"), readable(payload.get("tool_input"))
    if not name:
        return []
    response = record(payload, "tool_response") or {"llmContent": payload.get("tool_response")}
    failure = response.get("error")
    error = (text(record(response, "error"), "message") or readable(failure)) if failure else None
    for_model = text_for_model(response.get("llmContent"))
    success, output, error = read_result(name, for_model, response.get("returnDisplay"), error)
    tool = ToolEvent(
        f"{session_id}-{at}-{text_digest(f'{name} {tool_input}')[:12]}",
        session_id,
        tool_name=name,
        tool_input=tool_input,
        tool_output=output,
        file_path=file_of(record(payload, "tool_input")),
        success=success,
        error_message=error,
        created_at=at,
    )
    return [ToolReported(tool)]


def _message(session_id: str, role: str, content: str, at: int) -> MessageEvent:
    message_id = f"{session_id}-{role}-{at}-{text_digest(content)[:12]}"
    return MessageEvent(message_id, session_id, role, content, source=NAME, created_at=at)
