"""Looking after memories: what is used is promoted, what has faded is archived, what says the same becomes one.

First it is worked out what to do, then it is done, a little at a time, each with its reason in the memory's log. A dry
run stops after the first half.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from clankers_protocol.errors import Conflict, RpcError
from clankers_protocol.memories import LogEntry
from clankers_protocol.memory_maintenance import MaintenanceReport, MemoryMaintain
from clankersd import clock
from clankersd.config import Config
from clankersd.db import Db, Notification
from clankersd.index.generations import Generation
from clankersd.memories.dedup import Text, find_match, own_vector
from clankersd.memories.salience import DAY_MS
from clankersd.memories.store import CURRENT, SALIENCE, SELECT, SURE, Row, change, get, note
from clankersd.memories.supersede import supersede
from clankersd.memories.update import promote
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

BY = "maintenance"
SLICE = 100
REST_DAYS = 7
"""What was used or made within so many days is not archived, and an entity made within them not dropped."""

UNSURE_DAYS = 30
"""For so long what nobody is sure of may be confirmed."""

LOOK_SECONDS = 5.0
HOUR_MS = 3_600_000
UNUSUAL_SHARE = 0.25
UNUSUAL_COUNT = 5
"""To archive more than this share of the memories, and more than so many, at once is not done unasked: memories fade
over months, so it is likely that the clock is wrong."""

ASK_AGAIN_SECONDS = 3600.0

_COUNT_CURRENT = f"SELECT count(*) FROM memories WHERE {CURRENT} AND memories.pinned = 0"
_SINCE = "SELECT at FROM memory_upkeep WHERE what = 'maintained'"
_DONE = """
    INSERT INTO memory_upkeep (what, at) VALUES ('maintained', :now) ON CONFLICT (what) DO UPDATE SET at = :now
"""
_USED = f"""
    SELECT memories.id, count(*) AS uses FROM memories JOIN session_memories ON memory_id = memories.id
    WHERE memories.tier = 'session' AND {CURRENT} AND usage_type IN ('recalled', 'reinforced', 'updated')
    GROUP BY memories.id HAVING count(*) >= :least
"""
_FADED = f"""
    SELECT memories.id, {SALIENCE} AS salience FROM memories
    WHERE {CURRENT} AND memories.pinned = 0 AND memories.last_accessed < :rested AND {SALIENCE} < :floor
"""
_UNSURE = f"""
    SELECT memories.id, memories.confidence FROM memories
    WHERE {CURRENT} AND NOT {SURE} AND max(memories.last_accessed, memories.updated_at) < :unconfirmed
      AND NOT (memories.last_accessed < :rested AND {SALIENCE} < :floor)
"""
_EXPIRED = """
    SELECT id, expires_at FROM memories WHERE expires_at <= :now AND is_deleted = 0
      AND NOT EXISTS (SELECT 1 FROM memory_log WHERE memory_id = memories.id AND action = 'expired')
"""
_CHANGED = f"""
    {SELECT} WHERE {CURRENT} AND memories.updated_at >= :since AND memories.id > :after
    ORDER BY memories.id LIMIT {SLICE}
"""
_ORPHANS = """
    entities WHERE created_at < :rested AND NOT EXISTS (SELECT 1 FROM memory_entities WHERE entity_id = entities.id)
"""

log = structlog.get_logger(component="maintenance")


@dataclass(frozen=True)
class Step:
    """One thing to do to a memory, and why; `into` is the memory that it becomes part of."""

    action: str
    memory_id: str
    reason: str
    into: str | None = None


@handles(MemoryMaintain)
async def memory_maintain(daemon: "Daemon", request: MemoryMaintain) -> MaintenanceReport:
    return await maintain(daemon, request.dry_run, force=request.force)


async def keep_maintained(daemon: "Daemon") -> None:
    """Look after memories every so often, for as long as the daemon lives."""
    wait = LOOK_SECONDS
    while True:
        await anyio.sleep(wait)
        wait = LOOK_SECONDS
        try:
            if await _is_due(daemon):
                done = await maintain(daemon)
                log.info("memories maintained", promoted=done.promoted, archived=done.archived, merged=done.merged)
        except UnusualArchiving as error:
            log.warning("maintenance waits for its owner", problem=error.message)
            wait = ASK_AGAIN_SECONDS
        except RpcError as error:
            log.warning("memories not maintained", problem=error.message)


class UnusualArchiving(Conflict):
    """Maintenance would archive so many memories at once that its owner is asked first."""


async def unusual_archiving(daemon: "Daemon") -> str | None:
    """Say what maintenance would archive now, if that is unusually much."""
    now = clock.now()
    return await daemon.store.read(lambda db: _unusual(db, _plan(db, daemon.config, now), now))


def _unusual(db: Db, steps: list[Step], now: int) -> str | None:
    archived = sum(step.action == "archived" for step in steps)
    current = int(db.value(_COUNT_CURRENT, {"now": now}))
    if archived <= UNUSUAL_COUNT or archived <= current * UNUSUAL_SHARE:
        return None
    today = f"{clock.local_time():%Y-%m-%d}"
    return f"maintenance would archive {archived:,} of {current:,} memories at once, as of {today}"


CONFIRM = "check the date; `clankers-ctl memory maintain --dry-run` lists them, and `--force` archives them"


async def maintain(daemon: "Daemon", dry_run: bool = False, *, force: bool = False) -> MaintenanceReport:
    """Do what is due, or only tell; raises UnusualArchiving, and does nothing, when much is to be archived unforced."""
    began = clock.now()

    def plan(db: Db) -> list[Step]:
        steps = _plan(db, daemon.config, began)
        if not (dry_run or force) and (unusual := _unusual(db, steps, began)):
            raise UnusualArchiving(f"{unusual}: {CONFIRM}")
        return steps

    steps = [*await daemon.store.read(plan), *await _plan_merges(daemon, began)]
    rested = {"rested": began - REST_DAYS * DAY_MS}
    if not dry_run:
        for start in range(0, len(steps), SLICE):
            await daemon.store.write(lambda db, some=steps[start : start + SLICE]: _take(db, some), bulk=True)  # type: ignore[misc]

    def finish(db: Db) -> int:
        orphans = int(db.value(f"SELECT count(*) FROM {_ORPHANS}", rested))
        if not dry_run:
            db.execute(f"DELETE FROM {_ORPHANS}", rested)
            db.execute(_DONE, {"now": began})
        return orphans

    dropped = await (daemon.store.read(finish) if dry_run else daemon.store.write(finish))
    return _report(steps, dropped, began, dry_run)


def _report(steps: list[Step], dropped: int, at: int, dry_run: bool) -> MaintenanceReport:
    counts = {action: sum(step.action == action for step in steps) for action in ("promoted", "archived", "expired")}
    return MaintenanceReport(
        promoted=counts["promoted"],
        archived=counts["archived"],
        merged=sum(step.action == "merged" for step in steps),
        expired=counts["expired"],
        entities_dropped=dropped,
        changes=[LogEntry(step.memory_id, at, step.action, BY, step.reason, None) for step in steps],
        dry_run=dry_run,
    )


async def _is_due(daemon: "Daemon") -> bool:
    hours = daemon.config.maintain_hours
    if not hours or daemon.store.problem:
        return False
    last = await daemon.store.read(lambda db: db.value(_SINCE))
    return last is None or not 0 <= clock.now() - last < hours * HOUR_MS  # in the future: the clock was set back


def _plan(db: Db, config: Config, now: int) -> list[Step]:
    """What each memory by itself calls for."""
    params = {
        "now": now,
        "rested": now - REST_DAYS * DAY_MS,
        "unconfirmed": now - UNSURE_DAYS * DAY_MS,
        "floor": config.memory_archive_below,
    }
    used = db.fetch(_USED, params | {"least": config.memory_promote_uses})
    return [
        *(Step("promoted", row["id"], f"used {row['uses']} times by sessions") for row in used),
        *(Step("archived", row["id"], f"faded to {row['salience']:.3f}") for row in db.fetch(_FADED, params)),
        *(
            Step("archived", row["id"], f"unsure ({row['confidence']:.2f}) and not confirmed in {UNSURE_DAYS} days")
            for row in db.fetch(_UNSURE, params)
        ),
        *(Step("expired", row["id"], "its time is over") for row in db.fetch(_EXPIRED, params)),
    ]


async def _plan_merges(daemon: "Daemon", now: int) -> list[Step]:
    """Which of the memories that changed since last time say the same as another in their scope."""
    since = await daemon.store.read(lambda db: db.value(_SINCE)) or 0
    since = since if since <= now else 0  # the clock was set back: look through all
    steps: dict[str, Step] = {}
    params = {"now": now, "since": since, "after": ""}
    while rows := await daemon.store.read(lambda db: db.fetch(_CHANGED, params)):
        live = daemon.index.live if daemon.store.vec.version else None
        found = await daemon.store.read(lambda db, rows=rows, live=live: _twins(db, rows, live, now))  # type: ignore[misc]
        for step in found:
            if step.into not in steps:  # what becomes part of another cannot take in a third
                steps.setdefault(step.memory_id, step)
        params["after"] = rows[-1]["id"]
    return list(steps.values())


def _twins(db: Db, rows: list[Row], live: Generation | None, now: int) -> list[Step]:
    found = []
    for row in rows:
        text = Text(row["content"], row["content_hash"], int(row["simhash"], 16) if row["simhash"] else None)
        vector = own_vector(db, row["id"], live) if live else None
        match = find_match(db, text, row["scope"], row["category"], now, vector, live, itself=row["id"])
        if match and match.how == "same" and match.row["archived_at"] is None:
            weaker, stronger = sorted((row, match.row), key=_rank)
            found.append(Step("merged", weaker["id"], f"{match.why} as {stronger['id']}", stronger["id"]))
    return found


def _rank(row: Row) -> tuple[int, float, float, int, str]:
    """Of two that say the same, the stronger stays."""
    return row["pinned"], row["importance"], row["confidence"], row["access_count"], row["id"]


def _take(db: Db, steps: list[Step]) -> None:
    for step in steps:
        now = clock.now()
        row = get(db, step.memory_id, now) if _exists(db, step.memory_id) else None
        if row is None or row["is_deleted"]:
            continue
        db.after_commit(Notification("memory", step.action, step.memory_id, {"reason": step.reason}))
        if step.action == "promoted":
            promote(db, row, "project", row["scope"], BY, step.reason, now)
        elif step.action == "archived":
            change(db, row["id"], {"archived_at": now})
            note(db, row["id"], "archived", BY, step.reason, at=now)
        elif step.action == "expired":
            note(db, row["id"], "expired", BY, step.reason, at=now)
        elif step.into and _exists(db, step.into):
            _merge(db, row, get(db, step.into, now), step.reason, now)


def _exists(db: Db, memory_id: str) -> bool:
    return bool(db.value("SELECT 1 FROM memories WHERE id = :id", {"id": memory_id}))


def _merge(db: Db, weaker: Row, stronger: Row, reason: str, now: int) -> None:
    """One memory instead of two: it has the better of both, and supersedes the other."""
    if weaker["state"] != "current" or stronger["state"] != "current":
        return
    before = {name: stronger[name] for name in ("importance", "confidence", "access_count", "tags_json", "files_json")}
    values: Row = {name: max(weaker[name], stronger[name]) for name in ("importance", "confidence")}
    values["access_count"] = weaker["access_count"] + stronger["access_count"]
    values |= {name: _union(stronger[name], weaker[name]) for name in ("tags_json", "files_json")}
    change(db, stronger["id"], values)
    note(db, stronger["id"], "merged", BY, f"took in {weaker['id']}", before, now)
    supersede(db, weaker, stronger, by=BY, reason=reason, at=now, extracted_by="system")


def _union(one: str, other: str) -> str:
    return json.dumps(list(dict.fromkeys([*json.loads(one), *json.loads(other)])), ensure_ascii=False)
