"""The connection to the database: opening, migrating, and opening again when its file fails."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import apsw
import structlog

from clankers_protocol.errors import StorageUnavailable
from clankersd.db import fts, migrations, wal
from clankersd.db.connection import Connection, Db, Extension, connect, load_vec, set_durability
from clankersd.db.engine import Engine
from clankersd.db.errors import (
    CORRUPTION_ERRORS,
    FILE_DELETED,
    STORAGE_ERRORS,
    FileChanged,
    FileGone,
    SchemaRefused,
    describe_error,
    write_unavailable,
)
from clankersd.db.file_guard import FileGuard, Inode
from clankersd.db.sqlite_engine import SqliteEngine
from clankersd.db.wal_link import restore_wal, unlink_empty

MakeError = Callable[[str], StorageUnavailable]

log = structlog.get_logger(component="store")


class ReopeningConnection:
    """One connection to the database, which is closed when the file fails and opened again when it is in order."""

    engine: Engine = SqliteEngine()
    is_shared = False
    """True if other daemons write to the same tables."""
    server_name: str | None = None
    """Server and database, without a password; None if the database is a file."""

    def __init__(self, path: Path, backups: Path, durability: str) -> None:
        self.path = path
        self.backups = backups
        self.problem: str | None = None
        self.schema_version: int | None = None
        self.vec = Extension(None)
        self.on_open: list[Callable[[Db], None]] = []
        self._durability = durability
        self._guard = FileGuard(path, backups)
        self._connection: Connection | None = None
        self._open_lock = anyio.Lock()
        self._snapshot_stops: set[threading.Event] = set()
        """Each ends a read on a snapshot connection when it is set."""

        self._connection_lost = anyio.Event()
        self._reopened: anyio.Event | None = None
        self._is_file_gone = False
        self._is_corrupt = False
        self._is_schema_old = False

    @property
    def warnings(self) -> list[str]:
        """Files that were moved aside or saved and that the owner should look at, each in a sentence."""
        return self._guard.warnings

    async def open(self) -> None:
        """Open and migrate the database. If that fails the store exists all the same, with a problem."""
        try:
            async with self._open_lock:
                if self._connection is None:
                    await self._open()
        except (apsw.Error, OSError, FileGone, SchemaRefused) as error:
            if (problem := describe_error(error)) != self.problem:
                log.error("database open failed", problem=problem, error=str(error))
            self.problem = problem

    async def create_if_missing(self) -> bool:
        """Create a new database if the file has been deleted; returns True if it did."""
        if self._connection is not None and not self.path.exists():
            await self._handle_error(FileGone(FILE_DELETED))
        if self._connection is not None or self.path.exists():
            return False
        await self.open()
        self._serving_connection()
        return True

    async def set_durability(self, durability: str) -> None:
        """Apply a changed `durability`."""
        self._durability = durability
        if self._connection is not None:
            await self._connection.run(lambda db: set_durability(db.raw, durability))

    def _open_connection(self, make_error: MakeError = write_unavailable) -> Connection:
        if self._connection is None:
            raise make_error(self.problem or "the database is not open")
        return self._connection

    def _serving_connection(self, make_error: MakeError = write_unavailable) -> Connection:
        if self._is_schema_old:
            raise make_error(self.problem or "the schema is out of date")
        return self._open_connection(make_error)

    async def _open(self) -> None:
        if await anyio.to_thread.run_sync(restore_wal, self.path):
            log.warning("deleted WAL restored from its link")
        if foreign := await anyio.to_thread.run_sync(wal.prepare_to_open, self.path):
            log.warning("foreign WAL moved aside", file=foreign.name)
        self._guard.list_leftovers()
        inode = self._guard.database_inode()
        connection = await connect(self.path, self._durability)
        try:
            migration = await connection.run(partial(self._prepare, inode_before_open=inode))
        except BaseException:
            await connection.close()
            raise
        self._connection, self.problem = connection, None
        self._is_file_gone = self._is_corrupt = False
        self._set_schema_version(migration.after)
        if migration.applied:
            log.info("migrated", applied=migration.applied, backup=migration.backup and migration.backup.name)

    def _prepare(self, db: Db, inode_before_open: Inode | None) -> migrations.MigrationRun:
        """Repair, stamp and migrate a database that was just opened."""
        self._guard.on_database_opened(db)
        if self._is_corrupt:
            # Full-text tables are derived, so damage to them is no reason to refuse the file; any other damage is.
            if rebuilt := fts.rebuild_damaged(db):
                log.warning("full text rebuilt", tables=rebuilt)
            if (verdict := db.value("PRAGMA quick_check")) != "ok":
                raise apsw.CorruptError(verdict)
        state_on_open = self._guard.stamp_on_open(db)
        self.vec = load_vec(db)
        if self.vec.problem:
            log.warning("sqlite-vec is missing", problem=self.vec.problem)
        migration = self._migrate(db)
        self.path.chmod(0o600)
        self._guard.accept(state_on_open, inode_before_open)
        return migration

    def _migrate(self, db: Db, *, is_new_connection: bool = True) -> migrations.MigrationRun:
        migration = migrations.migrate(db, self.backups)
        if migration.applied or is_new_connection:
            for prepare in self.on_open:
                prepare(db)
            db.unindexed_chunks = db.engine.count_unindexed_chunks(db)
        return migration

    def _set_schema_version(self, version: int) -> None:
        newest = migrations.bundled(self.engine.name)[-1].version
        self.schema_version = version
        self._is_schema_old = version < newest
        self.problem = None
        if self._is_schema_old:
            self.problem = (
                f"the schema is at version {version}, this program needs {newest}: run clankers-ctl db migrate"
            )

    async def _reopen(self, connection: Connection, error: FileChanged) -> None:
        """Open the database again after another program wrote to it; reads and writes wait for that."""
        if self._reopened is not None:
            await self._reopened.wait()
        if self._connection is not connection:
            return
        reopened = self._reopened = anyio.Event()
        try:
            await self._handle_error(error)
            await self.open()
        finally:
            self._reopened = None
            reopened.set()

    async def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for stop in self._snapshot_stops:  # a snapshot of this WAL must not outlive the connection
            stop.set()
        async with self._open_lock:  # the files must be closed and in order before they are opened again
            for step in (partial(connection.run, self._guard.secure), connection.close):  # its thread must end anyway
                try:
                    await step()
                except (apsw.Error, OSError) as error:
                    log.warning("closing failed", error=str(error))
            if self._guard.rescued and self.problem:
                self.problem += f"; all that was stored is saved as the backup {self._guard.rescued.name}"
            self._guard.replace_truncated()
            unlink_empty(self.path)

    async def _verify(self, connection: Connection) -> None:
        try:
            await connection.run(lambda _: self._guard.verify())
        except FileChanged as error:
            await self._reopen(connection, error)
        except (*STORAGE_ERRORS, FileGone) as error:
            await self._handle_error(error)

    async def _handle_error(self, error: BaseException) -> None:
        """Record the error for `health`; close the connection if the file is gone or damaged."""
        problem = describe_error(error)
        if problem != self.problem:
            log.error("storage failed", problem=problem, error=str(error))
        self.problem = problem
        self._is_file_gone = isinstance(error, FileGone) or self._is_file_gone
        self._is_corrupt = isinstance(error, CORRUPTION_ERRORS) or self._is_corrupt
        if isinstance(error, (*CORRUPTION_ERRORS, FileGone)) and self._connection is not None:
            await self._close_connection()
            self._connection_lost.set()
