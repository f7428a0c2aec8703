"""OpenCode: its plugin sends the events of the bus; its database holds the same records for an import."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clankers_protocol.ids import encode_id
from clankersd.capture.harnesses.base import Harness, Occasion, Payload, home_folder, list_files, string
from clankersd.capture.harnesses.opencode.hooks import NAME, read_hook
from clankersd.capture.harnesses.opencode.storage import find_sessions, read_session


def _find_occasion(payload: Payload) -> Occasion | None:
    """Read what the plugin sends with each message of the user, and whether the session was compacted since."""
    session = encode_id(string(payload, "sessionID") or string(payload, "session_id"))
    if string(payload, "hook_event_name") != "chat.message" or not session:
        return None
    trigger = "compact" if payload.get("compacted") else "prompt"
    project, prompt = string(payload, "cwd") or None, string(payload, "prompt")
    return Occasion(NAME, "prompt", session, project, prompt, trigger, starts_with_prompt=True)


def _data_folders(environ: Mapping[str, str]) -> list[Path]:
    return [Path(environ.get("XDG_DATA_HOME") or home_folder(environ) / ".local/share") / "opencode"]


def _list_activity_files(root: Path) -> Iterator[Path]:
    return list_files(root, "opencode", ".db", ".db-wal")


HARNESS = Harness(
    NAME,
    read_hook,
    _find_occasion,
    data_folders=_data_folders,
    list_activity_files=_list_activity_files,
    find_history=find_sessions,
    read_history=read_session,
)
