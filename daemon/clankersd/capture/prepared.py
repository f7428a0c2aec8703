"""Preparation of captured events: check, redact and chunk them outside the transaction, since that takes time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

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
from clankersd.index.index import Index
from clankersd.index.messages import has_subject
from clankersd.projects import Folder, find_folder
from clankersd.redaction.engine import redact, redact_all, truncate

UNTITLED = "Untitled Session"
"""Placeholder title that the original plugins send; it counts as none."""

MAX_TITLE_CHARACTERS = 120

_IDS = ("id", "session_id", "message_id")
"""Ids from clients were checked before; ids that readers compose of others may be too long."""

_TIMES = ("created_at", "updated_at", "ended_at", "completed_at")

_REDACTED: dict[str, Callable[[Any], tuple[Any, dict[str, int]]]] = {
    "title": redact,
    "project_name": redact,
    "model": redact,
    "provider": redact,
    "source": redact,
    "status": redact,
    "permission_mode": redact,
    "role": redact,
    "tool_name": redact,
    "file_path": redact,
    "cause": redact,
    "text_content": redact,
    "tool_input": redact,
    "tool_output": redact,
    "error_type": redact,
    "error_message": redact,
    "summary": redact,
    "user_prompt": redact,
    "context": redact_all,
    "metadata": redact_all,
}

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


@dataclass(frozen=True)
class PreparedEvent:
    """An event that is ready to be applied: its texts are redacted and chunked.

    `row` holds the parameters of its statement, `redactions` the number of secrets by kind. `chunks` is None for a text
    that is chunked later.
    """

    event: CapturedEvent
    session_id: str
    row: dict[str, Any]
    redactions: dict[str, int] = field(default_factory=dict)
    chunks: list[ChunkedText] | None = None
    folder: Folder | None = None
    is_opted_out: bool = False
    is_indexed: bool = False


def prepare_event(index: Index, event: CapturedEvent, at: int | None = None) -> PreparedEvent:
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
            chunks = index.chunk_text(text, "sessions") if text else None
            return PreparedEvent(event, row["session_id"], row, redactions, chunks)
        case ToolReported():
            limit = index.max_tool_output_chars
            shortened = msgspec.structs.replace(event.tool, tool_output=truncate(event.tool.tool_output, limit))
            row, redactions = _row_of(shortened, now, "tool", "id", "session_id", "tool_name")
            row["tool_output"] = truncate(row["tool_output"], limit, slack=0)
            is_indexed = "tools" in index.wanted.sources or has_subject(row)
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
            # Only the beginning is split into words: a prompt may have megabytes.
            title = " ".join(prompt.lstrip()[: MAX_TITLE_CHARACTERS * 100].split())[:MAX_TITLE_CHARACTERS]
            params |= {"prompt": prompt, "title": title, "at": event.at}
        case SessionInactive() | SessionTotals():
            pass
    return params


@cache
def _redacted_fields(struct: type[Wire]) -> list[tuple[str, Callable[[Any], tuple[Any, dict[str, int]]]]]:
    return [(name, clean) for name, clean in _REDACTED.items() if name in struct.__struct_fields__]


def _row_of(event: Wire, now: int, what: str, *required: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return an event as SQL parameters, with the number of its secrets by kind.

    Texts are redacted, empty values are None, times are in milliseconds, objects are JSON.
    """
    row = msgspec.structs.asdict(event)
    if row.get("summary"):
        row["summary"] = strip_continuation_orders(row["summary"])
    redactions: dict[str, int] = {}
    for name, clean in _redacted_fields(type(event)):
        if value := row[name]:
            row[name], counts = clean(value)
            for kind, count in counts.items():
                redactions[kind] = redactions.get(kind, 0) + count
    for name, value in row.items():
        if value == "":
            row[name] = None
        elif isinstance(value, dict):
            row[name] = msgspec.json.encode(value).decode() if value else None
    for name in required:
        if row[name] is None:
            field_name = msgspec.structs.fields(event)[event.__struct_fields__.index(name)].encode_name
            raise InvalidPayload(f"invalid {what} payload", {"field": field_name})
    for name in _IDS:
        if row.get(name):
            row[name] = encode_id(row[name])
    for name in _TIMES:
        if name in row:
            row[name] = clock.to_ms(row[name])
    if row.get("duration_ms") is not None:
        row["duration_ms"] = round(row["duration_ms"])
    row["now"] = now
    return row, redactions
