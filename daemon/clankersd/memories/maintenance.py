"""Maintenance of memories: promote what sessions use, archive what has decayed, merge near-duplicates.

A run first plans all steps, then applies them in small transactions, each with its reason in the memory's log. A dry
run only plans.
"""

import json
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog

from clankers_protocol.errors import Conflict, RpcError
from clankers_protocol.memories import LogEntry
from clankers_protocol.memory_maintenance import MaintenanceReport, MemoryMaintain
from clankersd import clock
from clankersd.config import Config
from clankersd.db import Db, Notification, Store
from clankersd.index.generations import Generation
from clankersd.index.index import Index
from clankersd.memories.dedup import HashedText, fetch_own_vector, find_match
from clankersd.memories.salience import DAY_MS
from clankersd.memories.store import (
    CONFIDENT,
    CURRENT,
    SALIENCE,
    SELECT_MEMORIES,
    Columns,
    MemoryRow,
    fetch_memories,
    log_change,
    update_columns,
)
from clankersd.memories.supersession import supersede
from clankersd.memories.update import promote
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

BY = "maintenance"
STEPS_PER_TRANSACTION = 100
MIN_IDLE_DAYS = 7
"""Memories created, used, imported or restored within this time are not archived, and new entities not dropped."""

CONFIRMATION_DAYS = 30
"""Time in which a memory of low confidence can be confirmed before it is archived."""

CHECK_INTERVAL_SECONDS = 5.0
HOUR_MS = 3_600_000
UNUSUAL_SHARE = 0.25
UNUSUAL_COUNT = 5
"""Archiving more than this share and more than this number of memories in one run needs `force`. Memories decay over
months, so a wrong clock is the likely cause."""

UNUSUAL_RETRY_SECONDS = 3600.0
CONFIRM_HINT = "check the date; `clankers-ctl memory maintain --dry-run` lists them, and `--force` archives them"

_COUNT_CURRENT = f"SELECT count(*) FROM memories WHERE {CURRENT} AND memories.pinned = 0"
_LAST_RUN = "SELECT at FROM memory_upkeep WHERE what = 'maintained'"
_SAVE_LAST_RUN = """
    INSERT INTO memory_upkeep (what, at) VALUES ('maintained', :now) ON CONFLICT (what) DO UPDATE SET at = :now
"""
_SELECT_USED = f"""
    SELECT memories.id, count(*) AS uses FROM memories JOIN session_memories ON memory_id = memories.id
    WHERE memories.tier = 'session' AND {CURRENT} AND usage_type IN ('recalled', 'reinforced', 'updated')
    GROUP BY memories.id HAVING count(*) >= :min_uses
"""
_IDLE = "max(memories.last_accessed, memories.salience_at) < :idle_since"
_SELECT_DECAYED = f"""
    SELECT memories.id, {SALIENCE} AS salience FROM memories
    WHERE {CURRENT} AND memories.pinned = 0 AND {_IDLE} AND {SALIENCE} < :floor
"""
_SELECT_UNCONFIRMED = f"""
    SELECT memories.id, memories.confidence FROM memories
    WHERE {CURRENT} AND NOT {CONFIDENT}
      AND max(memories.last_accessed, memories.updated_at, memories.salience_at) < :unconfirmed_since
      AND NOT ({_IDLE} AND {SALIENCE} < :floor)
"""
_SELECT_EXPIRED = """
    SELECT id, expires_at FROM memories WHERE expires_at <= :now AND is_deleted = 0
      AND NOT EXISTS (SELECT 1 FROM memory_log WHERE memory_id = memories.id AND action = 'expired')
"""
_SELECT_CHANGED = f"""
    {SELECT_MEMORIES} WHERE {CURRENT} AND memories.updated_at >= :since AND memories.id > :after
    ORDER BY memories.id LIMIT {STEPS_PER_TRANSACTION}
"""
_ORPHANS = """
    entities WHERE created_at < :idle_since AND NOT EXISTS (SELECT 1 FROM memory_entities WHERE entity_id = entities.id)
"""

log = structlog.get_logger(component="maintenance")


@dataclass(frozen=True)
class Step:
    """A planned change of a memory and its reason; `into` is the memory that it is merged into."""

    action: str
    memory_id: str
    reason: str
    into: str | None = None


@handles(MemoryMaintain)
async def memory_maintain(daemon: "Daemon", request: MemoryMaintain) -> MaintenanceReport:
    return await maintain(daemon, request.dry_run, force=request.force)


async def run_maintenance(daemon: "Daemon") -> None:
    """Maintain memories at the configured interval, for as long as the daemon runs."""
    wait = CHECK_INTERVAL_SECONDS
    while True:
        await anyio.sleep(wait)
        wait = CHECK_INTERVAL_SECONDS
        try:
            if await _is_due(daemon.store, daemon.config.maintain_hours):
                done = await maintain(daemon)
                log.info("memories maintained", promoted=done.promoted, archived=done.archived, merged=done.merged)
        except UnusualArchiving as error:
            log.warning("maintenance needs confirmation", problem=error.message)
            wait = UNUSUAL_RETRY_SECONDS
        except RpcError as error:
            log.warning("maintenance failed", problem=error.message)


async def _is_due(store: Store, interval_hours: float) -> bool:
    if not interval_hours or store.problem:
        return False
    last = await store.read(lambda db: db.value(_LAST_RUN))
    if last is None:
        return True
    elapsed = clock.now() - int(last)
    return elapsed < 0 or elapsed >= interval_hours * HOUR_MS  # negative: the clock was set back


class UnusualArchiving(Conflict):
    """Raised instead of archiving unusually many memories without `force`."""


async def describe_unusual_archiving(daemon: "Daemon") -> str | None:
    """Describe what maintenance would archive now, if that is unusually much."""
    now = clock.now()
    return await daemon.store.read(lambda db: _describe_unusual(db, _plan_steps(db, daemon.config, now), now))


def _describe_unusual(db: Db, steps: list[Step], now: int) -> str | None:
    archived = sum(step.action == "archived" for step in steps)
    current = int(db.value(_COUNT_CURRENT, {"now": now}))
    if archived <= UNUSUAL_COUNT or archived <= current * UNUSUAL_SHARE:
        return None
    today = f"{clock.local_time():%Y-%m-%d}"
    return f"maintenance would archive {archived:,} of {current:,} memories at once, as of {today}"


async def maintain(daemon: "Daemon", dry_run: bool = False, *, force: bool = False) -> MaintenanceReport:
    """Plan and, unless `dry_run`, apply maintenance; raises UnusualArchiving without doing anything."""
    began = clock.now()

    def plan(db: Db) -> list[Step]:
        steps = _plan_steps(db, daemon.config, began)
        if not (dry_run or force) and (unusual := _describe_unusual(db, steps, began)):
            raise UnusualArchiving(f"{unusual}: {CONFIRM_HINT}")
        return steps

    steps = [*await daemon.store.read(plan), *await _plan_merges(daemon.store, daemon.index, began)]
    idle = {"idle_since": began - MIN_IDLE_DAYS * DAY_MS}
    if not dry_run:
        for start in range(0, len(steps), STEPS_PER_TRANSACTION):
            batch = steps[start : start + STEPS_PER_TRANSACTION]
            await daemon.store.write(partial(_apply_steps, batch), bulk=True)

    def drop_orphans(db: Db) -> int:
        orphans = int(db.value(f"SELECT count(*) FROM {_ORPHANS}", idle))
        if not dry_run:
            db.execute(f"DELETE FROM {_ORPHANS}", idle)
            db.execute(_SAVE_LAST_RUN, {"now": began})
        return orphans

    dropped = await (daemon.store.read(drop_orphans) if dry_run else daemon.store.write(drop_orphans))
    counts = Counter(step.action for step in steps)
    return MaintenanceReport(
        promoted=counts["promoted"],
        archived=counts["archived"],
        merged=counts["merged"],
        expired=counts["expired"],
        entities_dropped=dropped,
        changes=[LogEntry(step.memory_id, began, step.action, BY, step.reason, None) for step in steps],
        dry_run=dry_run,
    )


# -- planning


def _plan_steps(db: Db, config: Config, now: int) -> list[Step]:
    """Plan the steps that depend on one memory each."""
    params = {
        "now": now,
        "idle_since": now - MIN_IDLE_DAYS * DAY_MS,
        "unconfirmed_since": now - CONFIRMATION_DAYS * DAY_MS,
        "floor": config.memory_archive_below,
        "min_uses": config.memory_promote_uses,
    }
    promoted = [
        Step("promoted", row["id"], f"used {row['uses']} times by sessions") for row in db.fetch(_SELECT_USED, params)
    ]
    decayed = [
        Step("archived", row["id"], f"faded to {row['salience']:.3f}") for row in db.fetch(_SELECT_DECAYED, params)
    ]
    unconfirmed = [
        Step("archived", row["id"], f"unsure ({row['confidence']:.2f}) and not confirmed in {CONFIRMATION_DAYS} days")
        for row in db.fetch(_SELECT_UNCONFIRMED, params)
    ]
    expired = [Step("expired", row["id"], "its expiry time has passed") for row in db.fetch(_SELECT_EXPIRED, params)]
    return [*promoted, *decayed, *unconfirmed, *expired]


async def _plan_merges(store: Store, index: Index, now: int) -> list[Step]:
    """Plan merges of the memories that changed since the last run with near-duplicates in their scope."""
    since = await store.read(lambda db: db.value(_LAST_RUN)) or 0
    if since > now:  # the clock was set back: check all
        since = 0
    steps: dict[str, Step] = {}
    params = {"now": now, "since": since, "after": ""}
    while rows := await store.read(lambda db: fetch_memories(db, _SELECT_CHANGED, params)):
        live = index.live if store.vec.version else None
        for step in await store.read(partial(_find_merges, rows, live, now)):
            if step.into not in steps:  # a memory that is merged itself cannot take in another
                steps.setdefault(step.memory_id, step)
        params["after"] = rows[-1].id
    return list(steps.values())


def _find_merges(rows: list[MemoryRow], live: Generation | None, now: int, db: Db) -> list[Step]:
    steps = []
    for row in rows:
        text = HashedText(row.content, row.content_hash, int(row.simhash, 16) if row.simhash else None)
        vector = fetch_own_vector(db, row.id, live) if live else None
        match = find_match(db, text, row.scope, row.category, now, vector, live, itself=row.id)
        if match and match.kind == "same" and match.row.archived_at is None:
            weaker, stronger = sorted(
                (row, match.row),
                key=lambda one: (one.pinned, one.importance, one.confidence, one.access_count, one.id),
            )
            steps.append(Step("merged", weaker.id, f"{match.reason} as {stronger.id}", stronger.id))
    return steps


# -- applying


def _apply_steps(steps: list[Step], db: Db) -> None:
    for step in steps:
        now = clock.now()
        row = _fetch_if_exists(db, step.memory_id, now)
        if row is None or row.is_deleted:
            continue
        db.after_commit(Notification("memory", step.action, step.memory_id, {"reason": step.reason}))
        if step.action == "promoted":
            promote(db, row, "project", row.scope, BY, step.reason, now)
        elif step.action == "archived":
            update_columns(db, row.id, {"archived_at": now})
            log_change(db, row.id, "archived", BY, step.reason, at=now)
        elif step.action == "expired":
            log_change(db, row.id, "expired", BY, step.reason, at=now)
        elif step.into and (into := _fetch_if_exists(db, step.into, now)):
            _merge(db, row, into, step.reason, now)


def _fetch_if_exists(db: Db, memory_id: str, now: int) -> MemoryRow | None:
    """Return a memory, or None if it was purged after the plan was made."""
    rows = fetch_memories(db, f"{SELECT_MEMORIES} WHERE memories.id = :id", {"id": memory_id, "now": now})
    return rows[0] if rows else None


def _merge(db: Db, weaker: MemoryRow, stronger: MemoryRow, reason: str, now: int) -> None:
    """Give the stronger memory the better values of both, and let it supersede the weaker one."""
    if weaker.state != "current" or stronger.state != "current":
        return
    values: Columns = {
        "importance": max(weaker.importance, stronger.importance),
        "confidence": max(weaker.confidence, stronger.confidence),
        "access_count": weaker.access_count + stronger.access_count,
        "tags_json": _union(stronger.tags_json, weaker.tags_json),
        "files_json": _union(stronger.files_json, weaker.files_json),
    }
    before = {name: getattr(stronger, name) for name in values}
    update_columns(db, stronger.id, values)
    log_change(db, stronger.id, "merged", BY, f"took in {weaker.id}", before, now)
    supersede(db, weaker, stronger, by=BY, reason=reason, at=now, extracted_by="system")


def _union(one: str, other: str) -> str:
    """Join two JSON lists without repetitions."""
    return json.dumps(list(dict.fromkeys([*json.loads(one), *json.loads(other)])), ensure_ascii=False)
