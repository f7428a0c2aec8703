"""GitHub Copilot CLI: hooks report the moment, the event log of the session reports what happened."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from clankersd.capture.harnesses.base import (
    Harness,
    Occasion,
    Payload,
    find_hook_occasion,
    home_folder,
    list_files,
    list_folders,
    string,
)
from clankersd.capture.harnesses.copilot.event_log import EventLogReader, find_event_logs
from clankersd.capture.harnesses.copilot.hooks import EVENT_LOG, NAME, SESSIONS, event_name, read_hook

_START_SOURCES = {"new": "startup"}


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read a payload as an occasion for recall. A sub-agent's are none: its agent instructs it.

    No session start follows a compaction: the next prompt gets again what was recalled at the start.
    """
    if payload.get("parentAgentId"):
        return None
    name, source = event_name(payload), string(payload, "source")
    described = {"session_id": payload.get("sessionId"), "cwd": payload.get("cwd"), "prompt": payload.get("prompt")}
    if name == "preCompact":
        described |= {"hook_event_name": "SessionStart", "source": "compact"}
    elif name == "sessionStart":
        described |= {"hook_event_name": "SessionStart", "source": _START_SOURCES.get(source, source)}
    elif name == "userPromptSubmitted":
        described |= {"hook_event_name": "UserPromptSubmit"}
    found = find_hook_occasion(NAME, described)
    if found is None:
        return None
    is_prompt, is_answered = found.kind == "prompt", name != "preCompact"
    return replace(
        found,
        hook_event=None,
        context_field="additionalContext",
        starts_with_prompt=is_prompt,
        is_answered=is_answered,
    )


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = [home_folder(environ) / ".copilot"]
    if configured := environ.get("COPILOT_HOME"):
        folders.append(Path(configured).expanduser())
    return folders


def _list_activity_files(root: Path) -> Iterator[Path]:
    for session in list_folders(root / SESSIONS):
        yield from list_files(session, EVENT_LOG, EVENT_LOG)


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=EventLogReader,
    find_history=find_event_logs,
)
