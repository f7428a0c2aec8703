"""Commits: writes wait in a queue and are committed together, in the connection's thread.

Commits follow each other without a task that is woken for each; `run` handles those that failed, and checkpoints.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import anyio

from clankers_protocol.errors import StorageUnavailable
from clankersd.db import wal
from clankersd.db.commit_priority import bulk_work_held
from clankersd.db.connection import Connection, Db, Notification
from clankersd.db.engine import MAX_CHUNKS_INDEXED_AT_ONCE
from clankersd.db.errors import STORAGE_ERRORS, FileChanged, FileGone, describe_error, write_unavailable
from clankersd.db.group_commit import Change, ChangeResult, commit_together
from clankersd.db.reopening import ReopeningConnection
from clankersd.db.write_queue import PendingWrite, PendingWrites
from clankersd.metrics import TimedPart, metrics

T = TypeVar("T")

BULK_SECONDS = 0.002
"""Time that the bulk writes of one commit may take before single events get their turn."""

EVENTS_FIRST_SECONDS = 0.01
"""Time that a step of other work waits at most for events: their commits may follow each other without end."""

LOOP_ROUNDS = 2
"""Rounds of the event loop from the arrival of an event until its write is queued, and from the end of its commit until
its reply is sent."""

CHECKPOINT_PAGES = 1000
"""Pages of the WAL (4 MiB) from which on it is checkpointed once no write has come for QUIET_SECONDS."""

CHECKPOINT_PAGES_BUSY = 4_000
"""Pages (16 MiB) from which on it is checkpointed even while writes come: a longer checkpoint delays them more."""

QUIET_SECONDS = 0.002
"""A small checkpoint takes a few milliseconds, so that it fits between the events of a busy agent."""

IDLE_SECONDS = 1.0
"""Time without a write after which any pages are checkpointed."""


@dataclass(frozen=True)
class FailedCommit:
    """A commit that failed, with the writes that it had begun."""

    connection: Connection
    writes: list[PendingWrite]
    error: BaseException


class CommittingConnection(ReopeningConnection):
    """A connection with a queue of writes, which are committed together."""

    def __init__(self, path: Path, backups: Path, durability: str) -> None:
        super().__init__(path, backups, durability)
        self.queue = PendingWrites()
        self.get_write_source: Callable[[], object] = lambda: None
        """Return the connection that the current task serves; writes of one source keep their order."""

        self.publish: Callable[[Notification], None] = lambda _notification: None
        """Announce a committed change to subscribers."""

        self._needed: asyncio.Future[FailedCommit | None] | None = None
        """Resolved when `run` has something to do; None while it does it, and commits all that waits."""
        self._is_commit_due = False
        """True from when a write has asked for a commit without `run`, until no write waits."""
        self._indexing: asyncio.Future[None] | None = None
        self._commit_ended: asyncio.Event | None = None
        """Set at the end of the next commit; None unless somebody waits for it."""

        self._last_written_at = 0.0
        self._quiet_timer: asyncio.TimerHandle | None = None

    # -- for features

    async def write(self, change: Callable[[Db], T], bulk: bool = False) -> T:
        """Run `change` in the next commit; returns once that commit is on the disk.

        Single writes go before bulk writes; each commit runs bulk writes only for a few milliseconds. The writes of
        one source keep their order.

        `change` may run a second time if another one of its batch fails, so it must touch nothing but the database.
        It does not run if the request that it belongs to is cancelled before it begins; after that the request cannot
        be cancelled any more.
        """
        if self._reopened is not None:
            await self._reopened.wait()
        self._serving_connection()
        with TimedPart("write"):
            future = self.queue.add(change, self.get_write_source(), bulk)
            self._commit_soon()
            return await future

    async def write_all(self, changes: Iterable[Callable[[Db], Any]]) -> list[ChangeResult]:
        """Run many changes in order, in as many commits as it takes; returns once all of them are on the disk.

        Each is a bulk write, so single events are committed in between. A change that fails fails alone.
        """
        if self._reopened is not None:
            await self._reopened.wait()
        self._serving_connection()
        results = self.queue.add_all(changes, self.get_write_source())
        self._commit_soon()
        with TimedPart("write"):
            return await results

    async def index_full_text(self) -> str | None:
        """Index the words of texts that were stored a moment ago; return why they cannot be, for `degraded`.

        No request is the cause of this write: it does not wait for other writes of the same client, and the search that
        needs it can still be cancelled.
        """
        if not self._count_unindexed_chunks():
            return None
        try:
            self._serving_connection()
            indexed = self._index_full_text_soon()
            self._commit_soon()
            await asyncio.shield(indexed)
        except StorageUnavailable as error:
            return f"the newest texts are not indexed: {error.message}"
        return None

    def _count_unindexed_chunks(self) -> int:
        return 0 if self._connection is None else self._connection.make_db().unindexed_chunks

    def _index_full_text_soon(self) -> "asyncio.Future[None]":
        """Queue a commit of words, unless one is queued."""
        if self._indexing is None or self._indexing.done():
            self._indexing = self.queue.add_own(lambda db: db.before_commit(Db.index_full_text))
        return self._indexing

    async def let_events_pass(self) -> None:
        """Let events that have arrived be stored and acknowledged before the caller goes on.

        For work that takes a while on the event loop, between its steps. An event passes several rounds of the loop,
        and would wait for a step in each; every statement of its commit would wait for the interpreter lock.
        """
        await _pass_loop_rounds()
        if not self.queue.has_single_writes:
            return
        if self._commit_ended is None:
            self._commit_ended = asyncio.Event()
        with anyio.move_on_after(EVENTS_FIRST_SECONDS):
            await self._commit_ended.wait()
        await _pass_loop_rounds()

    async def run(self) -> None:
        """Commit waiting writes until cancelled.

        Commits follow each other without this task (`_begin_commit`): to wake it twice would take as long as a tenth of
        a small commit. It writes checkpoints, and handles commits that failed.
        """
        while True:
            while self.queue.size:
                await self._commit_waiting()
                if self._guard.unflushed_pages > CHECKPOINT_PAGES_BUSY:
                    await self._checkpoint()
            if (failed := await self._wait_until_needed()) is not None:
                await self._handle_failed_commit(failed)
            elif self._is_checkpoint_due():
                if self._count_unindexed_chunks() and not self.problem:
                    self._index_full_text_soon()  # the checkpoint follows a moment later
                else:
                    await self._checkpoint()

    # -- inside

    async def _wait_until_needed(self) -> FailedCommit | None:
        """Wait until a commit failed, or the WAL has to be checkpointed, or writes wait that cannot be committed."""
        if self.queue.size:
            return None
        self._needed = asyncio.get_running_loop().create_future()
        self._watch_quiet()
        try:
            return await self._needed
        finally:
            self._needed = None

    def _wake(self, failed: FailedCommit | None = None) -> None:
        if self._needed is not None and not self._needed.done():
            self._needed.set_result(failed)

    def _is_checkpoint_due(self) -> bool:
        """Return True if the WAL is long, or if it has pages and no write has come for a while."""
        pages = self._guard.unflushed_pages
        return pages > CHECKPOINT_PAGES_BUSY or (pages > 0 and not self._seconds_until_checkpoint())

    def _seconds_until_checkpoint(self) -> float:
        """Return for how long no write has to come until the WAL is checkpointed."""
        quiet_seconds = QUIET_SECONDS if self._guard.unflushed_pages > CHECKPOINT_PAGES else IDLE_SECONDS
        return max(0.0, self._last_written_at + quiet_seconds - time.monotonic())

    def _watch_quiet(self) -> None:
        """Have the WAL checkpointed once no write has come for a while. A timer for each commit would cost more."""
        if self._quiet_timer is not None or self._is_commit_due or not self._guard.unflushed_pages:
            return  # the end of a commit watches again
        if seconds := self._seconds_until_checkpoint():
            self._quiet_timer = asyncio.get_running_loop().call_later(seconds, self._check_quiet)
        else:
            self._wake()

    def _check_quiet(self) -> None:
        self._quiet_timer = None
        self._watch_quiet()

    def _commit_soon(self) -> None:
        """Have the writes that wait committed, together with those that the event loop adds in this round."""
        if self._needed is not None and not self._is_commit_due:
            self._is_commit_due = True
            asyncio.get_running_loop().call_soon(self._begin_commit)

    def _begin_commit(self) -> None:
        """Commit what waits, and then what was added meanwhile, for as long as `run` is not needed."""
        is_open = self._connection is not None and not self._is_schema_old
        if not self.queue.size or self._needed is None or self._needed.done():
            self._is_commit_due = False
        elif not is_open or self._guard.unflushed_pages > CHECKPOINT_PAGES_BUSY:
            self._is_commit_due = False
            self._wake()
        else:
            assert self._connection is not None
            writes: list[PendingWrite] = []
            done = partial(self._end_commit, self._connection, writes)
            self._connection.post(partial(self._run_commit, writes=writes), done)

    def _end_commit(
        self, connection: Connection, writes: list[PendingWrite], result: list[ChangeResult] | BaseException
    ) -> None:
        if not isinstance(result, BaseException):
            try:
                self._finish_commit(writes, result)
            finally:
                self._begin_commit()
                self._watch_quiet()
            return
        self._is_commit_due = False
        if self._needed is None or self._needed.done():  # the daemon stops, and nobody is left to handle the error
            self._fail(writes, write_unavailable(describe_error(result)))
        else:
            self._wake(FailedCommit(connection, writes, result))

    async def _commit_waiting(self) -> None:
        """Commit single writes that wait, or some bulk writes, or both; resolve those that ran."""
        writes: list[PendingWrite] = []
        try:
            connection = self._serving_connection()
        except StorageUnavailable as unavailable:
            self._fail(self.queue.take_all(), unavailable)
            return
        if (error := await self._commit(connection, writes)) is not None:
            await self._handle_failed_commit(FailedCommit(connection, writes, error))

    async def _handle_failed_commit(self, failed: FailedCommit) -> None:
        """Run the commit again if only another program's checkpoint was in its way; otherwise fail its writes."""
        error, writes = failed.error, failed.writes
        try:
            with anyio.CancelScope(shield=True):  # writes taken are writes answered
                if isinstance(error, FileChanged):
                    await self._reopen(failed.connection, error)
                    if (retried := await self._commit(self._serving_connection(), writes)) is None:
                        return
                    error = retried
                await self._handle_error(error)
                failure = write_unavailable(self.problem or describe_error(error))
        except StorageUnavailable as unavailable:
            failure = unavailable
        if not writes:  # the database was closed, or its files were gone, before it could begin
            writes += self.queue.take_all()
        self._fail(writes, failure)

    async def _commit(self, connection: Connection, writes: list[PendingWrite]) -> BaseException | None:
        """Commit writes from the queue, which are added to `writes`, and resolve them; return the error if it fails.

        Writes are resolved as soon as the event loop hears of the commit, before any task is resumed.
        """
        finished: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def done(result: list[ChangeResult] | BaseException) -> None:
            error = result if isinstance(result, BaseException) else None
            if not finished.done():
                finished.set_result(error)
            elif error is not None:  # the daemon stops, and nobody is left to handle the error
                self._fail(writes, write_unavailable(describe_error(error)))
            if not isinstance(result, BaseException):
                self._finish_commit(writes, result)

        connection.post(partial(self._run_commit, writes=writes), done)
        return await finished

    def _run_commit(self, db: Db, writes: list[PendingWrite]) -> list[ChangeResult]:
        """Commit writes from the queue, in the connection's thread."""
        started = time.perf_counter()
        with bulk_work_held():
            self._guard.verify_before_commit()
            changes = self.queue.select(writes, BULK_SECONDS)
            if self._guard.before_commit():
                _, *results = self._commit_together(db, chain([wal.new_generation], changes))
                self._guard.stamp_committed()
            else:
                results = self._commit_together(db, changes)
        with bulk_work_held():
            self._guard.verify_commit(db)
        metrics.commit_seconds.observe(time.perf_counter() - started)
        metrics.commit_writes.observe(len(results))
        return results

    def _finish_commit(self, writes: list[PendingWrite], results: list[ChangeResult]) -> None:
        self._last_written_at = time.monotonic()
        if self._connection is not None:  # otherwise a read has found the file damaged or gone meanwhile
            self.problem = None
        self.queue.count_commit(len(results))
        self._resolve(writes, results)
        if self._count_unindexed_chunks() > MAX_CHUNKS_INDEXED_AT_ONCE:
            self._index_full_text_soon()

    def _fail(self, writes: list[PendingWrite], failure: StorageUnavailable) -> None:
        self._resolve(writes, [ChangeResult(error=failure) for _ in writes])

    def _resolve(self, writes: list[PendingWrite], results: list[ChangeResult]) -> None:
        self.queue.finish(writes, results, self.publish)
        if self._commit_ended is not None:  # after the callers that waited for their writes
            self._commit_ended.set()
            self._commit_ended = None

    def _commit_together(self, db: Db, changes: Iterable[Change]) -> list[ChangeResult]:
        return commit_together(db, changes)

    async def _checkpoint(self) -> None:
        self._last_written_at = time.monotonic()  # if it fails, it is tried again after the same time
        if (connection := self._connection) is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await connection.run(self._guard.checkpoint)
            except FileChanged as error:
                await self._reopen(connection, error)
            except (*STORAGE_ERRORS, FileGone) as error:
                await self._handle_error(error)


async def _pass_loop_rounds() -> None:
    for _ in range(LOOP_ROUNDS):
        await asyncio.sleep(0)
