"""Memory rows: their states as SQL, lookup by id, updates, and the log of changes to each memory."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import LogEntry, Memory
from clankersd import clock
from clankersd.db import Db
from clankersd.db.engine import FullText
from clankersd.db.ids import resolve_id
from clankersd.memories.salience import DECAY_PER_DAY, Salience
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes
from clankersd.projects import PROJECT_LABEL

Columns = dict[str, Any]
"""Values by column name, for an update or for the log."""

FULL_TEXT = FullText("memories_fts", "memories", "number", "content, summary, concepts_json, tags_json")


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `memories`. The last three fields are computed by `SELECT_MEMORIES` and not stored."""

    id: str
    project_id: str | None
    content: str
    summary: str | None
    content_hash: str
    sector: str
    tier: str
    category: str
    scope: str
    importance: float
    confidence: float
    simhash: str | None
    simhash_0: int | None
    simhash_1: int | None
    simhash_2: int | None
    simhash_3: int | None
    salience: float
    salience_at: int
    access_count: int
    last_accessed: int
    pinned: int
    created_at: int
    updated_at: int
    valid_from: int
    valid_until: int | None
    expires_at: int | None
    archived_at: int | None
    is_deleted: int
    deleted_at: int | None
    source_session_id: str | None
    source_message_id: str | None
    tags_json: str
    concepts_json: str
    files_json: str
    metadata: str | None
    project_path: str | None = None
    project_name: str | None = None
    scope_label: str = ""
    superseded_by: str | None = None
    state: str = "current"


STORED_COLUMNS = tuple(
    name
    for name in MemoryRow.__struct_fields__
    if name not in ("project_path", "project_name", "scope_label", "superseded_by", "state")
)

_SUCCESSOR = """(
    SELECT link.source_memory_id FROM memory_relationships AS link
    JOIN memories AS successor ON successor.id = link.source_memory_id
    WHERE link.target_memory_id = memories.id AND link.relationship_type = 'SUPERSEDES'
      AND link.valid_until IS NULL AND successor.is_deleted = 0
    ORDER BY link.created_at DESC, link.id DESC LIMIT 1
)"""
STATE = f"""CASE
    WHEN memories.is_deleted = 1 THEN 'deleted'
    WHEN memories.archived_at IS NOT NULL THEN 'archived'
    WHEN memories.valid_until <= :now THEN iif({_SUCCESSOR} IS NULL, 'expired', 'superseded')
    WHEN memories.expires_at <= :now THEN 'expired'
    WHEN memories.valid_from > :now THEN 'upcoming'
    ELSE 'current'
END"""
"""SQL expression: the state of a memory at `:now`."""

CURRENT = """
    memories.is_deleted = 0 AND memories.archived_at IS NULL AND memories.valid_from <= :now
    AND (memories.valid_until IS NULL OR memories.valid_until > :now)
    AND (memories.expires_at IS NULL OR memories.expires_at > :now)
"""
"""SQL condition: the state is 'current'. Cheaper than comparing `STATE`."""

CONFIDENT = "(memories.pinned = 1 OR memories.confidence >= 0.3)"
"""SQL condition: may be injected into a prompt. Less certain memories are only returned by searches."""


def _column_as_of(column: str) -> str:
    """Return an SQL expression for a time at `:as_of`: the value that the first later change replaced, if any."""
    return f"""iif(
        EXISTS (SELECT 1 FROM memory_log AS later WHERE later.memory_id = memories.id AND later.at > :as_of
                AND json_type(later.before_json, '$.{column}') IS NOT NULL),
        (SELECT CAST(json_extract(later.before_json, '$.{column}') AS BIGINT) FROM memory_log AS later
         WHERE later.memory_id = memories.id AND later.at > :as_of
           AND json_type(later.before_json, '$.{column}') IS NOT NULL ORDER BY later.at, later.id LIMIT 1),
        memories.{column}
    )"""


KNOWN_AS_OF = """
    memories.created_at <= :as_of AND 'deleted' IS NOT (
        SELECT action FROM memory_log WHERE memory_id = memories.id AND action IN ('deleted', 'restored')
          AND at <= :as_of ORDER BY at DESC, id DESC LIMIT 1
    )
"""
"""SQL condition: was known at `:as_of`."""

AS_OF = f"""
    {KNOWN_AS_OF} AND {_column_as_of("valid_from")} <= :valid_at
    AND coalesce({_column_as_of("valid_until")}, :valid_at + 1) > :valid_at
    AND coalesce({_column_as_of("expires_at")}, :valid_at + 1) > :valid_at
"""
"""SQL condition: was known at `:as_of`, and true at `:valid_at` by what was known then."""

VALID_AT = """
    memories.is_deleted = 0 AND memories.valid_from <= :valid_at
    AND (memories.valid_until IS NULL OR memories.valid_until > :valid_at)
    AND (memories.expires_at IS NULL OR memories.expires_at > :valid_at)
"""
"""SQL condition: was true at `:valid_at`, by what is known now."""


def _label_of(scope: str) -> str:
    """Return an SQL expression for a scope as people read it: with the name of a project instead of its id."""
    label = f"(SELECT 'project:' || {PROJECT_LABEL} FROM projects WHERE projects.id = substr({scope}, 9))"
    return f"iif({scope} GLOB 'project:*', coalesce({label}, {scope}), {scope})"


SELECT_MEMORIES = f"""
    SELECT {", ".join(f"memories.{name}" for name in STORED_COLUMNS)},
           projects.path AS project_path, {PROJECT_LABEL} AS project_name,
           {_label_of("memories.scope")} AS scope_label,
           {_SUCCESSOR} AS superseded_by, {STATE} AS state
    FROM memories LEFT JOIN projects ON projects.id = memories.project_id
"""
"""The columns of `MemoryRow`; takes `:now`."""

_RATES = " ".join(f"WHEN '{sector}' THEN {rate}" for sector, rate in DECAY_PER_DAY.items())
SALIENCE = f"""min(1.0, max(0.05, memories.salience * iif(memories.pinned = 1, 1.0, exp(
    -(CASE memories.sector {_RATES} END) / (memories.importance + 0.1)
    * max(0, :now - memories.salience_at) / 86400000.0
)) + min(0.1, ln(1 + memories.access_count) * 0.02)))"""
"""SQL expression: `Salience.effective` at `:now`, for sorting and filtering."""

_INSERT = f"""
    INSERT INTO memories ({", ".join(STORED_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in STORED_COLUMNS)})
"""
_LOG = """
    INSERT INTO memory_log (memory_id, at, action, by, reason, before_json)
    VALUES (:memory_id, :at, :action, :by, :reason, :before)
"""
_LATER_CHANGES = """
    SELECT before_json FROM memory_log WHERE memory_id = :id AND at > :as_of AND before_json IS NOT NULL
    ORDER BY at DESC, id DESC
"""


def find_memory(db: Db, id_or_prefix: str, scopes: AllowedScopes, now: int | None = None) -> MemoryRow:
    """Return the memory with this id or unique id prefix, in any state; raises NotFound."""
    memory_id = resolve_id(db, id_or_prefix, "memories", "memory", IN_SCOPE, scopes.params)
    return get_memory(db, memory_id, now or clock.now())


def get_memory(db: Db, memory_id: str, now: int) -> MemoryRow:
    """Return an existing memory."""
    [row] = fetch_memories(db, f"{SELECT_MEMORIES} WHERE memories.id = :id", {"id": memory_id, "now": now})
    return row


def fetch_memories(db: Db, sql: str, params: Mapping[str, Any]) -> list[MemoryRow]:
    """Run a query that begins with `SELECT_MEMORIES`."""
    return [MemoryRow(**row) for row in db.fetch(sql, params)]


def insert_row(db: Db, row: MemoryRow) -> None:
    """Insert a memory row."""
    db.execute(_INSERT, {name: getattr(row, name) for name in STORED_COLUMNS})


def update_columns(db: Db, memory_id: str, values: Columns) -> None:
    """Set columns of one memory."""
    sets = ", ".join(f"{name} = :{name}" for name in values)
    db.execute(f"UPDATE memories SET {sets} WHERE id = :memory_id", values | {"memory_id": memory_id})


def salience_of(row: MemoryRow | Mapping[str, Any]) -> Salience:
    """Return the salience of a memory row, or of a search result with the same columns."""
    if isinstance(row, MemoryRow):
        return Salience(
            row.salience, row.salience_at, row.sector, row.importance, row.access_count, bool(row.pinned)
        )  # fmt: skip
    return Salience(
        row["salience"], row["salience_at"], row["sector"], row["importance"], row["access_count"], bool(row["pinned"])
    )


def to_memory(row: MemoryRow, now: int) -> Memory:
    """Convert a row to its wire form, with its salience at `now`."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in Memory.__struct_fields__ if hasattr(row, name)}
    fields["tags"] = json.loads(row.tags_json)
    fields["concepts"] = json.loads(row.concepts_json)
    fields["files"] = json.loads(row.files_json)
    fields["metadata"] = json.loads(row.metadata) if row.metadata else None
    fields["pinned"] = bool(row.pinned)
    fields["salience"] = round(salience_of(row).effective(now), 6)
    return Memory(**fields)


def to_memories(db: Db, rows: list[MemoryRow], now: int, as_of: int | None = None) -> list[Memory]:
    """Convert rows to their wire form; with `as_of`, with the values they had then."""
    if as_of is None:
        return [to_memory(row, now) for row in rows]
    memories = []
    for row in rows:
        values: Columns = {}
        for change in db.fetch(_LATER_CHANGES, {"id": row.id, "as_of": as_of}):  # undo them, the latest first
            values |= json.loads(change["before_json"])
        values |= {"state": "current", "superseded_by": None, "deleted_at": None, "archived_at": None}
        if "scope" in values:
            values["scope_label"] = db.value(f"SELECT {_label_of(':scope')}", {"scope": values["scope"]})
        memories.append(to_memory(msgspec.structs.replace(row, **values), as_of))
    return memories


def log_change(
    db: Db, memory_id: str, action: str, by: str, reason: str | None = None, before: Columns | None = None,
    at: int | None = None,
) -> None:  # fmt: skip
    """Add an entry to the log of a memory; `before` holds the values that the change replaced."""
    row = {"memory_id": memory_id, "at": at or clock.now(), "action": action, "by": by, "reason": reason}
    db.execute(_LOG, row | {"before": json.dumps(before) if before else None})


def log_entries(db: Db, ids: list[str]) -> list[LogEntry]:
    """Return the logs of these memories as one, in order."""
    sql = "SELECT * FROM memory_log WHERE memory_id IN (SELECT value FROM json_each(:ids)) ORDER BY at, id"
    return [
        LogEntry(
            row["memory_id"], row["at"], row["action"], row["by"], row["reason"],
            json.loads(row["before_json"]) if row["before_json"] else None,
        )
        for row in db.fetch(sql, {"ids": json.dumps(ids)})
    ]  # fmt: skip


def link_session(db: Db, session_id: str, memory_id: str, usage: str, at: int) -> None:
    """Record that a session used a memory; a repetition within a millisecond counts once."""
    db.execute(
        "INSERT INTO session_memories (session_id, memory_id, created_at, usage_type) "
        "VALUES (:session, :memory, :at, :usage) ON CONFLICT DO NOTHING",
        {"session": session_id, "memory": memory_id, "at": at, "usage": usage},
    )


def require_session(db: Db, session_id: str) -> None:
    """Raise InvalidParams when there is no such session."""
    if not db.value("SELECT 1 FROM sessions WHERE id = :id", {"id": session_id}):
        raise InvalidParams(f"invalid params: there is no session {session_id} - at `$.sessionId`")


def to_json(value: Any) -> str:
    """Encode a value for a JSON column."""
    return msgspec.json.encode(value).decode()
