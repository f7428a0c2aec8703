"""The store: every read and write of the daemon, and recovery when the database file fails."""

import threading
import time
from collections.abc import Callable
from functools import partial
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
from clankersd.db import migrations
from clankersd.db.backup import Copy, Restoration
from clankersd.db.commits import CommittingConnection
from clankersd.db.connection import (
    SQLITE_VERSION,
    Db,
    run_on_snapshot,
)
from clankersd.db.errors import (
    STORAGE_ERRORS,
    FileChanged,
    FileGone,
    describe_error,
    read_unavailable,
)
from clankersd.db.reopening import MakeError
from clankersd.metrics import TimedPart

T = TypeVar("T")

READ_SECONDS = 10.0
SHORT_READ_SECONDS = 0.02
"""A read that holds the one connection for longer is interrupted and restarted on a snapshot connection."""

MAX_SNAPSHOT_READS = 4
RETRY_SECONDS = 2.0

log = structlog.get_logger(component="store")


class Store(CommittingConnection):
    """One connection. Writes are committed together, reads run between the commits."""

    def __init__(self, path: Path, backups: Path, durability: str) -> None:
        super().__init__(path, backups, durability)
        self._snapshot_reads = anyio.CapacityLimiter(MAX_SNAPSHOT_READS)
        self._is_closing = False

    def versions(self) -> dict[str, Any]:
        """Return the versions of the engine and of its extension for vectors, as `health` names them."""
        return {"sqlite_version": SQLITE_VERSION, "sqlite_vec_version": self.vec.version}

    # -- for features

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
            if self._count_unindexed_chunks():
                self._index_full_text_soon()
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
