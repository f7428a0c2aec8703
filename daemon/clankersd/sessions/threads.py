"""Threads and their messages: the conversations of a chat, which are sessions by another name."""

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from clankers_protocol.errors import Conflict, NotFound
from clankers_protocol.events import MessageEvent, SessionEvent
from clankers_protocol.search import Search
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
from clankersd.capture.apply import apply_event, clear_session, prepare_event, store_event
from clankersd.capture.events import MessageReported, SessionReported
from clankersd.db import Db
from clankersd.db.ids import whole_id
from clankersd.db.paging import decode_cursor, encode_cursor, fetch_page, that_fit
from clankersd.projects import IN_PROJECT, asked_for
from clankersd.search.filters import eligible, without_memories
from clankersd.search.limiter import takes_search_turn
from clankersd.search.owners import Best, Question, find_owners, narrowed
from clankersd.sessions import sessions
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_THREAD = """
    SELECT id, chat_id, title, project_path, metadata, created_at, updated_at,
           (SELECT count(*) FROM messages WHERE session_id = sessions.id) AS messages
    FROM sessions
"""
_IN_CHAT = "chunks.session_id IN (SELECT id FROM sessions WHERE chat_id = :chat_id)"
_MESSAGES = """
    SELECT messages.id, session_id, role, text_content, messages.model, messages.source, messages.prompt_tokens,
           messages.completion_tokens, duration_ms, messages.created_at, completed_at, messages.metadata,
           chat_id, project_path
    FROM messages JOIN sessions ON sessions.id = session_id
    WHERE messages.id IN (SELECT value FROM json_each(:ids))
"""


@handles(ThreadCreate)
async def create(daemon: "Daemon", request: ThreadCreate) -> Thread:
    event = SessionEvent(
        id=request.id or clock.new_id(),
        chat_id=request.chat_id,
        title=request.title,
        project_path=request.project,
        metadata=request.metadata,
        created_at=request.created_at,  # else when its first message came, if there is one
    )
    prepared = await prepare(partial(prepare_event, daemon.index, SessionReported(event)))

    def store(db: Db) -> None:
        _refuse_second(db, event.id)
        apply_event(db, prepared)

    await daemon.store.write(store)
    return await daemon.store.read(lambda db: _get(db, event.id))


@handles(ThreadGet)
async def get(daemon: "Daemon", request: ThreadGet) -> Thread:
    return await daemon.store.read(lambda db: _get(db, whole_id(db, request.id, "sessions", "thread")))


@handles(ThreadList)
async def list_threads(daemon: "Daemon", request: ThreadList) -> ThreadPage:
    params: dict[str, Any] = {"chat_id": request.chat_id, "limit": request.limit + 1, **asked_for(request.project)}
    conditions = ["1"] + ["chat_id = :chat_id"] * (request.chat_id is not None)
    conditions += [IN_PROJECT] * (request.project is not None)
    if request.cursor:
        conditions.append("(updated_at, id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)
    sql = f"{_THREAD} WHERE {' AND '.join(conditions)} ORDER BY updated_at DESC, id DESC LIMIT :limit"
    rows = await daemon.store.read(lambda db: fetch_page(db, sql, params))
    shown = that_fit(rows[: request.limit])
    more = len(rows) > len(shown)
    cursor = encode_cursor(shown[-1]["updated_at"], shown[-1]["id"]) if more else None
    return ThreadPage([_thread(row) for row in shown], cursor)


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
    return (await _fetch(daemon, [event.id]))[event.id][0]


@handles(MessageSearch)
@takes_search_turn
async def search_messages(daemon: "Daemon", request: MessageSearch) -> FoundMessages:
    live = daemon.index.live
    asked = Search(
        query=request.query or "",
        project=request.project,
        session_id=request.thread_id,
        since=request.since,
        until=request.until,
    )
    allowed = narrowed(
        eligible(asked, live.chunking.number if live else 0, without_memories()),
        source=("chunks.source = :source AND chunks.message_id IS NOT NULL", "sessions"),
        role=("chunks.role = :role", request.role),
        chat_id=(_IN_CHAT, request.chat_id),
    )
    question = Question("message_id", request.query, request.embedding, request.mode, request.limit)
    answer = await find_owners(daemon, question, allowed)
    stored = await _fetch(daemon, [best.id for best in answer.best])
    found = [_scored(best, *stored[best.id]) for best in answer.best if best.id in stored]
    found = found[: len(that_fit([{"text": one.message.text_content} for one in found]))]
    return FoundMessages(found, answer.mode, answer.pending, answer.degraded, answer.took_ms)


def _refuse_second(db: Db, thread_id: str) -> None:
    """A thread of which only messages came so far may still be begun."""
    known = db.fetch_one("SELECT chat_id, created_guessed FROM sessions WHERE id = :id", {"id": thread_id})
    if known and (known["chat_id"] is not None or not known["created_guessed"]):
        raise Conflict(f"there is a thread {thread_id} already: change it with thread.update")


def _get(db: Db, thread_id: str) -> Thread:
    row = db.fetch_one(f"{_THREAD} WHERE id = :id", {"id": thread_id})
    if row is None:
        raise NotFound(f"thread not found: {thread_id}")
    return _thread(row)


def _thread(row: dict[str, Any]) -> Thread:
    return Thread(**row | {"metadata": msgspec.json.decode(row["metadata"]) if row["metadata"] else None})


async def _fetch(daemon: "Daemon", ids: list[str]) -> dict[str, tuple[Message, dict[str, Any]]]:
    """Messages by their ids, each with the chat and project it belongs to."""
    sought = {"ids": msgspec.json.encode(ids).decode()}
    rows = await daemon.store.read(lambda db: db.fetch(_MESSAGES, sought))
    found = {}
    for row in rows:
        place = {name: row.pop(name) for name in ("chat_id", "project_path")}
        row["metadata"] = msgspec.json.decode(row["metadata"]) if row["metadata"] else None
        found[row["id"]] = Message(**row), place
    return found


def _scored(best: Best, message: Message, place: dict[str, Any]) -> ScoredMessage:
    return ScoredMessage(message, best.score, best.snippet, **place)
