"""Gemini CLI: hooks report the moment, the session file reports what happened."""

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
from clankersd.capture.harnesses.gemini.chats import ChatReader, find_chats, read_chat
from clankersd.capture.harnesses.gemini.hooks import NAME, read_hook
from clankersd.capture.harnesses.gemini.texts import strip_hook_context


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read a payload as an occasion for recall.

    `/compress` drops what was recalled, and no session start follows it: the next prompt gets that again.
    """
    name = string(payload, "hook_event_name")
    if name == "PreCompress" and string(payload, "trigger") == "manual":
        start = find_hook_occasion(NAME, payload | {"hook_event_name": "SessionStart", "source": "compact"})
        return replace(start, is_answered=False) if start else None
    if name != "BeforeAgent":
        return find_hook_occasion(NAME, payload)
    prompt = strip_hook_context(string(payload, "prompt"))
    found = find_hook_occasion(NAME, payload | {"prompt": prompt})
    return replace(found, starts_with_prompt=True) if found else None


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = [home_folder(environ) / ".gemini"]
    if configured := environ.get("GEMINI_CLI_HOME"):
        folders.append(Path(configured) / ".gemini")
    return folders


def _list_activity_files(root: Path) -> Iterator[Path]:
    for project in list_folders(root / "tmp"):
        yield from list_files(project / "chats", "session-", ".jsonl")


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=ChatReader,
    find_history=find_chats,
    read_history=read_chat,
)
