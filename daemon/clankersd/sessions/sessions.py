"""Reading back what was captured: sessions, their messages, tools, errors, compactions, timelines."""

from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import InvalidParams, NotFound
from clankers_protocol.sessions import (
    Compaction,
    Deleted,
    Message,
    MessageList,
    MessagePage,
    Project,
    ProjectList,
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
from clankersd.clock import moment
from clankersd.db import Db, Notification
from clankersd.db.ids import whole_id
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, take_page, that_fit
from clankersd.projects import IN_PROJECT, asked_for
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


_SESSION = """
    SELECT id, title, project_id, project_path, project_name, model, provider, source, status,
           prompt_tokens, completion_tokens, cost, message_count, tool_call_count, permission_mode,
           created_at, updated_at, ended_at, summary, user_prompt, context_json, chat_id, metadata
    FROM sessions
"""
_MESSAGE = """
    SELECT id, session_id, role, text_content, model, source, prompt_tokens, completion_tokens,
           duration_ms, created_at, completed_at, metadata
    FROM messages
"""
_TOOL = """
    SELECT id, session_id, message_id, tool_name, tool_input, tool_output, file_path, success,
           error_message, duration_ms, created_at
    FROM tools
"""
_ERROR = "SELECT id, session_id, error_type, error_message, created_at FROM session_errors"
_COMPACTION = """
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
_TIMELINE = """
    SELECT kind, id, created_at FROM (
        SELECT 'message' AS kind, 0 AS rank, id, created_at FROM messages WHERE session_id = :id
        UNION ALL SELECT 'tool', 1, id, created_at FROM tools WHERE session_id = :id
        UNION ALL SELECT 'error', 2, id, created_at FROM session_errors WHERE session_id = :id
        UNION ALL SELECT 'compaction', 3, id, created_at FROM compaction_events WHERE session_id = :id
    )
    WHERE (created_at, rank, id) > (:at, :rank, :after)
    ORDER BY created_at, rank, id LIMIT :limit
"""
_PROJECTS = """
    SELECT projects.id, path, name, count(sessions.id) AS sessions, projects.created_at,
           max(sessions.updated_at) AS last_session_at
    FROM projects LEFT JOIN sessions ON sessions.project_id = projects.id
    GROUP BY projects.id ORDER BY last_session_at DESC NULLS LAST, path LIMIT :limit
"""
_KINDS: dict[str, tuple[str, type[Any]]] = {
    "message": (_MESSAGE, Message),
    "tool": (_TOOL, Tool),
    "error": (_ERROR, SessionError),
    "compaction": (_COMPACTION, Compaction),
}
_RANKS = list(_KINDS)
_TESTS = {"chat_id": "session_id IN (SELECT id FROM sessions WHERE chat_id = :chat_id)"}


@handles(SessionGet)
async def get_session(daemon: "Daemon", request: SessionGet) -> Session:
    def get(db: Db) -> Session:
        session_id = whole_id(db, request.id, "sessions", "session")
        row = db.fetch_one(f"{_SESSION} WHERE id = :id", {"id": session_id})
        assert row
        return _session(row, _counts(db, session_id))

    return await daemon.store.read(get)


@handles(SessionList)
async def list_sessions(daemon: "Daemon", request: SessionList) -> SessionPage:
    conditions, params = _session_filters(request)

    def page(db: Db) -> SessionPage:
        rows = fetch_page(db, f"{_SESSION} WHERE {conditions} ORDER BY created_at DESC, id DESC LIMIT :limit", params)
        shown = that_fit(rows[: request.limit])
        sessions = [_session(row, _counts(db, row["id"])) for row in shown]
        return SessionPage(sessions, _next_cursor(rows, shown))

    return await daemon.store.read(page)


@handles(SessionDelete)
async def delete_session(daemon: "Daemon", request: SessionDelete) -> Deleted:
    return await delete(daemon, request.id, request.dry_run)


async def delete(daemon: "Daemon", session_id: str, dry_run: bool, what: str = "session") -> Deleted:
    """Delete a session and everything of it, and let it be known; or only tell what that would be."""

    def count(db: Db) -> tuple[dict[str, Any], SessionCounts]:
        row = db.fetch_one(f"{_SESSION} WHERE id = :id", {"id": session_id})
        if row is None:
            raise NotFound(f"{what} not found: {session_id}")
        return row, _counts(db, session_id)

    def remove(db: Db) -> tuple[dict[str, Any], SessionCounts]:
        row, counts = count(db)
        db.execute("DELETE FROM sessions WHERE id = :id", {"id": session_id})
        facts = {"chatId": row["chat_id"], "projectPath": row["project_path"], "projectId": row["project_id"]}
        db.after_commit(Notification("session", "deleted", session_id, {"sessionId": session_id, **facts}))
        return row, counts

    _, counts = await (daemon.store.read(count) if dry_run else daemon.store.write(remove))
    return Deleted(session_id, counts, dry_run)


@handles(MessageList)
async def list_messages(daemon: "Daemon", request: MessageList) -> MessagePage:
    given = [one for one in (request.session_id, request.thread_id, request.chat_id) if one is not None]
    if len(given) != 1:
        raise InvalidParams("invalid params: exactly one of sessionId, threadId and chatId is needed")
    session_id = request.session_id or request.thread_id
    where = {"session_id": session_id, "role": request.role, "chat_id": request.chat_id}
    times = {"since": moment(request.since), "until": moment(request.until)}

    def page(db: Db) -> MessagePage:
        if session_id is not None:
            _require(db, session_id)
        rows, cursor = _newest(db, _MESSAGE, where, request.limit, request.cursor, **times)
        return MessagePage([_build(Message, row) for row in rows], cursor)

    return await daemon.store.read(page)


@handles(ToolList)
async def list_tools(daemon: "Daemon", request: ToolList) -> ToolPage:
    where = {
        "session_id": request.session_id,
        "tool_name": request.tool_name,
        "file_path": request.file_path,
        "success": request.success,
    }
    times = {"since": moment(request.since), "until": moment(request.until)}

    def page(db: Db) -> ToolPage:
        if request.session_id is not None:
            _require(db, request.session_id)
        rows, cursor = _newest(db, _TOOL, where, request.limit, request.cursor, **times)
        return ToolPage([_build(Tool, row) for row in rows], cursor)

    return await daemon.store.read(page)


@handles(SessionErrors)
async def list_errors(daemon: "Daemon", request: SessionErrors) -> list[SessionError]:
    def errors(db: Db) -> list[SessionError]:
        _require(db, request.session_id)
        rows, _ = _newest(db, _ERROR, {"session_id": request.session_id}, request.limit, None)
        return [_build(SessionError, row) for row in rows]

    return await daemon.store.read(errors)


@handles(SessionCompactions)
async def list_compactions(daemon: "Daemon", request: SessionCompactions) -> list[Compaction]:
    def compactions(db: Db) -> list[Compaction]:
        _require(db, request.session_id)
        rows, _ = _newest(db, _COMPACTION, {"session_id": request.session_id}, request.limit, None)
        return [_build(Compaction, row) for row in rows]

    return await daemon.store.read(compactions)


@handles(SessionTimeline)
async def timeline(daemon: "Daemon", request: SessionTimeline) -> Timeline:
    at, rank, after = decode_cursor(request.cursor, int, int, str) if request.cursor else (-1, 0, "")

    def page(db: Db) -> Timeline:
        _require(db, request.session_id)
        params = {
            "id": request.session_id,
            "at": at,
            "rank": rank,
            "after": after,
            "limit": request.limit + 1,
        }
        found = db.fetch(_TIMELINE, params)
        whole = take_page(_fetch_entry(db, row) for row in found[: request.limit])
        shown = that_fit(whole)
        return Timeline([_entry(row) for row in shown], _timeline_cursor(found, len(shown)))

    return await daemon.store.read(page)


@handles(ProjectList)
async def list_projects(daemon: "Daemon", request: ProjectList) -> list[Project]:
    return await daemon.store.read(lambda db: [Project(**row) for row in db.fetch(_PROJECTS, {"limit": request.limit})])


def _session_filters(request: SessionList) -> tuple[str, dict[str, Any]]:
    params: dict[str, Any] = {
        **asked_for(request.project),
        "source": request.source,
        "status": request.status,
        "since": moment(request.since),
        "until": moment(request.until),
    }
    tests = {
        "project": IN_PROJECT,
        "source": "source = :source",
        "status": "status = :status",
        "since": "created_at >= :since",
        "until": "created_at < :until",
    }
    conditions = ["1"] + [test for name, test in tests.items() if params[name] is not None]
    if request.cursor:
        conditions.append("(created_at, id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)
    return " AND ".join(conditions), params | {"limit": request.limit + 1}


def _newest(
    db: Db, select: str, where: dict[str, Any], limit: int, cursor: str | None, **times: int | None
) -> tuple[list[dict[str, Any]], str | None]:
    """The newest rows that match, oldest of them first, and the cursor to those before."""
    params = {name: value for name, value in (where | times).items() if value is not None}
    conditions = ["1"] + [_TESTS.get(name, f"{name} = :{name}") for name in where if name in params]
    conditions += ["created_at >= :since"] * ("since" in params) + ["created_at < :until"] * ("until" in params)
    if cursor:
        conditions.append("(created_at, id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(cursor, int, str)
    rows = fetch_page(
        db,
        f"{select} WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, id DESC LIMIT :limit",
        params | {"limit": limit + 1},
    )
    shown = that_fit(rows[:limit])
    return shown[::-1], _next_cursor(rows, shown)


def _next_cursor(rows: list[dict[str, Any]], shown: list[dict[str, Any]]) -> str | None:
    return encode_cursor(shown[-1]["created_at"], shown[-1]["id"]) if len(rows) > len(shown) else None


def _require(db: Db, session_id: str) -> None:
    if not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": session_id}):
        raise NotFound(f"session not found: {session_id}")


def _counts(db: Db, session_id: str) -> SessionCounts:
    row = db.fetch_one(_COUNTS, {"id": session_id})
    assert row
    return SessionCounts(**row)


def _session(row: dict[str, Any], counts: SessionCounts) -> Session:
    row["context"] = row.pop("context_json")
    return _build(Session, row | {"counts": counts})  # type: ignore[no-any-return]


def _fetch_entry(db: Db, found: dict[str, Any]) -> dict[str, Any]:
    select, _ = _KINDS[found["kind"]]
    row = db.fetch_one(f"{select} WHERE id = :id", {"id": found["id"]})
    assert row
    return row | {"kind": found["kind"]}


def _entry(row: dict[str, Any]) -> TimelineEntry:
    kind = row.pop("kind")
    return TimelineEntry(kind=kind, at=row["created_at"], **{kind: _build(_KINDS[kind][1], row)})


def _timeline_cursor(found: list[dict[str, Any]], shown: int) -> str | None:
    if shown == len(found):
        return None
    last = found[shown - 1]
    return encode_cursor(last["created_at"], _RANKS.index(last["kind"]), last["id"])


def _build(struct: type[Any], row: dict[str, Any]) -> Any:
    """The row as what travels: JSON columns as objects, 0 and 1 as what they mean."""
    for name in ("context", "metadata"):
        if row.get(name) is not None:
            row[name] = msgspec.json.decode(row[name])
    if row.get("success") is not None:
        row["success"] = bool(row["success"])
    return struct(**row)
