"""What of captured sessions is read for memories, and how far each was read."""

import json
from dataclasses import dataclass
from typing import Any

from clankers_protocol.errors import NotFound
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.extraction.rules import EDITING_TOOLS, SessionMessage, ToolCall, group_edited_files
from clankersd.memories.similarity import content_hash, is_near_duplicate

MOST_MESSAGES = 500
MOST_CALLS = 2000
MOST_EDITS = 5000
BEGINNING = (-1, "")

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
_CALLS = """
    SELECT message_id, tool_name AS name, substr(COALESCE(tool_input, ''), 1, 4000) AS input, success,
           substr(COALESCE(error_message, iif(success = 0, tool_output, ''), ''), 1, 500) AS error,
           file_path AS path, created_at AS at
    FROM tools WHERE session_id = :id AND created_at > :at AND (:until IS NULL OR created_at <= :until)
    ORDER BY created_at, id LIMIT :limit
"""
# CROSS JOIN keeps the order: few files are looked up, not all that was ever done in the project.
_EDITS = """
    SELECT DISTINCT tools.session_id, tools.file_path
    FROM (SELECT DISTINCT file_path FROM tools WHERE session_id = :id AND file_path IS NOT NULL) AS own
    CROSS JOIN tools ON tools.file_path = own.file_path
    CROSS JOIN sessions ON sessions.id = tools.session_id
    WHERE lower(tools.tool_name) IN (SELECT value FROM json_each(:editing))
      AND sessions.project_id IS :project AND COALESCE(tools.success, 1) = 1
    LIMIT :limit
"""
_LEARNT = """
    SELECT DISTINCT memories.id, memories.content, memories.content_hash, memories.source_message_id,
           json_extract(memories.metadata, '$.extractedBy') AS rule,
           memories.updated_at > memories.created_at AS corrected
    FROM session_memories JOIN memories ON memories.id = session_memories.memory_id
    WHERE session_memories.session_id = :id
"""
# Backwards never: a repetition must not make a session be read again.
_MARK = """
    INSERT INTO extractions (session_id, read_until, last_message, updated_at)
    SELECT id, :at, :last, :now FROM sessions WHERE id = :id
    ON CONFLICT (session_id) DO UPDATE
    SET read_until = excluded.read_until, last_message = excluded.last_message, updated_at = excluded.updated_at
    WHERE (excluded.read_until, excluded.last_message) > (read_until, last_message)
"""


@dataclass(frozen=True)
class SessionPart:
    """Some messages of a session, the tool calls among them, and the files that it edited as others did before."""

    session_id: str
    project_id: str | None
    project_path: str | None
    messages: list[SessionMessage]
    calls: list[ToolCall]
    groups: list[list[str]]
    more: bool

    @property
    def until(self) -> tuple[int, str]:
        """The last message that was read."""
        return self.messages[-1].at, self.messages[-1].id


@dataclass(frozen=True)
class LinkedMemory:
    """A memory that a session has brought or confirmed before, in whatever state it is now."""

    id: str
    content: str
    content_hash: str
    source_message_id: str | None
    rule: str | None
    corrected: bool

    def says(self, content: str) -> bool:
        """Whether it says so too."""
        return self.content_hash == content_hash(content) or is_near_duplicate(self.content, content)


def read_until(db: Db, session_id: str) -> tuple[tuple[int, str], int]:
    """The message up to which a session was read, and when that was."""
    row = db.fetch_one("SELECT * FROM extractions WHERE session_id = :id", {"id": session_id})
    return ((row["read_until"], row["last_message"]), row["updated_at"]) if row else (BEGINNING, 0)


def read(db: Db, session_id: str, after: tuple[int, str], most: int) -> SessionPart:
    """The next messages of a session, with what was done meanwhile; raises NotFound."""
    session = find_session(db, session_id)
    params = {"id": session_id, "at": after[0], "after": after[1], "limit": most + 1}
    rows = db.fetch(_MESSAGES, params)
    messages = [SessionMessage(**row) for row in rows[:most]]
    more = len(rows) > most
    until = messages[-1].at if messages and more else None
    calls = [_call(row) for row in db.fetch(_CALLS, params | {"until": until, "limit": MOST_CALLS})]
    groups = [] if more else _groups(db, session_id, session["project_id"])
    return SessionPart(session_id, session["project_id"], session["project_path"], messages, calls, groups, more)


def read_ends(db: Db, session_id: str, most: int) -> tuple[list[SessionMessage], int]:
    """The first and the last messages of a session, so many of each, and how many it has in all."""
    params = {"id": session_id, "at": BEGINNING[0], "after": BEGINNING[1], "limit": most}
    newest = _MESSAGES.replace("ORDER BY created_at, id", "ORDER BY created_at DESC, id DESC")
    rows = db.fetch(_MESSAGES, params) + db.fetch(newest, params)[::-1]
    count = db.value("SELECT count(*) FROM messages WHERE session_id = :id", {"id": session_id})
    return list({row["id"]: SessionMessage(**row) for row in rows}.values()), count


def find_session(db: Db, session_id: str) -> dict[str, Any]:
    """A session and its project; raises NotFound."""
    session = db.fetch_one(_SESSION, {"id": session_id})
    if session is None:
        raise NotFound(f"session not found: {session_id}")
    return session


def learnt(db: Db, session_id: str) -> list[LinkedMemory]:
    """The memories a session has to do with."""
    return [LinkedMemory(**row) for row in db.fetch(_LEARNT, {"id": session_id})]


def mark(db: Db, session_id: str, until: tuple[int, str]) -> None:
    """Note up to where a session was read."""
    db.execute(_MARK, {"id": session_id, "at": until[0], "last": until[1], "now": clock.now()})


def _call(row: dict[str, Any]) -> ToolCall:
    success = row.pop("success")
    return ToolCall(success=None if success is None else bool(success), **row)


def _groups(db: Db, session_id: str, project_id: str | None) -> list[list[str]]:
    """Once at the end of a session: the files it edited that were edited together before."""
    by_session: dict[str, set[str]] = {}
    params = {
        "id": session_id,
        "project": project_id,
        "editing": json.dumps(sorted(EDITING_TOOLS)),
        "limit": MOST_EDITS,
    }
    for row in db.fetch(_EDITS, params):
        by_session.setdefault(row["session_id"], set()).add(row["file_path"])
    return group_edited_files(by_session.get(session_id, set()), by_session)
