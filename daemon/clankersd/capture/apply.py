"""Store captured events, one function per kind. Absent or empty fields never overwrite, and replays change nothing.

`prepare_event` (prepared.py) redacts and chunks outside the transaction; `apply_event` stores the result inside it.
"""

from functools import partial
from typing import Any

from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.events import (
    UNKNOWN_TOOL,
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
    TranscriptIdentity,
)
from clankersd.capture.identity import resolve_id
from clankersd.capture.pause import Pauses, describe
from clankersd.capture.prepared import PreparedEvent, prepare_event
from clankersd.db import Db, Notification, Store
from clankersd.db.group_commit import ChangeResult
from clankersd.db.upsert import FILL, GIVEN, HIGHEST, KEEP, insert_new, upsert
from clankersd.index.index import Index
from clankersd.index.session_texts import add_tool_to_backlog, index_message, index_role
from clankersd.projects import ensure_project
from clankersd.redaction.engine import count_redactions
from clankersd.wire.preparation import prepare

SAME_ERROR_MS = 60_000
PROVISIONAL_COMPACTION_MS = 600_000

_FIRST_SEEN = {"created_at": "COALESCE(:created_at, :now)"}

_SESSION = upsert(
    "sessions",
    insert={
        "created_at": "COALESCE(:created_at, :now)",
        "created_guessed": "CAST(:created_at IS NULL AS INTEGER)",
        "updated_at": "COALESCE(:updated_at, :ended_at, :created_at, :now)",
    },
    title=GIVEN,
    project_id=GIVEN,
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
    created_guessed="iif(:created_at IS NULL, {table}.{column}, 0)",
    updated_at="MAX({table}.{column}, COALESCE(:updated_at, :ended_at, 0))",
    ended_at=GIVEN,
    summary=GIVEN,
    user_prompt=GIVEN,
    context_json=GIVEN,
    chat_id=GIVEN,
    metadata=GIVEN,
)

# Most events belong to a session that is stored, and are later than all before: then this is all there is to do.
_CONTINUE_SESSION = """
    UPDATE sessions SET updated_at = :at
    WHERE id = :id AND updated_at < :at AND NOT EXISTS (SELECT 1 FROM opted_out WHERE session_id = :id)
"""
_SESSION_STATE = """
    SELECT EXISTS (SELECT 1 FROM opted_out WHERE session_id = :id) AS is_opted_out,
           (SELECT updated_at FROM sessions WHERE id = :id) AS updated_at
"""
_PLACEHOLDER_SESSION = """
    INSERT INTO sessions (id, source, created_at, created_guessed, updated_at) VALUES (:id, :source, :at, 1, :at)
    ON CONFLICT (id) DO NOTHING
"""

_CLEAR_SESSION = """
    UPDATE sessions SET title = iif(:title, NULL, title), metadata = iif(:metadata, NULL, metadata)
    WHERE id = :id AND (:title OR :metadata)
"""

_MESSAGE_RULES = {
    "session_id": KEEP,
    "role": GIVEN,
    "text_content": GIVEN,
    "model": GIVEN,
    "source": GIVEN,
    "prompt_tokens": HIGHEST,
    "completion_tokens": HIGHEST,
    "duration_ms": GIVEN,
    "created_at": KEEP,
    "completed_at": GIVEN,
    "metadata": GIVEN,
}
_MESSAGE_COLUMNS = {
    "id": "id",
    "session_id": "session_id",
    "role": "role",
    "created_at": "created_at",
    "is_chunked": "EXISTS (SELECT 1 FROM chunks WHERE message_id = messages.id)",
}
"""What is returned of the stored message, and the SQL of it."""

# Nearly all messages are new. For them this statement takes two thirds of the next one's time.
_NEW_MESSAGE = insert_new("messages", insert=_FIRST_SEEN, columns=tuple(_MESSAGE_RULES))

_MESSAGE = upsert("messages", insert=_FIRST_SEEN, returning=tuple(_MESSAGE_COLUMNS.values()), **_MESSAGE_RULES)

# A hook reports an answer when it is complete; the transcript knows when it began.
_MESSAGE_FROM_TRANSCRIPT = upsert(
    "messages",
    insert=_FIRST_SEEN,
    returning=tuple(_MESSAGE_COLUMNS.values()),
    **_MESSAGE_RULES | {"created_at": GIVEN},
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

# A transcript is right about success; for everything else, what a hook reported first is more exact.
_TOOL_FROM_TRANSCRIPT = upsert(
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

_TOOL_FROM_RECORD = upsert(
    "tools",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    message_id=GIVEN,
    tool_name=f"CASE :{{column}} WHEN '{UNKNOWN_TOOL}' THEN {{table}}.{{column}} ELSE :{{column}} END",
    tool_input=GIVEN,
    tool_output=GIVEN,
    file_path=GIVEN,
    success=GIVEN,
    error_message="CASE :success WHEN 1 THEN NULL ELSE COALESCE(:{column}, {table}.{column}) END",
    duration_ms=GIVEN,
    created_at=GIVEN,
)
_TOOL_FROM_HINT = upsert(
    "tools",
    insert=_FIRST_SEEN,
    session_id=KEEP,
    message_id=FILL,
    tool_name=f"CASE {{table}}.{{column}} WHEN '{UNKNOWN_TOOL}' THEN :{{column}} ELSE {{table}}.{{column}} END",
    tool_input=FILL,
    tool_output=FILL,
    file_path=FILL,
    success=FILL,
    error_message=FILL,
    duration_ms=FILL,
    created_at=KEEP,
)
_TOOL_STATEMENTS = {"transcript": _TOOL_FROM_TRANSCRIPT, "record": _TOOL_FROM_RECORD, "hint": _TOOL_FROM_HINT}

_SAME_ERROR = f"""
    SELECT 1 FROM session_errors
    WHERE session_id = :session_id AND id <> :id AND error_type IS :error_type
      AND abs(created_at - coalesce(:created_at, 0)) < {SAME_ERROR_MS}
"""
_OTHER_COMPACTION = f"""
    SELECT 1 FROM compaction_events
    WHERE session_id = :session_id AND id <> :id AND created_at > :created_at - {PROVISIONAL_COMPACTION_MS}
"""
_DELETE_PROVISIONAL = f"""
    DELETE FROM compaction_events
    WHERE session_id = :session_id AND id LIKE 'evt%' AND summary IS NULL
      AND abs(created_at - (SELECT created_at FROM compaction_events WHERE id = :id)) < {PROVISIONAL_COMPACTION_MS}
"""

_CREATED_LATER = "SELECT 1 FROM sessions WHERE id = :id AND created_guessed = 0 AND created_at > :at"
_MARK_FORK = """
    UPDATE sessions SET prompt_tokens = NULL, completion_tokens = NULL, cost = NULL, metadata = json_patch(
        COALESCE(metadata, '{}'), json_object('startedBy', 'fork', 'forkedFrom', (
            SELECT messages.session_id FROM sessions AS other
            JOIN messages ON messages.session_id = other.id AND messages.created_at = :at
            WHERE other.source = sessions.source AND other.project_path = sessions.project_path AND other.id <> :id
            LIMIT 1)))
    WHERE id = :id AND metadata ->> '$.forkedFrom' IS NULL RETURNING id
"""

_SESSION_UPDATES: dict[type, str] = {
    SessionOpened: """
        UPDATE sessions SET status = 'active', ended_at = NULL,
                            metadata = json_set(COALESCE(metadata, '{}'), '$.openedAt', :at)
        WHERE id = :id AND COALESCE(ended_at, 0) < :at AND COALESCE(CAST(metadata ->> '$.openedAt' AS BIGINT), 0) < :at
        RETURNING id
    """,
    SessionEnded: """
        UPDATE sessions SET status = 'ended', ended_at = :at, updated_at = MAX(updated_at, :at),
                            metadata = json_set(COALESCE(metadata, '{}'), '$.endReason', :reason)
        WHERE id = :id AND COALESCE(ended_at, 0) < :at AND COALESCE(CAST(metadata ->> '$.openedAt' AS BIGINT), 0) <= :at
        RETURNING id
    """,
    SessionInactive: """
        UPDATE sessions SET status = 'ended', ended_at = updated_at WHERE id = :id AND status IS NULL RETURNING id
    """,
    SessionNote: """
        UPDATE sessions SET metadata = json_patch(COALESCE(metadata, '{}'), :facts) WHERE id = :id RETURNING id
    """,
    SessionClearedFrom: """
        UPDATE sessions SET metadata = json_set(COALESCE(metadata, '{}'), '$.clearedFrom', (
            SELECT id FROM sessions AS before
            WHERE before.project_path = :project AND before.metadata ->> '$.endReason' = 'clear' AND before.id <> :id
              AND before.id NOT IN (SELECT metadata ->> '$.clearedFrom' FROM sessions
                                    WHERE project_path = :project AND metadata ->> '$.clearedFrom' IS NOT NULL)
            ORDER BY before.ended_at DESC LIMIT 1))
        WHERE id = :id AND metadata ->> '$.clearedFrom' IS NULL RETURNING id
    """,
    SessionUsage: """
        UPDATE sessions SET prompt_tokens = MAX(COALESCE(prompt_tokens, 0), :prompt),
                            completion_tokens = MAX(COALESCE(completion_tokens, 0), :completion),
                            cost = MAX(COALESCE(cost, 0), :cost)
        WHERE id = :id AND metadata ->> '$.forkedFrom' IS NULL AND COALESCE(metadata ->> '$.startedBy', '') <> 'fork'
        RETURNING id
    """,
    SessionTotals: """
        UPDATE sessions SET prompt_tokens = MAX(COALESCE(sessions.prompt_tokens, 0), sums.prompt),
                            completion_tokens = MAX(COALESCE(sessions.completion_tokens, 0), sums.completion),
                            cost = CASE WHEN sums.cost IS NULL THEN sessions.cost
                                        ELSE MAX(COALESCE(sessions.cost, 0), sums.cost) END
        FROM (SELECT COALESCE(SUM(prompt_tokens), 0) AS prompt, COALESCE(SUM(completion_tokens), 0) AS completion,
                     SUM(CAST(metadata ->> '$.costUsd' AS DOUBLE PRECISION)) AS cost
              FROM messages WHERE session_id = :id) AS sums
        WHERE id = :id AND (COALESCE(sessions.prompt_tokens, 0) < sums.prompt OR
                            COALESCE(sessions.completion_tokens, 0) < sums.completion OR
                            COALESCE(sessions.cost, 0) < sums.cost)
        RETURNING id
    """,
    SessionSummary: "UPDATE sessions SET summary = :summary WHERE id = :id RETURNING id",
    FirstPrompt: """
        UPDATE sessions SET title = COALESCE(title, :title), user_prompt = COALESCE(user_prompt, :prompt)
        WHERE id = :id AND (title IS NULL OR user_prompt IS NULL) RETURNING id
    """,
}


async def store_event(store: Store, index: Index, event: CapturedEvent, pauses: Pauses | None = None) -> str | None:
    """Prepare and store one event of the request being served; return why it is not stored, if capture is paused."""
    prepared = await prepare(partial(prepare_event, index, event))
    return await store.write(partial(apply_unless_paused, event=prepared, pauses=pauses))


async def store_events(store: Store, events: list[PreparedEvent], pauses: Pauses | None = None) -> list[ChangeResult]:
    """Store many events in order, each as a change of its own, with single events of others in between."""
    return await store.write_all(partial(apply_unless_paused, event=event, pauses=pauses) for event in events)


def apply_unless_paused(db: Db, event: PreparedEvent, pauses: Pauses | None) -> str | None:
    """Store a prepared event, or return why not: capture was paused when it happened."""
    if pauses and not pauses.is_empty:
        row, is_session = event.row, isinstance(event.event, SessionReported)
        original_at = getattr(event.event, "original_at", None)
        times = (row.get("updated_at") if is_session else None, row.get("created_at"), row.get("at"), original_at)
        at = next((time for time in times if time), None) or clock.now()
        project = row.get("project_path") or db.value(
            "SELECT project_path FROM sessions WHERE id = :id", {"id": event.session_id}
        )
        pause = pauses.find(db, at, event.session_id, project)
        if pause and (not is_session or pause in pauses.active()):  # a session's name is stored again after its pause
            return describe(pause)
    apply_event(db, event)
    return None


def apply_event(db: Db, event: PreparedEvent) -> None:
    """Store a prepared event, and announce the rows that it changed after the commit."""
    original_at = getattr(event.event, "original_at", None)
    if original_at is not None:
        original = {"id": event.session_id, "at": original_at}
        if db.value(_CREATED_LATER, original):  # the event is older than its session, which is a fork
            if db.value(_MARK_FORK, original) is not None:
                _announce_session(db, event.session_id)
            return
    match event.event:
        case SessionReported(only_without_project=only_without_project):
            _apply_session(db, event, only_without_project=only_without_project)
        case MessageReported() as message:
            _apply_message(db, event, message)
        case ToolReported(report=report):
            _apply_tool(db, event, report)
        case ErrorReported(once=once):
            _apply_error(db, event, once=once)
        case CompactionReported() as compaction:
            _apply_compaction(db, event, compaction)
        case SessionOptedOut(at=at):
            opt_out.opt_out_session(db, event.session_id, at)
        case FirstPrompt() if ("first prompt", event.session_id) in db.change_cache:
            pass
        case update:
            has_changed = db.value(_SESSION_UPDATES[type(update)], event.row) is not None
            if has_changed:
                _announce_session(db, event.session_id)
            if isinstance(update, FirstPrompt) and (has_changed or ("updated_at", event.session_id) in db.change_cache):
                db.change_cache["first prompt", event.session_id] = (
                    True  # the session is stored, and has a title by now
                )


def _apply_session(db: Db, event: PreparedEvent, *, only_without_project: bool) -> None:
    session_id = event.session_id
    if only_without_project:
        known = db.value("SELECT project_path FROM sessions WHERE id = :id", {"id": session_id})
        if known is not None:
            return
    if event.is_opted_out:
        opt_out.opt_out_session(db, session_id, event.row["now"])
        return
    project_id = None
    if event.folder:
        opt_out.opt_in_session(db, session_id)
        # A subfolder or a worktree has a name of its own, which is not the project's.
        name = event.row["project_name"] if event.row["project_path"] == event.folder.path else None
        project_id = ensure_project(db, event.folder, name)
    elif opt_out.is_session_opted_out(db, session_id):
        return
    db.execute(_SESSION, event.row | {"project_id": project_id})
    count_redactions(db, event.redactions, event.row["now"])
    _announce_session(db, session_id)


def _apply_message(db: Db, event: PreparedEvent, reported: MessageReported) -> None:
    if not _ensure_session(db, event):
        return
    row = event.row
    message_id = resolve_id(db, reported.identity, row)
    if message_id is None:
        return
    has_exact_times = reported.from_record or isinstance(reported.identity, TranscriptIdentity)
    statement = _MESSAGE_FROM_TRANSCRIPT if has_exact_times else _MESSAGE
    message = _store_message(db, statement, {**row, "id": message_id})
    count_redactions(db, event.redactions, row["now"])
    if row["text_content"]:
        index_message(db, message, event.chunks)
    elif row["role"] and message["is_chunked"]:
        index_role(db, message_id, row["role"])
    facts = {"sessionId": message["session_id"], "role": message["role"]}
    db.after_commit(Notification("message", "stored", message_id, facts))


def _store_message(db: Db, statement: str, row: dict[str, Any]) -> dict[str, Any]:
    """Insert a message, or update it with `statement`; return `_MESSAGE_COLUMNS` of what is stored."""
    if db.modify(_NEW_MESSAGE, row):
        created_at = row["now"] if row["created_at"] is None else row["created_at"]
        return {**{name: row[name] for name in ("id", "session_id", "role")}, "created_at": created_at, "is_chunked": 0}
    [stored] = db.tuples(statement, row)
    return dict(zip(_MESSAGE_COLUMNS, stored, strict=True))


def _apply_tool(db: Db, event: PreparedEvent, report: str) -> None:
    if not _ensure_session(db, event):
        return
    row = event.row
    if report == "batch" and db.value("SELECT success FROM tools WHERE id = :id", row) is not None:
        row = {**row, "success": None, "error_message": None}
    db.execute(_TOOL_STATEMENTS.get(report, _TOOL), row)
    if report == "success":
        db.execute("UPDATE tools SET error_message = NULL WHERE id = :id AND error_message IS NOT NULL", row)
    count_redactions(db, event.redactions, row["now"])
    if event.is_indexed:
        add_tool_to_backlog(db, row["id"])


def _apply_error(db: Db, event: PreparedEvent, *, once: bool) -> None:
    if once and db.value(_SAME_ERROR, event.row) is not None:
        return
    if _ensure_session(db, event):
        db.execute(_ERROR, event.row)
        count_redactions(db, event.redactions, event.row["now"])


def _apply_compaction(db: Db, event: PreparedEvent, compaction: CompactionReported) -> None:
    if not _ensure_session(db, event):
        return
    row = event.row
    if compaction.provisional and db.value(_OTHER_COMPACTION, row) is not None:
        return
    compaction_id = resolve_id(db, compaction.identity, row)
    if compaction_id is None:
        return
    db.execute(_COMPACTION, {**row, "id": compaction_id})
    count_redactions(db, event.redactions, row["now"])
    if compaction.replaces_provisional:
        db.execute(_DELETE_PROVISIONAL, row)


def _ensure_session(db: Db, event: PreparedEvent) -> bool:
    """Create a placeholder session if there is none yet; False for a session that has opted out."""
    row, at = event.row, event.row["created_at"]
    key = ("updated_at", event.session_id)
    cached = db.change_cache.get(key)
    if cached is not None and (at is None or at <= cached):
        return True
    session = {"id": event.session_id, "at": at}
    if at is not None and db.modify(_CONTINUE_SESSION, session):
        db.change_cache[key] = at
        return True
    [(is_opted_out, updated_at)] = db.tuples(_SESSION_STATE, session)
    if is_opted_out:
        return False
    if updated_at is None:
        updated_at = at or row["now"]
        db.execute(_PLACEHOLDER_SESSION, {"id": event.session_id, "source": row.get("source"), "at": updated_at})
        _announce_session(db, event.session_id)
    db.change_cache[key] = updated_at
    return True


def _announce_session(db: Db, session_id: str) -> None:
    db.after_commit(Notification("session", "stored", session_id))


def clear_session(db: Db, session_id: str, *, title: bool, metadata: bool) -> None:
    """Remove the title or the metadata of a session, which no event can do: an absent field never overwrites."""
    db.execute(_CLEAR_SESSION, {"id": session_id, "title": title, "metadata": metadata})
