"""Qwen Code, a fork of Gemini CLI with Claude Code's hooks: the session file reports what happened."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clankersd.capture.harnesses.base import (
    Harness,
    Occasion,
    Payload,
    find_hook_occasion,
    home_folder,
    list_files,
    list_folders,
)
from clankersd.capture.harnesses.qwen.chats import ChatReader, find_chats
from clankersd.capture.harnesses.qwen.hooks import NAME, read_hook


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read a payload as an occasion for recall. An empty prompt is none: it follows each batch of tools."""
    found = find_hook_occasion(NAME, payload)
    return None if found is None or (found.kind == "prompt" and not found.prompt.strip()) else found


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    configured = (environ.get(name) for name in ("QWEN_HOME", "QWEN_RUNTIME_DIR"))
    return [home_folder(environ) / ".qwen", *(Path(path).expanduser() for path in configured if path)]


def _list_activity_files(root: Path) -> Iterator[Path]:
    for project in list_folders(root / "projects"):
        yield from list_files(project / "chats", "", ".jsonl")


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=ChatReader,
    find_history=find_chats,
)
