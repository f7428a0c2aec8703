"""Claude Code: hooks report as it works, transcripts fill in what hooks miss."""

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
)
from clankersd.capture.harnesses.claude_code.hooks import NAME, read_hook
from clankersd.capture.harnesses.claude_code.transcripts import ClaudeTranscriptReader, find_transcripts


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = [home_folder(environ) / ".claude"]
    if configured := environ.get("CLAUDE_CONFIG_DIR"):
        folders.append(Path(configured))
    return folders


def _list_activity_files(root: Path) -> Iterator[Path]:
    for project in list_folders(root / "projects"):
        yield from list_files(project, "", ".jsonl")


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read a payload as an occasion for recall.

    The plugin has no hook at the start of a new session, which would be one more process: the first prompt starts it.
    """
    found = find_hook_occasion(NAME, payload)
    return replace(found, starts_with_prompt=True) if found and found.kind == "prompt" else found


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=ClaudeTranscriptReader,
    find_history=find_transcripts,
)
