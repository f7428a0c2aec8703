"""Copilot CLI's hook payloads. They have no ids, and no answers: the event log of the session has both.

Copilot does not say in a payload which event it is, and only some name the event log. The plugin has the hook add both,
as `hookEventName` and `copilotHome`.
"""

from clankers_protocol.events import SessionEvent
from clankersd.capture.events import CapturedEvent, HookReading, SessionEnded, SessionOpened, SessionReported
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import identifier, number, text
from clankersd.capture.harnesses.session_files import end_agent

NAME = "copilot"
SESSIONS = "session-state"
EVENT_LOG = "events.jsonl"

_BEFORE_A_STEP = ("preToolUse", "permissionRequest", "preCompact", "notification", "subagentStart")
"""Events after which the event log has nothing new."""


def event_name(payload: Payload) -> str:
    return text(payload, "hookEventName") or text(payload, "hookName") or ""


def read_hook(payload: Payload, at: int) -> HookReading:
    name, session_id = event_name(payload), identifier(payload, "sessionId") or ""
    is_start_or_end = name in ("sessionStart", "sessionEnd")
    reading = HookReading(name, session_id, text(payload, "cwd"), opens_or_closes=is_start_or_end)
    if not session_id:
        return reading
    reading.events = _read_session(name, payload, session_id, number(payload, "timestamp") or at)
    if name not in _BEFORE_A_STEP and (path := _event_log(payload)):
        reading.transcripts = [path]
    return reading


def _event_log(payload: Payload) -> str | None:
    """Return the path of the event log. A sub-agent's events are in that of the session that ran it."""
    home, session = text(payload, "copilotHome"), text(payload, "sessionId") or ""
    if (path := text(payload, "transcriptPath")) or home is None or payload.get("parentAgentId") or "/" in session:
        return path
    return f"{home}/{SESSIONS}/{session}/{EVENT_LOG}"


def _read_session(name: str, payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    session = SessionEvent(session_id, project_path=text(payload, "cwd"), source=NAME)
    agent_id = identifier(payload, "agentId")
    if name == "subagentStop" and agent_id:
        agent = SessionEvent(agent_id, project_path=text(payload, "cwd"), source=NAME)
        parent = identifier(payload, "parentAgentId") or session_id
        return end_agent(agent, parent, text(payload, "agentName"), at)
    if agent_id:
        return []
    if name == "sessionStart":
        return [SessionReported(session), SessionOpened(session_id, at)]
    if name == "userPromptSubmitted":
        return [SessionReported(session, only_without_project=True), SessionOpened(session_id, at)]
    if name == "sessionEnd":
        ended = SessionEnded(session_id, at, text(payload, "reason"))
        return [SessionReported(session, only_without_project=True), ended]
    return []
