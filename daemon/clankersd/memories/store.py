"""Memories as rows: what state they are in, finding one by its id, and the log of what happened to it."""

import json
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import LogEntry, Memory
from clankersd import clock
from clankersd.db import Db
from clankersd.db.fts import FullText
from clankersd.db.ids import resolve_id
from clankersd.memories.salience import DECAY_PER_DAY, Salience
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes

Row = dict[str, Any]

FULL_TEXT = FullText("memories_fts", "memories", "number", "content, summary, concepts_json, tags_json")

_SUCCESSOR = """(
    SELECT link.source_memory_id FROM memory_relationships AS link
    JOIN memories AS successor ON successor.id = link.source_memory_id
    WHERE link.target_memory_id = memories.id AND link.relationship_type = 'SUPERSEDES'
      AND link.valid_until IS NULL AND successor.is_deleted = 0
    ORDER BY link.created_at DESC, link.id DESC LIMIT 1
)"""
STATE = f"""CASE
    WHEN memories.is_deleted THEN 'deleted'
    WHEN memories.archived_at IS NOT NULL THEN 'archived'
    WHEN memories.valid_until <= :now THEN iif({_SUCCESSOR} IS NULL, 'expired', 'superseded')
    WHEN memories.expires_at <= :now THEN 'expired'
    WHEN memories.valid_from > :now THEN 'upcoming'
    ELSE 'current'
END"""
CURRENT = """
    memories.is_deleted = 0 AND memories.archived_at IS NULL AND memories.valid_from <= :now
    AND (memories.valid_until IS NULL OR memories.valid_until > :now)
    AND (memories.expires_at IS NULL OR memories.expires_at > :now)
"""
"""The state 'current', as a condition that is quick to check."""

CONFIDENT = "(memories.pinned OR memories.confidence >= 0.3)"
"""What may be told to an agent that did not ask for it. What nobody is sure of is there for those who search."""


def _then(column: str) -> str:
    """What a column held at `:as_of`: what the first later change replaced, or what it holds now."""
    return f"""iif(
        EXISTS (SELECT 1 FROM memory_log AS later WHERE later.memory_id = memories.id AND later.at > :as_of
                AND json_type(later.before_json, '$.{column}') IS NOT NULL),
        (SELECT json_extract(later.before_json, '$.{column}') FROM memory_log AS later
         WHERE later.memory_id = memories.id AND later.at > :as_of
           AND json_type(later.before_json, '$.{column}') IS NOT NULL ORDER BY later.at, later.id LIMIT 1),
        memories.{column}
    )"""


AS_OF = f"""
    memories.created_at <= :as_of AND {_then("valid_from")} <= :as_of
    AND coalesce({_then("valid_until")}, :as_of + 1) > :as_of
    AND coalesce({_then("expires_at")}, :as_of + 1) > :as_of
    AND 'deleted' IS NOT (
        SELECT action FROM memory_log WHERE memory_id = memories.id AND action IN ('deleted', 'restored')
          AND at <= :as_of ORDER BY at DESC, id DESC LIMIT 1
    )
"""
"""What was known and held to be true at a time, by what was known then."""

SELECT = f"""
    SELECT memories.*, projects.path AS project_path, {_SUCCESSOR} AS superseded_by, {STATE} AS state
    FROM memories LEFT JOIN projects ON projects.id = memories.project_id
"""
_RATES = " ".join(f"WHEN '{sector}' THEN {rate}" for sector, rate in DECAY_PER_DAY.items())
SALIENCE = f"""min(1.0, max(0.05, memories.salience * iif(memories.pinned, 1.0, exp(
    -(CASE memories.sector {_RATES} END) / (memories.importance + 0.1)
    * max(0, :now - memories.salience_at) / 86400000.0
)) + min(0.1, ln(1 + memories.access_count) * 0.02)))"""
"""How strong a memory is at `:now`: the formula of strength.py, for sorting."""

_LOG = """
    INSERT INTO memory_log (memory_id, at, action, by, reason, before_json)
    VALUES (:memory_id, :at, :action, :by, :reason, :before)
"""


def find(db: Db, given: str, permitted: AllowedScopes, now: int | None = None) -> Row:
    """The memory with this id, or the only one whose id begins so, in whatever state; raises NotFound."""
    return get(db, resolve_id(db, given, "memories", "memory", IN_SCOPE, permitted.params), now or clock.now())


def get(db: Db, memory_id: str, now: int) -> Row:
    """The memory with this id, which is there."""
    row = db.fetch_one(f"{SELECT} WHERE memories.id = :id", {"id": memory_id, "now": now})
    assert row
    return row


def salience_of(row: Row) -> Salience:
    """What decides how strong the memory is."""
    return Salience(
        row["salience"], row["salience_at"], row["sector"], row["importance"], row["access_count"], bool(row["pinned"])
    )


def to_memory(row: Row, now: int) -> Memory:
    """A row as it travels."""
    facts = {name: row[name] for name in Memory.__struct_fields__ if name in row}
    facts |= {name: json.loads(row[f"{name}_json"]) for name in ("tags", "concepts", "files")}
    facts["metadata"] = json.loads(row["metadata"]) if row["metadata"] else None
    facts["pinned"] = bool(row["pinned"])
    facts["salience"] = round(salience_of(row).effective(now), 6)
    return Memory(**facts)


def to_memories(db: Db, rows: list[Row], now: int, as_of: int | None = None) -> list[Memory]:
    """Rows as they travel; with `as_of` saying what they said then."""
    if as_of is not None:
        rows = [_as_it_was(db, row, as_of) for row in rows]
    return [to_memory(row, now if as_of is None else as_of) for row in rows]


def note(
    db: Db, memory_id: str, action: str, by: str, reason: str | None = None, before: Row | None = None,
    at: int | None = None,
) -> None:  # fmt: skip
    """Write down what happened to a memory."""
    row = {"memory_id": memory_id, "at": at or clock.now(), "action": action, "by": by, "reason": reason}
    db.execute(_LOG, row | {"before": json.dumps(before) if before else None})


def log_entries(db: Db, ids: list[str]) -> list[LogEntry]:
    """What happened to these memories, in order."""
    sql = "SELECT * FROM memory_log WHERE memory_id IN (SELECT value FROM json_each(:ids)) ORDER BY at, id"
    return [
        LogEntry(
            row["memory_id"], row["at"], row["action"], row["by"], row["reason"],
            json.loads(row["before_json"]) if row["before_json"] else None,
        )
        for row in db.fetch(sql, {"ids": json.dumps(ids)})
    ]  # fmt: skip


def change(db: Db, memory_id: str, values: Row) -> None:
    """Set columns of one memory."""
    sets = ", ".join(f"{name} = :{name}" for name in values)
    db.execute(f"UPDATE memories SET {sets} WHERE id = :memory_id", values | {"memory_id": memory_id})


def link_session(db: Db, session_id: str, memory_id: str, usage: str, at: int) -> None:
    """Record that a session did something with a memory; twice in a millisecond is once."""
    db.execute(
        "INSERT INTO session_memories (session_id, memory_id, created_at, usage_type) "
        "VALUES (:session, :memory, :at, :usage) ON CONFLICT DO NOTHING",
        {"session": session_id, "memory": memory_id, "at": at, "usage": usage},
    )


def require_session(db: Db, session_id: str) -> None:
    """Raise when there is no such session."""
    if not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": session_id}):
        raise InvalidParams(f"invalid params: there is no session {session_id} - at `$.sessionId`")


def as_json(value: Any) -> str | None:
    """A value for a JSON column."""
    return None if value is None else msgspec.json.encode(value).decode()


def _as_it_was(db: Db, row: Row, as_of: int) -> Row:
    """Undo the changes that came later."""
    later = db.fetch(
        "SELECT before_json FROM memory_log WHERE memory_id = :id AND at > :as_of AND before_json IS NOT NULL "
        "ORDER BY at DESC, id DESC",
        {"id": row["id"], "as_of": as_of},
    )
    for entry in later:
        row = row | json.loads(entry["before_json"])
    return row | {"state": "current", "superseded_by": None, "deleted_at": None, "archived_at": None}
