"""Reading memories: one, a page of them, their history, a timeline, and statistics."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
    time_condition,
)
from clankersd.memories.scopes import IN_SCOPE, allowed_scopes
from clankersd.memories.similarity import content_hash
from clankersd.memories.store import (
    CURRENT,
    SALIENCE,
    SELECT_MEMORIES,
    STATE,
    MemoryRow,
    fetch_memories,
    find_memory,
    log_entries,
    to_memories,
    to_memory,
)
from clankersd.memories.supersession import version_ids
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_SORT_KEYS = {
    "created": "memories.created_at",
    "updated": "memories.updated_at",
    "salience": SALIENCE,
    "importance": "memories.importance",
    "accessed": "memories.last_accessed",
}
_PAGE_KEYS = """
    SELECT memories.id, {sort} AS sort_key FROM memories WHERE {conditions}
    ORDER BY sort_key DESC, memories.id DESC LIMIT :limit
"""
_COUNT_GROUPS = f"""
    SELECT {STATE} AS state, sector, tier, category, scope, count(*) AS count, sum(pinned) AS pinned,
           sum({SALIENCE}) AS salience, min(created_at) AS oldest, max(created_at) AS newest
    FROM memories WHERE {IN_SCOPE} AND {{condition}} GROUP BY 1, 2, 3, 4, 5
"""
_COUNT_ENTITIES = f"""
    SELECT count(DISTINCT entity_id) FROM memory_entities JOIN memories ON memories.id = memory_id
    WHERE {IN_SCOPE} AND {{condition}}
"""
_COUNT_RELATIONS = f"""
    SELECT count(*) FROM memory_relationships
    WHERE valid_until IS NULL AND source_memory_id IN (SELECT id FROM memories WHERE {IN_SCOPE} AND {{condition}})
      AND target_memory_id IN (SELECT id FROM memories WHERE {IN_SCOPE} AND {{condition}})
"""


@handles(MemoryGet)
async def memory_get(daemon: "Daemon", request: MemoryGet) -> Memory:
    as_of, valid_at = clock.to_ms(request.as_of), clock.to_ms(request.valid_at)

    def get(db: Db) -> Memory:
        now = clock.now()
        row = find_memory(db, request.id, allowed_scopes(db, request), now)
        if as_of is not None or valid_at is not None:
            params: dict[str, Any] = {"id": row.id}
            sql = f"SELECT 1 FROM memories WHERE id = :id AND {time_condition(as_of, valid_at, params)}"
            if not db.value(sql, params):
                raise NotFound(f"memory {row.id} was not known, or not valid, at that time")
        [memory] = to_memories(db, [row], now, as_of)
        return memory

    return await daemon.store.read(get)


@handles(MemoryList)
async def memory_list(daemon: "Daemon", request: MemoryList) -> MemoryPage:
    sort = _SORT_KEYS[request.sort]

    def page(db: Db) -> MemoryPage:
        # The cursor holds the time of the first page, so that salience is the same on all pages.
        now, key, after = clock.now(), None, None
        if request.cursor:
            now, key, after = decode_cursor(request.cursor, int, float, str)
        conditions, params = selection_conditions(db, request, now)
        times = clock.to_ms(request.as_of), clock.to_ms(request.valid_at)
        conditions.append(state_condition(request.include, *times, params, request.states))
        if request.query is not None:
            conditions.append(query_condition(request.query, params))
        if key is not None:
            conditions.append(f"({sort}, memories.id) < (:key, :after)")
            params |= {"key": key, "after": after}
        sql = _PAGE_KEYS.format(sort=sort, conditions=" AND ".join(conditions))
        keys = db.tuples(sql, params | {"limit": request.limit + 1})
        select_one = f"{SELECT_MEMORIES} WHERE memories.id = :id"
        fetched = (row for id_, _ in keys[: request.limit] for row in db.fetch(select_one, {"id": id_, "now": now}))
        rows = [MemoryRow(**row) for row in fit_reply(take_page(fetched))]
        cursor = None
        if rows and len(keys) > len(rows):
            last_id, last_key = keys[len(rows) - 1]
            cursor = encode_cursor(now, float(last_key), last_id)
        return MemoryPage(to_memories(db, rows, now, clock.to_ms(request.as_of)), cursor)

    return await daemon.store.read(page)


@handles(MemoryHas)
async def memory_has(daemon: "Daemon", request: MemoryHas) -> Has:
    if (request.id is None) == (request.content is None):
        raise InvalidParams("invalid params: give an id or a content - at `$`")

    def look(db: Db) -> Has:
        scopes = allowed_scopes(db, request)
        memory_id = None
        if request.content is not None:
            sql = f"SELECT id FROM memories WHERE content_hash = :hash AND {IN_SCOPE} AND {CURRENT}"
            memory_id = db.value(sql, scopes.params | {"hash": content_hash(request.content), "now": clock.now()})
        elif request.id:
            with suppress(NotFound):
                memory_id = resolve_id(db, request.id, "memories", "memory", IN_SCOPE, scopes.params)
        return Has(memory_id is not None, memory_id)

    return await daemon.store.read(look)


@handles(MemoryHistory)
async def memory_history(daemon: "Daemon", request: MemoryHistory) -> History:
    def history(db: Db) -> History:
        now, scopes = clock.now(), allowed_scopes(db, request)
        row = find_memory(db, request.id, scopes, now)
        params = scopes.params | {"now": now, "ids": json.dumps(version_ids(db, row.id))}
        rows = fetch_memories(
            db,
            f"{SELECT_MEMORIES} WHERE memories.id IN (SELECT value FROM json_each(:ids)) AND {IN_SCOPE} "
            "ORDER BY memories.valid_from, memories.created_at, memories.id",
            params,
        )
        return History(to_memories(db, rows, now), log_entries(db, [row.id for row in rows]))

    return await daemon.store.read(history)


@handles(MemoryTimeline)
async def memory_timeline(daemon: "Daemon", request: MemoryTimeline) -> MemoryPage:
    if (request.id is None) == (request.at is None):
        raise InvalidParams("invalid params: give an id or a time - at `$`")

    def around(db: Db) -> MemoryPage:
        now, scopes = clock.now(), allowed_scopes(db, request)
        anchor: list[MemoryRow] = []
        at, key = clock.to_ms(request.at) or 0, ""
        if request.id:
            anchor = [find_memory(db, request.id, scopes, now)]
            at, key = anchor[0].created_at, anchor[0].id
        params = scopes.params | {"now": now, "at": at, "key": key}
        select = f"{SELECT_MEMORIES} WHERE {IN_SCOPE} AND {CURRENT} AND (memories.created_at, memories.id)"
        newest_first = f"ORDER BY memories.created_at DESC, memories.id DESC LIMIT {request.before}"
        before = fetch_memories(db, f"{select} < (:at, :key) {newest_first}", params)
        oldest_first = f"ORDER BY memories.created_at, memories.id LIMIT {request.after}"
        after = fetch_memories(db, f"{select} > (:at, :key) {oldest_first}", params)
        return MemoryPage([to_memory(row, now) for row in [*reversed(before), *anchor, *after]])

    return await daemon.store.read(around)


@handles(MemoryStatsOf)
async def memory_stats(daemon: "Daemon", request: MemoryStatsOf) -> MemoryStats:
    def count(db: Db) -> tuple[list[dict[str, Any]], int, int]:
        params = allowed_scopes(db, request).params | {"now": clock.now()}
        condition = " AND ".join(project_conditions(db, request, params)) or "true"
        entities = db.value(_COUNT_ENTITIES.format(condition=condition), params)
        relations = db.value(_COUNT_RELATIONS.format(condition=condition), params)
        return db.fetch(_COUNT_GROUPS.format(condition=condition), params), entities, relations

    groups, entities, relations = await daemon.store.read(count)
    states = _count_by("state", groups)
    current = [group for group in groups if group["state"] == "current"]
    return MemoryStats(
        total=sum(states.values()),
        current=states.get("current", 0),
        upcoming=states.get("upcoming", 0),
        superseded=states.get("superseded", 0),
        expired=states.get("expired", 0),
        archived=states.get("archived", 0),
        deleted=states.get("deleted", 0),
        pinned=sum(group["pinned"] for group in groups if group["state"] != "deleted"),
        by_sector=_count_by("sector", current),
        by_tier=_count_by("tier", current),
        by_category=_count_by("category", current),
        by_scope=_count_by("scope", current),
        entities=entities,
        relations=relations,
        salience=sum(group["salience"] for group in current) / states["current"] if current else None,
        oldest=min((group["oldest"] for group in groups), default=None),
        newest=max((group["newest"] for group in groups), default=None),
    )


def _count_by(name: str, groups: list[dict[str, Any]]) -> dict[str, int]:
    """Add up the counts of groups that have the same value in one column, largest first."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group[name]] = counts.get(group[name], 0) + group["count"]
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
