"""The scheduler: runs due built-in actions, hands other due runs to clients, and retries until one is finished."""

import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog

from clankers_protocol.errors import Conflict, InvalidParams, NotFound, RpcError
from clankers_protocol.schedules import RUN, DueRun, ScheduleAck, ScheduledAction, ScheduleRun, ScheduleSubscribe
from clankers_protocol.subscriptions import Subscribed
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.schedule import runs
from clankersd.schedule.actions import SELECT_ACTION, action_from_row
from clankersd.schedule.builtins import BUILTINS
from clankersd.wire.preparation import is_request_beyond, prepare
from clankersd.wire.rpc import handles
from clankersd.wire.subscriptions import Subscription, calling_connection

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_SLEEP_SECONDS = 30.0
"""Due actions are looked up at least this often, because the clock may be set and the machine may sleep."""

RETRY_SECONDS = 3.0
"""Pause after an error of the database."""

CLOCK_TOLERANCE_MS = 1000
"""Smaller changes of the clock are normal adjustments."""

MAX_RESULT_BYTES = 256 * 1024
RUN_SUBSCRIPTION = "schedule.run"
"""The kind of subscription that receives due runs."""

log = structlog.get_logger(component="schedule")

ClaimedRun = tuple[ScheduleRun, ScheduledAction]


class Scheduler:
    """The daemon's scheduler. Its state is in the database, except for the runs it is executing itself."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self.next_event_at: int | None = None
        """Time of the next due action or ending lease; None if nothing is planned."""
        self._woken = anyio.Event()
        self._executing: set[str] = set()
        """Ids of runs of built-in actions in progress."""
        self._turn = 0
        self._clock_offset_ms: float | None = None
        """Difference between the wall clock and the monotonic clock at the last check."""

    @property
    def lease_ms(self) -> int:
        return round(self._daemon.config.schedule_lease_seconds * 1000)

    def wake(self) -> None:
        """Look for due actions now, because something changed."""
        self._woken.set()

    async def run(self) -> None:
        """Execute and hand out what is due, for as long as the daemon runs."""
        await self._daemon.jobs.ready.wait()
        async with anyio.create_task_group() as tasks:
            while True:
                self._woken = anyio.Event()
                try:
                    await self._check_clock()
                    for claimed in await self._claim():
                        self._hand_out(claimed, tasks)
                    seconds = await self._seconds_to_wait()
                except RpcError as error:
                    log.warning("scheduler paused", problem=error.message)
                    seconds = RETRY_SECONDS
                with anyio.move_on_after(seconds):
                    await self._woken.wait()

    async def _check_clock(self) -> None:
        """Plan again if the clock was set back, and at the start, since it may have been set back before."""
        offset = clock.now() - time.monotonic() * 1000
        if self._clock_offset_ms is None or offset <= self._clock_offset_ms - CLOCK_TOLERANCE_MS:
            moved = await self._daemon.store.write(
                lambda db: runs.replan_after_clock_change(db, clock.now(), self.lease_ms)
            )
            if moved:
                log.warning("schedules replanned after clock change", actions=len(moved))
        self._clock_offset_ms = offset

    async def _claim(self) -> list[ClaimedRun]:
        now, clients, busy = clock.now(), bool(self._subscribers()), sorted(self._executing)

        def claim(db: Db) -> list[ClaimedRun]:
            leased, ended_ids = runs.claim_runs(db, now, self.lease_ms, clients=clients, busy=busy)
            ended = [runs.find_run(db, run_id) for run_id in ended_ids]
            for run in [*(run for run in ended if run is not None), *leased]:
                _announce(db, run)
            claimed = []
            for run in leased:
                row = db.fetch_one(f"{SELECT_ACTION} WHERE id = :id", {"id": run.action_id})
                assert row
                claimed.append((run, action_from_row(row)))
            return claimed

        next_event = await self._daemon.store.read(lambda db: runs.next_event_time(db, clients=clients))
        if next_event is None or next_event > now:
            return []
        return await self._daemon.store.write(claim)

    async def _seconds_to_wait(self) -> float:
        clients = bool(self._subscribers())
        self.next_event_at = await self._daemon.store.read(lambda db: runs.next_event_time(db, clients=clients))
        if self.next_event_at is None:
            return MAX_SLEEP_SECONDS
        return min(max((self.next_event_at - clock.now()) / 1000, 0.01), MAX_SLEEP_SECONDS)

    def _hand_out(self, claimed: ClaimedRun, tasks: anyio.abc.TaskGroup) -> None:
        """Execute a built-in action, or send the run to one client, a different one first each time."""
        run, action = claimed
        if action.builtin is not None:
            self._executing.add(run.id)
            tasks.start_soon(self._execute_builtin, run, action.builtin)
            return
        assert run.lease_until
        due = DueRun(run.id, action, run.scheduled_for, run.attempts, run.lease_until)
        subscribers = self._subscribers()
        self._turn += 1
        first = self._turn % len(subscribers) if subscribers else 0
        for subscriber in subscribers[first:] + subscribers[:first]:
            if self._daemon.hub.notify(subscriber.connection, RUN, due):
                return

    def _subscribers(self) -> list[Subscription]:
        return self._daemon.hub.subscriptions_to(RUN_SUBSCRIPTION)

    async def _execute_builtin(self, run: ScheduleRun, builtin: str) -> None:
        """Run a built-in action as a job. Its lease is renewed while it runs, and ends if the daemon dies."""
        try:
            job_id = await self._daemon.jobs.start(builtin, lambda progress: BUILTINS[builtin](self._daemon, progress))
            job = await self._daemon.jobs.wait(job_id)
            state = "done" if job.state == "done" else "failed"
            result = {"jobId": job_id, "result": job.result}
            await self._finish(run.id, state, result, job.error or (None if state == "done" else job.state))
        except Conflict as error:
            log.info("built-in action deferred", run_id=run.id, problem=error.message)  # retried when the lease ends
        except Exception as error:
            log.exception("built-in action failed", run_id=run.id, builtin=builtin, error=str(error))
        finally:
            self._executing.discard(run.id)

    async def _finish(self, run_id: str, state: str, result: object, error: str | None) -> ScheduleRun:
        outcome = await prepare(partial(runs.RunOutcome.redacted, state, result, error))

        def store(db: Db) -> tuple[bool, ScheduleRun | None]:
            changed, run = runs.finish_run(db, run_id, outcome), runs.find_run(db, run_id)
            if changed and run is not None:
                _announce(db, run)
            return changed, run

        changed, run = await self._daemon.store.write(store)
        if run is None:
            raise NotFound(f"run not found: {run_id}")
        if changed:
            self.wake()  # the action may be due again already
        return run

    async def acknowledge(self, request: ScheduleAck) -> ScheduleRun:
        """Record a client's report on a run: finished, failed, or still working, which renews the lease."""
        if is_request_beyond(MAX_RESULT_BYTES) or len(msgspec.json.encode(request.result)) > MAX_RESULT_BYTES:
            raise InvalidParams(f"invalid params: a result may have at most {MAX_RESULT_BYTES} bytes - at `$.result`")
        if request.state != "working":
            return await self._finish(request.run_id, request.state, request.result, request.error)

        def renew(db: Db) -> ScheduleRun | None:
            runs.renew_lease(db, request.run_id, clock.now() + self.lease_ms)
            return runs.find_run(db, request.run_id)

        run = await self._daemon.store.write(renew)
        if run is None:
            raise NotFound(f"run not found: {request.run_id}")
        return run


def _announce(db: Db, run: ScheduleRun) -> None:
    facts = {"runId": run.id, "attempts": run.attempts, "error": run.error}
    db.after_commit(Notification("schedule", run.state, run.action_id, facts))


@handles(ScheduleSubscribe)
async def subscribe(daemon: "Daemon", request: ScheduleSubscribe) -> Subscribed:
    subscription = daemon.hub.subscribe(calling_connection(), frozenset({RUN_SUBSCRIPTION}), {})
    daemon.scheduler.wake()
    return Subscribed(subscription)


@handles(ScheduleAck)
async def acknowledge(daemon: "Daemon", request: ScheduleAck) -> ScheduleRun:
    return await daemon.scheduler.acknowledge(request)
