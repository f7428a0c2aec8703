"""At which of a harness's events something is told, and how that harness wants to be told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clankers_protocol.ids import encode_id
from clankers_protocol.recall import RecallKind

Event = dict[str, Any]


@dataclass(frozen=True)
class Occasion:
    """A moment at which a session can be told something."""

    harness: str | None
    kind: RecallKind
    session: str
    project: str | None
    prompt: str
    trigger: str
    event: str | None = None
    starts_with_prompt: bool = False

    def told_as(self, text: str) -> Event:
        """What the harness reads on the hook's standard output."""
        if self.event is None:
            return {"text": text}
        return {"hookSpecificOutput": {"hookEventName": self.event, "additionalContext": text}}


STARTS = frozenset({"startup", "resume", "clear", "compact"})
"""A fork goes on with what its parent was told."""

PROMPTS = frozenset({"UserPromptSubmit", "BeforeAgent"})


def occasion(harness: str, event: Event) -> Occasion | None:
    """What a harness's event is for recall; None when nothing is told at it."""
    read = _HARNESSES.get(harness)
    return read(harness, event) if read else None


def _with_hooks(harness: str, event: Event) -> Occasion | None:
    """Claude Code, and those that took over its hooks."""
    name, session = _text(event, "hook_event_name"), encode_id(_text(event, "session_id"))
    project, prompt = _text(event, "cwd") or None, _text(event, "prompt")
    if name == "SessionStart":
        source = _text(event, "source") or _text(event, "trigger") or "startup"
        return Occasion(harness, "start", session, project, "", source, name) if session and source in STARTS else None
    if name in PROMPTS and session:
        return Occasion(harness, "prompt", session, project, prompt, "prompt", name)
    return None


def _opencode(harness: str, event: Event) -> Occasion | None:
    """The plugin asks with each message of the user, and tells when the session was compacted since the last."""
    session = encode_id(_text(event, "sessionID") or _text(event, "session_id"))
    if _text(event, "hook_event_name") != "chat.message" or not session:
        return None
    trigger = "compact" if event.get("compacted") else "prompt"
    project, prompt = _text(event, "cwd") or None, _text(event, "prompt")
    return Occasion(harness, "prompt", session, project, prompt, trigger, starts_with_prompt=True)


def _generic(harness: str, event: Event) -> Occasion | None:
    """Any other: `kind`, `sessionId`, `project`, and with a prompt `prompt`."""
    kind, session = event.get("kind"), encode_id(_text(event, "sessionId"))
    if kind not in ("start", "prompt") or not session:
        return None
    trigger = ("compact" if event.get("compacted") else "startup") if kind == "start" else "prompt"
    return Occasion(None, kind, session, _text(event, "project") or None, _text(event, "prompt"), trigger)


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


_HARNESSES: dict[str, Callable[[str, Event], Occasion | None]] = {
    "claude-code": _with_hooks,
    "codex": _with_hooks,
    "gemini": _with_hooks,
    "generic": _generic,
    "opencode": _opencode,
}
