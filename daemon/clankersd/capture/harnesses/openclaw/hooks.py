"""OpenClaw's hooks, as its plugin sends them: {hook, event, ctx}, with the session's id in `ctx` wherever it is known.

`transcript` is no hook: the plugin sends entries of the transcript that no hook has, which are the session itself and
compactions.
"""

from clankers_protocol.events import CompactionEvent, SessionEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    HookReading,
    SessionEnded,
    SessionNote,
    SessionOpened,
    SessionReported,
)
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.openclaw.entries import NAME, read_entry, read_message
from clankersd.capture.harnesses.payload import identifier, number, record, text


def read_hook(payload: Payload, at: int) -> HookReading:
    name, event, context = text(payload, "hook") or "", record(payload, "event"), record(payload, "ctx")
    session_id = identifier(context, "sessionId") or identifier(event, "sessionId") or ""
    reading = HookReading(name, session_id, text(context, "workspaceDir"))
    if session_id:
        reading.events = _read_events(name, event, context, session_id, at)
    return reading


def _read_events(name: str, event: Payload, context: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    match name:
        case "session_start":
            return [SessionReported(SessionEvent(session_id, source=NAME)), SessionOpened(session_id, at)]
        case "session_end":
            return [SessionEnded(session_id, at, text(event, "reason"))]
        case "before_prompt_build":
            session = SessionEvent(
                session_id,
                project_path=text(context, "workspaceDir"),
                model=text(context, "modelId"),
                provider=text(context, "modelProviderId"),
                source=NAME,
            )
            is_job = ":cron:" in (text(context, "sessionKey") or "")  # agent:main:cron:JOB:run:ID
            notes = [SessionNote(session_id, {"entrypoint": "cron"})] if is_job else []
            return [SessionReported(session), *notes]
        case "before_message_write":
            return read_message(record(event, "message"), session_id, at)
        case "transcript":
            return read_entry(record(event, "entry"), session_id)
        case "after_compaction":
            compaction = CompactionEvent(f"evt-{session_id}-{at}", session_id, created_at=at)
            return [CompactionReported(compaction, provisional=True)]
        case "subagent_spawned":
            parent = identifier(context, "parentSessionId")
            return [note_parent(session_id, parent)] if parent else []
        case "subagent_ended":
            return [SessionEnded(session_id, number(event, "endedAt") or at, text(event, "outcome"))]
        case _:
            return []


def note_parent(session_id: str, parent: str) -> CapturedEvent:
    """Record the session that started a sub-agent."""
    return SessionNote(session_id, {"parentId": parent})
