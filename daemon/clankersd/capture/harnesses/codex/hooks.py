"""Codex's hook payloads, shaped like Claude Code's, and its `notify` setting, which reports a turn.

A hook does not report whether a command failed, and does not run for a failed patch or MCP call. So its events are
hints for what the rollout records under the same ids. A session without a rollout (`--ephemeral`) has no other source.
"""

from collections.abc import Callable

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    ErrorReported,
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
from clankersd.capture.harnesses.codex.tools import PATCH, patched_file, read_output, tool_input, tool_name
from clankersd.capture.harnesses.payload import identifier, readable, text

NAME = "codex"
DEFAULT_AGENT = "default"
TITLE_REQUEST = "Generate a concise, single-line task title"
"""Beginning of the prompt of the hidden thread that makes the title of a session."""

SUMMARY_PREAMBLE = "Another language model started to solve this problem"
"""Beginning of the message that a compaction leaves in the context, with the summary."""

_BEFORE_A_STEP = ("PreToolUse", "PreModelRequest", "PermissionRequest")
"""Events after which the rollout has nothing new."""


def read_hook(payload: Payload, at: int) -> HookReading:
    if text(payload, "type") == "agent-turn-complete":
        return _read_notify(payload, at)
    name, root_id = text(payload, "hook_event_name") or "", identifier(payload, "session_id") or ""
    is_start_or_end = name in ("SessionStart", "SessionEnd")
    reading = HookReading(name, root_id, text(payload, "cwd"), opens_or_closes=is_start_or_end)
    if not root_id:
        return reading
    if read := _READERS.get(name):
        reading.events = read(payload, identifier(payload, "agent_id") or root_id, at)
    if name not in _BEFORE_A_STEP:
        paths = (text(payload, key) for key in ("transcript_path", "agent_transcript_path"))
        reading.transcripts = [path for path in paths if path]
    return reading


def _session_start(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    session = _session(payload, session_id, text(payload, "cwd"))
    events: list[CapturedEvent] = [SessionReported(session), SessionOpened(session_id, at)]
    if text(payload, "source") == "clear":
        events.append(SessionNote(session_id, {"startedBy": "clear"}))
        events.append(SessionClearedFrom(session_id, text(payload, "cwd")))
    return events


def _session_end(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    """Read the end of a session. Codex also ends threads in which nothing happened, so this creates no session."""
    return [SessionEnded(session_id, at, text(payload, "reason"))]


def _prompt(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    prompt, turn_id = text(payload, "prompt"), identifier(payload, "turn_id") or ""
    if not prompt:
        return []
    events = _report_session(payload, session_id)
    if not payload.get("agent_id"):
        events.append(SessionOpened(session_id, at))
    events.append(MessageReported(_message(session_id, turn_id, "prompt", prompt, at)))
    return [*events, FirstPrompt(session_id, prompt, at)]


def _answer(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    answer, turn_id = text(payload, "last_assistant_message"), identifier(payload, "turn_id") or ""
    if not answer:
        return []
    return [
        *_report_session(payload, session_id),
        MessageReported(_message(session_id, turn_id, "answer", answer, at)),
    ]


def _subagent_stop(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    return [*_answer(payload, session_id, at), SessionEnded(session_id, at, "completed")]


def _tool_called(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    tool = _tool(payload, session_id, at)
    return [*_report_session(payload, session_id), ToolReported(tool, "hint")] if tool else []


def _tool_returned(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    tool = _tool(payload, session_id, at)
    if tool is None:
        return []
    output = readable(payload.get("tool_response"))
    success: bool | None = True
    if tool.tool_name == PATCH:
        success, output, tool.error_message = read_output(output)
    tool.tool_output = output
    tool.success = None if text(payload, "transcript_path") else success
    return [*_report_session(payload, session_id), ToolReported(tool, "hint")]


def _compacted(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    """Read a compaction, unless the rollout has it: a hook cannot tell several of the same turn apart."""
    if text(payload, "transcript_path"):
        return []
    compaction_id = f"{session_id}-{identifier(payload, 'turn_id') or ''}-compaction-{at}"
    cause = text(payload, "trigger")
    return [CompactionReported(CompactionEvent(compaction_id, session_id, cause=cause, created_at=at))]


def _model_answered(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    """Read a failed request, which ends its turn, unless the rollout has it."""
    if text(payload, "status") != "failed" or text(payload, "transcript_path"):
        return []
    turn_id, message = identifier(payload, "turn_id") or "", text(payload, "error")
    return [ErrorReported(turn_failure(session_id, turn_id, None, message, at))]


def _subagent_start(payload: Payload, session_id: str, at: int) -> list[CapturedEvent]:
    return _report_session(payload, session_id)


def _read_notify(payload: Payload, at: int) -> HookReading:
    """Read the report of a turn. Its prompt is the last of all the user's messages that are still in the context."""
    session_id = identifier(payload, "thread-id") or identifier(payload, "thread_id") or ""
    turn_id = identifier(payload, "turn-id") or ""
    reading = HookReading("agent-turn-complete", session_id, text(payload, "cwd"))
    inputs = payload.get("input-messages")
    given = [each for each in inputs if isinstance(each, str)] if isinstance(inputs, list) else []
    prompts = [each for each in given if not each.startswith(SUMMARY_PREAMBLE)]
    prompt, answer = prompts[-1] if prompts else "", text(payload, "last-assistant-message")
    if not session_id or prompt.startswith(TITLE_REQUEST):
        return reading
    if prompt.strip():
        events = _prompt(payload | {"prompt": prompt, "turn_id": turn_id}, session_id, at)
        is_agent = not text(payload, "client")  # it may have ended already
        reading.events = [each for each in events if not (is_agent and isinstance(each, SessionOpened))]
    if answer:
        session = SessionReported(_session(payload, session_id, text(payload, "cwd")), only_without_project=True)
        message = MessageReported(_message(session_id, turn_id, "answer", answer, at))
        reading.events = [*(reading.events or [session]), message]
    return reading


def turn_failure(
    session_id: str, turn_id: str, kind: str | None, message: str | None, at: int | None
) -> SessionErrorEvent:
    """Make the error that ended a turn. A turn has at most one."""
    return SessionErrorEvent(f"{session_id}-{turn_id}-failure", session_id, kind, message, at)


def message_id(session_id: str, turn_id: str, kind: str, content: str, occurrence: int = 1) -> str:
    """Make the id of a message from its turn and text, which the hook, `notify` and the rollout all know."""
    identity = f"{session_id}-{turn_id}-{kind}-{text_digest(content)[:12]}"
    return identity if occurrence == 1 else f"{identity}-{occurrence}"


def _message(session_id: str, turn_id: str, kind: str, content: str, at: int) -> MessageEvent:
    role = "user" if kind == "prompt" else "assistant"
    identity = message_id(session_id, turn_id, kind, content)
    return MessageEvent(identity, session_id, role, content, source=NAME, created_at=at)


def _tool(payload: Payload, session_id: str, at: int) -> ToolEvent | None:
    tool_id, given_name = identifier(payload, "tool_use_id"), text(payload, "tool_name")
    if not tool_id or not given_name:
        return None
    name, arguments = tool_name(given_name), payload.get("tool_input")
    return ToolEvent(
        tool_id,
        session_id,
        tool_name=name,
        tool_input=tool_input(name, arguments),
        file_path=patched_file(arguments, text(payload, "cwd")),
        created_at=at,
    )


def _report_session(payload: Payload, session_id: str) -> list[CapturedEvent]:
    """Report the session: its project only once, everything else from each event; an agent's with its parent."""
    events: list[CapturedEvent] = [
        SessionReported(_session(payload, session_id, text(payload, "cwd")), only_without_project=True),
        SessionReported(_session(payload, session_id)),
    ]
    if payload.get("agent_id") and not text(payload, "transcript_path"):  # the rollout knows the parent of nested ones
        agent = text(payload, "agent_type") or DEFAULT_AGENT
        events.append(SessionNote(session_id, {"parentId": identifier(payload, "session_id"), "agent": agent}))
    return events


def _session(payload: Payload, session_id: str, project: str | None = None) -> SessionEvent:
    return SessionEvent(
        session_id,
        project_path=project,
        model=text(payload, "model"),
        source=NAME,
        permission_mode=text(payload, "permission_mode"),
    )


_READERS: dict[str, Callable[[Payload, str, int], list[CapturedEvent]]] = {
    "SessionStart": _session_start,
    "UserPromptSubmit": _prompt,
    "PostModelRequest": _model_answered,
    "PreToolUse": _tool_called,
    "PostToolUse": _tool_returned,
    "PostCompact": _compacted,
    "SubagentStart": _subagent_start,
    "SubagentStop": _subagent_stop,
    "Stop": _answer,
    "SessionEnd": _session_end,
}
