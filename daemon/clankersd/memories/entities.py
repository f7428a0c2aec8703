"""Entities: what memories speak of. They belong to no scope, so a caller sees of them what its own memories show.

An entity that only memories outside the caller's scopes speak of is not there for it. When such memories speak of it
too, its summary may have come from them, so it is not shown; and nobody changes what somebody else speaks of.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from clankers_protocol.entities import (
    Entity,
    EntityDelete,
    EntityDeleted,
    EntityDetail,
    EntityGet,
    EntityLink,
    EntityLinked,
    EntityList,
    EntityMerge,
    EntityPage,
    EntityUpsert,
)
from clankers_protocol.errors import Conflict, InvalidParams, NotFound
from clankersd import clock
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor, fit_reply
from clankersd.index.chunker import CJK
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes, allowed_scopes
from clankersd.memories.store import CURRENT, SELECT, Row, find, to_memories
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

LONGEST_NAME = 6
"""Words. A name of more of them is not noticed in a text; an ideograph is a word."""

MOST_READ = 10_000
"""Characters. What a text names beyond them is not noticed."""

SHORTEST_NAME = 2
"""Characters. A single letter stands in too many texts."""

_SPEAKING = """
    SELECT 1 FROM memory_entities AS link JOIN memories ON memories.id = link.memory_id
    WHERE link.entity_id = entities.id
"""
_SHARED = f"EXISTS ({_SPEAKING} AND NOT {IN_SCOPE})"
_VISIBLE = f"""(
    :scopes <> '[]' AND (
        NOT EXISTS (SELECT 1 FROM memory_entities WHERE entity_id = entities.id)
        OR EXISTS ({_SPEAKING} AND {IN_SCOPE})
    )
)"""
_ENTITY = f"""
    SELECT entities.id, entities.name, entities.name_key, entities.entity_type AS type,
           iif({_SHARED}, NULL, entities.summary) AS summary, entities.created_at, entities.updated_at,
           (SELECT count(*) FROM memory_entities AS link JOIN memories ON memories.id = link.memory_id
            WHERE link.entity_id = entities.id AND {IN_SCOPE} AND {CURRENT}) AS memories
    FROM entities
"""
_MEMORIES = f"""
    {SELECT} JOIN memory_entities AS link ON link.memory_id = memories.id
    WHERE link.entity_id = :entity AND {IN_SCOPE} AND {CURRENT}
    ORDER BY memories.created_at DESC, memories.id DESC LIMIT :limit
"""
_INSERT = """
    INSERT INTO entities (id, name, name_key, entity_type, summary, created_at, updated_at)
    VALUES (:id, :name, :name_key, :type, :summary, :now, :now) ON CONFLICT DO NOTHING
"""
_UPDATE = """
    UPDATE entities SET name = :name, name_key = :name_key, entity_type = :type,
                        summary = coalesce(:summary, summary), updated_at = :now
    WHERE id = :id
"""
_LINK = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    VALUES (:memory, :entity, :role, :now, 0)
    ON CONFLICT DO UPDATE SET role = excluded.role, noticed = 0
"""
_LINK_NAMED = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    SELECT :memory, id, 'context', :now, 1 FROM entities WHERE name_key IN (SELECT value FROM json_each(:keys))
    ON CONFLICT DO NOTHING
"""
_TAKE_LINKS = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    SELECT memory_id, :into, role, created_at, noticed FROM memory_entities WHERE entity_id = :id
    ON CONFLICT DO NOTHING
"""
_TAKE_SUMMARY = """
    UPDATE entities SET summary = coalesce(summary, (SELECT summary FROM entities WHERE id = :id)), updated_at = :now
    WHERE id = :into
"""

_MENTIONS = f"""
    SELECT entities.name, entities.entity_type AS type, iif({_SHARED}, NULL, entities.summary) AS summary,
           mention.role, mention.noticed
    FROM memory_entities AS mention JOIN entities ON entities.id = mention.entity_id
    WHERE mention.memory_id = :memory ORDER BY entities.name_key, entities.entity_type
"""
_MENTION = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    SELECT :memory, id, :role, :now, :noticed FROM entities WHERE name_key = :name_key AND entity_type = :type
    ON CONFLICT DO UPDATE SET role = excluded.role, noticed = excluded.noticed
"""
_TELL_SUMMARY = f"""
    UPDATE entities SET summary = :summary
    WHERE name_key = :name_key AND entity_type = :type AND summary IS NULL AND NOT {_SHARED}
"""

_WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_OPENING, _CLOSING = "\"'`([{<«“‘", "\"'`)]}>»”’.,;:!?"


# -- the methods


@handles(EntityUpsert)
async def upsert_entity(daemon: "Daemon", request: EntityUpsert) -> Entity:
    request, secrets = await prepare(partial(without_secrets, request))

    def upsert(db: Db) -> Entity:
        count_redactions(db, secrets, clock.now())
        permitted = allowed_scopes(db, request)
        if not permitted.scopes:
            raise InvalidParams("invalid params: without a scope nothing can be named - at `$.scopes`")
        wanted = _wanted(request)
        stored = _meant(db, request, wanted, permitted)
        if stored is None:
            db.execute(_INSERT, wanted)
        elif _differs(request, stored, wanted):
            _refuse_shared(db, stored["id"], permitted, "id" if request.id else "summary")
            name = {} if request.id else {"name": stored["name"]}
            db.execute(_UPDATE, wanted | name | {"id": stored["id"]})
        return _entity(_fetch(db, stored["id"] if stored else wanted["id"], permitted))

    return await daemon.store.write(upsert)


@handles(EntityGet)
async def get_entity(daemon: "Daemon", request: EntityGet) -> EntityDetail:
    if (request.id is None) == (request.name is None):
        raise InvalidParams("invalid params: give either an id or a name - at `$.id`")

    def get(db: Db) -> EntityDetail:
        permitted = allowed_scopes(db, request)
        now = clock.now()
        entity = _entity(_fetch(db, _asked_for(db, request, permitted), permitted))
        params = permitted.params | {"entity": entity.id, "now": now, "limit": request.limit}
        return EntityDetail(entity, to_memories(db, fit_reply(db.fetch(_MEMORIES, params)), now))

    return await daemon.store.read(get)


@handles(EntityList)
async def list_entities(daemon: "Daemon", request: EntityList) -> EntityPage:
    conditions = [_VISIBLE]
    params: dict[str, Any] = {"now": clock.now(), "limit": request.limit + 1, "type": request.type}
    if request.type is not None:
        conditions.append("entities.entity_type = :type")
    if request.query is not None:
        conditions.append("instr(entities.name_key, :part) > 0")
        params["part"] = _key(request.query, "query")
    if request.cursor is not None:
        conditions.append("(entities.name_key, entities.entity_type) > (:after, :after_type)")
        params["after"], params["after_type"] = decode_cursor(request.cursor, str, str)
    sql = f"{_ENTITY} WHERE {' AND '.join(conditions)} ORDER BY name_key, entity_type LIMIT :limit"

    def page(db: Db) -> EntityPage:
        rows = db.fetch(sql, params | allowed_scopes(db, request).params)
        shown = rows[: request.limit]
        cursor = encode_cursor(shown[-1]["name_key"], shown[-1]["type"]) if len(rows) > len(shown) else None
        return EntityPage([_entity(row) for row in shown], cursor)

    return await daemon.store.read(page)


@handles(EntityMerge)
async def merge_entities(daemon: "Daemon", request: EntityMerge) -> Entity:
    def merge(db: Db) -> Entity:
        permitted = allowed_scopes(db, request)
        both = {"id": _find(db, request.id, permitted, "id"), "into": _find(db, request.into, permitted, "into")}
        if both["id"] == both["into"]:
            raise InvalidParams("invalid params: an entity is one with itself already - at `$.into`")
        _refuse_shared(db, both["id"], permitted, "id")
        db.execute(_TAKE_LINKS, both)
        db.execute(_TAKE_SUMMARY, both | {"now": clock.now()})
        db.execute("DELETE FROM entities WHERE id = :id", {"id": both["id"]})
        return _entity(_fetch(db, both["into"], permitted))

    return await daemon.store.write(merge)


@handles(EntityDelete)
async def delete_entity(daemon: "Daemon", request: EntityDelete) -> EntityDeleted:
    def delete(db: Db) -> EntityDeleted:
        permitted = allowed_scopes(db, request)
        given = {"id": _find(db, request.id, permitted, "id")}
        _refuse_shared(db, given["id"], permitted, "id")
        links = db.value("SELECT count(*) FROM memory_entities WHERE entity_id = :id", given)
        db.execute("DELETE FROM entities WHERE id = :id", given)
        return EntityDeleted(True, links)

    return await daemon.store.write(delete)


@handles(EntityLink)
async def link_entity(daemon: "Daemon", request: EntityLink) -> EntityLinked:
    def link(db: Db) -> EntityLinked:
        permitted = allowed_scopes(db, request)
        now = clock.now()
        memory = find_undeleted(db, request.memory_id, permitted, "memoryId")["id"]
        given = {"memory": memory, "entity": _to_link(db, request.entity_id, permitted)}
        if request.remove:
            db.execute("DELETE FROM memory_entities WHERE memory_id = :memory AND entity_id = :entity", given)
        else:
            db.execute(_LINK, given | {"role": request.role, "now": now})
        return EntityLinked(memory, entities_of(db, memory, permitted, now))

    return await daemon.store.write(link)


# -- for other features


@contextmanager
def at_field(name: str) -> Iterator[None]:
    """Say which parameter named what is not there, or is there several times."""
    try:
        yield
    except (NotFound, Conflict) as error:
        raise type(error)(f"{error.message} - at `$.{name}`", error.data) from error


def name_key(name: str) -> str:
    """A name as names are compared: without case, accents and double spaces."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    return " ".join(unicodedata.normalize("NFKC", _ACCENTS.sub("", plain)).split())


def find_undeleted(db: Db, given: str, permitted: AllowedScopes, field: str) -> Row:
    """The memory that a parameter names; raises when it is not there, or forgotten."""
    with at_field(field):
        row = find(db, given, permitted)
        if row["is_deleted"]:
            raise Conflict(f"memory {row['id']} is forgotten: restore it first")
        return row


def visible_entity(db: Db, given: str, permitted: AllowedScopes) -> str:
    """The id that is or uniquely begins with `given`, of the entities that the caller may see; raises NotFound."""
    return resolve_id(db, given, "entities", "entity", _VISIBLE, permitted.params)


def entities_of(db: Db, memory_id: str, permitted: AllowedScopes, now: int) -> list[Entity]:
    """The entities that a memory speaks of, by name."""
    sql = f"""
        {_ENTITY} WHERE entities.id IN (SELECT entity_id FROM memory_entities WHERE memory_id = :memory)
        ORDER BY entities.name_key, entities.entity_type
    """
    return [_entity(row) for row in db.fetch(sql, permitted.params | {"memory": memory_id, "now": now})]


def entities_by_id(db: Db, ids: list[str], permitted: AllowedScopes, now: int) -> dict[str, Entity]:
    """These entities, as the caller may see them."""
    sql = f"{_ENTITY} WHERE entities.id IN (SELECT value FROM json_each(:ids))"
    rows = db.fetch(sql, permitted.params | {"ids": json.dumps(ids), "now": now})
    return {row["id"]: _entity(row) for row in rows}


def mentions_in(db: Db, memory_id: str, permitted: AllowedScopes) -> list[Row]:
    """The entities that a memory speaks of: their names, and how it does."""
    return db.fetch(_MENTIONS, permitted.params | {"memory": memory_id})


def import_mention(db: Db, memory_id: str, entity: Row, permitted: AllowedScopes) -> None:
    """Let a memory speak of an entity as `mentions_in` tells; one that is not here is made."""
    row = entity | {"id": clock.new_id(), "memory": memory_id, "now": clock.now()}
    row |= {"name": " ".join(entity["name"].split()), "name_key": name_key(entity["name"])}
    db.execute(_INSERT, row)
    db.execute(_MENTION, row)
    db.execute(_TELL_SUMMARY, row | permitted.params)


def link_mentions(db: Db, memory_id: str, content: str, files: list[str], concepts: list[str], now: int) -> None:
    """Link a memory with the entities whose names stand in it now, and with its files, which become entities."""
    db.execute("DELETE FROM memory_entities WHERE memory_id = :memory AND noticed", {"memory": memory_id})
    keys = possible_names(content) | {name_key(name) for name in (*files, *concepts)} - {""}
    for path in files:
        if key := name_key(path):
            row = {"id": clock.new_id(), "name": path, "name_key": key, "type": "file", "summary": None, "now": now}
            db.execute(_INSERT, row)
    db.execute(_LINK_NAMED, {"memory": memory_id, "keys": json.dumps(sorted(keys)), "now": now})


def possible_names(text: str) -> set[str]:
    """Everything in a text that may be a name, as names are compared: its words, and some of them together.

    That is looked up; going through all the names there are would take longer with each of them.
    """
    plain = name_key(text[:MOST_READ])
    places = [(match.start(), match.end()) for match in _WORD.finditer(plain)]
    found = {
        plain[begin:end] for here, (begin, _) in enumerate(places) for _, end in places[here : here + LONGEST_NAME]
    }
    tokens = [token.lstrip(_OPENING).rstrip(_CLOSING) for token in plain.split()]  # c++, .env, @scope/package
    spans = ((here, there) for here in range(len(tokens)) for there in range(here + 1, here + 1 + LONGEST_NAME))
    found |= {" ".join(tokens[here:there]) for here, there in spans}
    return {key for key in found if len(key) >= SHORTEST_NAME}


# -- inside


def _wanted(request: EntityUpsert) -> Row:
    """The row that the request asks for."""
    if request.id is not None and not request.id.strip():
        raise InvalidParams("invalid params: an id cannot be empty - at `$.id`")
    return {
        "id": request.id or clock.new_id(),
        "name": " ".join(request.name.split()),
        "name_key": _key(request.name, "name"),
        "type": request.type,
        "summary": request.summary or None,
        "now": clock.now(),
    }


def _key(name: str, field: str) -> str:
    if key := name_key(name):
        return key
    raise InvalidParams(f"invalid params: there is no name in it - at `$.{field}`")


def _meant(db: Db, request: EntityUpsert, wanted: Row, permitted: AllowedScopes) -> Row | None:
    """What is stored: by the id when there is one, else by the name. A name is another's only once."""
    params = permitted.params | wanted
    named = db.fetch_one(f"{_ENTITY} WHERE entities.name_key = :name_key AND entities.entity_type = :type", params)
    if request.id is None:
        return named
    if named and named["id"] != request.id:
        raise Conflict(f"{named['name']} is a {named['type']} already: {named['id']} - at `$.name`")
    return named or db.fetch_one(f"{_ENTITY} WHERE entities.id = :id", params)


def _differs(request: EntityUpsert, stored: Row, wanted: Row) -> bool:
    """Whether there is something to bring up to date. Without an id the spelling of the name stays."""
    renamed = request.id is not None and any(stored[key] != wanted[key] for key in ("name", "type"))
    return renamed or wanted["summary"] not in (None, stored["summary"])


def _refuse_shared(db: Db, entity_id: str, permitted: AllowedScopes, field: str) -> None:
    sql = f"SELECT 1 FROM entities WHERE id = :id AND {_SHARED}"
    if db.value(sql, permitted.params | {"id": entity_id}):
        raise Conflict(f"memories outside the caller's scopes speak of it too - at `$.{field}`")


def _asked_for(db: Db, request: EntityGet, permitted: AllowedScopes) -> str:
    if request.id is not None:
        return _find(db, request.id, permitted, "id", request.type)
    params = permitted.params | {"key": _key(request.name or "", "name"), "type": request.type}
    sql = f"""
        SELECT id FROM entities WHERE name_key = :key AND (:type IS NULL OR entity_type = :type) AND {_VISIBLE}
        ORDER BY entity_type
    """
    ids = [row["id"] for row in db.fetch(sql, params)]
    if not ids:
        raise NotFound(f"entity not found: {request.name} - at `$.name`")
    if len(ids) > 1:
        raise Conflict(f"several entities are called {request.name}: give its type - at `$.type`", {"ids": ids})
    return str(ids[0])


def _find(db: Db, given: str, permitted: AllowedScopes, field: str, entity_type: str | None = None) -> str:
    with at_field(field):
        found = visible_entity(db, given, permitted)
        if entity_type and db.value("SELECT entity_type FROM entities WHERE id = :id", {"id": found}) != entity_type:
            raise NotFound(f"entity not found: {given} is no {entity_type}")
        return found


def _to_link(db: Db, given: str, permitted: AllowedScopes) -> str:
    """The entity to link with. By its whole id any: whoever names an entity that others speak of is given it."""
    if db.value("SELECT 1 FROM entities WHERE id = :id", {"id": given}):
        return given
    return _find(db, given, permitted, "entityId")


def _fetch(db: Db, entity_id: str, permitted: AllowedScopes) -> Row:
    params = permitted.params | {"id": entity_id, "now": clock.now()}
    row = db.fetch_one(f"{_ENTITY} WHERE entities.id = :id", params)
    assert row
    return row


def _entity(row: Row) -> Entity:
    facts: dict[str, Any] = {name: row[name] for name in Entity.__struct_fields__}
    return Entity(**facts)
