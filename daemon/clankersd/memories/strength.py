"""`memory.strength`: the salience of a memory over time, and when maintenance would archive it."""

from typing import TYPE_CHECKING

from clankers_protocol.memories import MemoryStrength, MemoryUse, Strength, StrengthPoint
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.salience import DAY_MS
from clankersd.memories.scopes import allowed_scopes
from clankersd.memories.store import find_memory, salience_of, to_memories
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

PAST_POINTS = 40
FUTURE_POINTS = 40
MIN_FUTURE_DAYS = 30
MAX_FUTURE_DAYS = 3_650
SHOWN_DAYS = 365
MAX_USES = 500

_USES = """
    SELECT created_at AS at, usage_type AS usage, session_id FROM session_memories
    WHERE memory_id = :id ORDER BY created_at DESC LIMIT :limit
"""


@handles(MemoryStrength)
async def memory_strength(daemon: "Daemon", request: MemoryStrength) -> Strength:
    archive_below = daemon.config.memory_archive_below

    def strength(db: Db) -> Strength:
        now = clock.now()
        row = find_memory(db, request.id, allowed_scopes(db, request), now)
        step = max(1, (now - row.created_at) // PAST_POINTS)
        times = [*range(row.created_at, now, step)][:PAST_POINTS]
        past = [StrengthPoint(at, to_memories(db, [row], now, at)[0].salience) for at in times]
        salience = salience_of(row)
        past.append(StrengthPoint(now, round(salience.effective(now), 6)))
        days_ahead = (now + day * DAY_MS for day in range(MAX_FUTURE_DAYS))
        archive_at = next((at for at in days_ahead if salience.effective(at) < archive_below), None)
        end = min(archive_at or now + SHOWN_DAYS * DAY_MS, now + MAX_FUTURE_DAYS * DAY_MS)
        days = max(MIN_FUTURE_DAYS, (end - now) * 1.1 / DAY_MS)
        ahead = [now + int(days * DAY_MS * number / FUTURE_POINTS) for number in range(FUTURE_POINTS + 1)]
        future = [StrengthPoint(at, round(salience.effective(at), 6)) for at in ahead]
        uses = [MemoryUse(**use) for use in db.fetch(_USES, {"id": row.id, "limit": MAX_USES})]
        return Strength(past, future, uses, archive_below, archive_at)

    return await daemon.store.read(strength)
