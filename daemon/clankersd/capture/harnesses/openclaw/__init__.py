"""OpenClaw: its plugin sends what hooks receive; its SQLite transcripts hold the same messages for an import."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clankers_protocol.ids import encode_id
from clankersd.capture.harnesses.base import Harness, Occasion, Payload, home_folder, list_files, list_folders, string
from clankersd.capture.harnesses.openclaw.entries import NAME, SUBAGENT_PREAMBLE, is_internal_prompt
from clankersd.capture.harnesses.openclaw.hooks import read_hook
from clankersd.capture.harnesses.openclaw.storage import find_sessions, read_session
from clankersd.capture.harnesses.payload import record


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read `before_prompt_build`, which the plugin sends with the prompt and whether a compaction preceded it."""
    context, event = record(payload, "ctx"), record(payload, "event")
    session, prompt = encode_id(string(context, "sessionId")), string(event, "prompt")
    if string(payload, "hook") != "before_prompt_build" or not session:
        return None
    if is_internal_prompt(prompt) or prompt.startswith(SUBAGENT_PREAMBLE):
        return None
    trigger = "compact" if event.get("compacted") else "prompt"
    project = string(context, "workspaceDir") or None
    return Occasion(NAME, "prompt", session, project, prompt, trigger, starts_with_prompt=True)


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    return [Path(environ.get("OPENCLAW_STATE_DIR") or home_folder(environ) / ".openclaw")]


def _list_activity_files(root: Path) -> Iterator[Path]:
    for agent in list_folders(root / "agents"):
        yield from list_files(agent / "agent", "openclaw-agent", ".sqlite", ".sqlite-wal")


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    find_history=find_sessions,
    read_history=read_session,
)
