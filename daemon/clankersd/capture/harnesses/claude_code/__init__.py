"""Claude Code: hooks report as it works, transcripts fill in what hooks miss."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from clankersd.capture.harnesses.base import Harness, find_hook_occasion, home_folder, list_files, list_folders
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


HARNESS = Harness(
    NAME,
    read_hook,
    partial(find_hook_occasion, NAME),
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=ClaudeTranscriptReader,
    find_history=find_transcripts,
)
