"""Supersession: a newer memory replaces an older one, whose validity ends; both are linked in one transaction."""

import json

from clankers_protocol.errors import Conflict
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.store import MemoryRow, log_change, update_columns

_LINK = """
    INSERT INTO memory_relationships
        (id, source_memory_id, target_memory_id, relationship_type, created_at, valid_from, extracted_by)
    VALUES (:id, :new, :old, 'SUPERSEDES', :at, :at, :extracted_by)
"""
_CLOSE_REPLACED = """
    UPDATE memory_relationships SET valid_until = max(valid_from, :at)
    WHERE source_memory_id = :id AND relationship_type = 'SUPERSEDES' AND valid_until IS NULL
      AND EXISTS (
          SELECT 1 FROM memory_relationships AS other JOIN memories ON memories.id = other.source_memory_id
          WHERE other.target_memory_id = memory_relationships.target_memory_id AND other.source_memory_id <> :id
            AND other.relationship_type = 'SUPERSEDES' AND other.valid_until IS NULL AND memories.is_deleted = 0
      )
"""
_TAKE_BACK = """
    UPDATE memory_relationships SET valid_until = max(valid_from, :at)
    WHERE target_memory_id = :id AND relationship_type = 'SUPERSEDES' AND valid_until IS NULL
"""
_VALIDITY_BEFORE = """
    SELECT before_json FROM memory_log WHERE memory_id = :id AND action = 'superseded' ORDER BY at DESC, id DESC LIMIT 1
"""
_VERSIONS = """
    WITH RECURSIVE chain (id) AS (
        SELECT id FROM memories WHERE id = :id
        UNION SELECT iif(target_memory_id = chain.id, source_memory_id, target_memory_id)
            FROM memory_relationships JOIN chain ON target_memory_id = chain.id OR source_memory_id = chain.id
            WHERE relationship_type = 'SUPERSEDES' AND valid_until IS NULL
    )
    SELECT id FROM chain
"""


def supersede(
    db: Db, old: MemoryRow, new: MemoryRow, *, by: str, reason: str, at: int, extracted_by: str = "user"
) -> None:
    """Replace `old` by `new`, which is stored already; raises Conflict.

    A memory has at most one successor, and a superseded memory supersedes nothing.
    """
    if old.id == new.id:
        raise Conflict(f"memory {old.id} cannot supersede itself")
    if old.scope != new.scope:
        raise Conflict(f"memory {old.id} is in another scope, where it is still valid")
    if old.is_deleted:
        raise Conflict(f"memory {old.id} is deleted: restore it first")
    if old.superseded_by:
        raise Conflict(f"memory {old.id} is superseded by {old.superseded_by} already: supersede that one")
    if new.superseded_by:
        raise Conflict(f"memory {new.id} is itself superseded by {new.superseded_by}")
    link = {"id": clock.new_id(), "new": new.id, "old": old.id, "at": at, "extracted_by": extracted_by}
    db.execute(_LINK, link)
    end = max(old.valid_from, new.valid_from)
    if old.valid_until is None or old.valid_until > end:
        update_columns(db, old.id, {"valid_until": end})
    log_change(db, old.id, "superseded", by, f"{reason} (by {new.id})", {"valid_until": old.valid_until}, at)
    log_change(db, new.id, "supersedes", by, f"{reason} (of {old.id})", at=at)


def close_replaced_supersessions(db: Db, memory_id: str, at: int) -> None:
    """Close the supersessions of a restored memory whose target got another successor while it was deleted."""
    db.execute(_CLOSE_REPLACED, {"id": memory_id, "at": at})


def take_back_supersession(db: Db, old: MemoryRow, *, by: str, at: int) -> None:
    """Make a superseded memory valid again, until the time that was known before; its successor stays valid, too."""
    before = db.value(_VALIDITY_BEFORE, {"id": old.id})
    db.execute(_TAKE_BACK, {"id": old.id, "at": at})
    valid_until = json.loads(before)["valid_until"] if before else None
    update_columns(db, old.id, {"valid_until": valid_until, "updated_at": at})
    log_change(
        db, old.id, "restored", by, f"no longer superseded by {old.superseded_by}", {"valid_until": old.valid_until}, at
    )


def version_ids(db: Db, memory_id: str) -> list[str]:
    """Return the ids of all versions of a memory."""
    return [row["id"] for row in db.fetch(_VERSIONS, {"id": memory_id})]
