"""Messages and tool calls in the index: cut in the transaction that stores them, or soon after when long."""

from typing import Any

import anyio
import structlog

from clankersd.db import Db
from clankersd.index.chunks import Owner, Prepared, message_header, prepare, replace
from clankersd.index.index import Index

NOT_INDEXED = ("system", "tool")
AT_ONCE = 50

_LATER = "INSERT INTO index_backlog (kind, owner) VALUES (:kind, :owner) ON CONFLICT DO NOTHING"
_DONE = "DELETE FROM index_backlog WHERE kind = :kind AND owner = :owner"
_MESSAGE = "SELECT id, session_id, role, created_at, text_content AS text FROM messages WHERE id = :id"
_TOOL = """
    SELECT id, session_id, 'tool' AS role, created_at,
           tool_name || coalesce(char(10) || tool_input, '') || coalesce(char(10) || tool_output, '') AS text
    FROM tools WHERE id = :id
"""
_SELECT = {"message": _MESSAGE, "tool": _TOOL}

log = structlog.get_logger(component="index")


def index_message(db: Db, message_id: str, prepared: list[Prepared] | None) -> None:
    """Make a stored message searchable by its words, in the transaction that stores it."""
    if prepared is None:
        db.execute(_LATER, {"kind": "message", "owner": message_id})
        return
    row = db.fetch_one("SELECT id, session_id, role, created_at FROM messages WHERE id = :id", {"id": message_id})
    assert row
    index_role(db, message_id, row["role"])
    if row["role"] not in NOT_INDEXED:
        for one in prepared:
            replace(db, _owner("message", row), one)


def index_role(db: Db, message_id: str, role: str | None) -> None:
    """Let a role that is learnt later reach the message's chunks; those of some roles are not searched."""
    if role in NOT_INDEXED:
        db.execute("DELETE FROM chunks WHERE message_id = :id", {"id": message_id})
    elif role is not None:
        params = {"id": message_id, "role": role}
        db.execute("UPDATE chunks SET role = :role WHERE message_id = :id AND role IS NOT :role", params)


def index_tool_later(db: Db, tool_id: str) -> None:
    """Tool calls come twice, before and after: they are cut soon after, from what is stored then."""
    db.execute(_LATER, {"kind": "tool", "owner": tool_id})


async def work_off_backlog(index: Index) -> None:
    """Cut what is stored but not cut, for as long as the daemon lives."""
    while True:
        try:
            while await cut_some(index):
                index.wake()
        except Exception:
            log.exception("backlog stumbled")
        await anyio.sleep(1.0)


async def cut_some(index: Index) -> int:
    """Cut some of the backlog, in threads; tells how many there were."""
    if index.live is None or index.store.problem:
        return 0
    rows = await index.store.read(
        lambda db: db.fetch(f"SELECT kind, owner FROM index_backlog ORDER BY position LIMIT {AT_ONCE}")
    )
    for row in rows:
        await recut(index, row["kind"], row["owner"])
    return len(rows)


async def recut(index: Index, kind: str, owner: str) -> None:
    """Cut one message or tool call anew for every index, from what is stored now."""
    stored = await index.store.read(lambda db: db.fetch_one(_SELECT[kind], {"id": owner}))
    prepared: list[Prepared] = []
    if stored and stored["text"] and (kind == "tool" or stored["role"] not in NOT_INDEXED):
        text = stored["text"]
        prepared = [await anyio.to_thread.run_sync(prepare, text, chunking) for chunking in index.chunkings()]

    def store(db: Db) -> None:
        current = db.fetch_one(_SELECT[kind], {"id": owner})
        for one in prepared if current else ():
            replace(db, _owner(kind, current), one)  # type: ignore[arg-type]  # it is there, or prepared is not used
        if current is None or stored is None or current["text"] == stored["text"]:
            db.execute(_DONE, {"kind": kind, "owner": owner})

    await index.store.write(store)


def _owner(kind: str, row: dict[str, Any]) -> Owner:
    if kind == "tool":
        path = f"tools/{row['id']}"
        return Owner("tool_id", row["id"], "sessions", path, row["created_at"], row["session_id"], "tool")
    header = message_header(row["created_at"])
    path = f"messages/{row['id']}"
    return Owner("message_id", row["id"], "sessions", path, row["created_at"], row["session_id"], row["role"], header)
