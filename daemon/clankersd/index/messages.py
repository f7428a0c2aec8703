"""Messages and tool calls in the index: cut in the transaction that stores them, or soon after when long."""

from typing import Any

from clankersd.db import Db
from clankersd.index.backlog import TEXT_KINDS, TextKind, add_to_backlog
from clankersd.index.chunks import ChunkedText, Owner, message_header, replace_chunks

NOT_INDEXED = ("system", "tool")


def index_message(db: Db, message: dict[str, Any], prepared: list[ChunkedText] | None) -> None:
    """Make a message searchable by its words, in the transaction that has stored it as this row."""
    if prepared is None:
        add_to_backlog(db, "message", message["id"])
    elif message["role"] in NOT_INDEXED:
        index_role(db, message["id"], message["role"])
    else:
        for one in prepared:
            replace_chunks(db, _message(message), one)


def index_role(db: Db, message_id: str, role: str | None) -> None:
    """Let a role that is learnt later reach the message's chunks; those of some roles are not searched."""
    if role in NOT_INDEXED:
        db.execute("DELETE FROM chunks WHERE message_id = :id", {"id": message_id})
    elif role is not None:
        params = {"id": message_id, "role": role}
        db.execute("UPDATE chunks SET role = :role WHERE message_id = :id AND role IS NOT :role", params)


def add_tool_to_backlog(db: Db, tool_id: str) -> None:
    """Tool calls come twice, before and after: they are cut soon after, from what is stored then."""
    add_to_backlog(db, "tool", tool_id)


def _message(row: dict[str, Any]) -> Owner:
    header, path = message_header(row["created_at"]), f"messages/{row['id']}"
    return Owner("message_id", row["id"], "sessions", path, row["created_at"], row["session_id"], row["role"], header)


def _tool(row: dict[str, Any]) -> Owner:
    return Owner("tool_id", row["id"], "sessions", f"tools/{row['id']}", row["created_at"], row["session_id"], "tool")


TEXT_KINDS["message"] = TextKind(
    f"""
    SELECT id, session_id, role, created_at, text_content AS text FROM messages
    WHERE id = :id AND coalesce(role, '') NOT IN {NOT_INDEXED}
    """,
    _message,
    "SELECT id FROM messages WHERE id > :after AND text_content IS NOT NULL ORDER BY id LIMIT :limit",
)
TEXT_KINDS["tool"] = TextKind(
    """
    SELECT id, session_id, created_at,
           tool_name || coalesce(char(10) || tool_input, '') || coalesce(char(10) || tool_output, '') AS text
    FROM tools WHERE id = :id
    """,
    _tool,
)
