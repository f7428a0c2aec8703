"""Messages and tool calls in the index: chunked in the transaction that stores them, or by the backlog when long."""

from typing import Any

from clankersd.db import Db
from clankersd.index.backlog import TEXT_KINDS, TextKind, add_to_backlog
from clankersd.index.chunks import ChunkedText, Owner, message_header, replace_chunks

NOT_INDEXED_ROLES = ("system", "tool")


def index_message(db: Db, message: dict[str, Any], chunked: list[ChunkedText] | None) -> None:
    """Make a message searchable by keywords, in the transaction that has stored it as this row."""
    if chunked is None:
        add_to_backlog(db, "message", message["id"])
    elif message["role"] in NOT_INDEXED_ROLES:
        index_role(db, message["id"], message["role"])
    else:
        for text in chunked:
            replace_chunks(db, _message_owner(message), text)


def index_role(db: Db, message_id: str, role: str | None) -> None:
    """Apply a role that became known later to the message's chunks; messages of some roles are not searched."""
    if role in NOT_INDEXED_ROLES:
        db.execute("DELETE FROM chunks WHERE message_id = :id", {"id": message_id})
    elif role is not None:
        params = {"id": message_id, "role": role}
        db.execute("UPDATE chunks SET role = :role WHERE message_id = :id AND role IS NOT :role", params)


def add_tool_to_backlog(db: Db, tool_id: str) -> None:
    """Have a tool call chunked later: it is stored twice, before and after the call, and only the last counts."""
    add_to_backlog(db, "tool", tool_id)


def _message_owner(row: dict[str, Any]) -> Owner:
    return Owner(
        "message_id",
        row["id"],
        source="sessions",
        path=f"messages/{row['id']}",
        created_at=row["created_at"],
        session_id=row["session_id"],
        role=row["role"],
        header=message_header(row["created_at"]),
    )


def _tool_owner(row: dict[str, Any]) -> Owner:
    return Owner(
        "tool_id",
        row["id"],
        source="sessions",
        path=f"tools/{row['id']}",
        created_at=row["created_at"],
        session_id=row["session_id"],
        role="tool",
    )


TEXT_KINDS["message"] = TextKind(
    f"""
    SELECT id, session_id, role, created_at, text_content AS text FROM messages
    WHERE id = :id AND coalesce(role, '') NOT IN {NOT_INDEXED_ROLES}
    """,
    _message_owner,
    "SELECT id FROM messages WHERE id > :after AND text_content IS NOT NULL ORDER BY id LIMIT :limit",
    source="sessions",
)
TEXT_KINDS["tool"] = TextKind(
    """
    SELECT id, session_id, created_at,
           tool_name || coalesce(char(10) || tool_input, '') || coalesce(char(10) || tool_output, '') AS text
    FROM tools WHERE id = :id
    """,
    _tool_owner,
    source="tools",
)
