"""The store: every read and write of the daemon, and recovery when the database file fails."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import apsw
import structlog

from clankers_protocol.admin import Rows
from clankers_protocol.database_files import copy_database, replace_database
from clankers_protocol.errors import Conflict, DeadlineExceeded, StorageUnavailable
from clankersd.cancellation import current_cancellation
from clankersd.db import migrations, wal
from clankersd.db.backup import Copy, Restoration
from clankersd.db.commit_priority import statements_first
from clankersd.db.connection import (
    SQLITE_VERSION,
    Connection,
    Db,
    Notification,
    run_on_snapshot,
)
from clankersd.db.errors import (
    STORAGE_ERRORS,
    FileChanged,
    FileGone,
    describe_error,
    read_unavailable,
    write_unavailable,
)
from clankersd.db.group_commit import Change, Outcome, commit_together
from clankersd.db.reopening import MakeError, ReopeningConnection
from clankersd.db.write_queue import PendingWrite, PendingWrites
from clankersd.metrics import TimedPart, metrics

T = TypeVar("T")

BULK_SECONDS = 0.002
"""Time that the bulk writes of one commit may take before single events get their turn."""

READ_SECONDS = 10.0
SHORT_READ_SECONDS = 0.02
"""A read that holds the one connection for longer is interrupted and restarted on a snapshot connection."""

MAX_SNAPSHOT_READS = 4
RETRY_SECONDS = 2.0
CHECKPOINT_PAGES = 1000  # once no write has come for QUIET_SECONDS
CHECKPOINT_PAGES_BUSY = 4_000  # 16 MiB: even while writes come, since a longer checkpoint delays them more
QUIET_SECONDS = 0.05
IDLE_SECONDS = 1.0

log = structlog.get_logger(component="store")


@dataclass(frozen=True)
class FailedCommit:
    """A commit that failed, with the writes that it had begun."""

    connection: Connection
    writes: list[PendingWrite]
    error: BaseException


class Store(ReopeningConnection):
    """One connection. Writes are committed together, reads run between the commits."""

    def __init__(self, path: Path, backups: Path, durability: str) -> None:
        super().__init__(path, backups, durability)
        self.queue = PendingWrites()
        self.get_write_source: Callable[[], object] = lambda: None
        """Return the connection that the current task serves; writes of one source keep their order."""

        self.publish: Callable[[Notification], None] = lambda _notification: None
        """Announce a committed change to subscribers."""

        self._snapshot_reads = anyio.CapacityLimiter(MAX_SNAPSHOT_READS)
        self._needed: asyncio.Future[FailedCommit | None] | None = None
        """Resolved when `run` has something to do; None while it does it, and commits all that waits."""
        self._is_commit_due = False
        """True from when a write has asked for a commit without `run`, until no write waits."""
        self._indexing: asyncio.Future[None] | None = None
        self._last_written_at = 0.0
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    def versions(self) -> dict[str, Any]:
        """Return the versions of the engine and of its extension for vectors, as `health` names them."""
        return {"sqlite_version": SQLITE_VERSION, "sqlite_vec_version": self.vec.version}

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

    async def write_all(self, changes: Iterable[Callable[[Db], Any]]) -> list[Outcome]:
        """Run many changes in order, in as many commits as it takes; returns once all of them are on the disk.

        Each is a bulk write, so single events are committed in between. A change that fails fails alone.
        """
        if self._reopened is not None:
            await self._reopened.wait()
        self._serving_connection()
        outcomes = self.queue.add_all(changes, self.get_write_source())
        self._commit_soon()
        with TimedPart("write"):
            return await outcomes

    async def index_words(self) -> str | None:
        """Index the words of texts that were stored a moment ago; return why they cannot be, for `degraded`.

        No request is the cause of this write: it does not wait for other writes of the same client, and the search that
        needs it can still be cancelled.
        """
        if not self._has_unindexed_chunks():
            return None
        try:
            self._serving_connection()
            indexed = self._index_words_soon()
            self._commit_soon()
            await asyncio.shield(indexed)
        except StorageUnavailable as error:
            return f"the newest texts are not indexed: {error.message}"
        return None

    def _has_unindexed_chunks(self) -> bool:
        return self._connection is not None and self._connection.make_db().unindexed_chunks > 0

    def _index_words_soon(self) -> "asyncio.Future[None]":
        """Queue a commit of words, unless one is queued."""
        if self._indexing is None or self._indexing.done():
            self._indexing = self.queue.add_own(lambda db: db.before_commit(Db.index_words))
        return self._indexing

    async def read(self, query: Callable[[Db], T], seconds: float = READ_SECONDS) -> T:
        """Return the result of `query` on the committed data; it may take `seconds` and must not write.

        A query that takes long is restarted on a snapshot connection, so it must be safe to run twice.
        """
        deadline = time.monotonic() + seconds
        short_seconds = min(seconds, SHORT_READ_SECONDS)

        def run_briefly(db: Db) -> T:
            self._guard.verify()
            stop_at = time.monotonic() + short_seconds
            db.interrupt_when(lambda: self._is_closing or time.monotonic() > stop_at)
            try:
                return query(db)
            except apsw.SQLError as error:  # a virtual table may report an interrupt as an error of its own
                if time.monotonic() > stop_at:
                    raise apsw.InterruptError(str(error)) from error
                raise
            finally:
                db.interrupt_when(None)

        if self._reopened is not None:
            await self._reopened.wait()
        try:
            with TimedPart("read"):
                return await self._run(run_briefly, read_unavailable)
        except apsw.InterruptError:
            pass
        except (*STORAGE_ERRORS, FileGone) as error:
            await self._handle_error(error)
            raise read_unavailable(describe_error(error)) from error
        try:
            with TimedPart("snapshot read"), anyio.fail_after(deadline - time.monotonic()):
                return await self.snapshot_read(query)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the answer took longer than {seconds:g} s: ask for less") from error

    read_for_search = read
    """Read what a search returns, which may lack the newest if `search_note` says so."""

    @property
    def search_note(self) -> str | None:
        """A note for `degraded` on where searches read, None if there is nothing to say."""
        return None

    async def check_readable(self) -> None:
        """Raise StorageUnavailable unless the database at the path can be read.

        The check runs in the connection's thread: beside it, a checkpoint of ours would look like a foreign write.
        """
        await self.read(lambda _: None)

    async def snapshot_read(self, query: Callable[[Db], T]) -> T:
        """Return the result of `query` on a snapshot of the committed data, in another connection and thread.

        For slow checks, which would otherwise delay events. Errors of the file are raised, but do not
        count as a problem of the store.
        """
        self._serving_connection(read_unavailable)
        return await self._run_on_snapshot(query, threading.Event())

    async def back_up(self, reason: str, copy: Copy | None = None) -> Path:
        """Make a verified copy of the committed data, while events are stored."""
        self._open_connection(read_unavailable)
        stop = threading.Event()
        work = partial(self.engine.back_up, folder=self.backups, reason=reason, is_stopped=stop.is_set, copy=copy)
        return await self._run_on_snapshot(work, stop)

    async def query(self, sql: str, limit: int, seconds: float) -> Rows | None:
        """Run the owner's SQL on the server; None if it is to be run on the database file, in a process of its own."""
        return None

    async def ensure_owner(self, action: str) -> None:
        """Raise Conflict if another daemon has to do this, because this one does not own the tables."""

    async def index_vectors(self, table: str, dims: int) -> None:
        """Build the index of a table of vectors beside the writes, if the engine has one and it is missing."""

    async def run_exclusive(self, work: Callable[[Db], T]) -> T:
        """Run `work` alone in the connection's thread, outside any transaction: for vacuum, checks, migrations."""

        def run(db: Db) -> T:
            self._guard.stamp_if_needed(db)
            return work(db)

        await anyio.lowlevel.checkpoint_if_cancelled()
        if (cancellation := current_cancellation.get()) is not None:
            cancellation.begin_write()
        try:
            return await self._open_connection(read_unavailable).run(run)
        except (*STORAGE_ERRORS, FileGone) as error:
            await self._handle_error(error)
            raise read_unavailable(describe_error(error)) from error

    async def truncate_wal(self) -> None:
        """Write the WAL to the database and truncate it, unless another program is reading it."""
        await self.run_exclusive(self._guard.truncate_wal)

    # -- lifecycle

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
                if self._has_unindexed_chunks() and not self.problem:
                    self._index_words_soon()  # the checkpoint follows a moment later
                else:
                    await self._checkpoint()

    async def recover(self) -> None:
        """Verify the files every few seconds; while there is a problem, retry until it is over."""
        while True:
            with anyio.move_on_after(RETRY_SECONDS):
                await self._connection_lost.wait()
            self._connection_lost = anyio.Event()
            if self._connection is None:
                if self.path.exists() or not self._is_file_gone:
                    await self.open()
            elif self.problem and not self._is_schema_old:
                await self._try_write()
            else:
                await self._verify(self._connection)

    async def _try_write(self) -> None:
        """Write something that changes nothing: a commit that succeeds ends the problem."""
        try:
            await self.write(lambda db: db.execute("UPDATE _migrations SET applied_at = applied_at"))
        except StorageUnavailable as error:
            log.debug("storage still unavailable", error=str(error))

    async def restore(self, source: Path) -> Restoration:
        """Put a copy of a backup in the place of the database; raises ValueError if it cannot be restored."""
        database = self.path.resolve()
        new = database.with_name(f"{database.name}.restoring")
        try:
            rows = await anyio.to_thread.run_sync(copy_database, source, new)
            replaced = await self.replace_database(new)
        finally:
            for leftover in database.parent.glob(f"{new.name}*"):
                leftover.unlink(missing_ok=True)
        return Restoration(str(database), rows, str(replaced) if replaced else None)

    async def replace_database(self, new: Path) -> Path | None:
        """Put a checked copy in the place of the database and open it; return where the replaced one is.

        Requests that come meanwhile wait. If the new file cannot be opened, the old one is put back.
        """
        if self._reopened is not None:
            await self._reopened.wait()
        reopened = self._reopened = anyio.Event()
        replaced: Path | None = None
        problem: str | None = None
        try:
            with anyio.CancelScope(shield=True):
                while self.queue.size:
                    await self._commit_waiting()
                await self._close_connection()
                replaced = await anyio.to_thread.run_sync(replace_database, self.path, new, "replaced")
                await self.open()
                if self._connection is None:
                    problem = self.problem or "it cannot be opened"
                    if replaced is not None:
                        await anyio.to_thread.run_sync(replace_database, self.path, replaced, "refused")
                        await self.open()
        finally:
            self._reopened = None
            reopened.set()
        if problem is not None:
            raise Conflict(f"the backup was not restored: {problem}")
        return replaced

    async def migrate(self) -> migrations.MigrationRun:
        """Apply pending migrations, and serve again."""
        migration = await self.run_exclusive(lambda db: self._migrate(db, is_new_connection=False))
        self._set_schema_version(migration.after)
        return migration

    async def roll_back(self) -> migrations.MigrationRun:
        """Undo the last migration, and refuse to serve until it is applied again.

        Events are refused from the beginning, so that the backup holds all that was stored before.
        """
        last = (await self.read(migrations.last_applied)).version
        self._is_schema_old, self.problem = True, "the last migration is being undone"
        try:
            backup = await self.back_up(f"before-rollback-{last:04}")
            migration = await self.run_exclusive(lambda db: migrations.roll_back(db, self.backups, backup))
        except BaseException:
            self._set_schema_version(last)
            raise
        self._set_schema_version(migration.after)
        return migration

    async def close(self) -> None:
        """Commit waiting writes, write the WAL to the database, and close the file."""
        self._is_closing = True  # interrupts reads that still run: their callers had time to finish
        with anyio.CancelScope(shield=True):
            if self._has_unindexed_chunks():
                self._index_words_soon()
            while self.queue.size:
                await self._commit_waiting()
            await self._close_connection()

    # -- reads

    async def _run(self, work: Callable[[Db], T], make_error: MakeError) -> T:
        """Run `work` in the connection's thread; retry once if only another program's checkpoint was in its way."""
        connection = self._serving_connection(make_error)
        try:
            return await connection.run(work)
        except FileChanged as error:
            await self._reopen(connection, error)
            return await self._serving_connection(make_error).run(work)

    async def _run_on_snapshot(self, query: Callable[[Db], T], stop: threading.Event) -> T:
        """Run `query` on a snapshot connection; setting `stop` interrupts it."""
        self._snapshot_stops.add(stop)

        def is_stopped() -> bool:
            return stop.is_set() or self._is_closing

        try:
            return await anyio.to_thread.run_sync(
                run_on_snapshot, self.path, query, is_stopped, abandon_on_cancel=True, limiter=self._snapshot_reads
            )
        except STORAGE_ERRORS as error:
            raise read_unavailable(describe_error(error)) from error
        except apsw.InterruptError as error:
            raise read_unavailable("the database was closed meanwhile") from error
        finally:
            stop.set()  # an abandoned thread ends soon
            self._snapshot_stops.discard(stop)

    # -- commits

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
        self, connection: Connection, writes: list[PendingWrite], result: list[Outcome] | BaseException
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

        def done(result: list[Outcome] | BaseException) -> None:
            error = result if isinstance(result, BaseException) else None
            if not finished.done():
                finished.set_result(error)
            elif error is not None:  # the daemon stops, and nobody is left to handle the error
                self._fail(writes, write_unavailable(describe_error(error)))
            if not isinstance(result, BaseException):
                self._finish_commit(writes, result)

        connection.post(partial(self._run_commit, writes=writes), done)
        return await finished

    def _run_commit(self, db: Db, writes: list[PendingWrite]) -> list[Outcome]:
        """Commit writes from the queue, in the connection's thread."""
        started = time.perf_counter()
        with statements_first():
            self._guard.verify_before_commit()
            changes = self.queue.select(writes, BULK_SECONDS)
            if self._guard.before_commit():
                _, *outcomes = self._commit_together(db, chain([wal.new_generation], changes))
                self._guard.stamp_committed()
            else:
                outcomes = self._commit_together(db, changes)
        with statements_first():
            self._guard.verify_commit(db)
        metrics.commit_seconds.observe(time.perf_counter() - started)
        metrics.commit_writes.observe(len(outcomes))
        return outcomes

    def _finish_commit(self, writes: list[PendingWrite], outcomes: list[Outcome]) -> None:
        self._last_written_at = time.monotonic()
        if self._connection is not None:  # otherwise a read has found the file damaged or gone meanwhile
            self.problem = None
        self.queue.count_commit(len(outcomes))
        self.queue.finish(writes, outcomes, self.publish)

    def _fail(self, writes: list[PendingWrite], failure: StorageUnavailable) -> None:
        self.queue.finish(writes, [Outcome(error=failure) for _ in writes], self.publish)

    def _commit_together(self, db: Db, changes: Iterable[Change]) -> list[Outcome]:
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
