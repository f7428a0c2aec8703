"""Codex CLI: hooks report the moment, the rollout that Codex writes for each thread reports what happened."""

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
from clankersd.capture.harnesses.codex.hooks import NAME, read_hook
from clankersd.capture.harnesses.codex.rollouts import RolloutReader, find_rollouts

RECENT_DAYS = 31
"""Newest folders of rollouts that are searched for activity: a session that is resumed may be older than today."""


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read a payload as an occasion for recall. A sub-agent's are none: its agent instructs it."""
    return None if payload.get("agent_id") else find_hook_occasion(NAME, payload)


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = [home_folder(environ) / ".codex"]
    if configured := environ.get("CODEX_HOME"):
        folders.append(Path(configured))
    return folders


def _list_activity_files(root: Path) -> Iterator[Path]:
    days = [
        day for year in list_folders(root / "sessions") for month in list_folders(year) for day in list_folders(month)
    ]
    for day in sorted(days)[-RECENT_DAYS:]:
        yield from list_files(day, "rollout-", ".jsonl")


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    transcript_reader=RolloutReader,
    find_history=find_rollouts,
)
