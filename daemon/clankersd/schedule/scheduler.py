"""The scheduler: takes what is due, does it or hands it to a client, and hands it out again until it is done."""

import time
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
from clankersd.schedule.actions import SELECT_ACTION, action_from
from clankersd.schedule.builtins import BUILTINS
from clankersd.wire.rpc import handles
from clankersd.wire.subscriptions import Subscription, asking_peer

if TYPE_CHECKING:
    from clankersd.app import Daemon

LONGEST_SLEEP = 30.0
"""Seconds. The clock may be set and the machine may sleep: what is due is looked up at least so often."""

CLOCK_TOLERANCE_MS = 1000
"""Clocks are adjusted by less than this all the time."""

MOST_RESULT = 256 * 1024
RECEIVERS = "schedule.run"
"""The kind of subscription that gets due actions."""

log = structlog.get_logger(component="schedule")

Handed = tuple[ScheduleRun, ScheduledAction]


class Scheduler:
    """One for the daemon; what it knows beside the database is what it is doing itself."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self.coming: int | None = None
        """When there is something to do again, as far as is known."""
        self._woken = anyio.Event()
        self._busy: set[str] = set()
        self._turn = 0
        self._ahead: float | None = None
        """Milliseconds by which the wall clock was ahead of the monotonic one at the last look."""

    @property
    def lease_ms(self) -> int:
        return round(self._daemon.config.schedule_lease_seconds * 1000)

    def wake(self) -> None:
        """Something changed: look again."""
        self._woken.set()

    async def run(self) -> None:
        """Do what is due, for as long as the daemon lives."""
        await self._daemon.jobs.ready.wait()
        async with anyio.create_task_group() as tasks:
            while True:
                self._woken = anyio.Event()
                try:
                    await self._follow_clock()
                    for handed in await self._claim():
                        self._hand_out(handed, tasks)
                    seconds = await self._seconds_to_wait()
                except RpcError as error:
                    log.warning("schedules wait", problem=error.message)
                    seconds = LONGEST_SLEEP / 10
                with anyio.move_on_after(seconds):
                    await self._woken.wait()

    async def _follow_clock(self) -> None:
        """Plan again when the clock was set back, and at the start: it may have been set back before."""
        ahead = clock.now() - time.monotonic() * 1000
        if self._ahead is not None and ahead > self._ahead - CLOCK_TOLERANCE_MS:
            self._ahead = ahead
            return
        moved = await self._daemon.store.write(lambda db: runs.follow_clock(db, clock.now(), self.lease_ms))
        self._ahead = ahead
        if moved:
            log.warning("schedules follow a clock that was set back", actions=len(moved))

    async def _claim(self) -> list[Handed]:
        now, clients, busy = clock.now(), bool(self._receivers()), sorted(self._busy)

        def claim(db: Db) -> list[Handed]:
            taken, ended = runs.claim(db, now, self.lease_ms, clients=clients, busy=busy)
            ended_runs = [found for one in ended if (found := runs.find(db, one))]
            for run in [*ended_runs, *taken]:
                _announce(db, run)
            return [(run, _action(db, run)) for run in taken]

        coming = await self._daemon.store.read(lambda db: runs.next_event(db, clients=clients))
        if coming is None or coming > now:
            return []
        return await self._daemon.store.write(claim)

    async def _seconds_to_wait(self) -> float:
        clients = bool(self._receivers())
        self.coming = await self._daemon.store.read(lambda db: runs.next_event(db, clients=clients))
        if self.coming is None:
            return LONGEST_SLEEP
        return min(max((self.coming - clock.now()) / 1000, 0.01), LONGEST_SLEEP)

    def _hand_out(self, handed: Handed, tasks: anyio.abc.TaskGroup) -> None:
        run, action = handed
        if action.builtin is not None:
            self._busy.add(run.id)
            tasks.start_soon(self._do, run, action.builtin)
            return
        assert run.lease_until
        due = DueRun(run.id, action, run.scheduled_for, run.attempts, run.lease_until)
        for receiver in self._in_turn():
            if self._daemon.hub.tell(receiver.peer, RUN, due):
                return

    def _receivers(self) -> list[Subscription]:
        return self._daemon.hub.to(RECEIVERS)

    def _in_turn(self) -> list[Subscription]:
        """Those who may get a run, beginning with another one each time."""
        receivers = self._receivers()
        self._turn += 1
        first = self._turn % len(receivers) if receivers else 0
        return receivers[first:] + receivers[:first]

    async def _do(self, run: ScheduleRun, builtin: str) -> None:
        """Do a built-in action as a job. While it runs its lease is renewed; if the daemon dies, it is not."""
        try:
            job_id = await self._daemon.jobs.start(builtin, lambda progress: BUILTINS[builtin](self._daemon, progress))
            job = await self._daemon.jobs.ended(job_id)
            state = "done" if job.state == "done" else "failed"
            result = {"jobId": job_id, "result": job.result}
            await self._end(run.id, state, result, job.error or (None if state == "done" else job.state))
        except Conflict as error:
            log.info("built-in waits", run_id=run.id, problem=error.message)  # handed out again when the lease ends
        except Exception as error:
            log.exception("built-in failed", run_id=run.id, builtin=builtin, error=str(error))
        finally:
            self._busy.discard(run.id)

    async def _end(self, run_id: str, state: str, result: object, error: str | None) -> ScheduleRun:
        def store(db: Db) -> tuple[bool, ScheduleRun | None]:
            changed, run = runs.end(db, run_id, state, result, error), runs.find(db, run_id)
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
        """What a client says of a run that it was handed."""
        if len(msgspec.json.encode(request.result)) > MOST_RESULT:
            raise InvalidParams(f"invalid params: a result takes {MOST_RESULT} bytes at most - at `$.result`")
        if request.state != "working":
            return await self._end(request.run_id, request.state, request.result, request.error)

        def renew(db: Db) -> ScheduleRun | None:
            runs.renew(db, request.run_id, clock.now() + self.lease_ms)
            return runs.find(db, request.run_id)

        run = await self._daemon.store.write(renew)
        if run is None:
            raise NotFound(f"run not found: {request.run_id}")
        return run


def _announce(db: Db, run: ScheduleRun) -> None:
    facts = {"runId": run.id, "attempts": run.attempts, "error": run.error}
    db.after_commit(Notification("schedule", run.state, run.action_id, facts))


def _action(db: Db, run: ScheduleRun) -> ScheduledAction:
    row = db.fetch_one(f"{SELECT_ACTION} WHERE id = :id", {"id": run.action_id})
    assert row
    return action_from(row)


@handles(ScheduleSubscribe)
async def subscribe(daemon: "Daemon", request: ScheduleSubscribe) -> Subscribed:
    subscription = daemon.hub.subscribe(asking_peer(), frozenset({RECEIVERS}), {})
    daemon.scheduler.wake()
    return Subscribed(subscription)


@handles(ScheduleAck)
async def acknowledge(daemon: "Daemon", request: ScheduleAck) -> ScheduleRun:
    return await daemon.scheduler.acknowledge(request)
