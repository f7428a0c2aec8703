"""The store on a PostgreSQL server: one connection that writes, and a pool of connections that read."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import apsw
import structlog

from clankers_protocol.admin import Rows
from clankers_protocol.errors import Conflict, DeadlineExceeded, QueryRefused
from clankersd.db import migrations
from clankersd.db.backup import Restoration
from clankersd.db.connection import SQLITE_VERSION, Db, Extension
from clankersd.db.engine import ServerOptions
from clankersd.db.errors import (
    STORAGE_ERRORS,
    FileGone,
    SchemaRefused,
    ServerBusy,
    describe_error,
    read_unavailable,
)
from clankersd.db.file_guard import FileGuard
from clankersd.db.group_commit import Change, ChangeResult, commit_together
from clankersd.db.postgres.backup import restore_aside, swap_schemas
from clankersd.db.postgres.connection import (
    PostgresConnection,
    PostgresDb,
    connect,
    create_schema,
    describe_server,
    owns_schema,
)
from clankersd.db.postgres.engine import MAX_INDEXED_HALF_DIMS, PostgresEngine
from clankersd.db.postgres.hnsw import MAX_WAITING_SHARE, MIN_INDEXED_VECTORS, IndexBuild
from clankersd.db.postgres.pipeline import ServerConnection
from clankersd.db.postgres.read_pool import ReadPool
from clankersd.db.postgres.replica import Replica
from clankersd.db.store import READ_SECONDS, RETRY_SECONDS, Store
from clankersd.metrics import TimedPart

T = TypeVar("T")

MAX_READS = 8
SNAPSHOT_SECONDS = 3600.0
MAX_COMMIT_TRIES = 4
"""Times that a commit is tried, if writes of another daemon on the same schema stand in its way."""

MAX_LOCK_SECONDS = 5.0
"""Time that a statement waits for locks of other sessions; less than a read may take."""

RELEASE_SECONDS = 2.0
"""Time for the server to end a session that has locked the schema: ours before a restore, or a killed daemon's."""

_MIGRATION_LOCK = "SELECT pg_advisory_{action}(hashtext('clankersd migration'), hashtext(current_schema()))"
_LOCK = "SELECT pg_try_advisory_lock{suffix}(hashtext('clankersd'), hashtext(current_schema()))"
_HOLDERS = """
    SELECT coalesce(client_addr::text, 'this machine') FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND pid <> pg_backend_pid() AND database = datid AND datname = current_database()
      AND classid = hashtext('clankersd')::oid AND objid = hashtext(current_schema())::oid
"""
"""Machines with another daemon on this schema."""

_RESTORE_RIGHTS = "SELECT has_database_privilege(current_database(), 'CREATE'), current_database(), current_user"

_GRANT_TEAM = """
    GRANT USAGE ON SCHEMA "{schema}" TO "{schema}_team";
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{schema}_team";
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{schema}_team";
    REVOKE INSERT, UPDATE, DELETE ON project_members FROM "{schema}_team";
    ALTER DEFAULT PRIVILEGES IN SCHEMA "{schema}" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "{schema}_team";
"""
"""Rights of the members of a team; policies decide which rows they see (migrations/postgres/0006_team.sql)."""

log = structlog.get_logger(component="store")


class ServerGuard(FileGuard):
    """Does nothing: a server guards its files itself."""

    def verify(self) -> None: ...

    def before_commit(self) -> bool:
        return False

    def verify_commit(self, db: Db) -> None: ...

    def stamp_if_needed(self, db: Db) -> None: ...

    def truncate_wal(self, db: Db) -> None: ...

    def checkpoint(self, db: Db) -> None: ...

    def secure(self, db: Db) -> None: ...

    def replace_truncated(self) -> None: ...


class PostgresStore(Store):
    """The store on a server. While the connection is lost, events are refused, and their senders keep them."""

    engine = PostgresEngine()

    def __init__(self, server: ServerOptions, path: Path, backups: Path, durability: str) -> None:
        super().__init__(path, backups, durability)
        self._guard = ServerGuard(path, backups)
        self._url, self._schema, self.is_shared, self._hnsw = server.url, server.schema, server.is_shared, server.hnsw
        self._write_seconds = server.write_seconds
        self.server_name = describe_server(server.url, server.schema)
        self._server_version: str | None = None
        self._indexed_vectors: set[str] = set()
        """Tables of vectors that this daemon need not index any more."""

        self._pool = ReadPool(partial(self._connect_reader, server.url))
        self._replica = Replica() if server.read_url else None
        self._replica_pool = ReadPool(partial(self._connect_reader, server.read_url))
        self._reads = anyio.CapacityLimiter(MAX_READS)

    def versions(self) -> dict[str, Any]:
        found = {"postgres_version": self._server_version, "pgvector_version": self.vec.version}
        return found | {"sqlite_version": SQLITE_VERSION, "sqlite_vec_version": None}

    async def read(self, query: Callable[[Db], T], seconds: float = READ_SECONDS) -> T:
        """Return the result of `query` on the committed data; no statement of it may take longer than `seconds`."""
        if self._reopened is not None:
            await self._reopened.wait()
        self._serving_connection(read_unavailable)
        try:
            with TimedPart("read"):
                return await self._run_pooled(query, seconds)
        except apsw.InterruptError as error:
            raise DeadlineExceeded(f"the answer took longer than {seconds:g} s: ask for less") from error
        except (*STORAGE_ERRORS, FileGone) as error:
            await self._handle_error(error)
            raise read_unavailable(describe_error(error)) from error

    async def read_for_search(self, query: Callable[[Db], T], seconds: float = READ_SECONDS) -> T:
        """Return the result of `query` on the replica if there is one that is up to date, otherwise as `read` does."""
        if self._replica is not None and self._replica.is_usable:
            try:
                with TimedPart("read"):
                    return await self._run_pooled(query, seconds, self._replica_pool)
            except apsw.InterruptError as error:
                raise DeadlineExceeded(f"the answer took longer than {seconds:g} s: ask for less") from error
            except (*STORAGE_ERRORS, FileGone, apsw.BusyError) as error:  # busy: it has to replay a deletion first
                if not isinstance(error, apsw.BusyError):
                    self._replica.problem = describe_error(error)
        return await self.read(query, seconds)

    @property
    def search_note(self) -> str | None:
        return self._replica.note if self._replica is not None else None

    async def query(self, sql: str, limit: int, seconds: float) -> Rows:
        """Run one statement that reads, in a cursor of a read-only transaction: the server refuses anything else."""

        def run(db: Db) -> Rows:
            assert isinstance(db, PostgresDb)
            started = time.perf_counter()
            try:
                names, rows = db.run_cursor(sql, limit + 1)
            except apsw.InterruptError:
                raise
            except apsw.Error as error:
                raise QueryRefused(str(error)) from error
            values = [[_to_json(value) for value in row] for row in rows[:limit]]
            return Rows(names, values, len(rows) > limit, round((time.perf_counter() - started) * 1000, 2))

        return await self.read(run, seconds)

    async def recover(self) -> None:
        """Check the connection every few seconds; while there is a problem, retry until it is over."""
        while True:
            with anyio.move_on_after(RETRY_SECONDS):
                await self._connection_lost.wait()
                await anyio.sleep(RETRY_SECONDS / 4)
            self._connection_lost = anyio.Event()
            if self._connection is None:
                await self.open()
            elif self.problem and not self._is_schema_old:
                await self._try_write()
            else:
                try:
                    await self._connection.run(lambda db: db.value("SELECT 1"))
                    if self._replica is not None:
                        await self._check_replica(self._replica)
                except (*STORAGE_ERRORS, FileGone) as error:
                    await self._handle_error(error)

    async def _check_replica(self, replica: Replica) -> None:
        """Measure how far the replica is behind."""
        await self._run_pooled(replica.record_written, READ_SECONDS)
        try:
            await self._run_pooled(replica.check_replayed, READ_SECONDS, self._replica_pool)
        except (*STORAGE_ERRORS, FileGone, apsw.Error) as error:
            if replica.problem is None:
                log.warning("read replica failed", problem=describe_error(error))
            replica.problem = describe_error(error)

    async def create_if_missing(self) -> bool:
        """Check that the schema is there; opening the store has created it."""
        self._serving_connection()
        return False

    async def restore(self, source: Path) -> Restoration:
        """Restore a backup into a schema of its own, and put that in the place of the one in use.

        Events are stored in the old schema until the two are swapped; requests that come meanwhile wait.
        """
        await self.ensure_owner("restore a backup")
        [rights] = await self._open_connection().run(lambda db: db.tuples(_RESTORE_RIGHTS))
        may_create, database, role = rights
        if not may_create:
            raise Conflict(
                f"the role {role} may not create the restored schema: as superuser, run "
                f'GRANT CREATE ON DATABASE "{database}" TO "{role}"'
            )
        if others := await self._open_connection().run(lambda db: db.tuples(_HOLDERS)):
            hosts = ", ".join(host for (host,) in others)
            raise Conflict(f"other daemons (on {hosts}) use the schema {self._schema}: stop them first")
        rows = await anyio.to_thread.run_sync(restore_aside, self._url, self._schema, source, self.backups)
        if self._reopened is not None:
            await self._reopened.wait()
        reopened = self._reopened = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):
                while self.queue.size:
                    await self._commit_waiting()
                server = await anyio.to_thread.run_sync(connect, self._url, self._schema)
                try:
                    replaced = await anyio.to_thread.run_sync(swap_schemas, server, self._schema)
                finally:
                    server.close()
                await self._close_connection()
                self._pool.close()
                self._replica_pool.close()
                await self.open()
        finally:
            self._reopened = None
            reopened.set()
        self._serving_connection()
        return Restoration(f"schema {self._schema}", rows, f"schema {replaced}")

    async def ensure_owner(self, action: str) -> None:
        if not await self.read(owns_schema):
            raise Conflict(f"only the owner of the schema {self._schema} may {action}: use the owner's daemon")

    async def set_durability(self, durability: str) -> None:
        self._durability = durability
        if self._connection is not None:
            await self._connection.run(self._set_synchronous_commit)

    async def index_vectors(self, table: str, dims: int) -> None:
        """Build the HNSW index of a table with many distinct vectors; few are compared faster than they are indexed.

        While many more are to come, it waits: to add them to the index takes longer than to build it with them.
        If the daemon stops, the build is cancelled, and the next one replaces what it has left.
        """
        if table in self._indexed_vectors or dims > MAX_INDEXED_HALF_DIMS:
            return
        if not await self.read(owns_schema):  # only the owner of a table may index it
            self._indexed_vectors.add(table)
            return
        waiting_count = "SELECT count(*) FROM index_queue WHERE attempts = 0"  # others have failed, maybe for good
        counted = f"SELECT (SELECT count(*) FROM {table}_distinct), ({waiting_count})"
        [(stored, waiting)] = await self.read(lambda db: db.tuples(counted))
        if stored < MIN_INDEXED_VECTORS or waiting > stored * MAX_WAITING_SHARE:
            return
        build = IndexBuild(partial(connect, self._url, self._schema, self._hnsw), table, dims, self._hnsw)
        try:
            if await anyio.to_thread.run_sync(build.run, abandon_on_cancel=True):
                self._indexed_vectors.add(table)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(build.cancel)
            raise

    async def run_exclusive(self, work: Callable[[Db], T]) -> T:
        """Run `work` for as long as it takes: a vacuum or a migration may take hours."""

        def run(db: Db) -> T:
            _set_timeout(db, "statement", 0)
            try:
                return work(db)
            finally:
                _set_timeout(db, "statement", self._write_seconds)

        return await super().run_exclusive(run)

    async def close(self) -> None:
        self._is_closing = True
        pools = (self._pool, self._replica_pool)
        for pool in pools:
            pool.cancel()
        await super().close()
        for pool in pools:
            pool.close()

    async def _open(self) -> None:
        self._indexed_vectors.clear()  # another schema may be in its place, restored from a backup
        connection = PostgresConnection(partial(create_schema, self._url, self._schema, self._hnsw))
        await connection
        try:
            migration = await connection.run(self._prepare_server)
        except BaseException:
            await connection.close()
            raise
        self._connection, self.problem = connection, None
        self._is_file_gone = False
        self._set_schema_version(migration.after)
        if migration.applied:
            log.info("migrated", applied=migration.applied, engine=self.engine.name)

    def _lock_schema(self, db: Db) -> None:
        """Lock the schema for this session; raises SchemaRefused if another daemon keeps it."""
        refused_at = time.monotonic() + RELEASE_SECONDS
        while not db.value(_LOCK.format(suffix="_shared" if self.is_shared else "")):
            if time.monotonic() > refused_at:
                holder = db.value(_HOLDERS) or "a machine that is gone by now"
                raise SchemaRefused(
                    f"another daemon (on {holder}) uses the schema {self._schema}: stop it, choose another "
                    "database_schema, or set database_shared = true for all of them"
                )
            time.sleep(RELEASE_SECONDS / 40)

    def _prepare_server(self, db: Db) -> migrations.MigrationRun:
        """Lock the schema against other daemons, unless it is shared, and migrate it."""
        _set_timeout(db, "lock", min(MAX_LOCK_SECONDS, self._write_seconds / 2))
        db.execute(_MIGRATION_LOCK.format(action="lock"))  # one daemon after another
        self._lock_schema(db)
        assert isinstance(db, PostgresDb)
        db.is_shared = db.server.is_shared = self.is_shared
        self._set_synchronous_commit(db)
        self._server_version = str(db.value("SHOW server_version")).partition(" ")[0]
        self.vec = find_vector_extension(db)
        if self.vec.problem:
            log.warning("pgvector is missing", problem=self.vec.problem)
        is_owner = owns_schema(db)
        newest = migrations.bundled(self.engine.name)[-1].version
        if not is_owner and (found := migrations.version(db)) < newest:
            raise SchemaRefused(
                f"the schema {self._schema} is at version {found}, this program needs {newest}, and only the owner of "
                "the schema may migrate it: start the owner's daemon first"
            )
        migration = self._migrate(db)
        if is_owner and db.value("SELECT 1 FROM pg_roles WHERE rolname = :team", {"team": f"{self._schema}_team"}):
            db.execute(_GRANT_TEAM.format(schema=self._schema))
        db.execute(_MIGRATION_LOCK.format(action="unlock"))
        _set_timeout(db, "statement", self._write_seconds)
        return migration

    def _set_synchronous_commit(self, db: Db) -> None:
        db.execute(f"SET synchronous_commit = {'on' if self._durability == 'full' else 'off'}")

    def _commit_together(self, db: Db, changes: Iterable[Change]) -> list[ChangeResult]:
        """Commit; if another daemon's writes are in the way, commit the same changes again."""
        remaining = iter(changes)
        taken: list[Change] = []

        def recorded() -> Iterator[Change]:
            for change in remaining:
                taken.append(change)
                yield change

        for attempt in range(1, MAX_COMMIT_TRIES + 1):
            try:
                return commit_together(db, chain(taken[:], recorded()))
            except apsw.BusyError as error:
                if attempt == MAX_COMMIT_TRIES or isinstance(error, ServerBusy):
                    raise
                time.sleep(0.05 * attempt)
        raise AssertionError

    def _connect_reader(self, url: str) -> ServerConnection:
        raw = connect(url, self._schema, self._hnsw)
        raw.is_shared = self.is_shared
        _set_timeout(PostgresDb(raw), "lock", MAX_LOCK_SECONDS)
        return raw

    async def _run_on_snapshot(self, query: Callable[[Db], T], stop: threading.Event) -> T:
        try:
            return await self._run_pooled(query, SNAPSHOT_SECONDS)
        except (*STORAGE_ERRORS, FileGone) as error:
            raise read_unavailable(describe_error(error)) from error
        except apsw.InterruptError as error:
            raise read_unavailable("the database was closed meanwhile") from error
        finally:
            stop.set()

    async def _run_pooled(self, query: Callable[[Db], T], seconds: float, pool: ReadPool | None = None) -> T:
        return await anyio.to_thread.run_sync(
            (pool or self._pool).run, query, seconds, abandon_on_cancel=True, limiter=self._reads
        )


def _set_timeout(db: Db, kind: str, seconds: float) -> None:
    """Set how long a statement, or its waiting for a lock, may take on this connection; 0 sets no limit."""
    db.execute(f"SET {kind}_timeout = {int(seconds * 1000)}")


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return value if isinstance(value, str | int | float | None) else str(value)


def find_vector_extension(db: Db) -> Extension:
    """Return the version of pgvector, or the reason why there are no vectors."""
    version = db.value("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    if version is None and not db.value("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        return Extension(
            None,
            "pgvector is not installed on the server: install 0.8 or newer there (see docs/scaling.md), "
            "and as superuser run CREATE EXTENSION vector in this database",
        )
    if version is None:
        return Extension(
            None, "the extension pgvector is missing: as superuser, run CREATE EXTENSION vector in this database"
        )
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 8):
        return Extension(
            None, f"pgvector is {version}, 0.8 is needed: install it, and run ALTER EXTENSION vector UPDATE"
        )
    return Extension(version)
