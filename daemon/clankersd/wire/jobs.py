"""Jobs: long work that a request starts; clients watch and cancel it by its id."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import structlog

from clankers_protocol.admin import Job, JobCancel, JobList, JobStatus
from clankers_protocol.errors import Conflict, NotFound, RpcError
from clankersd import clock
from clankersd.cancellation import current_cancellation
from clankersd.db import Db, Notification, Store
from clankersd.wire.rpc import current_connection, handles

if TYPE_CHECKING:
    from clankersd.app import Daemon
    from clankersd.wire.connection import ClientConnection

PROGRESS_INTERVAL_SECONDS = 0.1
CANCEL_WAIT_SECONDS = 5.0

_SELECT = "SELECT id, kind, state, done, total, note, result_json, error, created_at, finished_at FROM jobs"
_INSERT = "INSERT INTO jobs (id, kind, state, note, created_at) VALUES (:id, :kind, 'running', :note, :created_at)"
_FINISH = """
    INSERT INTO jobs (id, kind, state, done, total, note, result_json, error, created_at, finished_at)
    VALUES (:id, :kind, :state, :done, :total, :note, :result_json, :error, :created_at, :finished_at)
    ON CONFLICT (id) DO UPDATE SET
        state = :state, done = :done, total = :total, note = :note, result_json = :result_json,
        error = :error, finished_at = :finished_at
"""
"""Inserts the job if a backup was restored since it began, which does not have it."""

_STORED_FIELDS = ("id", "kind", "state", "done", "total", "note", "error", "created_at", "finished_at")
_COUNT = """
    SELECT count(*) FROM jobs
    WHERE kind = :kind AND created_at > :since AND created_at <= :now
      AND (:note IS NULL OR note = :note) AND (:state IS NULL OR state = :state)
"""
_INTERRUPTED = """
    UPDATE jobs SET state = 'failed', error = 'the daemon stopped while it ran', finished_at = :now
    WHERE id = :id
"""
_RESTORED = """
    UPDATE jobs SET state = 'failed', error = 'it was still running when the backup was made', finished_at = created_at
    WHERE state = 'running' AND id NOT IN (SELECT value FROM json_each(:running))
"""

log = structlog.get_logger(component="jobs")


class Progress:
    """Reports the progress of a job."""

    def __init__(self, job: Job, connection: "ClientConnection | None") -> None:
        self._job = job
        self._connection = connection
        self._notified_at = 0.0

    async def __call__(self, done: int, total: int | None = None, note: str | None = None) -> None:
        """Report how far the work is; the job can be cancelled here."""
        self._job.done, self._job.total, self._job.note = done, total, note
        if anyio.current_time() - self._notified_at >= PROGRESS_INTERVAL_SECONDS:
            self.notify()
        await anyio.lowlevel.checkpoint()

    def notify(self) -> None:
        """Send `$/progress` to the connection that started the job, if it is still open."""
        self._notified_at = anyio.current_time()
        if self._connection is not None:
            self._connection.try_notify("$/progress", self._job)


Work = Callable[[Progress], Awaitable[Any]]


@dataclass
class _Running:
    job: Job
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class Jobs:
    """The running jobs; finished ones are in the `jobs` table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running: dict[str, _Running] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self.ready = anyio.Event()

    @property
    def running(self) -> int:
        return len(self._running)

    async def run(self) -> None:
        """Host the jobs until cancelled."""
        try:
            await self._store.write(_close_interrupted)
        except RpcError as error:
            log.warning("interrupted jobs not closed", error=error.message)
        async with anyio.create_task_group() as self._tasks:
            self.ready.set()
            await anyio.sleep_forever()

    async def close_restored(self) -> None:
        """Mark jobs as failed that a restored database takes for running, as the one that made the backup."""
        running = msgspec.json.encode(list(self._running)).decode()
        await self._store.write(lambda db: db.execute(_RESTORED, {"running": running}))

    async def start(self, kind: str, work: Work) -> str:
        """Start `work` and return the job's id; only one job of a kind may run."""
        self.ensure_not_running(kind)
        running = await self._begin(kind, None)
        assert self._tasks
        self._tasks.start_soon(self._work, running, work, current_connection.get())
        return running.job.id

    @asynccontextmanager
    async def track(self, kind: str, note: str) -> AsyncIterator[Job]:
        """Record the block as a job before it runs, so that it counts even if it fails or the daemon stops.

        If the job is cancelled, the block ends early and the job's state says so.
        """
        running = await self._begin(kind, note)
        job = running.job
        try:
            with running.scope:
                yield job
                job.state = "done"
            if job.state == "running":
                job.state = "cancelled"
        except Exception as error:
            job.state, job.error = "failed", str(error)
            raise
        except BaseException:  # the daemon stops
            job.state, job.error = "failed", "the daemon stopped while it ran"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(job, Progress(job, None))
                running.ended.set()

    async def count(self, kind: str, since: int, note: str | None = None, state: str | None = None) -> int:
        """Count the jobs of a kind created after `since` (ms), with this note or in this state if given."""
        params = {"kind": kind, "since": since, "now": clock.now(), "note": note, "state": state}
        return int(await self._store.read(lambda db: db.value(_COUNT, params)))

    async def _begin(self, kind: str, note: str | None) -> _Running:
        job = Job(clock.new_id(), kind, "running", 0, None, note, None, None, clock.now(), None)
        running = self._running[job.id] = _Running(job)
        try:
            row = {"id": job.id, "kind": kind, "note": note, "created_at": job.created_at}
            await self._store.write(partial(_insert, row))
        except BaseException:
            del self._running[job.id]
            raise
        return running

    def is_running(self, kind: str) -> bool:
        """Tell whether a job of this kind runs."""
        jobs = [running.job for running in self._running.values()]  # an ended job may still be listed for a moment
        return any(job.kind == kind and job.state == "running" for job in jobs)

    def ensure_not_running(self, kind: str) -> None:
        """Raise Conflict while a job of this kind runs."""
        if self.is_running(kind):
            raise Conflict(f"a {kind} is running already: see clankers-ctl jobs")

    async def find(self, job_id: str) -> Job:
        """Return the job in its current state; raises NotFound."""
        if job_id in self._running:
            return self._running[job_id].job
        row = await self._store.read(lambda db: db.fetch_one(f"{_SELECT} WHERE id = :id", {"id": job_id}))
        if row is None:
            raise NotFound(f"job not found: {job_id}")
        return _from_row(row)

    async def wait(self, job_id: str) -> Job:
        """Wait for the end of a job and return it."""
        if running := self._running.get(job_id):
            await running.ended.wait()
            return running.job
        return await self.find(job_id)

    async def newest(self, limit: int) -> list[Job]:
        """List jobs, newest first."""
        order = "ORDER BY rowid DESC LIMIT :limit"  # not by time: the clock may have been set back
        rows = await self._store.read(lambda db: db.fetch(f"{_SELECT} {order}", {"limit": limit}))
        return [self._running[row["id"]].job if row["id"] in self._running else _from_row(row) for row in rows]

    async def cancel(self, job_id: str) -> Job:
        """Cancel a running job, and wait up to a few seconds for its end."""
        job = await self.find(job_id)
        if job.state != "running":
            raise Conflict(f"job {job_id} is {job.state} already")
        running = self._running[job_id]
        running.scope.cancel()
        with anyio.move_on_after(CANCEL_WAIT_SECONDS):
            await running.ended.wait()
        return job

    async def _work(self, running: _Running, work: Work, connection: "ClientConnection | None") -> None:
        job = running.job
        progress = Progress(job, connection)
        current_connection.set(None)  # the job's writes need no order relative to the events of that connection
        current_cancellation.set(None)  # and the job goes on when the request that started it has ended
        try:
            with running.scope:
                job.result = await work(progress)
                job.state = "done"
            if job.state == "running":
                job.state = "cancelled"
        except RpcError as error:
            job.state, job.error = "failed", error.message
        except Exception:
            log.exception("job failed", job_id=job.id, kind=job.kind)
            job.state, job.error = "failed", f"internal error: see job {job.id} in the daemon's log"
        except BaseException:  # the daemon stops
            job.state, job.error = "failed", "the daemon stopped while it ran"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(job, progress)
                running.ended.set()

    async def _finish(self, job: Job, progress: Progress) -> None:
        job.finished_at = clock.now()
        row = {
            "result_json": msgspec.json.encode(job.result).decode(),
            **{name: getattr(job, name) for name in _STORED_FIELDS},
        }
        try:
            await self._store.write(partial(_record_end, row))
        except RpcError as error:
            log.error("job result not recorded", job_id=job.id, error=error.message)
        del self._running[job.id]
        progress.notify()


def _close_interrupted(db: Db) -> None:
    """Mark jobs as failed whose daemon is gone; another daemon that shares the tables locks those that it runs."""
    for (job_id,) in db.tuples("SELECT id FROM jobs WHERE state = 'running'"):
        if db.engine.lock(db, f"job {job_id}"):
            db.execute(_INTERRUPTED, {"id": job_id, "now": clock.now()})
            db.engine.unlock(db, f"job {job_id}")


def _insert(row: dict[str, Any], db: Db) -> None:
    db.engine.lock(db, f"job {row['id']}")
    db.execute(_INSERT, row)
    db.after_commit(Notification("job", "started", row["id"], {"kind": row["kind"], "state": "running"}))


def _record_end(row: dict[str, Any], db: Db) -> None:
    db.execute(_FINISH, row)
    db.engine.unlock(db, f"job {row['id']}")
    facts = {"kind": row["kind"], "state": row["state"], "error": row["error"]}
    db.after_commit(Notification("job", row["state"], row["id"], facts))


def _from_row(row: dict[str, Any]) -> Job:
    result = row.pop("result_json")
    return Job(result=msgspec.json.decode(result) if result else None, **row)


@handles(JobStatus)
async def job_status(daemon: "Daemon", request: JobStatus) -> Job:
    return await daemon.jobs.find(request.id)


@handles(JobList)
async def job_list(daemon: "Daemon", request: JobList) -> list[Job]:
    return await daemon.jobs.newest(request.limit)


@handles(JobCancel)
async def job_cancel(daemon: "Daemon", request: JobCancel) -> Job:
    return await daemon.jobs.cancel(request.id)
