"""What an event changes: its rows. Absent or empty never overwrites; replays change nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import InvalidParams, InvalidPayload
from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankers_protocol.ids import encode_id
from clankers_protocol.wire import Wire
from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.redaction import capped, count_redactions, redact, redact_all
from clankersd.db import Db, Notification
from clankersd.db.upsert import FILL, GIVEN, HIGHEST, KEEP, upsert
from clankersd.index.index import Index
from clankersd.index.messages import index_message, index_role, index_tool_later
from clankersd.projects import project_row, store_project

if TYPE_CHECKING:
    from clankersd.app import Daemon

UNTITLED = "Untitled Session"
"""What the original plugins send before there is a title: as good as none."""

UNKNOWN_TOOL = "unknown"
"""The name of a tool of which only the result was told."""

_IDS = ("id", "session_id", "message_id")
"""Checked before if a client gave them; some harnesses have none, and those made of others' may be too long."""

_TIMES = ("created_at", "updated_at", "ended_at", "completed_at")
_PROJECT_OF_PATH = "(SELECT id FROM projects WHERE path = :project_root)"
_FIRST_SEEN = {"created_at": "COALESCE(:created_at, :now)"}

_SESSION = upsert(
    "sessions",
    insert={
        "project_id": _PROJECT_OF_PATH,
        "created_at": "COALESCE(:created_at, :now)",
        "created_guessed": ":created_at IS NULL",
        "updated_at": "COALESCE(:updated_at, :ended_at, :created_at, :now)",
    },
    title=GIVEN,
    project_id=f"COALESCE({_PROJECT_OF_PATH}, {{table}}.{{column}})",
    project_path=GIVEN,
    project_name=GIVEN,
    model=GIVEN,
    provider=GIVEN,
    source=GIVEN,
    status=GIVEN,
    prompt_tokens=HIGHEST,
    completion_tokens=HIGHEST,
    cost=HIGHEST,
    message_count=HIGHEST,
    tool_call_count=HIGHEST,
    permission_mode=GIVEN,
    created_at="CASE {table}.created_guessed WHEN 1 THEN COALESCE(:created_at, {table}.{column}) "
    "ELSE {table}.{column} END",
    created_guessed="{table}.{column} AND :created_at IS NULL",
    updated_at="MAX({table}.{column}, COALESCE(:updated_at, :ended_at, 0))",
    ended_at=GIVEN,
    summary=GIVEN,
    user_prompt=GIVEN,
    context_json=GIVEN,
    chat_id=GIVEN,
    metadata=GIVEN,
)

_KNOWN_SESSION = """
    SELECT EXISTS (SELECT 1 FROM opted_out WHERE session_id = :id) AS opted_out,
           EXISTS (SELECT 1 FROM sessions WHERE id = :id) AS stored
"""

# A session that is only heard of so far; or, of a known one, that something happened in it.
_HEARD_OF = """
    INSERT INTO sessions (id, source, created_at, created_guessed, updated_at)
    VALUES (:session_id, :source, COALESCE(:created_at, :now), 1, COALESCE(:created_at, :now))
    ON CONFLICT (id) DO UPDATE SET updated_at = :created_at WHERE sessions.updated_at < :created_at
"""

_CLEAR_SESSION = """
    UPDATE sessions SET title = iif(:title, NULL, title), metadata = iif(:metadata, NULL, metadata)
    WHERE id = :id AND (:title OR :metadata)
"""

_MESSAGE = upsert(
    "messages",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    role=GIVEN,
    text_content=GIVEN,
    model=GIVEN,
    source=GIVEN,
    prompt_tokens=HIGHEST,
    completion_tokens=HIGHEST,
    duration_ms=GIVEN,
    created_at=KEEP,
    completed_at=GIVEN,
    metadata=GIVEN,
    returning=("id", "session_id", "role", "created_at"),
)
_TOOL = upsert(
    "tools",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    message_id=GIVEN,
    tool_name=GIVEN,
    tool_input=GIVEN,
    tool_output=GIVEN,
    file_path=GIVEN,
    success=GIVEN,
    error_message=GIVEN,
    duration_ms=GIVEN,
    created_at=KEEP,
)
_ERROR = upsert(
    "session_errors",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    error_type=GIVEN,
    error_message=GIVEN,
    created_at=KEEP,
)
_COMPACTION = upsert(
    "compaction_events",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    tokens_before=GIVEN,
    tokens_after=GIVEN,
    messages_before=GIVEN,
    messages_after=GIVEN,
    cause=GIVEN,
    summary=GIVEN,
    created_at=KEEP,
)

# A transcript is the last word on whether a tool succeeded; of the rest, what a hook told first is more exact.
_TOOL_FILLED = upsert(
    "tools",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    message_id=GIVEN,
    tool_name=f"CASE {{table}}.{{column}} WHEN '{UNKNOWN_TOOL}' THEN :{{column}} ELSE {{table}}.{{column}} END",
    tool_input=FILL,
    tool_output=FILL,
    file_path=FILL,
    success=GIVEN,
    error_message="CASE :success WHEN 1 THEN NULL ELSE COALESCE({table}.{column}, :{column}) END",
    duration_ms=FILL,
    created_at=KEEP,
)

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

Settle = Callable[[Db, dict[str, Any]], str | None]
"""Says by which id a message is stored; None when it is stored elsewhere already."""


@dataclass(frozen=True)
class Change:
    """The rows that an event changes."""

    store: Callable[[Db], None]

    def __call__(self, db: Db) -> None:
        self.store(db)


async def keep(daemon: "Daemon", change: Change, bulk: bool = False) -> None:
    """Store what an event changes."""
    await daemon.store.write(change, bulk)


def session_change(_index: Index, event: SessionEvent) -> Change:
    """Store a session and the project it ran in; nothing of one whose project does not want to be captured."""
    row = _row(event, "session", "id")
    row["title"] = None if row["title"] == UNTITLED else row["title"]
    row["context_json"] = row.pop("context")
    path = row["project_path"]
    row["project_path"] = path = path and (path.rstrip("/") or "/")
    if path and opt_out.declines(path):
        return Change(opt_out.decline(row["id"], row["now"]))
    project = project_row(path, row["project_name"]) if path else None
    row["project_root"] = project and project["path"]

    def store(db: Db) -> None:
        if project:
            opt_out.welcome(db, row["id"])
            store_project(db, project)
        elif opt_out.declined(db, row["id"]):
            return
        db.execute(_SESSION, row)
        count_redactions(db, row["redacted"], row["now"])
        db.after_commit(Notification("session", "stored", row["id"]))

    return Change(store)


def clear_session(db: Db, session_id: str, *, title: bool, metadata: bool) -> None:
    """Take from a session what no event can take away, since what is absent or empty never overwrites."""
    db.execute(_CLEAR_SESSION, {"id": session_id, "title": title, "metadata": metadata})


def message_change(index: Index, event: MessageEvent, settle: Settle | None = None) -> Change:
    """Store a message, and make its text searchable in the same transaction."""
    row = _row(event, "message", "id", "session_id")
    text, role = row["text_content"], row["role"]
    prepared = index.prepare(text) if text else None
    index.hears(role)

    def store(db: Db) -> None:
        if not _heard_of(db, row):
            return
        found = settle(db, row) if settle else row["id"]
        if found is None:
            return
        [message] = db.fetch(_MESSAGE, {**row, "id": found})
        count_redactions(db, row["redacted"], row["now"])
        if text:
            index_message(db, message, prepared)
        elif role:
            index_role(db, found, role)
        facts = {"sessionId": message["session_id"], "role": message["role"]}
        db.after_commit(Notification("message", "stored", message["id"], facts))

    return Change(store)


def tool_change(index: Index, event: ToolEvent, statement: str = _TOOL) -> Change:
    """Store a tool call, to be searchable soon where the configuration says so."""
    cut = capped(event.tool_output, index.longest_tool_output)
    row = _row(msgspec.structs.replace(event, tool_output=cut), "tool", "id", "session_id", "tool_name")
    row["tool_output"] = capped(row["tool_output"], index.longest_tool_output, slack=0)
    store_tool = _of_a_session(statement, row)
    if "tools" not in index.wanted.sources:
        return store_tool

    def store(db: Db) -> None:
        store_tool(db)
        index_tool_later(db, row["id"])

    return Change(store)


def tool_filled_in(index: Index, event: ToolEvent) -> Change:
    """Store what a transcript tells of a tool call: it adds to what the hooks told."""
    return tool_change(index, event, _TOOL_FILLED)


def error_change(_index: Index, event: SessionErrorEvent) -> Change:
    """Store an error of a session."""
    return _of_a_session(_ERROR, _row(event, "session error", "id", "session_id"))


def compaction_change(_index: Index, event: CompactionEvent, settle: Settle | None = None) -> Change:
    """Store a compaction."""
    return _of_a_session(_COMPACTION, _row(event, "compaction event", "id", "session_id"), settle)


def _of_a_session(statement: str, row: dict[str, Any], settle: Settle | None = None) -> Change:
    def store(db: Db) -> None:
        if not _heard_of(db, row):
            return
        found = settle(db, row) if settle else row["id"]
        if found is not None:
            db.execute(statement, {**row, "id": found})
            count_redactions(db, row["redacted"], row["now"])

    return Change(store)


def _heard_of(db: Db, row: dict[str, Any]) -> bool:
    """Make sure there is a session to belong to; False for one that is not to be captured."""
    known = db.fetch_one(_KNOWN_SESSION, {"id": row["session_id"]})
    assert known
    if known["opted_out"]:
        return False
    db.execute(_HEARD_OF, {key: row.get(key) for key in ("session_id", "source", "created_at", "now")})
    if not known["stored"]:
        db.after_commit(Notification("session", "stored", row["session_id"]))
    return True


def _row(event: Wire, what: str, *required: str) -> dict[str, Any]:
    """The event as parameters: no secrets, nothing empty, times in milliseconds, objects as JSON."""
    given = msgspec.structs.asdict(event)
    redacted = _redact(given)
    row = {name: _plain(value) for name, value in given.items()}
    for name in required:
        if row[name] is None:
            field = msgspec.structs.fields(event)[event.__struct_fields__.index(name)].encode_name
            raise InvalidPayload(f"invalid {what} payload", {"field": field})
    for name in _IDS:
        if row.get(name):
            row[name] = encode_id(row[name])
    for name in _TIMES:
        if name in row:
            row[name] = clock.moment(row[name])
    if row.get("duration_ms") is not None:
        row["duration_ms"] = round(row["duration_ms"])
    row["now"] = clock.now()
    row["redacted"] = redacted
    return row


def _redact(given: dict[str, Any]) -> dict[str, int]:
    """Take the secrets out of an event's texts; tells how many of which kind there were."""
    counts: dict[str, int] = {}
    for name, clean in _REDACTED.items():
        if value := given.get(name):
            given[name], found = clean(value)
            for kind, count in found.items():
                counts[kind] = counts.get(kind, 0) + count
    return counts


def _plain(value: Any) -> Any:
    if value == "" or value is None:
        return None
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode() if value else None
    return value


_KINDS: dict[str, tuple[type[Wire], Callable[[Index, Any], Change]]] = {
    "session": (SessionEvent, session_change),
    "message": (MessageEvent, message_change),
    "tool": (ToolEvent, tool_change),
    "sessionError": (SessionErrorEvent, error_change),
    "compactionEvent": (CompactionEvent, compaction_change),
}


def read_event(index: Index, event: dict[str, Any]) -> Change:
    """What an event of a batch changes; raises RpcError for one that cannot be stored."""
    kinds = [kind for kind in _KINDS if kind in event]
    if len(kinds) != 1:
        raise InvalidParams(f"invalid params: an event has exactly one of {', '.join(_KINDS)}")
    struct, change = _KINDS[kinds[0]]
    try:
        return change(index, msgspec.convert(event[kinds[0]], struct))
    except msgspec.ValidationError as error:
        raise InvalidParams(f"invalid params: {error}") from error
