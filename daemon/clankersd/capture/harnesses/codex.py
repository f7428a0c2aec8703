"""Codex CLI. Its hooks are shaped like Claude Code's, with a turn's id for a prompt's; `notify` reports a turn."""

from functools import partial

from msgspec.structs import replace

from clankers_protocol.events import MessageEvent, SessionEvent
from clankersd.capture.events import (
    CapturedEvent,
    FirstPrompt,
    HookReading,
    MessageReported,
    SessionOpened,
    SessionReported,
    text_digest,
)
from clankersd.capture.harnesses.base import Harness, Payload, find_hook_occasion
from clankersd.capture.harnesses.claude_code import hooks as claude_code
from clankersd.capture.harnesses.payload import identifier, text

NAME = "codex"
PROVIDER = "openai"
_SAME_AS_CLAUDE_CODE = ("SessionStart", "PreToolUse", "PostToolUse", "PostCompact", "SessionEnd")


def read_hook(payload: Payload, at: int) -> HookReading:
    if text(payload, "type") == "agent-turn-complete":
        return _read_notify(payload, at)
    name, session_id = text(payload, "hook_event_name") or "", identifier(payload, "session_id") or ""
    reading = HookReading(name, session_id, text(payload, "cwd"))
    turn_id = identifier(payload, "turn_id") or ""
    if not session_id:
        return reading
    if name in _SAME_AS_CLAUDE_CODE:
        events = claude_code.read_hook({**payload, "prompt_id": turn_id}, at).events
        reading.events = [*map(_as_codex, events), *_read_session(payload, session_id)]
    elif name == "UserPromptSubmit" and (prompt := text(payload, "prompt")):
        reading.events = _read_prompt(payload, session_id, turn_id, prompt, at)
    elif name == "Stop" and (answer := text(payload, "last_assistant_message")):
        reading.events = [MessageReported(_message(session_id, turn_id, "answer", answer, at))]
    return reading


def _as_codex(event: CapturedEvent) -> CapturedEvent:
    if isinstance(event, SessionReported):
        return replace(event, session=replace(event.session, provider=PROVIDER, source=NAME))
    return event


def _read_prompt(payload: Payload, session_id: str, turn_id: str, prompt: str, at: int) -> list[CapturedEvent]:
    return [
        *_read_session(payload, session_id),
        SessionOpened(session_id, at),
        MessageReported(_message(session_id, turn_id, "prompt", prompt, at)),
        FirstPrompt(session_id, prompt),
    ]


def _read_notify(payload: Payload, at: int) -> HookReading:
    session_id = identifier(payload, "thread-id") or identifier(payload, "thread_id") or ""
    turn_id = identifier(payload, "turn-id") or ""
    reading = HookReading("agent-turn-complete", session_id, text(payload, "cwd"))
    if not session_id:
        return reading
    inputs = payload.get("input-messages")
    prompt = "\n".join(each for each in inputs if isinstance(each, str)) if isinstance(inputs, list) else ""
    events: list[CapturedEvent] = []
    if prompt.strip():
        events += _read_prompt(payload, session_id, turn_id, prompt, at)
    if answer := text(payload, "last-assistant-message"):
        events.append(MessageReported(_message(session_id, turn_id, "answer", answer, at)))
    reading.events = events
    return reading


def _message(session_id: str, turn_id: str, kind: str, content: str, at: int) -> MessageEvent:
    """Make a message with an id of its own: a turn has one prompt and one answer, reported by hook and `notify`."""
    message_id = f"{session_id}-{turn_id}-{kind}-{text_digest(content)[:12]}"
    role = "user" if kind == "prompt" else "assistant"
    return MessageEvent(message_id, session_id, role, content, source=NAME, created_at=at)


def _read_session(payload: Payload, session_id: str) -> list[CapturedEvent]:
    """Read the session: its project only once, everything else from each event."""
    session = SessionEvent(
        session_id,
        model=text(payload, "model"),
        provider=PROVIDER,
        source=NAME,
        permission_mode=text(payload, "permission_mode"),
    )
    with_project = replace(session, project_path=text(payload, "cwd"))
    return [SessionReported(with_project, only_without_project=True), SessionReported(session)]


HARNESS = Harness(NAME, read_hook, partial(find_hook_occasion, NAME))
