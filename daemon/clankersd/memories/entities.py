"""Entities: the people, projects, technologies, concepts, files and errors that memories mention.

Entities belong to no scope, so visibility follows from the memories. An entity that only memories outside the caller's
scopes mention does not exist for the caller. If such memories mention it as well, its summary may come from them: it
is not shown, and the entity cannot be changed.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

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
from clankers_protocol.memory_transfer import MentionRecord
from clankersd import clock
from clankersd.db import Db
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor, fit_reply
from clankersd.index.chunker import CJK
from clankersd.memories.scopes import IN_SCOPE, AllowedScopes, allowed_scopes
from clankersd.memories.store import CURRENT, SELECT_MEMORIES, MemoryRow, find_memory, to_memories
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_NAME_WORDS = 6
"""Longer names are not detected in texts; an ideograph is a word."""

MAX_SCANNED_CHARS = 10_000
"""Names beyond this many characters of a text are not detected."""

MIN_NAME_CHARS = 2
"""A single letter occurs in too many texts."""

_MENTIONING_MEMORY = """
    SELECT 1 FROM memory_entities AS link JOIN memories ON memories.id = link.memory_id
    WHERE link.entity_id = entities.id
"""
_MENTIONED_ELSEWHERE = f"EXISTS ({_MENTIONING_MEMORY} AND NOT {IN_SCOPE})"
_VISIBLE = f"""(
    :scopes <> '[]' AND (
        NOT EXISTS (SELECT 1 FROM memory_entities WHERE entity_id = entities.id)
        OR EXISTS ({_MENTIONING_MEMORY} AND {IN_SCOPE})
    )
)"""
_SELECT_ENTITIES = f"""
    SELECT entities.id, entities.name, entities.name_key, entities.entity_type AS type,
           iif({_MENTIONED_ELSEWHERE}, NULL, entities.summary) AS summary, entities.created_at, entities.updated_at,
           (SELECT count(*) FROM memory_entities AS link JOIN memories ON memories.id = link.memory_id
            WHERE link.entity_id = entities.id AND {IN_SCOPE} AND {CURRENT}) AS memories
    FROM entities
"""
_IDS_BY_NAME = f"""
    SELECT id FROM entities WHERE name_key = :key AND (:type IS NULL OR entity_type = :type) AND {_VISIBLE}
    ORDER BY entity_type
"""
_MENTIONING_MEMORIES = f"""
    {SELECT_MEMORIES} JOIN memory_entities AS link ON link.memory_id = memories.id
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
    ON CONFLICT (memory_id, entity_id) DO UPDATE SET role = excluded.role, noticed = 0
"""
_LINK_BY_NAME = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    SELECT :memory, id, 'context', :now, 1 FROM entities WHERE name_key IN (SELECT value FROM json_each(:keys))
    ON CONFLICT DO NOTHING
"""
_MOVE_LINKS = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    SELECT memory_id, :into, role, created_at, noticed FROM memory_entities WHERE entity_id = :id
    ON CONFLICT DO NOTHING
"""
_MOVE_SUMMARY = """
    UPDATE entities SET summary = coalesce(summary, (SELECT summary FROM entities WHERE id = :id)), updated_at = :now
    WHERE id = :into
"""

_SELECT_MENTIONS = f"""
    SELECT entities.name, entities.entity_type AS type, iif({_MENTIONED_ELSEWHERE}, NULL, entities.summary) AS summary,
           mention.role, mention.noticed
    FROM memory_entities AS mention JOIN entities ON entities.id = mention.entity_id
    WHERE mention.memory_id = :memory ORDER BY entities.name_key, entities.entity_type
"""
_IMPORT_MENTION = """
    INSERT INTO memory_entities (memory_id, entity_id, role, created_at, noticed)
    SELECT :memory, id, :role, :now, :noticed FROM entities WHERE name_key = :name_key AND entity_type = :type
    ON CONFLICT (memory_id, entity_id) DO UPDATE SET role = excluded.role, noticed = excluded.noticed
"""
_IMPORT_SUMMARY = f"""
    UPDATE entities SET summary = :summary
    WHERE name_key = :name_key AND entity_type = :type AND summary IS NULL AND NOT {_MENTIONED_ELSEWHERE}
"""

_WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_OPENING_PUNCTUATION, _CLOSING_PUNCTUATION = "\"'`([{<«“‘", "\"'`)]}>»”’.,;:!?"


class EntityRow(msgspec.Struct, kw_only=True):
    """A row of `entities`; `memories` counts those that the caller may see."""

    id: str
    name: str
    name_key: str
    type: str
    summary: str | None
    created_at: int
    updated_at: int
    memories: int = 0


# -- handlers


@handles(EntityUpsert)
async def upsert_entity(daemon: "Daemon", request: EntityUpsert) -> Entity:
    if request.id is not None and not request.id.strip():
        raise InvalidParams("invalid params: an id cannot be empty - at `$.id`")
    request, secrets = await prepare(partial(without_secrets, request))

    def upsert(db: Db) -> Entity:
        now = clock.now()
        count_redactions(db, secrets, now)
        scopes = allowed_scopes(db, request)
        if not scopes.scopes:
            raise InvalidParams("invalid params: an entity cannot be stored without a scope - at `$.scopes`")
        new: dict[str, Any] = {
            "id": request.id or clock.new_id(),
            "name": " ".join(request.name.split()),
            "name_key": _require_name_key(request.name, "name"),
            "type": request.type,
            "summary": request.summary or None,
            "now": now,
        }
        stored = _find_for_upsert(db, request.id, new, scopes)
        if stored is None:
            db.execute(_INSERT, new)
            return _get_entity(db, new["id"], scopes)
        renamed = request.id is not None and (stored.name, stored.type) != (new["name"], new["type"])
        if renamed or new["summary"] not in (None, stored.summary):
            _refuse_mentioned_elsewhere(db, stored.id, scopes, "id" if request.id else "summary")
            new["id"] = stored.id
            if request.id is None:  # found by its name: its spelling stays
                new["name"] = stored.name
            db.execute(_UPDATE, new)
        return _get_entity(db, stored.id, scopes)

    return await daemon.store.write(upsert)


def _find_for_upsert(db: Db, entity_id: str | None, new: dict[str, Any], scopes: AllowedScopes) -> EntityRow | None:
    """Find the stored entity by id or, without one, by name and type; raises Conflict if another has that name."""
    params = scopes.params | new
    by_name = "entities.name_key = :name_key AND entities.entity_type = :type"
    same_name = _fetch_entities(db, by_name, params)
    if entity_id is None:
        return same_name[0] if same_name else None
    if same_name and same_name[0].id != entity_id:
        other = same_name[0]
        raise Conflict(f"{other.name} is a {other.type} already: {other.id} - at `$.name`")
    stored = same_name or _fetch_entities(db, "entities.id = :id", params)
    return stored[0] if stored else None


@handles(EntityGet)
async def get_entity(daemon: "Daemon", request: EntityGet) -> EntityDetail:
    if (request.id is None) == (request.name is None):
        raise InvalidParams("invalid params: give either an id or a name - at `$.id`")

    def get(db: Db) -> EntityDetail:
        now = clock.now()
        scopes = allowed_scopes(db, request)
        if request.id is not None:
            entity_id = _find_id(db, request.id, scopes, "id", request.type)
        else:
            name = request.name or ""
            key = {"key": _require_name_key(name, "name"), "type": request.type}
            ids = [row["id"] for row in db.fetch(_IDS_BY_NAME, scopes.params | key)]
            if not ids:
                raise NotFound(f"entity not found: {name} - at `$.name`")
            if len(ids) > 1:
                raise Conflict(f"several entities are called {name}: give the type - at `$.type`", {"ids": ids})
            entity_id = ids[0]
        entity = _get_entity(db, entity_id, scopes)
        params = scopes.params | {"entity": entity.id, "now": now, "limit": request.limit}
        rows = [MemoryRow(**row) for row in fit_reply(db.fetch(_MENTIONING_MEMORIES, params))]
        return EntityDetail(entity, to_memories(db, rows, now))

    return await daemon.store.read(get)


@handles(EntityList)
async def list_entities(daemon: "Daemon", request: EntityList) -> EntityPage:
    conditions = [_VISIBLE]
    params: dict[str, Any] = {"now": clock.now(), "limit": request.limit + 1, "type": request.type}
    if request.type is not None:
        conditions.append("entities.entity_type = :type")
    if request.query is not None:
        conditions.append("instr(entities.name_key, :part) > 0")
        params["part"] = _require_name_key(request.query, "query")
    if request.cursor is not None:
        conditions.append("(entities.name_key, entities.entity_type) > (:after, :after_type)")
        params["after"], params["after_type"] = decode_cursor(request.cursor, str, str)
    where = f"{' AND '.join(conditions)} ORDER BY name_key, entity_type LIMIT :limit"

    def page(db: Db) -> EntityPage:
        rows = _fetch_entities(db, where, params | allowed_scopes(db, request).params)
        shown = rows[: request.limit]
        cursor = encode_cursor(shown[-1].name_key, shown[-1].type) if len(rows) > len(shown) else None
        return EntityPage([_to_entity(row) for row in shown], cursor)

    return await daemon.store.read(page)


@handles(EntityMerge)
async def merge_entities(daemon: "Daemon", request: EntityMerge) -> Entity:
    def merge(db: Db) -> Entity:
        scopes = allowed_scopes(db, request)
        merged = _find_id(db, request.id, scopes, "id")
        into = _find_id(db, request.into, scopes, "into")
        if merged == into:
            raise InvalidParams("invalid params: an entity cannot be merged into itself - at `$.into`")
        _refuse_mentioned_elsewhere(db, merged, scopes, "id")
        db.execute(_MOVE_LINKS, {"id": merged, "into": into})
        db.execute(_MOVE_SUMMARY, {"id": merged, "into": into, "now": clock.now()})
        db.execute("DELETE FROM entities WHERE id = :id", {"id": merged})
        return _get_entity(db, into, scopes)

    return await daemon.store.write(merge)


@handles(EntityDelete)
async def delete_entity(daemon: "Daemon", request: EntityDelete) -> EntityDeleted:
    def delete(db: Db) -> EntityDeleted:
        scopes = allowed_scopes(db, request)
        entity_id = _find_id(db, request.id, scopes, "id")
        _refuse_mentioned_elsewhere(db, entity_id, scopes, "id")
        links = db.value("SELECT count(*) FROM memory_entities WHERE entity_id = :id", {"id": entity_id})
        db.execute("DELETE FROM entities WHERE id = :id", {"id": entity_id})
        return EntityDeleted(True, links)

    return await daemon.store.write(delete)


@handles(EntityLink)
async def link_entity(daemon: "Daemon", request: EntityLink) -> EntityLinked:
    def link(db: Db) -> EntityLinked:
        now = clock.now()
        scopes = allowed_scopes(db, request)
        memory_id = find_undeleted(db, request.memory_id, scopes, "memoryId").id
        entity_id = request.entity_id
        # A full id may name any entity, also one that only other scopes mention; a prefix only a visible one.
        if not db.value("SELECT 1 FROM entities WHERE id = :id", {"id": entity_id}):
            entity_id = _find_id(db, entity_id, scopes, "entityId")
        params = {"memory": memory_id, "entity": entity_id}
        if request.remove:
            db.execute("DELETE FROM memory_entities WHERE memory_id = :memory AND entity_id = :entity", params)
        else:
            db.execute(_LINK, params | {"role": request.role, "now": now})
        return EntityLinked(memory_id, entities_of(db, memory_id, scopes, now))

    return await daemon.store.write(link)


# -- lookups


@contextmanager
def at_field(name: str) -> Iterator[None]:
    """Add the name of a parameter to a NotFound or Conflict raised for its value."""
    try:
        yield
    except (NotFound, Conflict) as error:
        raise type(error)(f"{error.message} - at `$.{name}`", error.data) from error


def find_undeleted(db: Db, id_or_prefix: str, scopes: AllowedScopes, field: str) -> MemoryRow:
    """Return the memory that a parameter names; raises NotFound, or Conflict if it is deleted."""
    with at_field(field):
        row = find_memory(db, id_or_prefix, scopes)
        if row.is_deleted:
            raise Conflict(f"memory {row.id} is deleted: restore it first")
        return row


def visible_entity(db: Db, id_or_prefix: str, scopes: AllowedScopes) -> str:
    """Return the id of a visible entity by its id or unique id prefix; raises NotFound."""
    return resolve_id(db, id_or_prefix, "entities", "entity", _VISIBLE, scopes.params)


def entities_of(db: Db, memory_id: str, scopes: AllowedScopes, now: int) -> list[Entity]:
    """Return the entities that a memory mentions, by name."""
    where = """
        entities.id IN (SELECT entity_id FROM memory_entities WHERE memory_id = :memory)
        ORDER BY entities.name_key, entities.entity_type
    """
    rows = _fetch_entities(db, where, scopes.params | {"memory": memory_id, "now": now})
    return [_to_entity(row) for row in rows]


def entities_by_id(db: Db, ids: list[str], scopes: AllowedScopes, now: int) -> dict[str, Entity]:
    """Return these entities, as far as the caller may see them."""
    where = "entities.id IN (SELECT value FROM json_each(:ids))"
    rows = _fetch_entities(db, where, scopes.params | {"ids": json.dumps(ids), "now": now})
    return {row.id: _to_entity(row) for row in rows}


def _get_entity(db: Db, entity_id: str, scopes: AllowedScopes) -> Entity:
    return entities_by_id(db, [entity_id], scopes, clock.now())[entity_id]


def _fetch_entities(db: Db, where: str, params: dict[str, Any]) -> list[EntityRow]:
    return [EntityRow(**row) for row in db.fetch(f"{_SELECT_ENTITIES} WHERE {where}", params)]


def _to_entity(row: EntityRow) -> Entity:
    fields: dict[str, Any] = {name: getattr(row, name) for name in Entity.__struct_fields__}
    return Entity(**fields)


def _find_id(
    db: Db, id_or_prefix: str, scopes: AllowedScopes, field: str, entity_type: str | None = None
) -> str:  # fmt: skip
    """Return the id of a visible entity that a parameter names; raises NotFound, also if it is of another type."""
    with at_field(field):
        entity_id = visible_entity(db, id_or_prefix, scopes)
        stored_type = db.value("SELECT entity_type FROM entities WHERE id = :id", {"id": entity_id})
        if entity_type and stored_type != entity_type:
            raise NotFound(f"entity not found: {id_or_prefix} is not a {entity_type}")
        return entity_id


def _refuse_mentioned_elsewhere(db: Db, entity_id: str, scopes: AllowedScopes, field: str) -> None:
    """Raise Conflict when memories outside the caller's scopes mention the entity."""
    sql = f"SELECT 1 FROM entities WHERE id = :id AND {_MENTIONED_ELSEWHERE}"
    if db.value(sql, scopes.params | {"id": entity_id}):
        raise Conflict(f"memories outside the caller's scopes mention it too - at `$.{field}`")


# -- names and mentions


def name_key(name: str) -> str:
    """Normalize a name for comparison: no case, no accents, single spaces."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    return " ".join(unicodedata.normalize("NFKC", _ACCENTS.sub("", plain)).split())


def _require_name_key(name: str, field: str) -> str:
    if key := name_key(name):
        return key
    raise InvalidParams(f"invalid params: there is no name in it - at `$.{field}`")


def mentions_in(db: Db, memory_id: str, scopes: AllowedScopes) -> list[MentionRecord]:
    """Return the mentions of entities in a memory, for an export."""
    rows = db.fetch(_SELECT_MENTIONS, scopes.params | {"memory": memory_id})
    return [MentionRecord(**row | {"noticed": bool(row["noticed"])}) for row in rows]


def import_mention(db: Db, memory_id: str, mention: MentionRecord, scopes: AllowedScopes) -> None:
    """Store a mention from an export, with its entity if that does not exist here."""
    row = msgspec.structs.asdict(mention) | {
        "id": clock.new_id(),
        "memory": memory_id,
        "now": clock.now(),
        "name": " ".join(mention.name.split()),
        "name_key": name_key(mention.name),
    }
    db.execute(_INSERT, row)
    db.execute(_IMPORT_MENTION, row)
    db.execute(_IMPORT_SUMMARY, row | scopes.params)


def link_mentions(db: Db, memory_id: str, content: str, files: list[str], concepts: list[str], now: int) -> None:
    """Link a memory with the entities that its text names, and with its files, which become entities."""
    db.execute("DELETE FROM memory_entities WHERE memory_id = :memory AND noticed = 1", {"memory": memory_id})
    keys = possible_names(content) | {name_key(name) for name in (*files, *concepts)} - {""}
    for path in files:
        if key := name_key(path):
            row = {"id": clock.new_id(), "name": path, "name_key": key, "type": "file", "summary": None, "now": now}
            db.execute(_INSERT, row)
    db.execute(_LINK_BY_NAME, {"memory": memory_id, "keys": json.dumps(sorted(keys)), "now": now})


def possible_names(text: str) -> set[str]:
    """Return every word and short run of words in a text, normalized like names.

    These are looked up by an index. Searching the text for each known name would take longer with every entity.
    """
    plain = name_key(text[:MAX_SCANNED_CHARS])
    names = set()
    places = [(match.start(), match.end()) for match in _WORD.finditer(plain)]
    for first, (start, _) in enumerate(places):
        for _, end in places[first : first + MAX_NAME_WORDS]:
            names.add(plain[start:end])
    # Names with punctuation, like c++, .env or @scope/package.
    tokens = [token.lstrip(_OPENING_PUNCTUATION).rstrip(_CLOSING_PUNCTUATION) for token in plain.split()]
    for first in range(len(tokens)):
        for end in range(first + 1, first + 1 + MAX_NAME_WORDS):
            names.add(" ".join(tokens[first:end]))
    return {name for name in names if len(name) >= MIN_NAME_CHARS}
