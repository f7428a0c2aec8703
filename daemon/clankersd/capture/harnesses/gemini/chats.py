"""Gemini CLI's session files: JSON lines, a log of changes to a session in which later lines replace earlier ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, ToolEvent
from clankers_protocol.ids import encode_id
from clankersd.capture.events import (
    UNKNOWN_TOOL,
    ErrorReported,
    SessionInactive,
    ToolReported,
    text_digest,
)
from clankersd.capture.harnesses.base import History, PastSession, Payload, list_files, list_folders
from clankersd.capture.harnesses.gemini.hooks import NAME, PROVIDER
from clankersd.capture.harnesses.gemini.texts import (
    SNAPSHOT,
    answer_of,
    prompt_of,
    read_result,
    response_of,
    snapshot_of,
)
from clankersd.capture.harnesses.payload import (
    decode_object,
    file_of,
    identifier,
    millis,
    number,
    readable,
    record,
    records,
    text,
    without_empty,
)
from clankersd.capture.harnesses.session_files import SessionFileReader, list_past_sessions
from clankersd.safe_files import UnsafeFile, open_below

SUBAGENT = "subagent"
CHATS = "chats"
MAX_PATH_BYTES = 8192
MAX_OBJECT_BYTES = 256 * 1024 * 1024
"""Size up to which the file of an older version is read."""


class ChatReader(SessionFileReader):
    """Reads lines into events; a TranscriptReader. A sub-agent's file belongs to the session it is read for."""

    source = NAME

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        super().__init__(session_id, {"provider": PROVIDER, **state}, offset)

    def read_line(self, offset: int, line: Payload) -> None:
        kind, at = text(line, "type"), millis(line.get("timestamp"))
        if "$set" in line:
            self._read_change(record(line, "$set"))
        elif kind is None and "sessionId" in line:
            self._read_header(line)
        elif kind in ("user", "gemini", "error"):
            message_id = identifier(line, "id")
            if message_id and kind == "user":
                self._read_prompt(line, message_id, at)
            elif message_id and kind == "gemini":
                self._read_answer(line, message_id, at)
            elif message_id and (problem := answer_of(line.get("content"))):
                self.events.append(ErrorReported(SessionErrorEvent(message_id, self.session_id, None, problem, at)))
            self.note_time(at)

    def _read_header(self, line: Payload) -> None:
        """Read the first line, which is written again at each resume."""
        if "session" in self.state:
            return
        session_id, folders = identifier(line, "sessionId"), line.get("directories")
        self.state |= {"session": session_id, "created": millis(line.get("startTime"))}
        if isinstance(folders, list) and folders and isinstance(folders[0], str):
            self.state["project"] = folders[0]
        if text(line, "kind") == SUBAGENT:
            self.state["subagent"] = True
            self.state["parent"] = self._given_id if session_id != self._given_id else None

    def _read_change(self, change: Payload) -> None:
        """Read a change of the session. A list of messages is the context; after a compression, with its summary."""
        if not self.state.get("subagent"):  # a sub-agent's summary is its answer
            self.rename(text(change, "summary"))
        for message in records(change, "messages"):
            content = answer_of(message.get("content")) or ""
            if text(message, "type") == "user" and content.lstrip().startswith(SNAPSHOT):
                self._read_compaction(content, millis(message.get("timestamp")))

    def _read_compaction(self, content: str, at: int | None) -> None:
        compaction = CompactionEvent(
            f"{self.session_id}-compaction-{text_digest(content)[:12]}",
            self.session_id,
            tokens_before=self.state.get("context"),
            summary=snapshot_of(content),
            created_at=at,
        )
        if compaction.id == self.state.get("compaction"):  # a resumed session lists it again
            return
        self.state["compaction"] = compaction.id
        self.report_compaction(compaction)

    def _read_prompt(self, line: Payload, message_id: str, at: int | None) -> None:
        if prompt := prompt_of(line.get("content")):
            self.report_prompt(message_id, prompt, at)

    def _read_answer(self, line: Payload, message_id: str, at: int | None) -> None:
        """Read an answer; it is written again when its tools are done."""
        tokens, model = record(line, "tokens"), text(line, "model")
        thoughts = [
            ": ".join(filter(None, (text(thought, "subject"), text(thought, "description"))))
            for thought in records(line, "thoughts")
        ]
        prompt_tokens = completion_tokens = None
        if tokens:
            prompt_tokens = (number(tokens, "input") or 0) + (number(tokens, "tool") or 0)
            completion_tokens = (number(tokens, "output") or 0) + (number(tokens, "thoughts") or 0)
        message = MessageEvent(
            message_id,
            self.session_id,
            "assistant",
            answer_of(line.get("content")),
            model=model,
            source=NAME,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            created_at=at,
            completed_at=at,
            metadata=without_empty({"reasoning": "\n\n".join(thoughts)}),
        )
        self.report_answer(message)
        for call in records(line, "toolCalls"):
            if call_id := identifier(call, "id"):
                self._read_tool(call, call_id, message_id, at)

    def _read_tool(self, call: Payload, call_id: str, message_id: str, at: int | None) -> None:
        name, (for_model, error) = text(call, "name"), response_of(call)
        status = text(call, "status")
        if error is None and status not in ("success", None):
            error = for_model or status
        success, output, error = read_result(name, for_model, call.get("resultDisplay"), error)
        tool = ToolEvent(
            self.row_id(call_id),
            self.session_id,
            message_id,
            tool_name=name or UNKNOWN_TOOL,
            tool_input=readable(call.get("args")),
            tool_output=output,
            file_path=file_of(record(call, "args")),
            success=success,
            error_message=error,
            created_at=at,
        )
        self.events.append(ToolReported(tool, "record"))


# -- import


def find_chats(roots: list[Path], since: int) -> list[PastSession]:
    """List every session that changed since, oldest first, sub-agents' after the sessions that ran them."""
    found: list[PastSession] = []
    for root in roots:
        for folder in list_folders(root / "tmp"):
            project = _project_of(folder, root)
            files = ((root, path) for path in _session_files(folder))
            listed = list_past_sessions(files, since, lambda path, first: (_session_of(path, first), None))
            found += (replace(session, project=project) for session in listed)
    return sorted(found, key=lambda session: (session.path.parent.name != CHATS, session.path.name))


def _session_files(folder: Path) -> Iterator[Path]:
    """List the session files of a project, with those of sub-agents and of older versions."""
    yield from list_files(folder / CHATS, "session-", ".jsonl", ".json")
    for agents in list_folders(folder / CHATS):
        yield from list_files(agents, "", ".jsonl")


def _project_of(folder: Path, root: Path) -> str | None:
    """Return the path of the project that a folder of session files is for."""
    try:
        with open_below(str(folder / ".project_root"), [root]) as file:
            return file.read(MAX_PATH_BYTES).decode().strip() or None
    except (OSError, UnsafeFile, UnicodeDecodeError):
        return None


def _session_of(path: Path, first: Payload) -> str:
    """Return the id in the first line. An older version's file is one indented object: it has no such line."""
    return text(first, "sessionId") or path.stem


def read_chat(past: PastSession) -> History:
    """Read a session file. Its project is known by its folder, and a sub-agent's session by the folder's name."""
    parent = past.path.parent.name
    reader = ChatReader(past.session_id if parent == CHATS else encode_id(parent), {}, 0)
    history, offset = History(), 0
    with open_below(str(past.path), [past.root]) as file:
        lines = _lines_of_object(file.read(MAX_OBJECT_BYTES)) if past.path.suffix == ".json" else file
        for raw in lines:
            line = decode_object(raw)
            if line is not None:
                reader.read_line(offset, line)
            elif raw.strip():
                history.malformed += 1
            offset += len(raw)
    reader.state.setdefault("project", past.project)
    reader.end(offset)
    history.events = reader.events
    if past.path.suffix == ".json":  # no version continues it
        history.events.append(SessionInactive(reader.session_id))
    return history


def _lines_of_object(raw: bytes) -> list[bytes]:
    """Return the file of an older version, which is one object with all messages, as the lines of a newer one."""
    session = decode_object(raw)
    if session is None:
        return [raw]
    header = {key: value for key, value in session.items() if key not in ("messages", "summary", "type")}
    changes = [{"$set": {"summary": session.get("summary")}}]
    return [msgspec.json.encode(each) for each in (header, *records(session, "messages"), *changes)]
