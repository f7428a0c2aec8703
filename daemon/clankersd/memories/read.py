"""Reading memories: one, a list, their history, what was learnt around a time, and how many there are."""

from typing import TYPE_CHECKING

import msgspec

from clankers_protocol.errors import InvalidParams, NotFound
from clankers_protocol.memories import (
    Has,
    History,
    Memory,
    MemoryGet,
    MemoryHas,
    MemoryHistory,
    MemoryList,
    MemoryPage,
    MemoryStats,
    MemoryStatsOf,
    MemoryTimeline,
)
from clankersd import clock
from clankersd.db import Db
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor, fit_reply, take_page
from clankersd.memories.filters import (
    project_conditions,
    query_condition,
    selection_conditions,
    state_condition,
)
from clankersd.memories.scopes import IN_SCOPE, allowed_scopes
from clankersd.memories.similarity import content_hash
from clankersd.memories.store import (
    AS_OF,
    CURRENT,
    SALIENCE,
    SELECT,
    STATE,
    Row,
    find,
    get,
    log_entries,
    to_memories,
    to_memory,
)
from clankersd.memories.supersession import version_ids
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_SORT = {
    "created": "memories.created_at",
    "updated": "memories.updated_at",
    "salience": SALIENCE,
    "importance": "memories.importance",
    "accessed": "memories.last_accessed",
}
_KEYS = """
    SELECT memories.id, {sort} AS sort_key FROM memories WHERE {conditions}
    ORDER BY sort_key DESC, memories.id DESC LIMIT :limit
"""
_COUNTS = f"""
    SELECT {STATE} AS state, sector, tier, category, scope, count(*) AS count, sum(pinned) AS pinned,
           sum({SALIENCE}) AS salience, min(created_at) AS oldest, max(created_at) AS newest
    FROM memories WHERE {IN_SCOPE} AND {{narrowed}} GROUP BY 1, 2, 3, 4, 5
"""
_LINKED_ENTITIES = f"""
    SELECT count(DISTINCT entity_id) FROM memory_entities JOIN memories ON memories.id = memory_id
    WHERE {IN_SCOPE} AND {{narrowed}}
"""
_RELATIONS = f"""
    SELECT count(*) FROM memory_relationships
    WHERE valid_until IS NULL AND source_memory_id IN (SELECT id FROM memories WHERE {IN_SCOPE} AND {{narrowed}})
      AND target_memory_id IN (SELECT id FROM memories WHERE {IN_SCOPE} AND {{narrowed}})
"""


@handles(MemoryGet)
async def memory_get(daemon: "Daemon", request: MemoryGet) -> Memory:
    as_of = clock.to_ms(request.as_of)

    def one(db: Db) -> Memory:
        now = clock.now()
        row = find(db, request.id, allowed_scopes(db, request), now)
        if as_of is not None and not db.value(
            f"SELECT 1 FROM memories WHERE id = :id AND {AS_OF}", {"id": row["id"], "as_of": as_of}
        ):
            raise NotFound(f"memory {row['id']} was not known, or not true, at that time")
        [memory] = to_memories(db, [row], now, as_of)
        return memory

    return await daemon.store.read(one)


@handles(MemoryList)
async def memory_list(daemon: "Daemon", request: MemoryList) -> MemoryPage:
    sort = _SORT[request.sort]

    def page(db: Db) -> MemoryPage:
        now, key, after = _place(request)
        conditions, params = selection_conditions(db, request, now)
        conditions.append(state_condition(request.include, clock.to_ms(request.as_of), params))
        if request.query is not None:
            conditions.append(query_condition(request.query, params))
        if key is not None:
            conditions.append(f"({sort}, memories.id) < (:key, :after)")
            params |= {"key": key, "after": after}
        keys = db.tuples(
            _KEYS.format(sort=sort, conditions=" AND ".join(conditions)), params | {"limit": request.limit + 1}
        )
        rows = fit_reply(take_page(get(db, memory_id, now) for memory_id, _ in keys[: request.limit]))
        last = keys[len(rows) - 1] if rows else None
        cursor = encode_cursor(now, float(last[1]), last[0]) if last and len(keys) > len(rows) else None
        return MemoryPage(to_memories(db, rows, now, clock.to_ms(request.as_of)), cursor)

    return await daemon.store.read(page)


def _place(request: MemoryList) -> tuple[int, float | None, str | None]:
    """As of when strength is reckoned, and the last memory shown: all pages are of one moment."""
    return decode_cursor(request.cursor, int, float, str) if request.cursor else (clock.now(), None, None)


@handles(MemoryHas)
async def memory_has(daemon: "Daemon", request: MemoryHas) -> Has:
    if (request.id is None) == (request.content is None):
        raise InvalidParams("invalid params: give an id or a content - at `$`")

    def look(db: Db) -> Has:
        permitted = allowed_scopes(db, request)
        try:
            found = resolve_id(db, request.id, "memories", "memory", IN_SCOPE, permitted.params) if request.id else None
        except NotFound:
            found = None
        if request.content is not None:
            sql = f"SELECT id FROM memories WHERE content_hash = :hash AND {IN_SCOPE} AND {CURRENT}"
            found = db.value(sql, permitted.params | {"hash": content_hash(request.content), "now": clock.now()})
        return Has(found is not None, found)

    return await daemon.store.read(look)


@handles(MemoryHistory)
async def memory_history(daemon: "Daemon", request: MemoryHistory) -> History:
    def history(db: Db) -> History:
        now, permitted = clock.now(), allowed_scopes(db, request)
        row = find(db, request.id, permitted, now)
        params = permitted.params | {"now": now, "ids": msgspec.json.encode(version_ids(db, row["id"])).decode()}
        rows = db.fetch(
            f"{SELECT} WHERE memories.id IN (SELECT value FROM json_each(:ids)) AND {IN_SCOPE} "
            "ORDER BY memories.valid_from, memories.created_at, memories.id",
            params,
        )
        return History(to_memories(db, rows, now), log_entries(db, [row["id"] for row in rows]))

    return await daemon.store.read(history)


@handles(MemoryTimeline)
async def memory_timeline(daemon: "Daemon", request: MemoryTimeline) -> MemoryPage:
    if (request.id is None) == (request.at is None):
        raise InvalidParams("invalid params: give an id or a time - at `$`")

    def around(db: Db) -> MemoryPage:
        now, permitted = clock.now(), allowed_scopes(db, request)
        anchor = find(db, request.id, permitted, now) if request.id else None
        at, key = (anchor["created_at"], anchor["id"]) if anchor else (clock.to_ms(request.at) or 0, "")
        params = permitted.params | {"now": now, "at": at, "key": key}
        here = f"{SELECT} WHERE {IN_SCOPE} AND {CURRENT} AND (memories.created_at, memories.id)"
        before = db.fetch(
            f"{here} < (:at, :key) ORDER BY memories.created_at DESC, memories.id DESC LIMIT {request.before}", params
        )
        after = db.fetch(
            f"{here} > (:at, :key) ORDER BY memories.created_at, memories.id LIMIT {request.after}", params
        )
        rows = [*reversed(before), *([anchor] if anchor else []), *after]
        return MemoryPage([to_memory(row, now) for row in rows])

    return await daemon.store.read(around)


@handles(MemoryStatsOf)
async def memory_stats(daemon: "Daemon", request: MemoryStatsOf) -> MemoryStats:
    def count(db: Db) -> MemoryStats:
        params = allowed_scopes(db, request).params | {"now": clock.now()}
        narrowed = " AND ".join(project_conditions(db, request, params)) or "1"
        entities, relations = (
            db.value(sql.format(narrowed=narrowed), params) for sql in (_LINKED_ENTITIES, _RELATIONS)
        )
        return _stats(db.fetch(_COUNTS.format(narrowed=narrowed), params), entities, relations)

    return await daemon.store.read(count)


def _stats(rows: list[Row], entities: int, relations: int) -> MemoryStats:
    def by(name: str, chosen: list[Row]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in chosen:
            counts[row[name]] = counts.get(row[name], 0) + row["count"]
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    states = by("state", rows)
    current = [row for row in rows if row["state"] == "current"]
    return MemoryStats(
        total=sum(states.values()),
        current=states.get("current", 0),
        upcoming=states.get("upcoming", 0),
        superseded=states.get("superseded", 0),
        expired=states.get("expired", 0),
        archived=states.get("archived", 0),
        deleted=states.get("deleted", 0),
        pinned=sum(row["pinned"] for row in rows if row["state"] != "deleted"),
        by_sector=by("sector", current),
        by_tier=by("tier", current),
        by_category=by("category", current),
        by_scope=by("scope", current),
        entities=entities,
        relations=relations,
        salience=sum(row["salience"] for row in current) / states["current"] if current else None,
        oldest=min((row["oldest"] for row in rows), default=None),
        newest=max((row["newest"] for row in rows), default=None),
    )
