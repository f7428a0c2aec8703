"""The runs of scheduled actions in the database: made when due, handed out on a lease, ended once."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams
from clankers_protocol.schedules import ScheduleRun
from clankersd import clock
from clankersd.capture.redaction import count_redactions, redact_all
from clankersd.db import Db
from clankersd.schedule.grammar import Schedule, parse_schedule, parse_timezone

MISSED_MS = 60_000
"""A run that nobody took for so long is one that was missed."""

MAX_ATTEMPTS = 8
MAX_LEASE_MS = 3_600_000
MAX_FINISHED_RUNS = 1000
AT_ONCE = 100

SELECT_RUN = """
    SELECT schedule_runs.id, action_id, description, scheduled_for, state, attempts, lease_until, result_json, error,
           schedule_runs.created_at, finished_at
    FROM schedule_runs JOIN scheduled_actions ON scheduled_actions.id = action_id
"""
_OPEN = "state IN ('waiting', 'taken')"
_TAKEN = "EXISTS (SELECT 1 FROM schedule_runs WHERE action_id = scheduled_actions.id AND state = 'taken')"
_DUE = f"""
    SELECT id, schedule, timezone, next_run FROM scheduled_actions
    WHERE enabled = 1 AND next_run <= :now AND NOT {_TAKEN} ORDER BY next_run, id LIMIT {AT_ONCE}
"""
# One that still waits stands for all that were missed meanwhile.
_MAKE = f"""
    INSERT INTO schedule_runs (id, action_id, scheduled_for, state, created_at)
    VALUES (:run_id, :id, :slot, 'waiting', :now)
    ON CONFLICT (action_id) WHERE {_OPEN} DO UPDATE SET scheduled_for = :slot
"""
_ADVANCE = "UPDATE scheduled_actions SET next_run = :next, enabled = enabled AND :next IS NOT NULL WHERE id = :id"
_SKIP = """
    UPDATE schedule_runs SET state = 'skipped', finished_at = :now
    WHERE state = 'waiting' AND scheduled_for < :now - :missed
      AND action_id IN (SELECT id FROM scheduled_actions WHERE missed = 'skip')
    RETURNING id
"""
_GIVE_UP = """
    UPDATE schedule_runs SET state = 'failed', lease_until = NULL, finished_at = :now, error = :error
    WHERE state = 'taken' AND lease_until <= :now AND attempts >= :most
    RETURNING id
"""
_FREE = f"""
    {SELECT_RUN}
    WHERE (state = 'waiting' OR state = 'taken' AND lease_until <= :now) AND (builtin IS NOT NULL OR :clients)
    ORDER BY scheduled_for, schedule_runs.id LIMIT {AT_ONCE}
"""
_LEASE = """
    UPDATE schedule_runs SET state = 'taken', attempts = :attempts, lease_until = :lease_until WHERE id = :id
"""
_RENEW = "UPDATE schedule_runs SET lease_until = max(lease_until, :until) WHERE id = :id AND state = 'taken'"
_END = f"""
    UPDATE schedule_runs
    SET state = :state, lease_until = NULL, result_json = :result, error = :error, finished_at = :now
    WHERE id = :id AND {_OPEN} RETURNING action_id
"""
_PRUNE = f"""
    DELETE FROM schedule_runs WHERE action_id = :action_id AND NOT {_OPEN} AND rowid <= (
        SELECT rowid FROM schedule_runs WHERE action_id = :action_id ORDER BY rowid DESC
        LIMIT 1 OFFSET {MAX_FINISHED_RUNS}
    )
"""
_AHEAD = "SELECT id, schedule, timezone, next_run FROM scheduled_actions WHERE enabled = 1 AND next_run > :now"
_MOVE = "UPDATE scheduled_actions SET next_run = :next WHERE id = :id"
_SHORTEN = "UPDATE schedule_runs SET lease_until = :latest WHERE state = 'taken' AND lease_until > :latest"
# When an action is due, a run that waits can be handed out or counts as missed, or a lease ends that matters.
_NEXT = f"""
    SELECT min(at) FROM (
        SELECT min(next_run) AS at FROM scheduled_actions WHERE enabled = 1 AND next_run IS NOT NULL AND NOT {_TAKEN}
        UNION ALL
        SELECT CASE WHEN state = 'taken' AND (builtin IS NOT NULL OR :clients OR attempts >= :most) THEN lease_until
                    WHEN state = 'waiting' AND (builtin IS NOT NULL OR :clients) THEN scheduled_for
                    WHEN state = 'waiting' AND missed = 'skip' THEN scheduled_for + :missed + 1 END
        FROM schedule_runs JOIN scheduled_actions ON scheduled_actions.id = action_id WHERE {_OPEN}
    )
"""
_OVERDUE = f"""
    SELECT description FROM scheduled_actions
    WHERE enabled = 1 AND next_run < :before AND NOT {_TAKEN} ORDER BY next_run
"""
_LEFT = f"{SELECT_RUN} WHERE state = 'waiting' AND scheduled_for < :before ORDER BY scheduled_for"
_LAST_FAILED = f"""
    {SELECT_RUN} WHERE enabled = 1 AND state = 'failed' AND schedule_runs.id = (
        SELECT id FROM schedule_runs WHERE action_id = scheduled_actions.id ORDER BY rowid DESC LIMIT 1
    )
"""
_NOBODY = f"nobody acknowledged it, though it was handed out {MAX_ATTEMPTS} times"


def claim_runs(
    db: Db, now: int, lease_ms: int, *, clients: bool, busy: list[str]
) -> tuple[list[ScheduleRun], list[str]]:
    """Make the runs that are due and lease what may be handed out now, all in the caller's transaction.

    Runs for clients are only leased when there are `clients`; what we are `busy` with ourselves stays ours. Also
    tells which runs ended by themselves.
    """
    for run_id in busy:
        renew_lease(db, run_id, now + lease_ms)
    for action in db.fetch(_DUE, {"now": now}):
        _make_run(db, action, now)
    ended = db.fetch(_SKIP, {"now": now, "missed": MISSED_MS})
    ended += db.fetch(_GIVE_UP, {"now": now, "most": MAX_ATTEMPTS, "error": _NOBODY})
    free = db.fetch(_FREE, {"now": now, "clients": clients})
    return [_leased(db, run_from_row(row), now, lease_ms) for row in free], [row["id"] for row in ended]


def replan_after_clock_change(db: Db, now: int, lease_ms: int) -> list[str]:
    """Plan again what was planned while the clock was ahead; return the ids of the actions whose next run moved.

    The next run of a schedule is never later than the first one after now, and no lease longer than the longest.
    """
    db.execute(_SHORTEN, {"latest": now + max(MAX_LEASE_MS, lease_ms)})
    moved = []
    for action in db.fetch(_AHEAD, {"now": now}):
        try:
            schedule = parse_schedule(action["schedule"], parse_timezone(action["timezone"]))
        except InvalidParams:
            continue  # its run says so when it is due
        coming = None if schedule.once else schedule.next_after(datetime.fromtimestamp(now / 1000, UTC))
        if coming is not None and int(coming.timestamp() * 1000) < action["next_run"]:
            db.execute(_MOVE, {"id": action["id"], "next": int(coming.timestamp() * 1000)})
            moved.append(action["id"])
    return moved


def renew_lease(db: Db, run_id: str, until: int) -> None:
    """Let a run be taken for longer."""
    db.execute(_RENEW, {"id": run_id, "until": until})


def finish_run(db: Db, run_id: str, state: str, result: Any = None, error: str | None = None) -> bool:
    """Record what became of a run, unless it has ended already; tells whether it did."""
    (result, error), secrets = _redact_outcome(result, error)
    row: dict[str, Any] = {"id": run_id, "state": state, "result": None, "error": error, "now": clock.now()}
    if result is not None:
        row["result"] = msgspec.json.encode(result).decode()
    ended = db.fetch(_END, row)
    count_redactions(db, secrets if ended else {}, row["now"])
    for found in ended:
        db.execute(_PRUNE, found)
    return bool(ended)


def _redact_outcome(result: Any, error: str | None) -> tuple[tuple[Any, str | None], dict[str, int]]:
    cleaned, secrets = redact_all([result, error])
    assert isinstance(cleaned, list)
    return (cleaned[0], cleaned[1]), secrets


def skip_waiting_runs(db: Db, action_id: str) -> None:
    """Whoever switches an action off does not want what still waits of it either."""
    sql = "UPDATE schedule_runs SET state = 'skipped', finished_at = :now WHERE action_id = :id AND state = 'waiting'"
    db.execute(sql, {"id": action_id, "now": clock.now()})


def next_event_time(db: Db, *, clients: bool) -> int | None:
    """When there is something to do again."""
    params = {"most": MAX_ATTEMPTS, "missed": MISSED_MS, "clients": clients}
    return db.value(_NEXT, params)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class StuckActions:
    """What does not go on, by the actions' descriptions; `failed` with the reason."""

    overdue: list[str]
    left: list[str]
    failed: dict[str, str]


def find_stuck_actions(db: Db, before: int) -> StuckActions:
    """What was due before then and was not made a run, what nobody took since, and what failed the last time."""
    return StuckActions(
        [row["description"] for row in db.fetch(_OVERDUE, {"before": before})],
        [row["description"] for row in db.fetch(_LEFT, {"before": before})],
        {row["description"]: row["error"] or "" for row in db.fetch(_LAST_FAILED)},
    )


def find_run(db: Db, run_id: str) -> ScheduleRun | None:
    row = db.fetch_one(f"{SELECT_RUN} WHERE schedule_runs.id = :id", {"id": run_id})
    return run_from_row(row) if row else None


def run_from_row(row: dict[str, Any]) -> ScheduleRun:
    """A row as what travels."""
    facts = {name: value for name, value in row.items() if name != "result_json"}
    return ScheduleRun(**facts, result=msgspec.json.decode(row["result_json"]) if row["result_json"] else None)


def _make_run(db: Db, action: dict[str, Any], now: int) -> None:
    """Make the run of an action that is due, and move the action on. A schedule that cannot be read any more (its
    zone is gone, say) ends the action, and the run says why."""
    run_id = clock.new_id()
    facts = action | {"run_id": run_id, "now": now, "slot": action["next_run"], "next": None}
    try:
        schedule = parse_schedule(action["schedule"], parse_timezone(action["timezone"]))
    except InvalidParams as error:
        db.execute(_MAKE, facts)
        db.execute(_ADVANCE, facts)
        finish_run(db, run_id, "failed", error=error.message)
        return
    facts["slot"], facts["next"] = _around(schedule, action["next_run"], now)
    db.execute(_MAKE, facts)
    db.execute(_ADVANCE, facts)


def _around(schedule: Schedule, due: int, now: int) -> tuple[int, int | None]:
    """The last time the schedule came, and when it comes next."""
    if schedule.once:
        return due, None
    moment = datetime.fromtimestamp(now / 1000, UTC)
    last, coming = schedule.last_until(moment), schedule.next_after(moment)
    slot = due if last is None else max(due, int(last.timestamp() * 1000))
    return slot, None if coming is None else int(coming.timestamp() * 1000)


def _leased(db: Db, run: ScheduleRun, now: int, lease_ms: int) -> ScheduleRun:
    """Each time it is handed out, twice as long is waited before it is handed out again."""
    run.state, run.attempts = "taken", run.attempts + 1
    run.lease_until = now + min(lease_ms * 2 ** (run.attempts - 1), max(MAX_LEASE_MS, lease_ms))
    db.execute(_LEASE, {"id": run.id, "attempts": run.attempts, "lease_until": run.lease_until})
    return run
