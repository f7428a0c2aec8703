"""Relations between memories, each with a type and a period. A relation is visible to callers who may see both ends."""

import json
from typing import TYPE_CHECKING

import msgspec

from clankers_protocol.entities import Relation, RelationAdd, RelationClose, RelationList, RelationPage
from clankers_protocol.errors import Conflict, InvalidParams
from clankersd import clock
from clankersd.db import Db
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.memories.entities import at_field, find_undeleted
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes, allowed_scopes
from clankersd.memories.store import MemoryRow, find_memory, get_memory
from clankersd.memories.supersession import supersede
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

HOLDS = """
    memory_relationships.valid_from <= :at
    AND (memory_relationships.valid_until IS NULL OR memory_relationships.valid_until > :at)
"""
"""SQL condition on `memory_relationships`: the relation is valid at `:at`."""

KNOWN_AS_OF = "memory_relationships.created_at <= :as_of"
OF_TYPES = "memory_relationships.relationship_type IN (SELECT value FROM json_each(:types))"
_END = "EXISTS (SELECT 1 FROM memories WHERE memories.id = memory_relationships.{end}_memory_id AND {condition})"
_BOTH_VISIBLE = " AND ".join(_END.format(end=end, condition=IN_SCOPE) for end in ("source", "target"))
_NEITHER_DELETED = " AND ".join(_END.format(end=end, condition="is_deleted = 0") for end in ("source", "target"))
_SELECT = """
    SELECT id, source_memory_id AS source, target_memory_id AS target, relationship_type AS type, confidence,
           extracted_by, created_at, valid_from, valid_until
    FROM memory_relationships
"""
_DIRECTIONS = {
    "out": "memory_relationships.source_memory_id = :memory",
    "in": "memory_relationships.target_memory_id = :memory",
    "both": "(memory_relationships.source_memory_id = :memory OR memory_relationships.target_memory_id = :memory)",
}
# The most recent relation of the same type whose period overlaps. One that was closed when it began has no period.
_OVERLAPPING = f"""
    {_SELECT} WHERE source_memory_id = :source AND target_memory_id = :target AND relationship_type = :type
      AND (valid_until IS NULL OR valid_until > max(valid_from, :valid_from))
      AND (:valid_until IS NULL OR valid_from < :valid_until)
    ORDER BY valid_until IS NULL DESC, valid_from DESC, id LIMIT 1
"""
_INSERT = """
    INSERT INTO memory_relationships (id, source_memory_id, target_memory_id, relationship_type, created_at,
                                      valid_from, valid_until, confidence, extracted_by)
    VALUES (:id, :source, :target, :type, :created_at, :valid_from, :valid_until, :confidence, :extracted_by)
"""
_RAISE_CONFIDENCE = """
    UPDATE memory_relationships SET confidence = :confidence, extracted_by = :extracted_by
    WHERE id = :id AND confidence < :confidence
"""
_IMPORT = f"{_INSERT} ON CONFLICT DO NOTHING RETURNING 1"
_OPEN_SUPERSESSION = """
    SELECT id FROM memory_relationships
    WHERE source_memory_id = :source AND target_memory_id = :target AND relationship_type = 'SUPERSEDES'
      AND valid_until IS NULL
"""
_VISIBLE_ENDS = f"SELECT id FROM memories WHERE id IN (:source, :target) AND {IN_SCOPE}"
_IS_OLDER_VERSION = """
    WITH RECURSIVE older (id) AS (
        SELECT id FROM memories WHERE id = :target
        UNION SELECT target_memory_id FROM memory_relationships JOIN older ON source_memory_id = older.id
            WHERE relationship_type = 'SUPERSEDES' AND valid_until IS NULL
    )
    SELECT 1 FROM older WHERE id = :source
"""


@handles(RelationAdd)
async def add_relation(daemon: "Daemon", request: RelationAdd) -> Relation:
    def add(db: Db) -> Relation:
        now = clock.now()
        valid_from, valid_until = clock.to_ms(request.valid_from) or now, clock.to_ms(request.valid_until)
        if valid_until is not None and valid_until <= valid_from:
            raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
        for field, time in (("validFrom", request.valid_from), ("validUntil", request.valid_until)):
            if request.type == "SUPERSEDES" and time is not None:
                problem = "the period follows from that of the two memories"
                raise InvalidParams(f"invalid params: {problem} - at `$.{field}`")
        scopes = allowed_scopes(db, request)
        source = find_undeleted(db, request.source, scopes, "source")
        target = find_undeleted(db, request.target, scopes, "target")
        if source.id == target.id:
            raise InvalidParams("invalid params: a memory has no relation to itself - at `$.target`")
        return _get(db, _relate(db, source, target, request, now))

    return await daemon.store.write(add)


def _relate(db: Db, source: MemoryRow, target: MemoryRow, request: RelationAdd, now: int) -> str:
    """Add the relation, or raise the confidence of an existing one of the same period; returns its id."""
    new = Relation(
        id=clock.new_id(),
        source=source.id,
        target=target.id,
        type=request.type,
        confidence=request.confidence,
        extracted_by=request.extracted_by,
        created_at=now,
        valid_from=clock.to_ms(request.valid_from) or now,
        valid_until=clock.to_ms(request.valid_until),
    )
    params = msgspec.structs.asdict(new)
    if row := db.fetch_one(_OVERLAPPING, params):
        existing = Relation(**row)
        has_begun = request.valid_from is None and existing.valid_from <= new.created_at
        field = None
        if not has_begun and existing.valid_from != new.valid_from:
            field = "validFrom"
        elif request.valid_until is not None and existing.valid_until != new.valid_until:
            field = "validUntil"
        if field:
            raise Conflict(f"relation {existing.id} is valid in that period already: close it first - at `$.{field}`")
        db.execute(_RAISE_CONFIDENCE, params | {"id": existing.id})
        return existing.id
    if request.type == "SUPERSEDES":
        return _supersede(db, source, target, request, now)
    db.execute(_INSERT, params)
    return new.id


def _supersede(db: Db, source: MemoryRow, target: MemoryRow, request: RelationAdd, now: int) -> str:
    """Replace the target by the source, as `memory.add` with `supersedes` does; returns the id of the relation."""
    # The successor is not named: the caller may not be allowed to see it.
    for field, row in (("source", source), ("target", target)):
        if row.superseded_by:
            raise Conflict(f"memory {row.id} is superseded already - at `$.{field}`")
    ends = {"source": source.id, "target": target.id}
    if db.value(_IS_OLDER_VERSION, ends):
        raise Conflict(f"memory {source.id} is an older version of {target.id} - at `$.source`")
    by = f"agent:{request.agent}" if request.agent else "user"
    reason = "a relation says so"
    supersede(db, target, source, by=by, reason=reason, at=now, extracted_by=request.extracted_by)
    relation_id = str(db.value(_OPEN_SUPERSESSION, ends))
    sql = "UPDATE memory_relationships SET confidence = :confidence WHERE id = :id"
    db.execute(sql, {"confidence": request.confidence, "id": relation_id})
    return relation_id


@handles(RelationList)
async def list_relations(daemon: "Daemon", request: RelationList) -> RelationPage:
    if request.memory_id is None and request.direction != "both":
        raise InvalidParams("invalid params: a direction needs a memory - at `$.direction`")

    def page(db: Db) -> RelationPage:
        scopes = allowed_scopes(db, request)
        as_of = clock.to_ms(request.as_of)
        params = scopes.params | {"at": as_of or clock.now(), "as_of": as_of, "limit": request.limit + 1}
        conditions = [_BOTH_VISIBLE]
        if as_of is not None:
            conditions.append(KNOWN_AS_OF)
        if not request.include_closed:
            conditions.append(HOLDS)
            if as_of is None:
                conditions.append(_NEITHER_DELETED)
        if request.memory_id is not None:
            with at_field("memoryId"):
                params["memory"] = find_memory(db, request.memory_id, scopes).id
            conditions.append(_DIRECTIONS[request.direction])
        if request.types is not None:
            params["types"] = json.dumps(request.types)
            conditions.append(OF_TYPES)
        if request.cursor is not None:
            params["before"], params["before_id"] = decode_cursor(request.cursor, int, str)
            conditions.append("(memory_relationships.created_at, memory_relationships.id) < (:before, :before_id)")
        sql = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, id DESC LIMIT :limit"
        rows = db.fetch(sql, params)
        shown = rows[: request.limit]
        cursor = encode_cursor(shown[-1]["created_at"], shown[-1]["id"]) if len(rows) > len(shown) else None
        return RelationPage([Relation(**row) for row in shown], cursor)

    return await daemon.store.read(page)


@handles(RelationClose)
async def close_relation(daemon: "Daemon", request: RelationClose) -> Relation:
    def close(db: Db) -> Relation:
        with at_field("id"):
            scopes = allowed_scopes(db, request)
            relation_id = resolve_id(db, request.id, "memory_relationships", "relation", _BOTH_VISIBLE, scopes.params)
        relation = _get(db, relation_id)
        at = clock.to_ms(request.at) or clock.now()
        if relation.type == "SUPERSEDES":
            raise Conflict(f"the successor of {relation.target} cannot be taken back: supersede it - at `$.id`")
        if at < relation.valid_from:
            raise InvalidParams("invalid params: it ends before it begins - at `$.at`")
        if relation.valid_until is None or at < relation.valid_until:
            sql = "UPDATE memory_relationships SET valid_until = :at WHERE id = :id"
            db.execute(sql, {"at": at, "id": relation.id})
        return _get(db, relation.id)

    return await daemon.store.write(close)


def _get(db: Db, relation_id: str) -> Relation:
    row = db.fetch_one(f"{_SELECT} WHERE id = :id", {"id": relation_id})
    assert row
    return Relation(**row)


# -- export and import


def relations_of(db: Db, memory_id: str, scopes: AllowedScopes) -> list[Relation]:
    """Return every relation of a memory, also closed ones, oldest first."""
    sql = f"{_SELECT} WHERE {_DIRECTIONS['both']} AND {_BOTH_VISIBLE} ORDER BY created_at, id"
    return [Relation(**row) for row in db.fetch(sql, scopes.params | {"memory": memory_id})]


def import_relation(db: Db, relation: Relation, scopes: AllowedScopes) -> bool:
    """Store a relation from an export; False when it exists already or one of its memories is missing."""
    ends = {"source": relation.source, "target": relation.target}
    if len(db.fetch(_VISIBLE_ENDS, scopes.params | ends)) < 2:
        return False
    if relation.type == "SUPERSEDES" and relation.valid_until is None:
        # The memories here must agree: the validity of the target has ended, no other memory is its successor, and the
        # source is no older version of it.
        now = clock.now()
        source, target = get_memory(db, relation.source, now), get_memory(db, relation.target, now)
        if target.valid_until is None or source.scope != target.scope:
            return False
        if (target.superseded_by and not source.is_deleted) or db.value(_IS_OLDER_VERSION, ends):
            return False
    return bool(db.value(_IMPORT, msgspec.structs.asdict(relation)))
