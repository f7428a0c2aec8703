"""Threads: sessions that belong to a chat, created and read by clients, with their messages."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from clankers_protocol.errors import Conflict, NotFound
from clankers_protocol.events import MessageEvent, SessionEvent
from clankers_protocol.sessions import Deleted, Message
from clankers_protocol.threads import (
    FoundMessages,
    MessageSearch,
    MessageStore,
    ScoredMessage,
    Thread,
    ThreadCreate,
    ThreadDelete,
    ThreadGet,
    ThreadList,
    ThreadPage,
    ThreadUpdate,
)
from clankersd import clock
from clankersd.capture.apply import apply_event, clear_session, store_event
from clankersd.capture.events import MessageReported, SessionReported
from clankersd.capture.prepared import prepare_event
from clankersd.db import Db, Store
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, fit_reply
from clankersd.projects import IN_PROJECT, find_project_id, require_project_id
from clankersd.search.filters import NO_MEMORIES, Criteria, resolve_projects
from clankersd.search.limiter import takes_search_slot
from clankersd.search.near_duplicates import MAX_COMPARED_CHARACTERS
from clankersd.search.plan import Page, SearchPlan
from clankersd.search.rows import END_CHARACTERS, ChunkRow, RowQuery
from clankersd.sessions import sessions
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_SELECT_THREAD = """
    SELECT id, chat_id, title, project_path, metadata, created_at, updated_at,
           (SELECT count(*) FROM messages WHERE session_id = sessions.id) AS messages
    FROM sessions
"""
_IN_CHAT = "chunks.session_id IN (SELECT id FROM sessions WHERE chat_id = :chat_id)"
_SELECT_MESSAGES = f"""
    SELECT {sessions.MESSAGE_COLUMNS}, chat_id, project_path
    FROM messages JOIN sessions ON sessions.id = session_id
    WHERE messages.id IN (SELECT value FROM json_each(:ids))
"""


@handles(ThreadCreate)
async def create(daemon: "Daemon", request: ThreadCreate) -> Thread:
    project = request.project
    if project is not None and not project.startswith("/"):
        name = project

        def find_path(db: Db) -> str:
            params = {"id": require_project_id(db, name)}
            return str(db.value("SELECT path FROM projects WHERE id = :id", params))

        project = await daemon.store.read(find_path)
    event = SessionEvent(
        id=request.id or clock.new_id(),
        chat_id=request.chat_id,
        title=request.title,
        project_path=project,
        metadata=request.metadata,
        created_at=request.created_at,  # without one, the time of a placeholder's first message stays
    )
    prepared = await prepare(partial(prepare_event, daemon.index, SessionReported(event)))

    def store(db: Db) -> None:
        # A placeholder, which only messages have mentioned, may still be created.
        existing = db.fetch_one("SELECT chat_id, created_guessed FROM sessions WHERE id = :id", {"id": event.id})
        if existing and (existing["chat_id"] is not None or not existing["created_guessed"]):
            raise Conflict(f"the thread {event.id} exists already: change it with thread.update")
        apply_event(db, prepared)

    await daemon.store.write(store)
    return await daemon.store.read(lambda db: _get(db, event.id))


@handles(ThreadGet)
async def get(daemon: "Daemon", request: ThreadGet) -> Thread:
    return await daemon.store.read(lambda db: _get(db, resolve_id(db, request.id, "sessions", "thread")))


@handles(ThreadList)
async def list_threads(daemon: "Daemon", request: ThreadList) -> ThreadPage:
    params: dict[str, Any] = {"chat_id": request.chat_id, "limit": request.limit + 1}
    conditions = ["true"]
    if request.chat_id is not None:
        conditions.append("chat_id = :chat_id")
    if request.project is not None:
        conditions.append(IN_PROJECT)
    if request.cursor:
        conditions.append("(updated_at, id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)
    sql = f"{_SELECT_THREAD} WHERE {' AND '.join(conditions)} ORDER BY updated_at DESC, id DESC LIMIT :limit"

    def fetch(db: Db) -> list[dict[str, Any]]:
        project_id = request.project and find_project_id(db, request.project)
        return fetch_page(db, sql, params | {"project_id": project_id})

    rows = await daemon.store.read(fetch)
    shown = fit_reply(rows[: request.limit])
    more = len(rows) > len(shown)
    cursor = encode_cursor(shown[-1]["updated_at"], shown[-1]["id"]) if more else None
    return ThreadPage([sessions.from_row(Thread, row) for row in shown], cursor)


@handles(ThreadUpdate)
async def update(daemon: "Daemon", request: ThreadUpdate) -> Thread:
    given = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
    event = SessionEvent(**given, updated_at=clock.now())
    prepared = await prepare(partial(prepare_event, daemon.index, SessionReported(event)))

    def store(db: Db) -> None:
        _get(db, request.id)
        apply_event(db, prepared)
        clear_session(db, request.id, title=given.get("title", "") is None, metadata=given.get("metadata", "") is None)

    await daemon.store.write(store)
    return await daemon.store.read(lambda db: _get(db, request.id))


@handles(ThreadDelete)
async def delete(daemon: "Daemon", request: ThreadDelete) -> Deleted:
    return await sessions.delete(daemon, request.id, request.dry_run, "thread")


@handles(MessageStore)
async def store_message(daemon: "Daemon", request: MessageStore) -> Message:
    event = MessageEvent(
        id=request.id or clock.new_id(),
        session_id=request.thread_id,
        role=request.role,
        text_content=request.content,
        metadata=request.metadata,
        created_at=request.created_at or clock.now(),
    )
    await store_event(daemon.store, daemon.index, MessageReported(event))
    daemon.index.wake()
    stored = await _fetch(daemon.store, [event.id])
    if event.id not in stored:  # nothing of the thread is captured
        raise Conflict(f"the message was not stored: the project of thread {request.thread_id} opted out of capture")
    return stored[event.id].message


@dataclass(slots=True)
class _FoundRow(ChunkRow):
    """A chunk with the beginning, the length and the end of its message, which is what the result shows."""

    message_text: str | None
    message_length: int | None
    message_end: str | None

    @property
    def shown_text(self) -> str:
        return self.message_text or self.text

    @property
    def shown_length(self) -> int:
        return self.message_length or len(self.text)

    @property
    def shown_end(self) -> str:
        return self.message_end or self.text[-END_CHARACTERS:]


_FOUND_ROWS = RowQuery(
    _FoundRow,
    columns=f"""substr(messages.text_content, 1, {MAX_COMPARED_CHARACTERS}), length(messages.text_content),
        CASE WHEN length(messages.text_content) > {END_CHARACTERS}
            THEN substr(messages.text_content, length(messages.text_content) - {END_CHARACTERS - 1})
            ELSE messages.text_content END""",
    joins="LEFT JOIN messages ON messages.id = chunks.message_id",
)


@handles(MessageSearch)
@takes_search_slot
async def search_messages(daemon: "Daemon", request: MessageSearch) -> FoundMessages:
    engine = daemon.search_engine
    criteria = Criteria(
        sources=["sessions"],
        project=request.project,
        session_id=request.thread_id,
        since=request.since,
        until=request.until,
    )
    if request.project is not None:
        given = criteria
        criteria = await daemon.store.read(lambda db: resolve_projects(db, given))
    chunk_filter = engine.build_filter(criteria, NO_MEMORIES).restrict("chunks.message_id IS NOT NULL")
    if request.role is not None:
        chunk_filter = chunk_filter.restrict("chunks.role = :role", role=request.role)
    if request.chat_id is not None:
        chunk_filter = chunk_filter.restrict(_IN_CHAT, chat_id=request.chat_id)
    plan = SearchPlan(
        query=request.query,
        embedding=request.embedding,
        filter=chunk_filter,
        rows=_FOUND_ROWS,
        page=Page(request.limit),
        mode=request.mode,
        collapses=request.collapse,
        group_of=lambda row: row.message_id,
    )
    outcome = await engine.run(plan)
    stored = await _fetch(daemon.store, [str(candidate.row.message_id) for candidate in outcome.candidates])
    found = []
    for candidate in outcome.candidates:
        if candidate.row.message_id in stored:
            match = stored[candidate.row.message_id]
            score, snippet = candidate.wire_score, outcome.snippet(candidate)
            found.append(
                ScoredMessage(match.message, score, snippet, match.chat_id, match.project_path, candidate.duplicates)
            )
    shown = found[: len(fit_reply([{"text": one.message.text_content} for one in found]))]
    degraded = outcome.degraded
    if len(shown) < len(found):
        note = f"the last {len(found) - len(shown)} hits are left out: the reply would be too long"
        degraded = f"{degraded}; {note}" if degraded else note
    return FoundMessages(shown, outcome.mode, outcome.pending, degraded, outcome.took_ms, outcome.weak)


def _get(db: Db, thread_id: str) -> Thread:
    row = db.fetch_one(f"{_SELECT_THREAD} WHERE id = :id", {"id": thread_id})
    if row is None:
        raise NotFound(f"thread not found: {thread_id}")
    return sessions.from_row(Thread, row)


@dataclass(frozen=True)
class _ThreadMessage:
    """A message with the chat and project of its thread."""

    message: Message
    chat_id: str | None
    project_path: str | None


async def _fetch(store: Store, ids: list[str]) -> dict[str, _ThreadMessage]:
    """Fetch messages by id."""
    params = {"ids": msgspec.json.encode(ids).decode()}
    messages = {}
    for row in await store.read(lambda db: db.fetch(_SELECT_MESSAGES, params)):
        chat_id, project_path = row.pop("chat_id"), row.pop("project_path")
        messages[row["id"]] = _ThreadMessage(sessions.from_row(Message, row), chat_id, project_path)
    return messages
