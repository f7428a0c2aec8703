"""Claiming runs in the database: one open run per action, growing leases, a limited history."""

from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clankers_protocol.schedules import ScheduleRun
from clankersd import clock
from clankersd.db.connection import Db
from clankersd.db.migrations import migrate
from clankersd.schedule import runs
from clankersd.schedule.runs import RunOutcome

MINUTE = 60_000
LEASE = 1000
START = 1_800_000_000_000 // MINUTE * MINUTE
ACTION = """
    INSERT INTO scheduled_actions
        (id, description, schedule, timezone, missed, builtin, next_run, created_at, updated_at)
    VALUES (:id, 'd', :schedule, 'UTC', :missed, :builtin, :next_run, 0, 0)
"""


@pytest.fixture
def db(tmp_path: Path) -> Db:
    raw = apsw.Connection(str(tmp_path / "test.db"))
    raw.pragma("foreign_keys", True)
    found = Db(raw)
    migrate(found, tmp_path)
    return found


def add(
    db: Db, action: str = "a", schedule: str = "* * * * *", missed: str = "once", builtin: str | None = None
) -> None:
    facts = {"id": action, "schedule": schedule, "missed": missed, "builtin": builtin, "next_run": START}
    db.execute(ACTION, facts)


def claim(db: Db, now: int, *, clients: bool = True, busy: list[str] | None = None) -> list[ScheduleRun]:
    with db.transaction():
        return runs.claim_runs(db, now, LEASE, clients=clients, busy=busy or [])[0]


def states(db: Db) -> list[str]:
    return [row["state"] for row in db.fetch("SELECT state FROM schedule_runs ORDER BY created_at, id")]


def test_claim_advances_the_next_run_and_leases_the_run(db: Db) -> None:
    add(db)
    (run,) = claim(db, START + 5)
    assert (run.state, run.attempts, run.scheduled_for, run.lease_until) == ("taken", 1, START, START + 5 + LEASE)
    assert db.value("SELECT next_run FROM scheduled_actions") == START + MINUTE
    assert claim(db, START + 6) == []


def test_leases_double_until_attempts_are_exhausted(db: Db) -> None:
    add(db, schedule="00:00 once")
    now, lengths = START, []
    for _ in range(runs.MAX_ATTEMPTS):
        (run,) = claim(db, now)
        assert run.lease_until
        lengths.append(run.lease_until - now)
        now = run.lease_until
    assert lengths == [LEASE * 2**attempt for attempt in range(runs.MAX_ATTEMPTS)]
    assert claim(db, now) == []
    assert states(db) == ["failed"]


def test_lease_is_at_most_an_hour(db: Db) -> None:
    add(db, schedule="00:00 once")
    db.execute("UPDATE scheduled_actions SET next_run = :at", {"at": START})
    claim(db, START)
    db.execute("UPDATE schedule_runs SET attempts = 7, lease_until = 0")
    with db.transaction():
        (run,), _ = runs.claim_runs(db, START, 600_000, clients=True, busy=[])
    assert run.lease_until == START + runs.MAX_LEASE_MS


def test_claim_renews_the_lease_of_busy_runs(db: Db) -> None:
    add(db, builtin="backup", schedule="00:00 once")
    (run,) = claim(db, START)
    assert claim(db, START + 10 * LEASE, busy=[run.id]) == []
    (again,) = claim(db, START + 20 * LEASE)
    assert (again.id, again.attempts) == (run.id, 2)


def test_run_is_not_created_while_another_is_taken(db: Db) -> None:
    add(db)
    (first,) = claim(db, START)
    with db.transaction():
        runs.renew_lease(db, first.id, START + 10 * MINUTE)
    assert claim(db, START + 5 * MINUTE) == []
    with db.transaction():
        assert runs.finish_run(db, first.id, RunOutcome.redacted("done", {"x": 1}))
    (second,) = claim(db, START + 5 * MINUTE + 1)
    assert second.scheduled_for == START + 5 * MINUTE
    assert states(db) == ["done", "taken"]


def test_finished_run_cannot_be_finished_again(db: Db) -> None:
    add(db)
    (run,) = claim(db, START)
    with db.transaction():
        assert runs.finish_run(db, run.id, RunOutcome.redacted("done", {"x": 1}))
        assert not runs.finish_run(db, run.id, RunOutcome.redacted("failed", error="late"))
    found = runs.find_run(db, run.id)
    assert found
    assert (found.state, found.result, found.error) == ("done", {"x": 1}, None)


def test_finished_runs_are_pruned_to_the_newest_thousand(db: Db) -> None:
    add(db)
    with db.transaction():
        for number in range(runs.MAX_FINISHED_RUNS + 50):
            row = {"id": clock.new_id(), "at": START + number}
            db.execute(
                "INSERT INTO schedule_runs (id, action_id, scheduled_for, state, created_at, finished_at) "
                "VALUES (:id, 'a', :at, 'done', :at, :at)",
                row,
            )
    (run,) = claim(db, START + MINUTE)
    with db.transaction():
        runs.finish_run(db, run.id, RunOutcome("done"))
    assert db.value("SELECT count(*) FROM schedule_runs") == runs.MAX_FINISHED_RUNS
    assert runs.find_run(db, run.id)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(1, 5 * MINUTE), st.booleans(), st.booleans()), max_size=30),
    missed=st.sampled_from(["once", "skip"]),
)
def test_open_runs_are_at_most_one_and_slots_only_increase(
    db: Db, steps: list[tuple[int, bool, bool]], missed: str
) -> None:
    db.execute("DELETE FROM scheduled_actions")
    add(db, missed=missed)
    now, slots = START, []
    for seconds, clients, acknowledged in steps:
        now += seconds
        handed = claim(db, now, clients=clients)
        coming = runs.next_event_time(db, clients=clients)
        assert coming is None or coming > now, "there would be no rest"
        assert db.value("SELECT count(*) FROM schedule_runs WHERE finished_at IS NULL") <= 1
        for run in handed:
            assert run.scheduled_for <= now
            slots.append((run.id, run.scheduled_for))
            if acknowledged:
                with db.transaction():
                    runs.finish_run(db, run.id, RunOutcome("done"))
    distinct = list(dict.fromkeys(slots))
    assert [slot for _, slot in distinct] == sorted({slot for _, slot in distinct})
