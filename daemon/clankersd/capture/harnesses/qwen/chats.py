"""Qwen Code's session files: JSON lines, one for each message, tool result and event of the program."""

from pathlib import Path

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, ToolEvent
from clankersd.capture.events import UNKNOWN_TOOL, ErrorReported, ToolReported
from clankersd.capture.harnesses.base import PastSession, Payload, list_files, list_folders
from clankersd.capture.harnesses.gemini.texts import (
    answer_of,
    prompt_of,
    read_result,
    response_of,
    snapshot_of,
)
from clankersd.capture.harnesses.payload import (
    identifier,
    millis,
    number,
    record,
    records,
    text,
    without_empty,
)
from clankersd.capture.harnesses.qwen.hooks import NAME, agent_session
from clankersd.capture.harnesses.session_files import SessionFileReader, list_past_sessions

REAL_USER = "real_user"


class ChatReader(SessionFileReader):
    """Reads lines into events; a TranscriptReader. Each line names its session and, in a sub-agent's file, the agent.

    `calls` in `state` holds the tool calls without a result: what the program measures of others is a sub-agent's.
    """

    source = NAME

    def read_line(self, offset: int, line: Payload) -> None:
        if text(line, "sessionId") and "session" not in self.state:
            self._read_identity(line)
        if forked_from := identifier(record(line, "forkedFrom"), "sessionId"):  # a copy of what that session has
            self.state["forked_from"] = forked_from
            return
        kind, line_id, at = text(line, "type"), identifier(line, "uuid"), millis(line.get("timestamp"))
        if line_id is None:
            return
        self.state.setdefault("created", at)
        if kind == "user" and text(line, "provenance") in (REAL_USER, None):
            if prompt := prompt_of(record(line, "message").get("parts")):
                self.report_prompt(line_id, prompt, at)
        elif kind == "assistant":
            self._read_answer(line, line_id, at)
        elif kind == "tool_result":
            self._read_result(line)
        elif kind == "system":
            self._read_system(line, line_id, at)
        if kind in ("user", "assistant", "tool_result"):
            self.note_time(at)

    def _read_identity(self, line: Payload) -> None:
        session_id, agent_id = identifier(line, "sessionId") or self._given_id, identifier(line, "agentId")
        self.state |= {"session": session_id, "project": text(line, "cwd")}
        if agent_id:
            self.state |= {"session": agent_session(session_id, agent_id), "parent": session_id}
            self.state["agent"] = text(line, "agentName")

    def _read_answer(self, line: Payload, message_id: str, at: int | None) -> None:
        parts, usage = records(record(line, "message"), "parts"), record(line, "usageMetadata")
        prompt_tokens = completion_tokens = None
        if usage:
            prompt_tokens = number(usage, "promptTokenCount") or 0
            completion_tokens = (number(usage, "candidatesTokenCount") or 0) + (
                number(usage, "thoughtsTokenCount") or 0
            )
        thoughts = "\n\n".join(each for part in parts if part.get("thought") and (each := text(part, "text")))
        message = MessageEvent(
            message_id,
            self.session_id,
            "assistant",
            answer_of(parts),
            model=text(line, "model"),
            source=NAME,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            created_at=at,
            completed_at=at,
            metadata=without_empty({"reasoning": thoughts}),
        )
        self.report_answer(message)
        for call in (record(part, "functionCall") for part in parts):
            if call_id := identifier(call, "id"):
                self.state.setdefault("calls", []).append(call_id)
                self.report_call(call_id, message_id, text(call, "name"), call.get("args"), at)

    def _read_result(self, line: Payload) -> None:
        parts = records(record(line, "message"), "parts")
        answered = next((found for part in parts if (found := record(part, "functionResponse"))), {})
        outcome = record(line, "toolCallResult")
        call_id, name = identifier(answered, "id") or identifier(outcome, "callId"), text(answered, "name")
        if call_id is None:
            return
        if call_id in self.state.get("calls", ()):
            self.state["calls"].remove(call_id)
        for_model, error = response_of({"result": parts})
        if error is None and text(outcome, "status") not in ("success", None):
            error = for_model or text(outcome, "status")
        self.report_result(call_id, *read_result(name, for_model, outcome.get("resultDisplay"), error))

    def _read_system(self, line: Payload, line_id: str, at: int | None) -> None:
        subtype, content = text(line, "subtype"), record(line, "systemPayload")
        if subtype == "custom_title":
            self.rename(text(content, "customTitle"))
        elif subtype == "chat_compression":
            self._read_compaction(content, line_id, at)
        elif subtype == "ui_telemetry":
            self._read_measurement(record(content, "uiEvent"), line_id, at)

    def _read_measurement(self, event: Payload, line_id: str, at: int | None) -> None:
        """Read what the program measured: how long a tool took, or that a request failed."""
        name, call_id = text(event, "event.name") or "", identifier(event, "call_id")
        if name.endswith(".api_error") and not text(event, "subagent_id"):
            self.state["model"] = self.state.get("model") or text(event, "model")
            kind, message = text(event, "error_type"), text(event, "error_message")
            self.events.append(ErrorReported(SessionErrorEvent(line_id, self.session_id, kind, message, at)))
        elif name.endswith(".tool_call") and call_id in self.state.get("calls", ()):
            tool = ToolEvent(self.row_id(str(call_id)), self.session_id, tool_name=UNKNOWN_TOOL)
            tool.duration_ms = number(event, "duration_ms")
            self.events.append(ToolReported(tool, "record"))

    def _read_compaction(self, content: Payload, line_id: str, at: int | None) -> None:
        info = record(content, "info")
        history = records(content, "compressedHistory")
        compaction = CompactionEvent(
            line_id,
            self.session_id,
            tokens_before=number(info, "originalTokenCount"),
            tokens_after=number(info, "newTokenCount"),
            cause=text(info, "triggerReason"),
            summary=snapshot_of(answer_of(history[0].get("parts")) or "") if history else None,
            created_at=at,
        )
        self.report_compaction(compaction)


# -- import


def find_chats(roots: list[Path], since: int) -> list[PastSession]:
    """List every session that changed since, oldest first, sub-agents' after the sessions that ran them."""
    files: list[tuple[Path, Path]] = []
    agents: list[tuple[Path, Path]] = []
    for root in roots:
        for project in list_folders(root / "projects"):
            files += ((root, path) for path in list_files(project / "chats", "", ".jsonl"))
            for folder in list_folders(project / "subagents"):
                agents += ((root, path) for path in list_files(folder, "agent-", ".jsonl"))
    sessions = sorted(list_past_sessions(files, since, _describe), key=lambda session: session.updated_at)
    return sessions + list_past_sessions(agents, since, _describe)


def _describe(path: Path, first: Payload) -> tuple[str, str | None]:
    session_id, agent_id = text(first, "sessionId") or path.stem, text(first, "agentId")
    return agent_session(session_id, agent_id) if agent_id else session_id, text(first, "cwd")
