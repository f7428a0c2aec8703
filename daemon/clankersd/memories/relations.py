"""Relations: how one memory stands to another, and when. One is there only for who may see both of its ends."""

import json
from typing import TYPE_CHECKING, Any

from clankers_protocol.entities import Relation, RelationAdd, RelationClose, RelationList, RelationPage
from clankers_protocol.errors import Conflict, InvalidParams
from clankersd import clock
from clankersd.db import Db
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.memories.entities import at_field, find_undeleted
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes, allowed_scopes
from clankersd.memories.store import Row, find, get
from clankersd.memories.supersession import supersede
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

HOLDS = """
    memory_relationships.valid_from <= :at
    AND (memory_relationships.valid_until IS NULL OR memory_relationships.valid_until > :at)
"""
"""A condition on memory_relationships: at that time it is so."""

KNOWN = "memory_relationships.created_at <= :as_of"
OF_TYPES = "memory_relationships.relationship_type IN (SELECT value FROM json_each(:types))"
_END = "EXISTS (SELECT 1 FROM memories WHERE memories.id = memory_relationships.{end}_memory_id AND {condition})"
_BOTH_VISIBLE = " AND ".join(_END.format(end=end, condition=IN_SCOPE) for end in ("source", "target"))
_NEITHER_FORGOTTEN = " AND ".join(_END.format(end=end, condition="is_deleted = 0") for end in ("source", "target"))
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
# One that was closed in the moment it began never held.
_SAME = f"""
    {_SELECT} WHERE source_memory_id = :source AND target_memory_id = :target AND relationship_type = :type
      AND (valid_until IS NULL OR valid_until > max(valid_from, :begins))
      AND (:ends IS NULL OR valid_from < :ends)
    ORDER BY valid_until IS NULL DESC, valid_from DESC, id LIMIT 1
"""
_INSERT = """
    INSERT INTO memory_relationships (id, source_memory_id, target_memory_id, relationship_type, created_at,
                                      valid_from, valid_until, confidence, extracted_by)
    VALUES (:id, :source, :target, :type, :now, :begins, :ends, :confidence, :extracted_by)
"""
_SURER = """
    UPDATE memory_relationships SET confidence = :confidence, extracted_by = :extracted_by
    WHERE id = :id AND confidence < :confidence
"""
_TAKE_OVER = f"{_INSERT} ON CONFLICT DO NOTHING RETURNING 1"
_SUPERSESSION = """
    SELECT id FROM memory_relationships
    WHERE source_memory_id = :source AND target_memory_id = :target AND relationship_type = 'SUPERSEDES'
      AND valid_until IS NULL
"""
_ENDS = f"SELECT id FROM memories WHERE id IN (:source, :target) AND {IN_SCOPE}"
_OLDER = """
    WITH RECURSIVE older (id) AS (
        SELECT :target
        UNION SELECT target_memory_id FROM memory_relationships JOIN older ON source_memory_id = older.id
            WHERE relationship_type = 'SUPERSEDES' AND valid_until IS NULL
    )
    SELECT 1 FROM older WHERE id = :source
"""


@handles(RelationAdd)
async def add_relation(daemon: "Daemon", request: RelationAdd) -> Relation:
    def add(db: Db) -> Relation:
        permitted, wanted = allowed_scopes(db, request), _wanted(request)
        source = find_undeleted(db, request.source, permitted, "source")
        target = find_undeleted(db, request.target, permitted, "target")
        if source["id"] == target["id"]:
            raise InvalidParams("invalid params: a memory has no relation to itself - at `$.target`")
        return _get(db, _relate(db, source, target, request, wanted))

    return await daemon.store.write(add)


@handles(RelationList)
async def list_relations(daemon: "Daemon", request: RelationList) -> RelationPage:
    if request.memory_id is None and request.direction != "both":
        raise InvalidParams("invalid params: seen from which memory? - at `$.direction`")

    def page(db: Db) -> RelationPage:
        conditions, params = _selected(db, request, allowed_scopes(db, request))
        sql = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, id DESC LIMIT :limit"
        rows = db.fetch(sql, params)
        shown = rows[: request.limit]
        cursor = encode_cursor(shown[-1]["created_at"], shown[-1]["id"]) if len(rows) > len(shown) else None
        return RelationPage([Relation(**row) for row in shown], cursor)

    return await daemon.store.read(page)


@handles(RelationClose)
async def close_relation(daemon: "Daemon", request: RelationClose) -> Relation:
    def close(db: Db) -> Relation:
        known = _get(db, _find(db, request.id, allowed_scopes(db, request)))
        at = clock.to_ms(request.at) or clock.now()
        if known.type == "SUPERSEDES":
            raise Conflict(f"what superseded {known.target} stays its successor: supersede that one - at `$.id`")
        if at < known.valid_from:
            raise InvalidParams("invalid params: it ends before it begins - at `$.at`")
        if known.valid_until is None or at < known.valid_until:
            sql = "UPDATE memory_relationships SET valid_until = :at WHERE id = :id"
            db.execute(sql, {"at": at, "id": known.id})
        return _get(db, known.id)

    return await daemon.store.write(close)


def relations_of(db: Db, memory_id: str, permitted: AllowedScopes) -> list[Relation]:
    """Every relation of a memory, those that hold no longer too, oldest first."""
    sql = f"{_SELECT} WHERE {_DIRECTIONS['both']} AND {_BOTH_VISIBLE} ORDER BY created_at, id"
    return [Relation(**row) for row in db.fetch(sql, permitted.params | {"memory": memory_id})]


def import_relation(db: Db, relation: Row, permitted: AllowedScopes) -> bool:
    """Store a relation as it was elsewhere; False when it is here, or one of its memories is not."""
    both = {name: relation[name] for name in ("source", "target")}
    if len(db.fetch(_ENDS, permitted.params | both)) < 2:
        return False
    if relation["type"] == "SUPERSEDES" and relation["ends"] is None:
        source, target = (get(db, memory_id, clock.now()) for memory_id in both.values())
        if not _can_supersede(db, source, target):
            return False
    return bool(db.value(_TAKE_OVER, relation))


def _can_supersede(db: Db, source: Row, target: Row) -> bool:
    """Whether what is known here lets one have been superseded by the other: its truth ended, and with no other."""
    succeeded = target["superseded_by"] and not source["is_deleted"]
    ended = target["valid_until"] is not None and source["scope"] == target["scope"]
    return ended and not succeeded and not db.value(_OLDER, {"source": source["id"], "target": target["id"]})


def _wanted(request: RelationAdd) -> Row:
    """The relation that the request asks for; raises for a time that cannot be."""
    now = clock.now()
    begins, ends = clock.to_ms(request.valid_from) or now, clock.to_ms(request.valid_until)
    if ends is not None and ends <= begins:
        raise InvalidParams("invalid params: it ends before it begins - at `$.validUntil`")
    times = {"validFrom": request.valid_from, "validUntil": request.valid_until}
    for field, given in times.items() if request.type == "SUPERSEDES" else ():
        if given is not None:
            raise InvalidParams(f"invalid params: the target holds until the source does - at `$.{field}`")
    said = {"type": request.type, "confidence": request.confidence, "extracted_by": request.extracted_by}
    return said | {"begins": begins, "ends": ends, "now": now}


def _relate(db: Db, source: Row, target: Row, request: RelationAdd, wanted: Row) -> str:
    """Make the relation, or be surer of the one there is; tells which it is."""
    both = {"source": source["id"], "target": target["id"]}
    if known := db.fetch_one(_SAME, wanted | both):
        _require_same_time(known, request, wanted)
        db.execute(_SURER, wanted | {"id": known["id"]})
        return str(known["id"])
    if request.type == "SUPERSEDES":
        return _supersede(db, source, target, request, wanted)
    made = clock.new_id()
    db.execute(_INSERT, wanted | both | {"id": made})
    return made


def _require_same_time(known: Row, request: RelationAdd, wanted: Row) -> None:
    """A relation that is held already is the same only when it does not begin or end otherwise."""
    begun = request.valid_from is None and known["valid_from"] <= wanted["now"]
    field = None
    if not begun and known["valid_from"] != wanted["begins"]:
        field = "validFrom"
    elif request.valid_until is not None and known["valid_until"] != wanted["ends"]:
        field = "validUntil"
    if field:
        raise Conflict(f"relation {known['id']} holds in that time already: close it first - at `$.{field}`")


def _supersede(db: Db, source: Row, target: Row, request: RelationAdd, wanted: Row) -> str:
    """Let the source hold in the target's place, with all that follows from it."""
    # Its successor is not named: the caller may not be allowed to see it.
    for field, row in {"source": source, "target": target}.items():
        if row["superseded_by"]:
            raise Conflict(f"memory {row['id']} is superseded already - at `$.{field}`")
    both = {"source": source["id"], "target": target["id"]}
    if db.value(_OLDER, both):
        raise Conflict(f"memory {source['id']} is an older version of {target['id']} - at `$.source`")
    by = f"agent:{request.agent}" if request.agent else "user"
    said = {"by": by, "reason": "it was said to be superseded", "extracted_by": request.extracted_by}
    supersede(db, target, source, at=wanted["now"], **said)
    made = db.value(_SUPERSESSION, both)
    db.execute("UPDATE memory_relationships SET confidence = :confidence WHERE id = :id", wanted | {"id": made})
    return str(made)


def _selected(db: Db, request: RelationList, permitted: AllowedScopes) -> tuple[list[str], dict[str, Any]]:
    """The relations that are asked for, as conditions and their parameters."""
    as_of = clock.to_ms(request.as_of)
    params = permitted.params | {"at": as_of or clock.now(), "as_of": as_of, "limit": request.limit + 1}
    conditions = [_BOTH_VISIBLE]
    if as_of is not None:
        conditions.append(KNOWN)
    if not request.include_closed:
        conditions += [HOLDS] if as_of is not None else [HOLDS, _NEITHER_FORGOTTEN]
    if request.memory_id is not None:
        with at_field("memoryId"):
            params["memory"] = find(db, request.memory_id, permitted)["id"]
        conditions.append(_DIRECTIONS[request.direction])
    if request.types is not None:
        params["types"] = json.dumps(request.types)
        conditions.append(OF_TYPES)
    if request.cursor is not None:
        params["before"], params["before_id"] = decode_cursor(request.cursor, int, str)
        conditions.append("(memory_relationships.created_at, memory_relationships.id) < (:before, :before_id)")
    return conditions, params


def _find(db: Db, given: str, permitted: AllowedScopes) -> str:
    with at_field("id"):
        return resolve_id(db, given, "memory_relationships", "relation", _BOTH_VISIBLE, permitted.params)


def _get(db: Db, relation_id: str) -> Relation:
    row = db.fetch_one(f"{_SELECT} WHERE id = :id", {"id": relation_id})
    assert row
    return Relation(**row)
