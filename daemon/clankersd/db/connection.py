"""The SQLite driver: apsw, which bundles a current SQLite that can load extensions.

Many Pythons cannot load extensions and many link a SQLite with the WAL-reset bug; see docs/decisions/0002.
"""

import asyncio
import importlib.util
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import aiosqlite
import apsw
import msgspec

from clankers_protocol.subscriptions import ChangeKind
from clankersd.db.commit_priority import release_bulk_work
from clankersd.db.engine import Engine
from clankersd.db.errors import SchemaRefused
from clankersd.db.sqlite_engine import SqliteEngine
from clankersd.metrics import metrics

T = TypeVar("T")

BUSY_TIMEOUT_MS = 5000
PROGRESS_INSTRUCTIONS = 5000
"""SQLite virtual machine instructions between two checks whether to interrupt a statement."""

CACHE_KIB = 32 * 1024  # with SQLite's default of 2 MiB the index is read from the disk over and over
CACHED_STATEMENTS = 512
"""Compiled statements that are kept, the most that apsw allows. Every use of a statement displaces the entry that was
used longest ago: with the default of 100, a statement was compiled again if none of the last 25 messages needed it."""

SQLITE_VERSION = apsw.sqlite_lib_version()

_NOTHING: Mapping[str, Any] = {}
# True for a database that is empty, that we have made, or that the original clankers made.
_IS_OURS = """
    SELECT NOT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table')
        OR EXISTS (SELECT 1 FROM pragma_table_info('_migrations') WHERE name = 'checksum')
        OR EXISTS (SELECT 1 FROM pragma_table_info('sessions') WHERE name = 'project_path')
"""


def has_wal_reset_bug(version: str) -> bool:
    """Return True if this SQLite may lose commits of several connections when it restarts its write-ahead log."""
    release = tuple(int(part) for part in version.split(".")[:3])
    is_fixed = (release[:2] == (3, 44) and release >= (3, 44, 6)) or (release[:2] == (3, 50) and release >= (3, 50, 7))
    return (3, 7, 0) <= release < (3, 51, 3) and not is_fixed


class Notification(msgspec.Struct, frozen=True):
    """A stored change that subscribers are notified of. `facts` have the names they have on the wire."""

    kind: ChangeKind
    action: str
    id: str
    facts: dict[str, Any] = {}


class Db:
    """The database as features see it, in the connection's thread. `engine` does what engines do differently."""

    engine: Engine = SqliteEngine()

    is_shared = False
    """True if other daemons write to the same tables."""

    waiting_commits: Sized = ()
    """Commits that wait for the connection's thread; none on a connection that only reads."""

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw
        self._prepare()

    def _prepare(self) -> None:
        self._finishing: dict[Callable[[Db], None], None] = {}
        self._notifications: dict[tuple[str, str, str], Notification] = {}
        self.change_cache: dict[tuple[str, str], Any] = {}
        """Lookups cached until the running change ends."""
        self.unindexed_chunks = 0
        """Chunks that may have been stored without their words: those of a few are indexed later, together."""
        self.first_new_chunk: int | None = None
        """The first chunk that the running transaction has stored; its chunks are queued for the embedder together."""

    def execute(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> None:
        """Run a statement for its effect."""
        self.raw.execute(sql, params)

    def modify(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> int:
        """Run a statement; return the number of rows that it changed itself, without those of its triggers.

        `total_changes` does not tell that: it also counts what FTS5 writes out when a statement with triggers begins.
        """
        self.raw.execute(sql, params)
        return self.raw.changes()

    def fetch(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[dict[str, Any]]:
        """Return every row as a dict by column name."""
        cursor = self.raw.execute(sql, params)
        names: list[str] = []
        rows = []
        for row in cursor:
            names = names or [column[0] for column in cursor.get_description()]
            rows.append(dict(zip(names, row, strict=True)))
        return rows

    def tuples(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[tuple[Any, ...]]:
        """Return every row as a tuple: for thousands of rows."""
        return self.raw.execute(sql, params).fetchall()

    def fetch_one(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> dict[str, Any] | None:
        """Return the first row, or None."""
        rows = self.fetch(sql, params)
        return rows[0] if rows else None

    def value(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Any:
        """Return the first column of the first row, or None."""
        for row in self.raw.execute(sql, params):
            return row[0]
        return None

    def stream(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Iterator[tuple[list[str], tuple[Any, ...]]]:
        """Yield the column names and one row after another, without having all of them in memory."""
        cursor = self.raw.execute(sql, params)
        names: list[str] = []
        for row in cursor:
            names = names or [column[0] for column in cursor.get_description()]
            yield names, row

    def confirm(self) -> None:
        """Wait until the statements so far have run, and raise the error of one that failed."""

    def total_changes(self) -> int:
        """Return the number of rows that were changed since the connection was opened."""
        return self.raw.total_changes()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction: all of it is committed, or none."""
        self.execute("BEGIN IMMEDIATE")
        unindexed_chunks = self.unindexed_chunks
        try:
            yield
            for finish in self._finishing:
                finish(self)
            release_bulk_work()
            started = time.perf_counter()
            self.execute("COMMIT")
            metrics.sync_seconds.observe(time.perf_counter() - started)
        except BaseException:
            if self.raw.in_transaction:  # a full disk or a damaged file has rolled it back already
                self.execute("ROLLBACK")
            self.unindexed_chunks = unindexed_chunks
            raise
        finally:
            self._finishing.clear()
            self._notifications.clear()
            self.change_cache.clear()
            self.first_new_chunk = None

    def index_full_text(self) -> None:
        """Index the words of all chunks that are stored."""
        release_bulk_work()
        self.engine.index_full_text(self)
        self.unindexed_chunks = 0

    def before_commit(self, finish: "Callable[[Db], None]") -> None:
        """Run `finish` once at the end of this transaction, however often it is registered."""
        self._finishing[finish] = None

    def after_commit(self, notification: Notification) -> None:
        """Publish `notification` once what the running change stores is committed; never if it is rolled back.

        A change that stores the same thing several times is announced once.
        """
        self._notifications[notification.kind, notification.action, notification.id] = notification

    def end_change(self) -> list[Notification]:
        """Clear the cache and the announcements of the change; return the announcements."""
        self.change_cache.clear()
        if not self._notifications:
            return []
        taken = list(self._notifications.values())
        self._notifications.clear()
        return taken

    def interrupt_when(self, is_due: Callable[[], bool] | None) -> None:
        """Interrupt the running statement once `is_due` returns True; None removes the check."""
        self.raw.set_progress_handler(is_due, PROGRESS_INSTRUCTIONS)


class _TaskQueue:
    """Tasks of the connection's thread: urgent ones first, the others in order of arrival."""

    def __init__(self) -> None:
        self._ready: SimpleQueue[None] = SimpleQueue()
        self.urgent: deque[Any] = deque()
        self._others: deque[Any] = deque()

    def put_nowait(self, task: Any, urgent: bool = False) -> None:
        (self.urgent if urgent else self._others).append(task)
        self._ready.put(None)

    def get(self) -> Any:
        self._ready.get()
        try:
            return self.urgent.popleft()
        except IndexError:
            return self._others.popleft()


class Connection(aiosqlite.Connection):
    """aiosqlite's connection, extended to run a function in one hop to its thread, and urgent functions first."""

    def __init__(self, connector: Callable[[], Any]) -> None:
        super().__init__(connector, 64)
        self._db: Db | None = None
        self._tasks = _TaskQueue()
        self._tx = self._tasks  # type: ignore[assignment]
        self._thread = Thread(target=aiosqlite.core._connection_worker_thread, args=(self._tx,))

    async def run(self, work: Callable[[Db], T]) -> T:
        """Run `work` in the thread that owns the connection."""
        if self._connection is None or not self._running:
            raise apsw.ConnectionClosedError("the connection is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.put_nowait((future, partial(work, self.make_db())))
        return await future

    def post(self, work: Callable[[Db], T], done: Callable[[T | BaseException], None]) -> None:
        """Run urgent `work` in the connection's thread, then `done` with its result or its error in the event loop.

        Unlike with `run`, no task is woken in between, and `done` is called even if the caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        if self._connection is None or not self._running:
            loop.call_soon(done, apsw.ConnectionClosedError("the connection is closed"))
            return
        db = self.make_db()

        def run() -> None:
            result: T | BaseException
            try:
                result = work(db)
            except BaseException as error:  # `done` handles it
                result = error
            loop.call_soon_threadsafe(done, result)

        self._tasks.put_nowait((None, run), urgent=True)

    def make_db(self) -> Db:
        """Return the connection as features see it."""
        if self._db is None:
            self._db = Db(self._conn)  # type: ignore[arg-type]
            self._db.waiting_commits = self._tasks.urgent
        return self._db


@dataclass
class Extension:
    """Version of sqlite-vec, or the reason why it is missing."""

    version: str | None
    problem: str | None = None


async def connect(path: Path, durability: str) -> Connection:
    """Open the database at `path`; every pragma that durability depends on is verified."""
    return await Connection(lambda: _open(path, durability))  # type: ignore[return-value]


def check_is_ours(raw: apsw.Connection) -> None:
    """Raise SchemaRefused unless the database is new or one of clankers."""
    if not next(raw.execute(_IS_OURS))[0]:
        raise SchemaRefused("the file is a database of another program: check the path of the database")


def _open(path: Path, durability: str) -> apsw.Connection:
    raw = apsw.Connection(str(path), statementcachesize=CACHED_STATEMENTS)
    try:
        raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        _set_pragma(raw, "busy_timeout", BUSY_TIMEOUT_MS, BUSY_TIMEOUT_MS)
        # Before the first change: the path, which the environment may name, may be that of any database.
        check_is_ours(raw)
        # Takes effect only before the first table: it lets `db vacuum` return pages in small steps.
        raw.pragma("auto_vacuum", "incremental")
        _set_pragma(raw, "journal_mode", "wal", "wal")
        raw.pragma("cache_size", -CACHE_KIB)
        _set_pragma(raw, "foreign_keys", 1, 1)
        # Overwrite deleted content with zeros. It costs next to nothing; FTS5's own secure-delete makes deleting twenty
        # times slower (make bench-secure-delete), so `db vacuum` rewrites the full text instead.
        _set_pragma(raw, "secure_delete", 1, 1)
        _set_pragma(raw, "journal_size_limit", 64 * 1024 * 1024, 64 * 1024 * 1024)
        keep_plans(raw)
        set_durability(raw, durability)
    except BaseException:
        raw.close()
        raise
    return raw


def run_on_snapshot(path: Path, query: Callable[[Db], T], is_stopped: Callable[[], bool]) -> T:
    """Return the result of `query` on a snapshot of the committed data, on a read-only connection in this thread.

    The running statement is interrupted once `is_stopped` returns True.
    """
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        keep_plans(raw)
        raw.set_progress_handler(is_stopped, PROGRESS_INSTRUCTIONS)
        db = Db(raw)
        load_vec(db)
        db.execute("BEGIN")
        return query(db)
    finally:
        raw.close()


def keep_plans(raw: apsw.Connection) -> None:
    """Have SQLite plan a statement once, whatever values are bound to it.

    Otherwise it compiles every statement with a bound value and an ORDER BY, a `max` or a `min` anew each time, which
    takes longer than most of them run.
    """
    raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def set_durability(raw: apsw.Connection, durability: str) -> None:
    """Set the sync mode: `full` syncs every commit; `normal` may lose the last commits in a power failure."""
    _set_pragma(raw, "synchronous", durability, {"normal": 1, "full": 2}[durability])


def _set_pragma(raw: apsw.Connection, pragma: str, value: str | int, expected: str | int) -> None:
    raw.pragma(pragma, value)
    actual = raw.pragma(pragma)
    if actual != expected:
        raise apsw.CantOpenError(f"PRAGMA {pragma} is {actual!r} where {expected!r} was set")


def load_vec(db: Db) -> Extension:
    """Load sqlite-vec; without it everything is still stored and found by keyword."""
    try:
        db.raw.enable_load_extension(True)
        db.raw.load_extension(_vec_path())
        return Extension(db.value("SELECT vec_version()"))
    except (apsw.Error, OSError) as error:
        return Extension(None, str(error))
    finally:
        db.raw.enable_load_extension(False)


def _vec_path() -> str:
    """Return the path of sqlite-vec's library. Importing its package would import numpy, which is larger than us."""
    spec = importlib.util.find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        raise OSError("the package sqlite-vec is not installed")
    return str(Path(spec.origin).with_name("vec0"))
