"""Codex CLI: its hooks are shaped like Claude Code's, with a turn's id for a prompt's; `notify` tells of a turn."""

from typing import Any

from msgspec.structs import replace

from clankers_protocol.events import MessageEvent, SessionEvent
from clankersd.capture.harnesses import claude_code, payload
from clankersd.capture.harnesses.payload import Fact, Told, identifier, text

HARNESS = "codex"
PROVIDER = "openai"
_SAME = ("SessionStart", "PreToolUse", "PostToolUse", "PostCompact", "SessionEnd")


def read(event: dict[str, Any], at: int) -> Told:
    """What an event tells."""
    if text(event, "type") == "agent-turn-complete":
        return _turn(event, at)
    name, session_id = text(event, "hook_event_name") or "", identifier(event, "session_id") or ""
    result = Told(name, session_id, text(event, "cwd"))
    turn = identifier(event, "turn_id") or ""
    if not session_id:
        return result
    if name in _SAME:
        alike = {**event, "prompt_id": turn}
        result.facts = [*claude_code.read(alike, at).facts, *_placed(event)]
    elif name == "UserPromptSubmit" and (prompt := text(event, "prompt")):
        result.facts = _prompt(event, session_id, turn, prompt, at)
    elif name == "Stop" and (answer := text(event, "last_assistant_message")):
        result.facts = [payload.message(_said(session_id, turn, "answer", answer, at))]
    return result


def _prompt(event: dict[str, Any], session_id: str, turn: str, prompt: str, at: int) -> list[Fact]:
    return [
        *_placed(event),
        payload.opened(session_id, at),
        payload.message(_said(session_id, turn, "prompt", prompt, at)),
        payload.first_prompt(session_id, prompt),
    ]


def _turn(event: dict[str, Any], at: int) -> Told:
    session_id, turn = (
        identifier(event, "thread-id") or identifier(event, "thread_id") or "",
        identifier(event, "turn-id") or "",
    )
    result = Told("agent-turn-complete", session_id, text(event, "cwd"))
    if not session_id:
        return result
    asked = event.get("input-messages")
    prompt = "\n".join(each for each in asked if isinstance(each, str)) if isinstance(asked, list) else ""
    if prompt.strip():
        result.facts = _prompt({**event, "session_id": session_id}, session_id, turn, prompt, at)
    if answer := text(event, "last-assistant-message"):
        result.facts.append(payload.message(_said(session_id, turn, "answer", answer, at)))
    return result


def _said(session_id: str, turn: str, kind: str, words: str, at: int) -> MessageEvent:
    """Codex gives messages no id: a turn has one prompt and one answer, told of by hook and by `notify` alike."""
    message_id = f"{session_id}-{turn}-{kind}-{payload.digest(words)[:12]}"
    role = "user" if kind == "prompt" else "assistant"
    return MessageEvent(message_id, session_id, role, words, source=HARNESS, created_at=at)


def _placed(event: dict[str, Any]) -> list[Fact]:
    """Where a session runs is told once; what it is, by every event."""
    session = SessionEvent(
        identifier(event, "session_id") or "",
        model=text(event, "model"),
        provider=PROVIDER,
        source=HARNESS,
        permission_mode=text(event, "permission_mode"),
    )
    return [payload.placed(replace(session, project_path=text(event, "cwd"))), payload.session(session)]
