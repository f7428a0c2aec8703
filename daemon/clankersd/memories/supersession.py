"""One memory takes the place of another: the older one's truth ends, and the two are linked, in one transaction."""

from clankers_protocol.errors import Conflict
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.store import Row, change, note

_LINK = """
    INSERT INTO memory_relationships
        (id, source_memory_id, target_memory_id, relationship_type, created_at, valid_from, extracted_by)
    VALUES (:id, :new, :old, 'SUPERSEDES', :at, :at, :extracted_by)
"""
_OTHER_SUCCESSORS = """
    UPDATE memory_relationships SET valid_until = max(valid_from, :at)
    WHERE source_memory_id = :id AND relationship_type = 'SUPERSEDES' AND valid_until IS NULL
      AND EXISTS (
          SELECT 1 FROM memory_relationships AS other JOIN memories ON memories.id = other.source_memory_id
          WHERE other.target_memory_id = memory_relationships.target_memory_id AND other.source_memory_id <> :id
            AND other.relationship_type = 'SUPERSEDES' AND other.valid_until IS NULL AND memories.is_deleted = 0
      )
"""
_CHAIN = """
    WITH RECURSIVE chain (id) AS (
        SELECT :id
        UNION SELECT source_memory_id FROM memory_relationships JOIN chain ON target_memory_id = chain.id
            WHERE relationship_type = 'SUPERSEDES' AND valid_until IS NULL
        UNION SELECT target_memory_id FROM memory_relationships JOIN chain ON source_memory_id = chain.id
            WHERE relationship_type = 'SUPERSEDES' AND valid_until IS NULL
    )
    SELECT id FROM chain
"""


def supersede(db: Db, old: Row, new: Row, *, by: str, reason: str, at: int, extracted_by: str = "user") -> None:
    """Let `new` (a stored row) hold in place of `old`. A memory has one successor, and none supersedes its own."""
    if old["id"] == new["id"]:
        raise Conflict(f"memory {old['id']} cannot supersede itself")
    if old["scope"] != new["scope"]:
        raise Conflict(f"memory {old['id']} is of another scope, where it still holds")
    if old["is_deleted"]:
        raise Conflict(f"memory {old['id']} is forgotten: restore it first")
    if old["superseded_by"]:
        raise Conflict(f"memory {old['id']} is superseded by {old['superseded_by']} already: supersede that one")
    if new.get("superseded_by"):
        raise Conflict(f"memory {new['id']} is itself superseded by {new['superseded_by']}")
    link = {"id": clock.new_id(), "new": new["id"], "old": old["id"], "at": at, "extracted_by": extracted_by}
    db.execute(_LINK, link)
    ends = max(old["valid_from"], new["valid_from"])
    if old["valid_until"] is None or old["valid_until"] > ends:
        change(db, old["id"], {"valid_until": ends})
    note(db, old["id"], "superseded", by, f"{reason} (by {new['id']})", {"valid_until": old["valid_until"]}, at)
    note(db, new["id"], "supersedes", by, f"{reason} (of {old['id']})", at=at)


def close_replaced_supersessions(db: Db, memory_id: str, at: int) -> None:
    """A memory that comes back supersedes no more what got another successor meanwhile."""
    db.execute(_OTHER_SUCCESSORS, {"id": memory_id, "at": at})


def version_ids(db: Db, memory_id: str) -> list[str]:
    """The ids of all versions of a memory."""
    return [row["id"] for row in db.fetch(_CHAIN, {"id": memory_id})]
