"""Qwen Code's hook payloads. They say that something happened; the session file that they name says what."""

from clankers_protocol.events import SessionEvent
from clankersd.capture.events import CapturedEvent, HookReading, SessionEnded, SessionOpened, SessionReported
from clankersd.capture.harnesses.base import Payload
from clankersd.capture.harnesses.payload import identifier, millis, text
from clankersd.capture.harnesses.session_files import end_agent

NAME = "qwen"

_BEFORE_A_STEP = ("PreToolUse", "PreCompact", "PermissionRequest", "Notification", "SubagentStart")
"""Events after which the session file has nothing new."""


def agent_session(session_id: str, agent_id: str) -> str:
    """Make the id of a sub-agent's session: the id of an agent is only unique in the session that ran it."""
    return f"{session_id}-{agent_id}"


def read_hook(payload: Payload, at: int) -> HookReading:
    name, session_id = text(payload, "hook_event_name") or "", identifier(payload, "session_id") or ""
    is_start_or_end = name in ("SessionStart", "SessionEnd")
    reading = HookReading(name, session_id, text(payload, "cwd"), opens_or_closes=is_start_or_end)
    if not session_id:
        return reading
    reading.events = _read_session(name, payload, session_id, millis(payload.get("timestamp")) or at)
    if name not in _BEFORE_A_STEP:
        paths = (text(payload, key) for key in ("transcript_path", "agent_transcript_path"))
        reading.transcripts = [path for path in paths if path]
    return reading


def _read_session(name: str, payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    project, model = text(payload, "cwd"), text(payload, "model")
    mode = text(payload, "permission_mode")
    session = SessionEvent(session_id, project_path=project, model=model, source=NAME, permission_mode=mode)
    agent_id = identifier(payload, "agent_id")
    if name == "SubagentStop" and agent_id:
        agent = SessionEvent(agent_session(session_id, agent_id), project_path=project, source=NAME)
        return end_agent(agent, session_id, text(payload, "agent_type"), at)
    if name == "SessionStart":
        return [SessionReported(session), SessionOpened(session_id, at)]
    if name == "UserPromptSubmit" and text(payload, "prompt"):
        return [SessionReported(session, only_without_project=True), SessionOpened(session_id, at)]
    if name == "SessionEnd":
        ended = SessionEnded(session_id, at, text(payload, "reason"))
        return [SessionReported(session, only_without_project=True), ended]
    return []
