"""OpenCode's events, as its plugin sends them: those of the bus as they are, and messages assembled from parts.

Its storage holds the same records, so an import reads it with the same functions.
"""

import re
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    HookReading,
    MessageReported,
    SessionEnded,
    SessionNote,
    SessionOpened,
    SessionReported,
    SessionSummary,
    SessionTotals,
    SessionUsage,
    ToolReported,
)
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import (
    duration,
    file_of,
    identifier,
    number,
    readable,
    record,
    records,
    text,
    without_empty,
)

NAME = "opencode"
_UNTITLED = re.compile(r"(?:New|Child) session - \d{4}-")
_FORK = re.compile(r"\(fork #\d+\)\s*\Z")
MAX_FORK_CHARACTERS = 100


def read_hook(payload: Payload, at: int) -> HookReading:
    name, properties = text(payload, "type") or "", record(payload, "properties")
    session_id = _session_id(properties)
    project = text(record(properties, "info"), "directory") or text(payload, "directory") or text(payload, "cwd")
    reading = HookReading(name, session_id, project)
    if session_id:
        reading.events = _read_events(name, payload, properties, session_id, at)
    return reading


def _read_events(name: str, payload: Payload, properties: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    info = record(properties, "info")
    event_id = identifier(payload, "id") or f"{session_id}-{at}"
    match name:
        case "session.created":
            return [*read_session_record(info, session_id), SessionOpened(session_id, at)]
        case "session.updated":
            return read_session_record(info, session_id)
        case "session.deleted":  # it is deleted in OpenCode, and stays here
            return [*read_session_record(info, session_id), SessionEnded(session_id, at, "deleted")]
        case "session.idle":
            return [SessionReported(SessionEvent(session_id, source=NAME, status="idle", updated_at=at))]
        case "session.error":
            error = record(properties, "error")
            return [_read_error(error, event_id, session_id, at)] if error else []
        case "session.compacted":
            compaction = CompactionEvent(event_id, session_id, created_at=at)
            return [CompactionReported(compaction, provisional=True)]
        case "message.part.updated":
            return read_tool_part(record(properties, "part"), session_id, at)
        case "message.updated" | "clankers.message":
            return read_message_record(info, records(properties, "parts"), session_id)
        case _:
            return []


def _session_id(properties: Payload) -> str:
    """Find the session's id: its spelling and its place differ between events."""
    for place in (properties, record(properties, "info"), record(properties, "part")):
        for key in ("sessionID", "sessionId", "session_id"):
            if session_id := identifier(place, key):
                return session_id
    return identifier(record(properties, "info"), "id") or ""


# -- records, which the storage has too


def read_session_record(info: Payload, session_id: str) -> list[CapturedEvent]:
    model, time, title = record(info, "model"), record(info, "time"), text(info, "title")
    session = SessionEvent(
        session_id,
        title=None if title and _UNTITLED.match(title) else title,
        project_path=text(info, "directory"),
        model=text(model, "id") or text(model, "modelID"),
        provider=text(model, "providerID"),
        source=NAME,
        created_at=number(time, "created"),
        updated_at=number(time, "updated"),
    )
    events: list[CapturedEvent] = [SessionReported(session)]
    if parent := identifier(info, "parentID"):
        events.append(SessionNote(session_id, {"parentId": parent, "agent": text(info, "agent")}))
    if title and _FORK.search(title[-MAX_FORK_CHARACTERS:]):
        events.append(SessionNote(session_id, {"startedBy": "fork"}))
    usage = _usage(info)
    if usage["prompt_tokens"] or usage["completion_tokens"]:
        tokens = usage["prompt_tokens"] or 0, usage["completion_tokens"] or 0
        events.append(SessionUsage(session_id, *tokens, _cost(info) or 0.0))
    return events


def read_tool_part(part: Payload, session_id: str, at: int | None) -> list[CapturedEvent]:
    """Read the part of a tool call: the only place that reports a failed one."""
    state, name = record(part, "state"), text(part, "tool")
    part_id = identifier(part, "id") or identifier(part, "callID")
    if text(part, "type") != "tool" or not name or not part_id:
        return []
    time, status = record(state, "time"), text(state, "status")
    began, exit_code = number(time, "start"), record(state, "metadata").get("exit")
    failed = status == "error" or (status == "completed" and isinstance(exit_code, int) and exit_code != 0)
    error = text(state, "error") or f"exit code {exit_code}"
    tool = ToolEvent(
        part_id,
        session_id,
        message_id=identifier(part, "messageID"),
        tool_name=name,
        tool_input=readable(state.get("input")) if state.get("input") else None,
        tool_output=readable(state.get("output")),
        file_path=file_of(record(state, "input")),
        success=not failed if status in ("completed", "error") else None,
        error_message=error if failed else None,
        duration_ms=duration(began, number(time, "end")),
        created_at=began or at,
    )
    return [ToolReported(tool, original_at=began)]


def read_message_record(info: Payload, parts: list[Payload], session_id: str) -> list[CapturedEvent]:
    """Read a message with its parts: its text, its usage, a compaction, an error."""
    message_id, role = identifier(info, "id"), text(info, "role")
    if not message_id or role not in ("user", "assistant"):
        return []
    texts = []
    for part in parts:
        is_own = not part.get("synthetic") and not part.get("ignored")
        if text(part, "type") == "text" and is_own and (content := text(part, "text")):
            texts.append(content)
    full_text = "\n\n".join(texts) or None
    if role == "user":
        return _read_prompt(info, parts, session_id, message_id, full_text)
    return _read_answer(info, session_id, message_id, full_text)


def _read_prompt(
    info: Payload, parts: list[Payload], session_id: str, message_id: str, content: str | None
) -> list[CapturedEvent]:
    at, model = number(record(info, "time"), "created"), record(info, "model")
    events: list[CapturedEvent] = []
    for part in parts:
        if text(part, "type") == "compaction":
            cause = "auto" if part.get("auto") else "manual"
            compaction = CompactionEvent(message_id, session_id, cause=cause, created_at=at)
            events.append(CompactionReported(compaction, original_at=at))
    if content:
        message = MessageEvent(
            message_id, session_id, "user", content, model=text(model, "modelID"), source=NAME, created_at=at
        )
        events.append(MessageReported(message, original_at=at))
        events.append(FirstPrompt(session_id, content, at, original_at=at))
    return events


def _read_answer(info: Payload, session_id: str, message_id: str, content: str | None) -> list[CapturedEvent]:
    time, is_summary = record(info, "time"), info.get("summary") is True
    began, ended = number(time, "created"), number(time, "completed")
    facts = {
        "agent": text(info, "agent"),
        "mode": text(info, "mode"),
        "parentId": identifier(info, "parentID"),
        "costUsd": _cost(info),
    }
    message = MessageEvent(
        message_id,
        session_id,
        "assistant",
        None if is_summary else content,
        model=text(info, "modelID"),
        source=NAME,
        duration_ms=duration(began, ended),
        created_at=began,
        completed_at=ended,
        metadata=without_empty(facts),
        **_usage(info),
    )
    events: list[CapturedEvent] = [MessageReported(message, original_at=began)]
    if message.prompt_tokens or message.completion_tokens:
        events.append(SessionTotals(session_id))
    if is_summary:
        events += _read_summary(info, session_id, message_id, content, began)
    if error := record(info, "error"):
        events.append(_read_error(error, f"{message_id}-error", session_id, ended or began, original_at=began))
    return events


def _read_summary(
    info: Payload, session_id: str, message_id: str, summary: str | None, at: int | None
) -> list[CapturedEvent]:
    """Read a compaction. Its id is that of the message that asked for it, which has the cause; this has the rest."""
    usage = _usage(info)
    compaction = CompactionEvent(
        identifier(info, "parentID") or message_id,
        session_id,
        tokens_before=usage["prompt_tokens"],
        tokens_after=usage["completion_tokens"],
        summary=summary,
        created_at=at,
    )
    events: list[CapturedEvent] = [CompactionReported(compaction, replaces_provisional=True, original_at=at)]
    if summary:
        events.append(SessionSummary(session_id, summary, at, original_at=at))
    return events


def _read_error(
    error: Payload, error_id: str, session_id: str, at: int | None, original_at: int | None = None
) -> CapturedEvent:
    """Read an error. The bus reports it twice, the second time as part of a message; it is stored once."""
    message = text(record(error, "data"), "message") or text(error, "message")
    event = SessionErrorEvent(error_id, session_id, text(error, "name"), message, at)
    return ErrorReported(event, once=True, original_at=original_at)


def _cost(info: Payload) -> float | None:
    cost = info.get("cost")
    return float(cost) if isinstance(cost, int | float) and cost > 0 else None


def _usage(info: Payload) -> dict[str, Any]:
    tokens = record(info, "tokens")
    cache = record(tokens, "cache")
    prompt = sum(each or 0 for each in (number(tokens, "input"), number(cache, "read"), number(cache, "write")))
    completion = (number(tokens, "output") or 0) + (number(tokens, "reasoning") or 0)
    return {"prompt_tokens": prompt or None, "completion_tokens": completion or None}
