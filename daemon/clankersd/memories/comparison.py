"""Comparing what was known at two times."""

from typing import TYPE_CHECKING

from clankers_protocol.errors import InvalidParams
from clankers_protocol.memories import Memory, MemoryChange, MemoryCompare, MemoryComparison
from clankersd import clock
from clankersd.db import Db
from clankersd.db.paging import PAGE_CHARACTERS, take_page
from clankersd.memories.filters import query_condition, selection_conditions, time_condition
from clankersd.memories.store import SELECT_MEMORIES, MemoryRow, to_memories
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_EDITED = """
    SELECT DISTINCT memory_id FROM memory_log
    WHERE at > :earlier AND at <= :later AND json_type(before_json, '$.content') IS NOT NULL
"""


@handles(MemoryCompare)
async def memory_compare(daemon: "Daemon", request: MemoryCompare) -> MemoryComparison:
    now = clock.now()
    earlier, later = clock.to_ms(request.earlier) or 0, clock.to_ms(request.later) or now
    if later <= earlier:
        raise InvalidParams("invalid params: the later time is not after the earlier one - at `$.later`")

    def compare(db: Db) -> MemoryComparison:
        before, after = (_known_at(db, request, at, now) for at in (earlier, later))
        added = [one for one in after if one not in before]
        ended = [one for one in before if one not in after]
        edited = {str(one) for (one,) in db.tuples(_EDITED, {"earlier": earlier, "later": later})} & before.keys()
        pairs = ((_memory_at(db, one, earlier), _memory_at(db, one, later)) for one in after if one in edited)
        changes = [MemoryChange(old, new) for old, new in pairs if old.content != new.content]
        return MemoryComparison(
            earlier=earlier,
            later=later,
            before=len(before),
            after=len(after),
            added_count=len(added),
            changed_count=len(changes),
            ended_count=len(ended),
            added=_memories_at(db, added[: request.limit], later),
            changed=_fitting(changes[: request.limit]),
            ended=_memories_at(db, ended[: request.limit], earlier),
        )

    return await daemon.store.read(compare)


def _known_at(db: Db, request: MemoryCompare, at: int, now: int) -> dict[str, None]:
    """Return the ids of the selected memories that were known and valid at a time, newest first."""
    conditions, params = selection_conditions(db, request, now)
    conditions.append(time_condition(at, None, params))
    if request.query is not None:
        conditions.append(query_condition(request.query, params))
    sql = f"SELECT id FROM memories WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, id DESC"
    return {str(one): None for (one,) in db.tuples(sql, params)}


def _memory_at(db: Db, memory_id: str, at: int) -> Memory:
    """Return a memory with the values that it had at a time."""
    [memory] = _memories_at(db, [memory_id], at)
    return memory


def _memories_at(db: Db, ids: list[str], at: int) -> list[Memory]:
    """Return memories with the values that they had at a time, as many as fit into a reply."""
    sql = f"{SELECT_MEMORIES} WHERE memories.id = :id"
    fetched = (row for one in ids for row in db.fetch(sql, {"id": one, "now": at}))
    return to_memories(db, [MemoryRow(**row) for row in take_page(fetched)], at, at)


def _fitting(changes: list[MemoryChange]) -> list[MemoryChange]:
    """Return the first changes whose texts fit into a reply."""
    size = 0
    for count, change in enumerate(changes):
        size += len(change.before.content) + len(change.after.content)
        if size > PAGE_CHARACTERS and count:
            return changes[:count]
    return changes
