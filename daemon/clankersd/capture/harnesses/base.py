"""Interface of a harness module: readers of its payloads, transcripts and history, and its occasions for recall."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clankers_protocol.ids import encode_id
from clankers_protocol.recall import RecallKind
from clankersd.capture.events import CapturedEvent, HookReading

Payload = dict[str, Any]


class TranscriptReader(Protocol):
    """Reads a transcript line by line into events.

    After `end`, `safe_offset` and `state` say where to continue when the file has grown.
    """

    events: list[CapturedEvent]
    state: dict[str, Any]
    safe_offset: int

    def read_line(self, offset: int, line: Payload) -> None: ...

    def end(self, offset: int) -> None: ...


@dataclass(frozen=True)
class PastSession:
    """A session in the harness's own files that can be imported. `root` is the folder that `path` must lie in."""

    id: str
    root: Path
    path: Path
    project: str | None
    updated_at: int
    label: str

    @property
    def session_id(self) -> str:
        return encode_id(self.id)


@dataclass
class History:
    """Events of a past session, and the number of records that could not be read."""

    events: list[CapturedEvent] = field(default_factory=list)
    malformed: int = 0


@dataclass(frozen=True)
class Occasion:
    """A hook event at which recalled text can be injected into a session.

    `hook_event` is the name that a harness with Claude Code's hooks expects in the output. An event that is not
    answered only records that the session was compacted: the harness ignores the output of its hook. Other harnesses
    read the text from the field `context_field` of the output.
    """

    harness: str | None
    kind: RecallKind
    session: str
    project: str | None
    prompt: str
    trigger: str
    hook_event: str | None = None
    starts_with_prompt: bool = False
    is_answered: bool = True
    context_field: str = "text"

    def hook_output(self, text: str) -> Payload:
        """Return what the harness reads on the hook's standard output."""
        if self.hook_event is None:
            return {self.context_field: text}
        return {"hookSpecificOutput": {"hookEventName": self.hook_event, "additionalContext": text}}


@dataclass(frozen=True)
class Harness:
    """Everything known of a harness. What it does not have is None.

    - `read_hook` reads a hook payload, received at the given time, into events.
    - `find_occasion` reads a hook payload as an occasion for recall.
    - `data_folders` returns the folders with the harness's own files, for the given environment.
    - `list_activity_files` lists the files below such a folder that change whenever the harness is used.
    - `transcript_reader` makes a reader for a transcript: of this session, from this state and offset.
    - `find_history` lists the past sessions below these folders that changed since then, oldest first.
    - `read_history` reads one of them, where it is not a transcript or the transcript is not complete.
    """

    name: str
    read_hook: Callable[[Payload, int], HookReading]
    find_occasion: Callable[[Payload], Occasion | None]
    data_folders: Callable[[Mapping[str, str]], list[Path]] | None = None
    list_activity_files: Callable[[Path], Iterator[Path]] | None = None
    transcript_reader: Callable[[str, dict[str, Any], int], TranscriptReader] | None = None
    find_history: Callable[[list[Path], int], list[PastSession]] | None = None
    read_history: Callable[[PastSession], History] | None = None


STARTS = frozenset({"startup", "resume", "clear", "compact"})
"""Ways for a session to start at which text is injected. A fork has it from its parent."""

PROMPTS = frozenset({"UserPromptSubmit", "BeforeAgent"})


def find_hook_occasion(harness: str, payload: Payload) -> Occasion | None:
    """Read a payload of Claude Code, or of a harness with the same hooks, as an occasion for recall."""
    name, session = string(payload, "hook_event_name"), encode_id(string(payload, "session_id"))
    project, prompt = string(payload, "cwd") or None, string(payload, "prompt")
    if not session:
        return None
    if name == "SessionStart":
        source = string(payload, "source") or string(payload, "trigger") or "startup"
        return Occasion(harness, "start", session, project, "", source, name) if source in STARTS else None
    if name in PROMPTS:
        return Occasion(harness, "prompt", session, project, prompt, "prompt", name)
    return None


def string(payload: Payload, key: str) -> str:
    """Return a text as it is; empty if there is none."""
    value = payload.get(key)
    return value if isinstance(value, str) else ""


def home_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def list_files(folder: Path, prefix: str, *suffixes: str) -> Iterator[Path]:
    """List the regular files in a folder, by their names; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_named = entry.name.startswith(prefix) and entry.name.endswith(suffixes)
                if is_named and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)
    except OSError:
        return


def list_folders(folder: Path) -> list[Path]:
    """List the folders in a folder, without symbolic links; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
