"""Reading sessions for extraction: messages and tool calls in parts, and the position up to which each was read."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from clankers_protocol.errors import NotFound
from clankers_protocol.memory_maintenance import Candidate
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.extraction.model import MODEL_RULE
from clankersd.memories.extraction.rules import EDITING_TOOLS, SessionMessage, ToolCall, group_edited_files
from clankersd.memories.similarity import content_hash, is_near_duplicate

MAX_MESSAGES = 500
MAX_TOOL_CALLS = 2000
MAX_EDITS = 5000

_SESSION = """
    SELECT sessions.id, sessions.project_id, projects.path AS project_path
    FROM sessions LEFT JOIN projects ON projects.id = sessions.project_id WHERE sessions.id = :id
"""
_MESSAGES = """
    SELECT id, COALESCE(role, '') AS role, created_at AS at,
           CASE WHEN length(text_content) > 20000
                THEN substr(text_content, 1, 10000) || char(10) || substr(text_content, -10000)
                ELSE COALESCE(text_content, '') END AS text
    FROM messages WHERE session_id = :id AND (created_at, id) > (:at, :after)
    ORDER BY created_at, id LIMIT :limit
"""
_TOOL_CALLS = """
    SELECT message_id, tool_name AS name, substr(COALESCE(tool_input, ''), 1, 4000) AS input, success,
           substr(COALESCE(error_message, iif(success = 0, tool_output, ''), ''), 1, 500) AS error,
           file_path AS path, created_at AS at
    FROM tools WHERE session_id = :id AND created_at > :at AND (:until IS NULL OR created_at <= :until)
    ORDER BY created_at, id LIMIT :limit
"""
# CROSS JOIN fixes the join order: the few files of the session are looked up, not every edit in the project.
_EDITS = """
    SELECT DISTINCT tools.session_id, tools.file_path
    FROM (SELECT DISTINCT file_path FROM tools WHERE session_id = :id AND file_path IS NOT NULL) AS own
    CROSS JOIN tools ON tools.file_path = own.file_path
    CROSS JOIN sessions ON sessions.id = tools.session_id
    WHERE lower(tools.tool_name) IN (SELECT value FROM json_each(:editing))
      AND sessions.project_id IS :project AND COALESCE(tools.success, 1) = 1
    LIMIT :limit
"""
_LINKED_MEMORIES = """
    SELECT DISTINCT memories.id, memories.content, memories.content_hash, memories.source_message_id,
           json_extract(memories.metadata, '$.extractedBy') AS rule,
           memories.updated_at > memories.created_at AS corrected
    FROM session_memories JOIN memories ON memories.id = session_memories.memory_id
    WHERE session_memories.session_id = :id
"""
# The position never moves back: a repetition must not make a session be read again.
_SAVE_POSITION = """
    INSERT INTO extractions (session_id, read_until, last_message, updated_at)
    SELECT id, :at, :last, :now FROM sessions WHERE id = :id
    ON CONFLICT (session_id) DO UPDATE
    SET read_until = excluded.read_until, last_message = excluded.last_message, updated_at = excluded.updated_at
    WHERE (excluded.read_until, excluded.last_message) > (read_until, last_message)
"""


class Position(NamedTuple):
    """The last message of a session that was read, by its time and id."""

    created_at: int
    message_id: str


START = Position(-1, "")


class Session(msgspec.Struct, frozen=True):
    """A session and its project."""

    id: str
    project_id: str | None
    project_path: str | None


@dataclass(frozen=True)
class SessionPart:
    """Some messages of a session and the tool calls among them; the last part has the groups of edited files too."""

    session: Session
    messages: list[SessionMessage]
    calls: list[ToolCall]
    file_groups: list[list[str]]
    has_more: bool

    @property
    def end(self) -> Position:
        """The position of the last message."""
        return Position(self.messages[-1].at, self.messages[-1].id)


@dataclass(frozen=True)
class LinkedMemory:
    """A memory, in any state, that a session created or confirmed before."""

    id: str
    content: str
    content_hash: str
    source_message_id: str | None
    rule: str | None
    corrected: bool

    def says(self, content: str) -> bool:
        """Check whether the memory has the same or nearly the same text."""
        return self.content_hash == content_hash(content) or is_near_duplicate(self.content, content)

    def is_of(self, candidate: Candidate) -> bool:
        """Check whether an earlier extraction from the session stored the memory for this candidate.

        The text may differ: a model words a memory differently each time, and users correct memories. Then the source
        message decides.
        """
        same_source = candidate.rule == self.rule and candidate.message_id == self.source_message_id
        reworded = same_source and (self.corrected or self.rule == MODEL_RULE)
        return reworded or self.says(candidate.content)


def find_session(db: Db, session_id: str) -> Session:
    """Return a session; raises NotFound."""
    row = db.fetch_one(_SESSION, {"id": session_id})
    if row is None:
        raise NotFound(f"session not found: {session_id}")
    return Session(**row)


def read_part(db: Db, session_id: str, after: Position, limit: int) -> SessionPart:
    """Read the next messages of a session and the tool calls among them; raises NotFound."""
    session = find_session(db, session_id)
    params: dict[str, Any] = {"id": session_id, "at": after.created_at, "after": after.message_id}
    rows = db.fetch(_MESSAGES, params | {"limit": limit + 1})
    messages = [SessionMessage(**row) for row in rows[:limit]]
    has_more = len(rows) > limit
    until = messages[-1].at if messages and has_more else None
    calls = []
    for row in db.fetch(_TOOL_CALLS, params | {"until": until, "limit": MAX_TOOL_CALLS}):
        success = row.pop("success")
        calls.append(ToolCall(success=None if success is None else bool(success), **row))
    files_by_session: dict[str, set[str]] = {}  # edited in this session and in earlier ones of the project
    if not has_more:
        editing = {"project": session.project_id, "editing": json.dumps(sorted(EDITING_TOOLS)), "limit": MAX_EDITS}
        for row in db.fetch(_EDITS, editing | {"id": session.id}):
            files_by_session.setdefault(row["session_id"], set()).add(row["file_path"])
    file_groups = group_edited_files(files_by_session.get(session.id, set()), files_by_session)
    return SessionPart(session, messages, calls, file_groups, has_more)


def read_first_and_last(db: Db, session_id: str, limit: int) -> tuple[list[SessionMessage], int]:
    """Return the first and the last `limit` messages of a session, and the number of all its messages."""
    params = {"id": session_id, "at": START.created_at, "after": START.message_id, "limit": limit}
    newest_first = _MESSAGES.replace("ORDER BY created_at, id", "ORDER BY created_at DESC, id DESC")
    rows = db.fetch(_MESSAGES, params) + db.fetch(newest_first, params)[::-1]
    count = db.value("SELECT count(*) FROM messages WHERE session_id = :id", {"id": session_id})
    return list({row["id"]: SessionMessage(**row) for row in rows}.values()), count


def linked_memories(db: Db, session_id: str) -> list[LinkedMemory]:
    """Return the memories that a session created or used."""
    return [LinkedMemory(**row) for row in db.fetch(_LINKED_MEMORIES, {"id": session_id})]


def saved_position(db: Db, session_id: str) -> tuple[Position, int]:
    """Return the position up to which a session was read, and when that was."""
    row = db.fetch_one("SELECT * FROM extractions WHERE session_id = :id", {"id": session_id})
    if row is None:
        return START, 0
    return Position(row["read_until"], row["last_message"]), row["updated_at"]


def save_position(db: Db, session_id: str, position: Position) -> None:
    """Record the position up to which a session was read."""
    params = {"id": session_id, "at": position.created_at, "last": position.message_id, "now": clock.now()}
    db.execute(_SAVE_POSITION, params)
