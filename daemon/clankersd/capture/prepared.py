"""Preparation of captured events: check, redact and chunk them outside the transaction, since that takes time."""

from typing import Any, Protocol

import msgspec

from clankers_protocol.errors import InvalidPayload
from clankers_protocol.ids import encode_id
from clankers_protocol.wire import Wire
from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.continuation import strip_continuation_orders
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    MessageReported,
    SessionClearedFrom,
    SessionEnded,
    SessionInactive,
    SessionNote,
    SessionOpened,
    SessionOptedOut,
    SessionReported,
    SessionSummary,
    SessionTotals,
    SessionUsage,
    ToolReported,
    text_digest,
)
from clankersd.db.commit_priority import yield_to_commits
from clankersd.index.chunks import ChunkedText
from clankersd.index.session_texts import has_subject
from clankersd.projects import Folder, find_folder
from clankersd.redaction.engine import redact, redact_all, truncate

UNTITLED = "Untitled Session"
"""Placeholder title that the original plugins send; it counts as none."""

MAX_TITLE_CHARACTERS = 120

_IDS = ("id", "session_id", "message_id")
"""Ids from clients were checked before; ids that readers compose of others may be too long."""

_TIMES = ("created_at", "updated_at", "ended_at", "completed_at")

_REDACTED = frozenset({
    "title", "project_name", "model", "provider", "source", "status", "permission_mode", "role", "tool_name",
    "file_path", "cause", "text_content", "tool_input", "tool_output", "error_type", "error_message", "summary",
    "user_prompt", "context", "metadata",
})  # fmt: skip

SessionUpdate = (
    SessionOptedOut
    | SessionOpened
    | SessionEnded
    | SessionInactive
    | SessionNote
    | SessionClearedFrom
    | SessionUsage
    | SessionTotals
    | SessionSummary
    | FirstPrompt
)
"""Events that update a session that is stored, and do nothing where there is none."""


class PreparedEvent(msgspec.Struct, frozen=True):
    """An event that is ready to be applied: its texts are redacted and chunked.

    `row` holds the parameters of its statement, `redactions` the number of secrets by kind. `chunks` is None for a text
    that is chunked later.
    """

    event: CapturedEvent
    session_id: str
    row: dict[str, Any]
    redactions: dict[str, int] = {}
    chunks: list[ChunkedText] | None = None
    folder: Folder | None = None
    is_opted_out: bool = False
    is_indexed: bool = False


class PreparingIndex(Protocol):
    """The part of the index that preparing an event needs."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def max_tool_output_chars(self) -> int: ...
    def chunk_message(self, text: str) -> list[ChunkedText] | None: ...
    def add_speaker(self, role: str | None) -> None: ...


def prepare_event(index: PreparingIndex, event: CapturedEvent, at: int | None = None) -> PreparedEvent:
    """Redact and chunk an event; raises RpcError for one that cannot be stored.

    `at` is when it happened, for an event that has no time of its own: a spooled one arrives later.
    """
    yield_to_commits()
    now = at or clock.now()
    match event:
        case SessionReported():
            return _prepare_session(event, now)
        case MessageReported():
            row, redactions = _row_of(event.message, now, "message", "id", "session_id")
            text = row["text_content"]
            if event.identity is not None:
                row["digest"] = text_digest(text)
            index.add_speaker(row["role"])
            chunks = index.chunk_message(text) if text else None
            return PreparedEvent(event, row["session_id"], row, redactions, chunks)
        case ToolReported():
            limit, tool = index.max_tool_output_chars, event.tool
            if tool.tool_output is not None and len(tool.tool_output) > limit:
                tool = msgspec.structs.replace(tool, tool_output=truncate(tool.tool_output, limit))
            row, redactions = _row_of(tool, now, "tool", "id", "session_id", "tool_name")
            row["tool_output"] = truncate(row["tool_output"], limit, slack=0)
            is_indexed = "tools" in index.sources or has_subject(row)
            return PreparedEvent(event, row["session_id"], row, redactions, is_indexed=is_indexed)
        case ErrorReported():
            row, redactions = _row_of(event.error, now, "session error", "id", "session_id")
            return PreparedEvent(event, row["session_id"], row, redactions)
        case CompactionReported():
            row, redactions = _row_of(event.compaction, now, "compaction event", "id", "session_id")
            return PreparedEvent(event, row["session_id"], row, redactions)
        case _:
            return PreparedEvent(event, event.session_id, _session_update_params(event))


def _prepare_session(event: SessionReported, now: int) -> PreparedEvent:
    row, redactions = _row_of(event.session, now, "session", "id")
    if row["title"] == UNTITLED:
        row["title"] = None
    row["context_json"] = row.pop("context")
    path = row["project_path"]
    if path is None:
        return PreparedEvent(event, row["id"], row, redactions)
    path = row["project_path"] = path.rstrip("/") or "/"
    if opt_out.is_opted_out(path):
        return PreparedEvent(event, row["id"], row, is_opted_out=True)
    return PreparedEvent(event, row["id"], row, redactions, folder=find_folder(path))


def _session_update_params(event: SessionUpdate) -> dict[str, Any]:
    params: dict[str, Any] = {"id": event.session_id}
    match event:
        case SessionOptedOut() | SessionOpened():
            params["at"] = event.at
        case SessionEnded():
            params |= {"at": event.at, "reason": redact(event.reason or "other")[0]}
        case SessionNote():
            params["facts"] = msgspec.json.encode(redact_all(event.facts)[0]).decode()
        case SessionClearedFrom():
            params["project"] = event.project_path and (event.project_path.rstrip("/") or "/")
        case SessionUsage():
            params |= {"prompt": event.prompt_tokens, "completion": event.completion_tokens, "cost": event.cost}
        case SessionSummary():
            params |= {"summary": redact(strip_continuation_orders(event.summary))[0], "at": event.at}
        case FirstPrompt():
            prompt = redact(event.prompt)[0]
            # Only the beginning is split, and only into words that the title has room for: a prompt may have megabytes.
            words = prompt.lstrip()[: MAX_TITLE_CHARACTERS * 100].split(maxsplit=MAX_TITLE_CHARACTERS)
            title = " ".join(words[:MAX_TITLE_CHARACTERS])[:MAX_TITLE_CHARACTERS]
            params |= {"prompt": prompt, "title": title, "at": event.at}
        case SessionInactive() | SessionTotals():
            pass
    return params


def _row_of(event: Wire, now: int, what: str, *required: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return an event as SQL parameters, with the number of its secrets by kind.

    Texts are redacted, empty values are None, times are in milliseconds, objects are JSON.
    """
    row = msgspec.structs.asdict(event)
    redactions: dict[str, int] = {}
    for name, value in row.items():
        if value is None:
            continue
        if not value and value in ("", {}):
            row[name] = None
        elif name in _REDACTED:
            if isinstance(value, dict):
                redacted, counts = redact_all(value)
                row[name] = msgspec.json.encode(redacted).decode()
            else:
                redacted, counts = redact(strip_continuation_orders(value) if name == "summary" else value)
                row[name] = redacted or None
            for kind, count in counts.items():
                redactions[kind] = redactions.get(kind, 0) + count
        elif name in _IDS:
            row[name] = encode_id(value)
        elif name in _TIMES:
            row[name] = clock.to_ms(value)
        elif name == "duration_ms":
            row[name] = round(value)
    for name in required:
        if row[name] is None:
            field_name = msgspec.structs.fields(event)[event.__struct_fields__.index(name)].encode_name
            raise InvalidPayload(f"invalid {what} payload", {"field": field_name})
    row["now"] = now
    return row, redactions
