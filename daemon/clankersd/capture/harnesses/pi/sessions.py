"""pi's session files: JSON lines that form a tree. Every branch of it was said, so all are stored."""

import re
from pathlib import Path
from typing import Any

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent
from clankers_protocol.ids import encode_id
from clankersd.capture.events import ErrorReported
from clankersd.capture.harnesses.base import PastSession, Payload, list_files, list_folders
from clankersd.capture.harnesses.payload import (
    identifier,
    millis,
    number,
    record,
    records,
    text,
    without_empty,
)
from clankersd.capture.harnesses.pi.hooks import NAME
from clankersd.capture.harnesses.session_files import SessionFileReader, list_past_sessions

_EXIT_CODE = re.compile(r"\nCommand exited with code (-?\d+)(?:\n|\Z)")


class SessionReader(SessionFileReader):
    """Reads lines into events; a TranscriptReader. The ids of lines are only unique in their file."""

    source = NAME

    def read_line(self, offset: int, line: Payload) -> None:
        kind, at = text(line, "type"), millis(line.get("timestamp"))
        if kind == "session":
            self._read_header(line, at)
            return
        if self.state.get("forked_from") and at and at < (self.state.get("created") or 0):
            return  # a copy of what the session it was forked from has
        line_id = self.row_id(identifier(line, "id") or str(offset))
        if kind == "message":
            self._read_message(record(line, "message"), line_id, at)
        elif kind == "model_change":
            self.state |= without_empty({"provider": text(line, "provider"), "model": text(line, "modelId")}) or {}
        elif kind == "session_info":
            self.rename(text(line, "name"))
        elif kind == "compaction":
            tokens, summary = number(line, "tokensBefore"), text(line, "summary")
            self.report_compaction(
                CompactionEvent(line_id, self.session_id, tokens_before=tokens, summary=summary, created_at=at)
            )

    def _read_header(self, line: Payload, at: int | None) -> None:
        facts = {"session": identifier(line, "id"), "created": at, "project": text(line, "cwd")}
        self.state |= without_empty(facts) or {}
        if parent := text(line, "parentSession"):
            self.state["forked_from"] = encode_id(_session_of(Path(parent)))

    def _read_message(self, message: Payload, line_id: str, at: int | None) -> None:
        role, content = text(message, "role"), message.get("content")
        if role == "user" and (prompt := _text_of(content)):
            self.report_prompt(line_id, prompt, at)
        elif role == "assistant":
            self._read_answer(message, line_id, at)
        elif role == "toolResult":
            self._read_result(message)
        if role in ("user", "assistant", "toolResult"):
            self.note_time(at)

    def _read_answer(self, message: Payload, line_id: str, at: int | None) -> None:
        blocks, usage = records(message, "content"), record(message, "usage")
        if message.get("stopReason") == "error":
            problem = text(message, "errorMessage")
            error = SessionErrorEvent(f"{line_id}-error", self.session_id, "error", problem, at)
            self.events.append(ErrorReported(error))
            if not blocks:
                return
        kinds = ("input", "cacheRead", "cacheWrite")
        thoughts = (text(block, "thinking") for block in blocks if block.get("type") == "thinking")
        cost = record(usage, "cost").get("total")
        answer = MessageEvent(
            line_id,
            self.session_id,
            "assistant",
            _text_of(blocks),
            model=text(message, "model"),
            source=NAME,
            prompt_tokens=sum(number(usage, kind) or 0 for kind in kinds) if usage else None,
            completion_tokens=number(usage, "output"),
            created_at=number(message, "timestamp") or at,
            completed_at=at,
            metadata=without_empty(
                {
                    "reasoning": "\n\n".join(filter(None, thoughts)),
                    "costUsd": cost if isinstance(cost, int | float) else None,
                }
            ),
        )
        self.report_answer(answer)
        for call in blocks:
            if call.get("type") == "toolCall" and (call_id := identifier(call, "id")):
                self.report_call(call_id, line_id, text(call, "name"), call.get("arguments"), at)

    def _read_result(self, message: Payload) -> None:
        call_id = identifier(message, "toolCallId")
        if call_id is None:
            return
        content = _text_of(message.get("content"))
        if message.get("isError") is not True:
            self.report_result(call_id, True, content, None)
        elif code := _EXIT_CODE.search(content or ""):
            self.report_result(call_id, False, code.string[: code.start()].rstrip() or None, f"exit code {code[1]}")
        else:
            self.report_result(call_id, False, None, content or "failed")


def _text_of(content: Any) -> str | None:
    """Return the text of a message: a text, or the text blocks of a list."""
    if isinstance(content, list):
        blocks = (block for block in content if isinstance(block, dict) and block.get("type") == "text")
        content = "\n".join(block["text"] for block in blocks if text(block, "text"))
    return content if isinstance(content, str) and content.strip() else None


# -- import


def find_sessions(roots: list[Path], since: int) -> list[PastSession]:
    """List every session that changed since, in the order in which they began."""
    files = (
        (root, path)
        for root in roots
        for folder in ("agent/sessions", "sessions", "")
        for project in list_folders(root / folder)
        for path in list_files(project, "", ".jsonl")
    )
    return sorted(list_past_sessions(files, since, _describe), key=lambda session: session.path.name)


def _session_of(path: Path) -> str:
    """Return the id of a session from the name of its file, which begins with its time."""
    return path.stem.partition("_")[2] or path.stem


def _describe(path: Path, first: Payload) -> tuple[str, str | None]:
    return text(first, "id") or _session_of(path), text(first, "cwd")
