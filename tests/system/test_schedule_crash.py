"""Scheduled actions when the daemon is killed: none is lost, none is repeated once acknowledged."""

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from helpers.daemon import DaemonProcess, running_daemon
from helpers.schedules import make_due, next_run_of, nothing_comes, wake

from clankersd import clock
from clankersd.db.connection import Db
from clankersd.schedule import runs

LEASE = "1"
ACTIONS = 12


def test_claimed_run_that_was_never_handed_out_is_handed_out_when_its_lease_ends(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        action = connection.call("schedule.create", description="d", schedule="09:00 daily")["id"]
        daemon.stop()
        make_due(daemon, action)
        lease_until = claim_and_die(daemon)
    with running_daemon(home) as daemon, daemon.connect() as worker:
        worker.call("schedule.subscribe")
        run = next_run_of(worker)
        assert time.time() * 1000 >= lease_until
        assert (run["action"]["id"], run["attempt"]) == (action, 2)
        assert run["action"]["nextRun"] > time.time() * 1000
        worker.call("schedule.ack", runId=run["runId"])
        assert len(worker.call("schedule.history")["runs"]) == 1


def claim_and_die(daemon: DaemonProcess) -> int:
    """What a daemon leaves behind that is killed right after it claimed; tells when the lease ends."""
    raw = apsw.Connection(str(daemon.database))
    raw.pragma("foreign_keys", True)
    db = Db(raw)
    with db.transaction():
        taken, _ = runs.claim_runs(db, clock.now(), 3000, clients=True, busy=[])
    raw.close()
    assert taken[0].lease_until
    return taken[0].lease_until


def test_run_is_repeated_after_a_kill_before_its_acknowledgement_and_never_after(home: Path) -> None:
    environ = {"CLANKERS_SCHEDULE_LEASE_SECONDS": LEASE}
    with running_daemon(home, **environ) as daemon, daemon.connect() as worker:
        action = worker.call("schedule.create", description="d", schedule="09:00 once")["id"]
        worker.call("schedule.subscribe")
        make_due(daemon, action)
        wake(worker, action)
        first = next_run_of(worker)
        daemon.kill()
    with running_daemon(home, **environ) as daemon, daemon.connect() as worker:
        worker.call("schedule.subscribe")
        second = next_run_of(worker)
        assert second["runId"] == first["runId"]
        assert worker.call("schedule.ack", runId=second["runId"])["state"] == "done"
        daemon.kill()
    with running_daemon(home, **environ) as daemon, daemon.connect() as worker:
        worker.call("schedule.subscribe")
        assert nothing_comes(worker, 3)
        assert [run["state"] for run in worker.call("schedule.history")["runs"]] == ["done"]


def test_actions_are_all_executed_despite_kills_and_none_after_its_acknowledgement(home: Path) -> None:
    moments = random.Random(6)
    acknowledged: dict[str, float] = {}
    environ = {"CLANKERS_SCHEDULE_LEASE_SECONDS": "0.3"}
    with running_daemon(home, **environ) as daemon, daemon.connect() as connection:
        actions = [
            connection.call("schedule.create", description=f"d{number}", schedule="09:00 once")["id"]
            for number in range(ACTIONS)
        ]
        daemon.stop()
        for action in actions:
            make_due(daemon, action)
    for _ in range(6):
        with running_daemon(home, **environ) as daemon:
            end = time.monotonic() + moments.uniform(0.02, 0.6)
            work_until(daemon, end, acknowledged, lambda: moments.random() < 0.3)
            daemon.kill()
    with running_daemon(home, **environ) as daemon:
        while len(acknowledged) < ACTIONS:
            work_until(daemon, time.monotonic() + 2, acknowledged, lambda: False)
        with daemon.connect() as connection:
            history = connection.call("schedule.history", limit=1000)["runs"]
            assert sorted(run["actionId"] for run in history) == sorted(actions)
            assert {run["state"] for run in history} == {"done"}


def work_until(daemon: DaemonProcess, end: float, acknowledged: dict[str, float], forgets: Callable[[], bool]) -> None:
    """Do what is handed out, now and then without acknowledging it; take down when it was."""
    with daemon.connect() as worker:
        worker.call("schedule.subscribe")
        while (left := end - time.monotonic()) > 0:
            try:
                run = next_run_of(worker, timeout=left)
            except TimeoutError:
                return
            # What was under way when it was acknowledged may still arrive; after that it is handed out no more.
            assert handed_out_at(run) <= acknowledged.get(run["runId"], math.inf)
            if forgets():
                continue
            worker.socket.settimeout(30)
            assert worker.call("schedule.ack", runId=run["runId"])["state"] == "done"
            acknowledged.setdefault(run["runId"], time.time() * 1000)


def handed_out_at(run: dict[str, Any]) -> float:
    return float(run["leaseUntil"] - 300 * 2 ** (run["attempt"] - 1))


def test_built_in_that_died_with_the_daemon_is_executed_again(home: Path) -> None:
    environ = {"CLANKERS_SCHEDULE_LEASE_SECONDS": LEASE}
    with running_daemon(home, **environ) as daemon, daemon.connect() as connection:
        action = connection.call("schedule.create", description="d", schedule="09:00 once", builtin="backup")["id"]
        daemon.stop()
        make_due(daemon, action)
        claim_and_die(daemon)
    with running_daemon(home, **environ) as daemon, daemon.connect() as connection:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            (run,) = connection.call("schedule.history")["runs"]
            if run["state"] == "done":
                break
            time.sleep(0.05)
        assert (run["state"], run["attempts"]) == ("done", 2)
