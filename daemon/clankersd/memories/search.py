"""`memory.search`: the memories that match a query best."""

import json
from functools import partial
from typing import TYPE_CHECKING

from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Memory, MemoryHit, MemoryHits, MemorySearch
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.filters import describe_deleted, memory_visibility, selection_conditions, state_condition
from clankersd.memories.scopes import IN_SCOPE, allowed_scopes
from clankersd.memories.scoring import MEMORY_COLUMNS, MEMORY_JOIN, MemoryChunkRow, ScoreWeights, weigh_memory
from clankersd.memories.store import SELECT_MEMORIES, MemoryRow, to_memories
from clankersd.search.filters import Criteria, Visibility
from clankersd.search.limiter import takes_search_slot
from clankersd.search.plan import POOL_SIZE, Page, SearchOutcome, SearchPlan
from clankersd.search.rows import RowQuery
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

# The memories come first: the matching ones may be few, and an index finds their chunks.
_CHUNK_IDS = """
    SELECT chunks.id FROM memories
    CROSS JOIN chunks ON chunks.memory_id = memories.id AND chunks.chunking = :chunking
"""


@handles(MemorySearch)
@takes_search_slot
async def memory_search(daemon: "Daemon", request: MemorySearch) -> MemoryHits:
    outcome = await _run(daemon, request)
    return MemoryHits(
        hits=await _hits(daemon, request, outcome),
        mode=outcome.mode,
        pending=outcome.pending,
        degraded=outcome.degraded,
        took_ms=outcome.took_ms,
        cursor=outcome.cursor,
        weak=outcome.weak,
    )


async def best_memories(
    daemon: "Daemon", request: MemorySearch, condition: str = "true"
) -> tuple[list[MemoryHit], str | None]:
    """Return the best matches that meet a condition, and the parts of the search that were unavailable."""
    outcome = await _run(daemon, request, condition)
    return await _hits(daemon, request, outcome), outcome.degraded


async def _run(daemon: "Daemon", request: MemorySearch, condition: str = "true") -> SearchOutcome[MemoryChunkRow]:
    """Search the chunks of memories; a memory has the score of its best chunk."""
    now = clock.now()
    if request.embedding is not None:
        for name, value in (("vectorWeight", request.vector_weight), ("pool", request.pool)):
            if value is not None:
                problem = "an embedding is compared with all vectors, and with nothing else"
                raise InvalidParams(f"invalid params: {problem} - at `$.{name}`")

    def visibility(db: Db) -> tuple[Visibility, str | None, str | None]:
        [_, *further], params = selection_conditions(db, request, now)
        state = state_condition(request.include, clock.to_ms(request.as_of), clock.to_ms(request.valid_at), params)
        where = " AND ".join([state, *further, condition])
        id_query = f"{_CHUNK_IDS} WHERE {IN_SCOPE} AND {where}" if further else None
        visible = memory_visibility(allowed_scopes(db, request), where, params)
        may_be_deleted = request.as_of is not None or "deleted" in request.include
        return visible, id_query, describe_deleted(db, where, visible.params) if may_be_deleted else None

    visible, id_query, deleted_note = await daemon.store.read(visibility)
    plan = SearchPlan(
        query=request.query,
        embedding=request.embedding,
        vector_weight=request.vector_weight,
        rerank=request.rerank,
        pool_size=request.pool or POOL_SIZE,
        filter=daemon.search_engine.build_filter(Criteria(sources=["memories"]), visible, id_query),
        rows=RowQuery(MemoryChunkRow, MEMORY_COLUMNS, MEMORY_JOIN, {"now": now}),
        page=Page.of(request),
        mode=request.mode,
        min_score=request.min_score,
        adjust_score=partial(weigh_memory, weights=ScoreWeights.of(daemon.config), now=now),
        group_of=lambda row: row.memory_id,
    )
    return (await daemon.search_engine.run(plan)).with_note(deleted_note)


async def _hits(
    daemon: "Daemon", request: MemorySearch, outcome: SearchOutcome[MemoryChunkRow]
) -> list[MemoryHit]:  # fmt: skip
    now, as_of = clock.now(), clock.to_ms(request.as_of)
    ids = json.dumps([candidate.row.memory_id for candidate in outcome.candidates])

    def fetch(db: Db) -> dict[str, Memory]:
        sql = f"{SELECT_MEMORIES} WHERE memories.id IN (SELECT value FROM json_each(:ids))"
        rows = [MemoryRow(**row) for row in db.fetch(sql, {"ids": ids, "now": now})]
        return {memory.id: memory for memory in to_memories(db, rows, now, as_of)}

    memories = await daemon.store.read(fetch)
    hits = []
    for candidate in outcome.candidates:
        memory = memories.get(candidate.row.memory_id or "")
        if memory is not None:
            components = candidate.rounded_components if request.explain else None
            hits.append(MemoryHit(memory, candidate.wire_score, outcome.snippet(candidate), components))
    return hits
