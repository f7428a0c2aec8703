"""Sessions in the index: messages are chunked with the event that stores them, titles and tool calls by the backlog."""

import json
import re
from typing import Any

from clankersd.db import Db
from clankersd.index.backlog import TEXT_KINDS, TextKind, add_to_backlog
from clankersd.index.chunks import (
    ChunkedText,
    Chunking,
    Owner,
    append_chunks,
    chunk_text,
    message_header,
    replace_chunks,
)

NOT_INDEXED_ROLES = ("system", "tool")

SUBJECT_FIELDS = (
    "command", "cmd", "description", "pattern", "query", "url", "file_path", "filePath", "notebook_path", "path",
)  # fmt: skip
"""Fields of a tool's input that say what it was used on: a command, a file, a search."""

_SUBJECT_KEY = re.compile(f'"(?:{"|".join(SUBJECT_FIELDS)})"')

MAX_SUBJECT_CHARACTERS = 1_000

MIN_ERROR_CHARACTERS = 12
"""A shorter error, such as "failed" or "denied", tells nothing that could be searched for."""

ERROR_END_CHARACTERS = 400
"""Beginning and end of a longer error that are searched: a compiler names the cause first, a stack trace last."""


def index_message(db: Db, message: dict[str, Any], chunked: list[ChunkedText] | None) -> None:
    """Make a message searchable by keywords, in the transaction that has stored it as this row.

    `is_chunked` of the row tells whether it has chunks already.
    """
    if chunked is None:
        db.execute("DELETE FROM chunks WHERE message_id = :id AND text = ''", message)  # parts of the text it had
        add_to_backlog(db, "message", message["id"])
    elif message["role"] in NOT_INDEXED_ROLES:
        index_role(db, message["id"], message["role"])
    else:
        owner = _message_owner(message)
        for text in chunked:
            if message["is_chunked"]:
                replace_chunks(db, owner, text)
            else:
                append_chunks(db, owner, text, 0, len(text.chunks))


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


def has_subject(tool: dict[str, Any]) -> bool:
    """Return whether this row of a tool call names a file or a command."""
    return bool(tool["file_path"]) or _SUBJECT_KEY.search(tool["tool_input"] or "") is not None


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


TEXT_KINDS["message"] = TextKind(
    f"""
    SELECT id, session_id, role, created_at, text_content AS text FROM messages
    WHERE id = :id AND coalesce(role, '') NOT IN {NOT_INDEXED_ROLES}
    """,
    _message_owner,
    "SELECT id FROM messages WHERE id > :after AND text_content IS NOT NULL ORDER BY id LIMIT :limit",
    source="sessions",
)


# Tool inputs and outputs are indexed if the setting says so; otherwise only what a tool was used on, and its error.
_SUBJECT = f"""concat_ws(char(10), tools.file_path, {
    ", ".join(
        f"iif(json_valid(tool_input), nullif(tool_input ->> '$.{name}', tools.file_path), NULL)"
        for name in SUBJECT_FIELDS
    )
})"""
_ERROR = f"""CASE
    WHEN length(error_message) < {MIN_ERROR_CHARACTERS} THEN NULL
    WHEN length(error_message) <= {2 * ERROR_END_CHARACTERS} THEN error_message
    ELSE substr(error_message, 1, {ERROR_END_CHARACTERS}) || char(10) || '…' || char(10)
         || substr(error_message, -{ERROR_END_CHARACTERS})
END"""
_FULL_TEXT = "concat_ws(char(10), tool_name, tool_input, tool_output, error_message)"
_CHUNKINGS = """(
    SELECT json_group_array(chunking) FROM index_generations
    WHERE state IN ('live', 'building') AND instr(sources, '{}') > 0
)"""
_SAME_SUBJECT = """
    SELECT 1 FROM chunks WHERE session_id = :session_id AND turn IS NULL AND chunking = :chunking
        AND hash = :hash AND tool_id <> :id
"""


def _chunk_tool(row: dict[str, Any], chunking: Chunking) -> ChunkedText:
    """Chunk all of a tool call, or only its subject and its error, as the generation of this chunking wants it."""
    if chunking.number in json.loads(row["tool_chunkings"]):
        return chunk_text(row["text"], chunking)
    is_wanted = chunking.number in json.loads(row["session_chunkings"])
    return chunk_text(row["subject"] if is_wanted else "", chunking)


def _is_same_subject(db: Db, row: dict[str, Any], chunked: ChunkedText) -> bool:
    """Return whether an earlier call of the session made the same file name, command and error searchable."""
    if len(chunked.hashes) != 1 or chunked.chunking.number in json.loads(row["tool_chunkings"]):
        return False
    params = {"session_id": row["session_id"], "id": row["id"], "hash": chunked.hashes[0]}
    return bool(db.value(_SAME_SUBJECT, params | {"chunking": chunked.chunking.number}))


TEXT_KINDS["tool"] = TextKind(
    f"""
    SELECT id, session_id, created_at, {_FULL_TEXT} AS text,
           concat_ws(char(10), nullif(substr({_SUBJECT}, 1, {MAX_SUBJECT_CHARACTERS}), ''), {_ERROR}) AS subject,
           {_CHUNKINGS.format("tools")} AS tool_chunkings, {_CHUNKINGS.format("sessions")} AS session_chunkings
    FROM tools WHERE id = :id
    """,
    lambda row: Owner(
        "tool_id",
        row["id"],
        source="sessions",
        path=f"tools/{row['id']}",
        created_at=row["created_at"],
        session_id=row["session_id"],
        role="tool",
    ),
    chunk=_chunk_tool,
    is_redundant=_is_same_subject,
)
# A title that is only the beginning of the first prompt is found by that prompt.
TEXT_KINDS["session title"] = TextKind(
    """
    SELECT id, created_at, title AS text FROM sessions
    WHERE id = :id AND title <> '' AND instr(replace(coalesce(user_prompt, ''), char(10), ' '), title) <> 1
    """,
    lambda row: Owner(
        "session_title_id",
        row["id"],
        source="sessions",
        path=f"titles/{row['id']}",
        created_at=row["created_at"],
        session_id=row["id"],
    ),
    "SELECT id FROM sessions WHERE id > :after AND title <> '' ORDER BY id LIMIT :limit",
    source="sessions",
)
