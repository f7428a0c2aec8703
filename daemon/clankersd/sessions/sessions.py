"""Read captured sessions: their messages, tools, errors, compactions and timelines; delete sessions."""

import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from clankers_protocol.errors import InvalidParams, NotFound
from clankers_protocol.sessions import (
    Compaction,
    Deleted,
    Message,
    MessageList,
    MessagePage,
    Session,
    SessionCompactions,
    SessionCounts,
    SessionDelete,
    SessionError,
    SessionErrors,
    SessionGet,
    SessionList,
    SessionPage,
    SessionTimeline,
    Timeline,
    TimelineEntry,
    Tool,
    ToolList,
    ToolPage,
)
from clankers_protocol.transcripts import SessionEntry
from clankersd.clock import to_ms
from clankersd.db import Db, Notification
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, fit_reply, take_page
from clankersd.projects import IN_PROJECT, PROJECT_LABEL, find_project_id
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

Struct = TypeVar("Struct", bound=msgspec.Struct)

MESSAGE_COLUMNS = """
    messages.id, session_id, role, text_content, messages.model, messages.source, messages.prompt_tokens,
    messages.completion_tokens, duration_ms, messages.created_at, completed_at, messages.metadata
"""
"""The columns of a Message, qualified where `sessions` has a column of the same name."""

_IS_REPORTED_AUTOMATED = """
    coalesce(metadata ->> '$.entrypoint' IN ('exec', 'mcp', 'cron') OR metadata ->> '$.entrypoint' LIKE 'sdk%', false)
"""
"""Condition on sessions that no person started: the harness says that it ran for a script, a program or a schedule."""

_SELECT_SESSION = f"""
    SELECT id, title, project_id, project_path,
           coalesce(
               (SELECT {PROJECT_LABEL} FROM projects WHERE projects.id = project_id), project_name
           ) AS project_name, model, provider, source, status,
           prompt_tokens, completion_tokens, cost, message_count, tool_call_count, permission_mode,
           created_at, updated_at, ended_at, summary, user_prompt, context_json, chat_id, metadata,
           iif({_IS_REPORTED_AUTOMATED}, 'reported', NULL) AS automated
    FROM sessions
"""
_SELECT_MESSAGE = f"SELECT {MESSAGE_COLUMNS} FROM messages"
_SELECT_TOOL = """
    SELECT id, session_id, message_id, tool_name, tool_input, tool_output, file_path, success,
           error_message, duration_ms, created_at
    FROM tools
"""
_SELECT_ERROR = "SELECT id, session_id, error_type, error_message, created_at FROM session_errors"
_SELECT_COMPACTION = """
    SELECT id, session_id, tokens_before, tokens_after, messages_before, messages_after, cause, summary,
           created_at
    FROM compaction_events
"""
_COUNTS = """
    SELECT (SELECT count(*) FROM messages WHERE session_id = :id) AS messages,
           (SELECT count(*) FROM tools WHERE session_id = :id) AS tools,
           (SELECT count(*) FROM tools WHERE session_id = :id AND success = 0) AS failed_tools,
           (SELECT count(*) FROM session_errors WHERE session_id = :id) AS errors,
           (SELECT count(*) FROM compaction_events WHERE session_id = :id) AS compactions
"""
_ENTRIES = """
    SELECT 'message' AS kind, 0 AS rank, id, created_at FROM messages WHERE session_id = :id
    UNION ALL SELECT 'tool', 1, id, created_at FROM tools WHERE session_id = :id
    UNION ALL SELECT 'error', 2, id, created_at FROM session_errors WHERE session_id = :id
    UNION ALL SELECT 'compaction', 3, id, created_at FROM compaction_events WHERE session_id = :id
"""
_TIMELINE = f"""
    SELECT kind, id, created_at FROM ({_ENTRIES}) WHERE (created_at, rank, id) > (:at, :rank, :after)
    ORDER BY created_at, rank, id LIMIT :limit
"""
_TIMELINE_FROM_POSITION = f"""
    SELECT kind, id, created_at FROM ({_ENTRIES}) ORDER BY created_at, rank, id LIMIT :limit OFFSET :position
"""
_POSITION = f"""
    WITH entries AS MATERIALIZED ({_ENTRIES}), wanted AS (SELECT * FROM entries WHERE id = :entry LIMIT 1)
    SELECT count(*) FROM entries, wanted
    WHERE (entries.created_at, entries.rank, entries.id) <= (wanted.created_at, wanted.rank, wanted.id)
"""
"""The number of entries up to the wanted one; 0 if there is none with this id."""

_LONG_COLUMNS = {
    "text_content": "textContent",
    "tool_input": "toolInput",
    "tool_output": "toolOutput",
    "error_message": "errorMessage",
    "summary": "summary",
}
"""Columns that `maxCharacters` shortens, with their names on the wire."""

_IS_SHORT = """
    (SELECT count(*) FROM (SELECT 1 FROM messages WHERE session_id = sessions.id LIMIT 3)) < 3
    AND NOT EXISTS (SELECT 1 FROM tools WHERE session_id = sessions.id)
"""
_IS_LIKELY_AUTOMATED = """
    metadata ->> '$.entrypoint' IS NULL AND coalesce(user_prompt IN (
        SELECT user_prompt FROM sessions WHERE user_prompt <> '' GROUP BY user_prompt HAVING count(*) >= 3), false)
"""
"""Guess for harnesses that do not say it: scripts begin with the same prompt again and again."""

_LIKELY_AUTOMATED = f"""
    SELECT id FROM sessions WHERE id IN (SELECT value FROM json_each(:ids)) AND {_IS_LIKELY_AUTOMATED}
"""
_SUBAGENTS = """
    SELECT count(*) FROM sessions WHERE metadata ->> '$.parentId' = :id AND metadata ->> '$.parentId' IS NOT NULL
"""
_TIMELINE_KINDS: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "message": (_SELECT_MESSAGE, Message),
    "tool": (_SELECT_TOOL, Tool),
    "error": (_SELECT_ERROR, SessionError),
    "compaction": (_SELECT_COMPACTION, Compaction),
}
"""Statement and struct of each kind, in the order of the ranks in _TIMELINE."""

_CONDITIONS = {
    "session_id": "session_id = :session_id",
    "chat_id": "session_id IN (SELECT id FROM sessions WHERE chat_id = :chat_id)",
    "role": "role = :role",
    "tool_name": "tool_name = :tool_name",
    "file_path": "file_path = :file_path",
    "success": "success = :success",
    "since": "created_at >= :since",
    "until": "created_at < :until",
}
"""Conditions on messages, tools, errors and compactions, by the name of their parameter."""


@handles(SessionGet)
async def get_session(daemon: "Daemon", request: SessionGet) -> Session:
    def get(db: Db) -> Session:
        session_id = resolve_id(db, request.id, "sessions", "session")
        row = db.fetch_one(f"{_SELECT_SESSION} WHERE id = :id", {"id": session_id})
        assert row
        return _session(db, row)

    return await daemon.store.read(get)


@handles(SessionList)
async def list_sessions(daemon: "Daemon", request: SessionList) -> SessionPage:
    conditions, params = _session_filters(request)

    def page(db: Db) -> SessionPage:
        sql = f"{_SELECT_SESSION} WHERE {conditions} ORDER BY created_at DESC, id DESC LIMIT :limit"
        project_id = request.project and find_project_id(db, request.project)
        rows = fetch_page(db, sql, params | {"project_id": project_id})
        shown = fit_reply(rows[: request.limit])
        sessions = [_session(db, row) for row in shown]
        likely = {row[0] for row in db.tuples(_LIKELY_AUTOMATED, {"ids": json.dumps([one.id for one in sessions])})}
        for session in sessions:
            session.automated = session.automated or ("likely" if session.id in likely else None)
        total = None
        if request.count:
            all_conditions, all_params = _session_filters(msgspec.structs.replace(request, cursor=None))
            counted = f"SELECT count(*) FROM sessions WHERE {all_conditions}"
            del all_params["limit"]
            total = db.value(counted, all_params | {"project_id": project_id})
        return SessionPage(sessions, _next_cursor(rows, len(shown)), total)

    return await daemon.store.read(page)


@handles(SessionDelete)
async def delete_session(daemon: "Daemon", request: SessionDelete) -> Deleted:
    return await delete(daemon, request.id, request.dry_run)


async def delete(daemon: "Daemon", session_id: str, dry_run: bool, what: str = "session") -> Deleted:
    """Delete a session with all its rows and notify subscribers; with `dry_run`, only count the rows."""

    def count(db: Db) -> tuple[dict[str, Any], SessionCounts]:
        row = db.fetch_one(f"{_SELECT_SESSION} WHERE id = :id", {"id": session_id})
        if row is None:
            raise NotFound(f"{what} not found: {session_id}")
        return row, _counts(db, session_id)

    def remove(db: Db) -> tuple[dict[str, Any], SessionCounts]:
        row, counts = count(db)
        erase_session(db, session_id)
        return row, counts

    _, counts = await (daemon.store.read(count) if dry_run else daemon.store.write(remove))
    return Deleted(session_id, counts, dry_run)


def erase_session(db: Db, session_id: str) -> None:
    """Delete a session that exists, with all its rows, and notify subscribers."""
    columns = 'chat_id AS "chatId", project_path AS "projectPath", project_id AS "projectId"'
    facts = db.fetch_one(f"SELECT {columns} FROM sessions WHERE id = :id", {"id": session_id})
    assert facts
    db.execute("DELETE FROM sessions WHERE id = :id", {"id": session_id})
    db.after_commit(Notification("session", "deleted", session_id, {"sessionId": session_id, **facts}))


@handles(MessageList)
async def list_messages(daemon: "Daemon", request: MessageList) -> MessagePage:
    scopes = [scope for scope in (request.session_id, request.thread_id, request.chat_id) if scope is not None]
    if len(scopes) != 1:
        raise InvalidParams("invalid params: exactly one of sessionId, threadId and chatId is needed")
    session_id = request.session_id or request.thread_id
    filters = {
        "session_id": session_id,
        "role": request.role,
        "chat_id": request.chat_id,
        "since": to_ms(request.since),
        "until": to_ms(request.until),
    }

    def page(db: Db) -> MessagePage:
        if session_id is not None:
            _check_session_exists(db, session_id)
        messages, cursor = _fetch_newest(db, _SELECT_MESSAGE, Message, filters, request.limit, request.cursor)
        return MessagePage(messages, cursor)

    return await daemon.store.read(page)


@handles(ToolList)
async def list_tools(daemon: "Daemon", request: ToolList) -> ToolPage:
    filters = {
        "session_id": request.session_id,
        "tool_name": request.tool_name,
        "file_path": request.file_path,
        "success": request.success,
        "since": to_ms(request.since),
        "until": to_ms(request.until),
    }

    def page(db: Db) -> ToolPage:
        if request.session_id is not None:
            _check_session_exists(db, request.session_id)
        tools, cursor = _fetch_newest(db, _SELECT_TOOL, Tool, filters, request.limit, request.cursor)
        return ToolPage(tools, cursor)

    return await daemon.store.read(page)


@handles(SessionErrors)
async def list_errors(daemon: "Daemon", request: SessionErrors) -> list[SessionError]:
    def errors(db: Db) -> list[SessionError]:
        _check_session_exists(db, request.session_id)
        filters = {"session_id": request.session_id}
        return _fetch_newest(db, _SELECT_ERROR, SessionError, filters, request.limit, None)[0]

    return await daemon.store.read(errors)


@handles(SessionCompactions)
async def list_compactions(daemon: "Daemon", request: SessionCompactions) -> list[Compaction]:
    def compactions(db: Db) -> list[Compaction]:
        _check_session_exists(db, request.session_id)
        filters = {"session_id": request.session_id}
        return _fetch_newest(db, _SELECT_COMPACTION, Compaction, filters, request.limit, None)[0]

    return await daemon.store.read(compactions)


@handles(SessionTimeline)
async def timeline(daemon: "Daemon", request: SessionTimeline) -> Timeline:
    starts = [start for start in (request.cursor, request.position, request.around) if start is not None]
    if len(starts) > 1:
        raise InvalidParams("invalid params: only one of cursor, position and around can be given")
    at, rank, after = decode_cursor(request.cursor, int, int, str) if request.cursor else (-1, 0, "")

    def page(db: Db) -> Timeline:
        _check_session_exists(db, request.session_id)
        params = {"id": request.session_id, "limit": request.limit + 1}
        position = request.position
        if request.around is not None:
            number = db.value(_POSITION, {"id": request.session_id, "entry": request.around})
            if not number:
                raise NotFound(f"there is no entry {request.around} in session {request.session_id}")
            position = max(0, number - 1 - request.limit // 2)
        if position is None:
            keys = db.fetch(_TIMELINE, params | {"at": at, "rank": rank, "after": after})
        else:
            keys = db.fetch(_TIMELINE_FROM_POSITION, params | {"position": position})
        rows = fit_reply(take_page(_fetch_entry(db, key) for key in keys[: request.limit]))
        cursor = None
        if len(rows) < len(keys):
            last = keys[len(rows) - 1]
            cursor = encode_cursor(last["created_at"], list(_TIMELINE_KINDS).index(last["kind"]), last["id"])
        entries = [_timeline_entry(row, request.max_characters) for row in rows]
        return Timeline(entries, cursor, position)

    return await daemon.store.read(page)


def _session_filters(request: SessionList) -> tuple[str, dict[str, Any]]:
    params: dict[str, Any] = {
        "project": request.project,
        "source": request.source,
        "status": request.status,
        "since": to_ms(request.since),
        "until": to_ms(request.until),
        "parent": request.parent_id,
        "query": request.query,
    }
    conditions_by_name = {
        "project": IN_PROJECT,
        "source": "source = :source",
        "status": "status = :status",
        "since": "created_at >= :since",
        "until": "created_at < :until",
        "parent": "metadata ->> '$.parentId' = :parent AND metadata ->> '$.parentId' IS NOT NULL",
        "query": "instr(lower(concat_ws(' ', title, user_prompt)), lower(:query)) > 0",
    }
    conditions = ["true"] + [sql for name, sql in conditions_by_name.items() if params[name] is not None]
    if request.top_level:
        conditions.append("metadata ->> '$.parentId' IS NULL")
    if request.skip_short:
        conditions.append(f"NOT ({_IS_SHORT})")
    if request.skip_automated:
        conditions.append(f"NOT {_IS_REPORTED_AUTOMATED} AND NOT ({_IS_LIKELY_AUTOMATED})")
    if request.cursor:
        conditions.append("(created_at, id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)
    return " AND ".join(conditions), params | {"limit": request.limit + 1}


def _fetch_newest(
    db: Db, select: str, struct: type[Struct], filters: dict[str, Any], limit: int, cursor: str | None
) -> tuple[list[Struct], str | None]:
    """Fetch the newest matching rows, oldest first, and the cursor for the rows before them.

    `filters` are values for _CONDITIONS; None does not filter.
    """
    params = {name: value for name, value in filters.items() if value is not None}
    conditions = ["true"] + [_CONDITIONS[name] for name in params]
    if cursor:
        conditions.append("(created_at, id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(cursor, int, str)
    sql = f"{select} WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, id DESC LIMIT :limit"
    rows = fetch_page(db, sql, params | {"limit": limit + 1})
    shown = fit_reply(rows[:limit])
    next_cursor = _next_cursor(rows, len(shown))
    return [from_row(struct, row) for row in reversed(shown)], next_cursor


def _next_cursor(rows: list[dict[str, Any]], shown: int) -> str | None:
    if len(rows) == shown:
        return None
    last = rows[shown - 1]
    return encode_cursor(last["created_at"], last["id"])


def _check_session_exists(db: Db, session_id: str) -> None:
    if not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": session_id}):
        raise NotFound(f"session not found: {session_id}")


def _counts(db: Db, session_id: str) -> SessionCounts:
    row = db.fetch_one(_COUNTS, {"id": session_id})
    assert row
    return SessionCounts(**row)


def _session(db: Db, row: dict[str, Any]) -> Session:
    row["context"] = row.pop("context_json")
    subagents = db.value(_SUBAGENTS, {"id": row["id"]})
    return from_row(Session, row | {"counts": _counts(db, row["id"]), "subagents": subagents})


def _fetch_entry(db: Db, key: dict[str, Any]) -> dict[str, Any]:
    """Fetch the row of a timeline entry, and add its kind."""
    select, _ = _TIMELINE_KINDS[key["kind"]]
    row = db.fetch_one(f"{select} WHERE id = :id", {"id": key["id"]})
    assert row
    return row | {"kind": key["kind"]}


@handles(SessionEntry)
async def get_entry(daemon: "Daemon", request: SessionEntry) -> TimelineEntry:
    def get(db: Db) -> TimelineEntry:
        for kind, (select, _) in _TIMELINE_KINDS.items():
            if row := db.fetch_one(f"{select} WHERE id = :id", {"id": request.id}):
                return _timeline_entry(row | {"kind": kind})
        raise NotFound(f"there is no message, tool call, error or compaction {request.id}")

    return await daemon.store.read(get)


def _timeline_entry(row: dict[str, Any], max_characters: int | None = None) -> TimelineEntry:
    kind = row.pop("kind")
    _, struct = _TIMELINE_KINDS[kind]
    cut = {}
    for column, name in _LONG_COLUMNS.items():
        text = row.get(column)
        if max_characters is not None and text is not None and len(text) > max_characters:
            cut[name] = len(text)
            row[column] = text[:max_characters]
    entry: dict[str, Any] = {kind: from_row(struct, row)}
    return TimelineEntry(kind=kind, at=row["created_at"], cut=cut or None, **entry)


def from_row(struct: type[Struct], row: dict[str, Any]) -> Struct:
    """Convert a row: decode JSON columns, and make a boolean of `success`."""
    for name in ("context", "metadata"):
        if row.get(name) is not None:
            row[name] = msgspec.json.decode(row[name])
    if row.get("success") is not None:
        row["success"] = bool(row["success"])
    return struct(**row)
