"""pi's events as our extension sends them: the event as pi names it, and where its session and its file are.

The extension sends few of them. All are read, since their names and fields are pi's own.
"""

from clankers_protocol.events import SessionEvent
from clankersd.capture.events import CapturedEvent, HookReading, SessionEnded, SessionOpened, SessionReported
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import identifier, record, text

NAME = "pi"

_AFTER_A_STEP = frozenset(
    {"session_start", "message_end", "turn_end", "agent_end", "agent_settled", "session_compact", "session_shutdown"}
)
"""Events after which the session file has something new."""


def read_hook(payload: Payload, at: int) -> HookReading:
    event, context = record(payload, "event"), record(payload, "ctx")
    name, session_id = text(event, "type") or "", identifier(context, "sessionId") or ""
    is_start_or_end = name in ("session_start", "session_shutdown")
    reading = HookReading(name, session_id, text(context, "cwd"), opens_or_closes=is_start_or_end)
    path = text(context, "sessionFile")
    if session_id and path:  # a session without a file (`--no-session`) is not to be kept
        reading.events = _read_session(name, event, context, at)
        reading.transcripts = [path] if name in _AFTER_A_STEP else []
    return reading


def _read_session(name: str, event: Payload, context: Payload, at: int) -> list[CapturedEvent]:
    """Read the use of a session. pi starts one before anything is said in it, which is none to us."""
    session_id, model = identifier(context, "sessionId") or "", record(context, "model")
    if name == "before_agent_start":
        session = SessionEvent(session_id, project_path=text(context, "cwd"), source=NAME)
        session.model, session.provider = text(model, "id"), text(model, "provider")
        return [SessionReported(session, only_without_project=True), SessionOpened(session_id, at)]
    if name == "session_shutdown":
        return [SessionEnded(session_id, at, text(event, "reason"))]
    return []
