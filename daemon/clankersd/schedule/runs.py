"""Runs of scheduled actions in the database: created when due, leased while they are executed, finished once."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from clankers_protocol.errors import InvalidParams
from clankers_protocol.schedules import ScheduleRun
from clankersd import clock
from clankersd.db import Db
from clankersd.redaction.engine import count_redactions, redact_all
from clankersd.schedule.grammar import parse_schedule, parse_timezone

MISSED_AFTER_MS = 60_000
"""A run that waits longer than this is missed."""

MAX_ATTEMPTS = 8
MAX_LEASE_MS = 3_600_000
MAX_FINISHED_RUNS = 1000
MAX_RUNS_PER_CLAIM = 100

SELECT_RUN = """
    SELECT schedule_runs.id, action_id, description, scheduled_for, state, attempts, lease_until, result_json, error,
           schedule_runs.created_at, finished_at
    FROM schedule_runs JOIN scheduled_actions ON scheduled_actions.id = action_id
"""
_OPEN = "state IN ('waiting', 'taken')"
_TAKEN = "EXISTS (SELECT 1 FROM schedule_runs WHERE action_id = scheduled_actions.id AND state = 'taken')"
_DUE = f"""
    SELECT id, schedule, timezone, next_run FROM scheduled_actions
    WHERE enabled = 1 AND next_run <= :now AND NOT {_TAKEN} ORDER BY next_run, id LIMIT {MAX_RUNS_PER_CLAIM}
"""
# A run that still waits is moved instead of adding another: it represents all that were missed.
_CREATE_RUN = f"""
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
    WHERE state = 'taken' AND lease_until <= :now AND attempts >= :max_attempts
    RETURNING id
"""
_FREE = f"""
    {SELECT_RUN}
    WHERE (state = 'waiting' OR state = 'taken' AND lease_until <= :now) AND (builtin IS NOT NULL OR :clients)
    ORDER BY scheduled_for, schedule_runs.id LIMIT {MAX_RUNS_PER_CLAIM}
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
# The earliest of: an action is due, a waiting run can be handed out or is missed, a lease ends that matters.
_NEXT = f"""
    SELECT min(at) FROM (
        SELECT min(next_run) AS at FROM scheduled_actions WHERE enabled = 1 AND next_run IS NOT NULL AND NOT {_TAKEN}
        UNION ALL
        SELECT CASE WHEN state = 'taken' AND (builtin IS NOT NULL OR :clients OR attempts >= :max_attempts)
                    THEN lease_until
                    WHEN state = 'waiting' AND (builtin IS NOT NULL OR :clients) THEN scheduled_for
                    WHEN state = 'waiting' AND missed = 'skip' THEN scheduled_for + :missed + 1 END
        FROM schedule_runs JOIN scheduled_actions ON scheduled_actions.id = action_id WHERE {_OPEN}
    )
"""
_OVERDUE = f"""
    SELECT description FROM scheduled_actions
    WHERE enabled = 1 AND next_run < :before AND NOT {_TAKEN} ORDER BY next_run
"""
_UNCLAIMED = f"{SELECT_RUN} WHERE state = 'waiting' AND scheduled_for < :before ORDER BY scheduled_for"
_LAST_FAILED = f"""
    {SELECT_RUN} WHERE enabled = 1 AND state = 'failed' AND schedule_runs.id = (
        SELECT id FROM schedule_runs WHERE action_id = scheduled_actions.id ORDER BY rowid DESC LIMIT 1
    )
"""
_NOT_ACKNOWLEDGED = f"nobody acknowledged it, though it was handed out {MAX_ATTEMPTS} times"


@dataclass(frozen=True)
class _PlannedAction:
    """The plan of an action that is due."""

    id: str
    schedule: str
    timezone: str
    next_run: int

    def create_run(self, db: Db, now: int) -> None:
        """Create the run that is due, and plan the next one.

        If the schedule can no longer be parsed (its time zone was removed, say), the run fails and the action ends.
        """
        run_id = clock.new_id()
        params = {"run_id": run_id, "id": self.id, "now": now, "slot": self.next_run, "next": None}
        try:
            schedule = parse_schedule(self.schedule, parse_timezone(self.timezone))
        except InvalidParams as error:
            db.execute(_CREATE_RUN, params)
            db.execute(_ADVANCE, params)
            finish_run(db, run_id, RunOutcome.redacted("failed", error=error.message))
            return
        if not schedule.once:
            moment = datetime.fromtimestamp(now / 1000, UTC)
            last, planned = schedule.last_until(moment), schedule.next_after(moment)
            if last is not None:  # the last time it was due, however many were missed
                params["slot"] = max(self.next_run, int(last.timestamp() * 1000))
            if planned is not None:
                params["next"] = int(planned.timestamp() * 1000)
        db.execute(_CREATE_RUN, params)
        db.execute(_ADVANCE, params)


def claim_runs(
    db: Db, now: int, lease_ms: int, *, clients: bool, busy: list[str]
) -> tuple[list[ScheduleRun], list[str]]:
    """Create the runs that are due and lease those that can be handed out, in the caller's transaction.

    Runs for clients are leased only if there are `clients`. The leases of `busy` runs, which the daemon is executing,
    are renewed. Returns the leased runs and the ids of runs that ended because they were missed or not acknowledged.
    """
    for run_id in busy:
        renew_lease(db, run_id, now + lease_ms)
    for action in db.fetch(_DUE, {"now": now}):
        _PlannedAction(**action).create_run(db, now)
    ended = db.fetch(_SKIP, {"now": now, "missed": MISSED_AFTER_MS})
    ended += db.fetch(_GIVE_UP, {"now": now, "max_attempts": MAX_ATTEMPTS, "error": _NOT_ACKNOWLEDGED})
    free = db.fetch(_FREE, {"now": now, "clients": clients})
    leased = [run_from_row(row) for row in free]
    for run in leased:  # each further attempt doubles the lease, up to MAX_LEASE_MS
        run.state, run.attempts = "taken", run.attempts + 1
        run.lease_until = now + min(lease_ms * 2 ** (run.attempts - 1), max(MAX_LEASE_MS, lease_ms))
        db.execute(_LEASE, {"id": run.id, "attempts": run.attempts, "lease_until": run.lease_until})
    return leased, [row["id"] for row in ended]


def replan_after_clock_change(db: Db, now: int, lease_ms: int) -> list[str]:
    """Plan runs and leases again that were planned while the clock was ahead; return the ids of moved actions.

    Afterwards no next run is later than the first run after now, and no lease longer than the maximum.
    """
    db.execute(_SHORTEN, {"latest": now + max(MAX_LEASE_MS, lease_ms)})
    moved = []
    for action in db.fetch(_AHEAD, {"now": now}):
        try:
            schedule = parse_schedule(action["schedule"], parse_timezone(action["timezone"]))
        except InvalidParams:
            continue  # reported by its run when it is due
        if schedule.once:
            continue
        planned = schedule.next_after(datetime.fromtimestamp(now / 1000, UTC))
        if planned is not None and int(planned.timestamp() * 1000) < action["next_run"]:
            db.execute(_MOVE, {"id": action["id"], "next": int(planned.timestamp() * 1000)})
            moved.append(action["id"])
    return moved


def renew_lease(db: Db, run_id: str, until: int) -> None:
    """Extend the lease of a taken run."""
    db.execute(_RENEW, {"id": run_id, "until": until})


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a run, without secrets. `result` is JSON."""

    state: str
    result: str | None = None
    error: str | None = None
    secrets: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def redacted(state: str, result: object = None, error: str | None = None) -> "RunOutcome":
        """Redact an outcome: outside the transaction, because a result may be large."""
        redacted, secrets = redact_all([result, error])
        assert isinstance(redacted, list)
        result, error = redacted
        encoded = None if result is None else msgspec.json.encode(result).decode()
        return RunOutcome(state, encoded, error, secrets)


def finish_run(db: Db, run_id: str, outcome: RunOutcome) -> bool:
    """Store the outcome of a run; return False if it has ended already."""
    now = clock.now()
    params = {"id": run_id, "state": outcome.state, "result": outcome.result, "error": outcome.error, "now": now}
    finished = db.fetch_one(_END, params)
    if finished is None:
        return False
    count_redactions(db, outcome.secrets, now)
    db.execute(_PRUNE, finished)
    return True


def skip_waiting_runs(db: Db, action_id: str) -> None:
    """Skip the waiting run of an action that is being disabled."""
    sql = "UPDATE schedule_runs SET state = 'skipped', finished_at = :now WHERE action_id = :id AND state = 'waiting'"
    db.execute(sql, {"id": action_id, "now": clock.now()})


def next_event_time(db: Db, *, clients: bool) -> int | None:
    """Return when the scheduler has something to do next; None if nothing is planned."""
    params = {"max_attempts": MAX_ATTEMPTS, "missed": MISSED_AFTER_MS, "clients": clients}
    return db.value(_NEXT, params)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class StuckActions:
    """Descriptions of actions that do not run: `overdue` without a run, `unclaimed` runs, and `failed` with reasons."""

    overdue: list[str]
    unclaimed: list[str]
    failed: dict[str, str]


def find_stuck_actions(db: Db, before: int) -> StuckActions:
    """Find actions that are due since before `before` and have no run, or whose run waits since then or failed."""
    return StuckActions(
        [row["description"] for row in db.fetch(_OVERDUE, {"before": before})],
        [row["description"] for row in db.fetch(_UNCLAIMED, {"before": before})],
        {row["description"]: row["error"] or "" for row in db.fetch(_LAST_FAILED)},
    )


def find_run(db: Db, run_id: str) -> ScheduleRun | None:
    """Return a run, or None."""
    row = db.fetch_one(f"{SELECT_RUN} WHERE schedule_runs.id = :id", {"id": run_id})
    return run_from_row(row) if row else None


def run_from_row(row: dict[str, Any]) -> ScheduleRun:
    """Convert a row of SELECT_RUN."""
    values = dict(row)
    encoded = values.pop("result_json")
    return ScheduleRun(**values, result=msgspec.json.decode(encoded) if encoded else None)
