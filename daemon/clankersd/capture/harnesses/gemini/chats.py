"""Gemini CLI's session files: JSON lines, a log of changes to a session in which later lines replace earlier ones."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankers_protocol.ids import encode_id
from clankersd.capture.events import (
    UNKNOWN_TOOL,
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    MessageReported,
    SessionNote,
    SessionReported,
    SessionSummary,
    SessionTotals,
    ToolReported,
    text_digest,
)
from clankersd.capture.harnesses.base import History, PastSession, Payload, list_files, list_folders
from clankersd.capture.harnesses.gemini.hooks import NAME, PROVIDER
from clankersd.capture.harnesses.gemini.texts import answer_of, prompt_of, read_result, response_of
from clankersd.capture.harnesses.payload import (
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
from clankersd.safe_files import UnsafeFile, open_below

SUBAGENT = "subagent"
SNAPSHOT = "<state_snapshot>"
PEEK_BYTES = 64 * 1024
MAX_PATH_BYTES = 8192

log = structlog.get_logger(component="import")


class ChatReader:
    """Reads lines into events; a TranscriptReader. A sub-agent's file belongs to the session it is read for."""

    def __init__(self, session_id: str, state: dict[str, Any], offset: int) -> None:
        self.events: list[CapturedEvent] = []
        self.state = dict(state)
        self.safe_offset = offset
        self._given_id = session_id
        self._updated_at: int | None = None
        self._has_usage = self._is_renamed = False

    @property
    def _session_id(self) -> str:
        return str(self.state.get("session") or self._given_id)

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
                self.events.append(ErrorReported(SessionErrorEvent(message_id, self._session_id, None, problem, at)))
            self._updated_at = max(self._updated_at or 0, at or 0) or None
            self.state["started"] = True

    def end(self, offset: int) -> None:
        """Report the session, if anything was said in it. Lines are complete in themselves, so none is read again."""
        self.safe_offset = offset
        if not self.state.get("started") or not (self.events or self._is_renamed):
            return
        session = SessionEvent(
            self._session_id,
            title=self.state.get("title"),
            project_path=self.state.get("project"),
            model=self.state.get("model"),
            provider=PROVIDER,
            source=NAME,
            created_at=self.state.get("created"),
            updated_at=self._updated_at,
        )
        before: list[CapturedEvent] = [SessionReported(session)]
        if parent := self.state.get("parent"):
            before.append(SessionNote(self._session_id, {"parentId": parent}))
        totals = [SessionTotals(self._session_id)] if self._has_usage else []
        self.events = [*before, *self.events, *totals]

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
        if (summary := text(change, "summary")) and not self.state.get("subagent"):  # a sub-agent's is its answer
            self.state["title"], self._is_renamed = summary, True
        for message in records(change, "messages"):
            content = answer_of(message.get("content")) or ""
            if text(message, "type") == "user" and content.lstrip().startswith(SNAPSHOT):
                self._read_compaction(content, millis(message.get("timestamp")))

    def _read_compaction(self, content: str, at: int | None) -> None:
        summary = content.partition(SNAPSHOT)[2].partition("</state_snapshot>")[0].strip()
        compaction = CompactionEvent(
            f"{self._session_id}-compaction-{text_digest(content)[:12]}",
            self._session_id,
            tokens_before=self.state.get("context"),
            summary=summary or None,
            created_at=at,
        )
        if compaction.id == self.state.get("compaction"):  # a resumed session lists it again
            return
        self.state["compaction"] = compaction.id
        self.events.append(CompactionReported(compaction))
        if summary:
            self.events.append(SessionSummary(self._session_id, summary))

    def _read_prompt(self, line: Payload, message_id: str, at: int | None) -> None:
        if prompt := prompt_of(line.get("content")):
            message = MessageEvent(message_id, self._session_id, "user", prompt, source=NAME, created_at=at)
            self.events += (MessageReported(message, from_record=True), FirstPrompt(self._session_id, prompt))

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
            self._has_usage, self.state["context"] = True, prompt_tokens + completion_tokens
        self.state["model"] = model or self.state.get("model")
        message = MessageEvent(
            message_id,
            self._session_id,
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
        self.events.append(MessageReported(message, from_record=True))
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
            call_id if call_id.startswith(self._session_id) else f"{self._session_id}-{call_id}",
            self._session_id,
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
    found: list[tuple[bool, str, PastSession]] = []
    for root in roots:
        for folder in list_folders(root / "tmp"):
            project = _project_of(folder, root)
            for path in _session_files(folder):
                try:
                    session = _peek(path, root, project)
                except (OSError, UnsafeFile) as error:
                    log.warning("session file not read", path=str(path), problem=str(error))
                    continue
                if session.updated_at >= since:
                    found.append((path.parent.name != "chats", path.name, session))
    return [session for *_, session in sorted(found, key=lambda each: each[:2])]


def _session_files(folder: Path) -> Iterator[Path]:
    """List the session files of a project, with those of sub-agents."""
    yield from list_files(folder / "chats", "session-", ".jsonl")
    for agents in list_folders(folder / "chats"):
        yield from list_files(agents, "", ".jsonl")


def _project_of(folder: Path, root: Path) -> str | None:
    """Return the path of the project that a folder of session files is for."""
    try:
        with open_below(str(folder / ".project_root"), [root]) as file:
            return file.read(MAX_PATH_BYTES).decode().strip() or None
    except (OSError, UnsafeFile, UnicodeDecodeError):
        return None


def _peek(path: Path, root: Path, project: str | None) -> PastSession:
    """Read the session of a file from its first line."""
    with open_below(str(path), [root]) as file:
        updated_at = round(os.fstat(file.fileno()).st_mtime * 1000)
        first = file.read(PEEK_BYTES).partition(b"\n")[0]
    header = _decode(first) or {}
    return PastSession(text(header, "sessionId") or path.stem, root, path, project, updated_at, label=path.stem[-30:])


def read_chat(past: PastSession) -> History:
    """Read a session file. Its project is known by its folder, and a sub-agent's session by the folder's name."""
    parent = past.path.parent.name
    reader = ChatReader(past.session_id if parent == "chats" else encode_id(parent), {}, 0)
    history, offset = History(), 0
    with open_below(str(past.path), [past.root]) as file:
        for raw in file:
            line = _decode(raw)
            if line is not None:
                reader.read_line(offset, line)
            elif raw.strip():
                history.malformed += 1
            offset += len(raw)
    reader.state.setdefault("project", past.project)
    reader.end(offset)
    history.events = reader.events
    return history


def _decode(raw: bytes) -> Payload | None:
    try:
        line = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
