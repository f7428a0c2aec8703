"""pi: an extension reports the moment, the session file reports what happened."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clankersd.capture.harnesses.base import (
    Harness,
    Occasion,
    Payload,
    home_folder,
    list_files,
    list_folders,
    string,
)
from clankersd.capture.harnesses.payload import identifier, record
from clankersd.capture.harnesses.pi.hooks import NAME, read_hook
from clankersd.capture.harnesses.pi.sessions import SessionReader, find_sessions


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read a payload as an occasion for recall: with a prompt, and again with the first one after a compaction."""
    event, context = record(payload, "event"), record(payload, "ctx")
    session, project = identifier(context, "sessionId"), string(context, "cwd") or None
    if session is None:
        return None
    if event.get("type") == "before_agent_start":
        prompt = string(event, "prompt")
        return Occasion(NAME, "prompt", session, project, prompt, "prompt", starts_with_prompt=True)
    if event.get("type") == "session_compact":
        return Occasion(NAME, "start", session, project, "", "compact", is_answered=False)
    return None


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    configured = (environ.get(name) for name in ("PI_CODING_AGENT_DIR", "PI_CODING_AGENT_SESSION_DIR"))
    return [home_folder(environ) / ".pi", *(Path(path).expanduser() for path in configured if path)]


def _list_activity_files(root: Path) -> Iterator[Path]:
    for folder in ("agent/sessions", "sessions", ""):
        for project in list_folders(root / folder):
            yield from list_files(project, "", ".jsonl")


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=SessionReader,
    find_history=find_sessions,
)
