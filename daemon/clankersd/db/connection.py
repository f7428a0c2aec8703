"""The driver, chosen once: apsw, which brings a current SQLite that can load extensions.

Many Pythons cannot load extensions and many link a SQLite with the WAL-reset bug; see docs/decisions/0002.
"""

import asyncio
import importlib.util
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import aiosqlite
import apsw

from clankers_protocol.subscriptions import ChangeKind

T = TypeVar("T")

BUSY_TIMEOUT_MS = 5000
CACHE_KIB = 32 * 1024  # SQLite has 2 MiB by itself, and reads the index from the disk over and over
SQLITE_VERSION = apsw.sqlite_lib_version()

_NOTHING: Mapping[str, Any] = {}


def has_wal_reset_bug(version: str) -> bool:
    """Whether this SQLite may lose commits of several connections when it begins its write-ahead log anew."""
    release = tuple(int(part) for part in version.split(".")[:3])
    mended = (release[:2] == (3, 44) and release >= (3, 44, 6)) or (release[:2] == (3, 50) and release >= (3, 50, 7))
    return (3, 7, 0) <= release < (3, 51, 3) and not mended


@dataclass(frozen=True)
class Notification:
    """A stored change that subscribers are told of. `facts` have the names they have on the wire."""

    kind: ChangeKind
    action: str
    id: str
    facts: dict[str, Any] = field(default_factory=dict)


class Db:
    """The database as features see it, inside the connection's thread."""

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw
        self._finishing: dict[Callable[[Db], None], None] = {}
        self._notifications: dict[tuple[str, str, str], Notification] = {}

    def execute(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> None:
        """Run a statement for its effect."""
        self.raw.execute(sql, params)

    def fetch(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[dict[str, Any]]:
        """Every row, by column name."""
        cursor = self.raw.execute(sql, params)
        names: list[str] = []
        rows = []
        for row in cursor:
            names = names or [column[0] for column in cursor.get_description()]
            rows.append(dict(zip(names, row, strict=True)))
        return rows

    def tuples(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[tuple[Any, ...]]:
        """Every row, by position: for thousands of them."""
        return self.raw.execute(sql, params).fetchall()

    def fetch_one(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> dict[str, Any] | None:
        """The first row, if there is one."""
        rows = self.fetch(sql, params)
        return rows[0] if rows else None

    def value(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Any:
        """The first column of the first row."""
        for row in self.raw.execute(sql, params):
            return row[0]
        return None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block, or nothing of it."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            for finish in self._finishing:
                finish(self)
            self.execute("COMMIT")
        except BaseException:
            if self.raw.in_transaction:  # a full disk or a damaged file has ended it already
                self.execute("ROLLBACK")
            raise
        finally:
            self._finishing.clear()
            self._notifications.clear()

    def before_commit(self, finish: "Callable[[Db], None]") -> None:
        """Run `finish` once at the end of this transaction, however often it is asked for."""
        self._finishing[finish] = None

    def after_commit(self, notification: Notification) -> None:
        """Publish `notification` once what the running change stores is committed; never if it is rolled back.

        A change that stores the same thing several times is announced once.
        """
        self._notifications[notification.kind, notification.action, notification.id] = notification

    def take_notifications(self) -> list[Notification]:
        """Return what was collected since the last call, and forget it."""
        if not self._notifications:
            return []
        taken = list(self._notifications.values())
        self._notifications.clear()
        return taken

    def interrupt_when(self, due: Callable[[], bool] | None) -> None:
        """Interrupt whatever runs once `due` says so; None lifts it."""
        self.raw.set_progress_handler(due, 5000)


class _TaskQueue:
    """What the connection's thread has to do: urgent tasks first, the others in the order they came."""

    def __init__(self) -> None:
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._urgent: deque[Any] = deque()
        self._others: deque[Any] = deque()

    def put_nowait(self, task: Any, urgent: bool = False) -> None:
        (self._urgent if urgent else self._others).append(task)
        self._ready.put(None)

    def get(self) -> Any:
        self._ready.get()
        try:
            return self._urgent.popleft()
        except IndexError:
            return self._others.popleft()


class Connection(aiosqlite.Connection):
    """aiosqlite's connection with two things added: a whole function in one hop to its thread, and urgent tasks."""

    def __init__(self, connector: Callable[[], Any]) -> None:
        super().__init__(connector, 64)
        self._tasks = _TaskQueue()
        self._tx = self._tasks  # type: ignore[assignment]
        self._thread = Thread(target=aiosqlite.core._connection_worker_thread, args=(self._tx,))

    async def run(self, work: Callable[[Db], T], urgent: bool = False) -> T:
        """Run `work` in the thread that owns the connection; urgent work goes before what waits there."""
        if self._connection is None or not self._running:
            raise apsw.ConnectionClosedError("the connection is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.put_nowait((future, partial(work, Db(self._conn))), urgent)  # type: ignore[arg-type]
        return await future


@dataclass
class Extension:
    """sqlite-vec, or why it is missing."""

    version: str | None
    problem: str | None = None


async def connect(path: Path, durability: str) -> Connection:
    """The connection to the database at `path`, with every promise about it verified."""
    return await Connection(lambda: _open(path, durability))  # type: ignore[return-value]


def _open(path: Path, durability: str) -> apsw.Connection:
    raw = apsw.Connection(str(path))
    try:
        raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        _set(raw, "busy_timeout", BUSY_TIMEOUT_MS, BUSY_TIMEOUT_MS)
        # Before the first table, or never: it lets `db vacuum` give pages back in small steps.
        raw.pragma("auto_vacuum", "incremental")
        _set(raw, "journal_mode", "wal", "wal")
        raw.pragma("cache_size", -CACHE_KIB)
        _set(raw, "foreign_keys", 1, 1)
        # Overwrite what is deleted with zeros. It costs next to nothing; FTS5's own secure-delete makes deleting twenty
        # times slower (make bench-secure-delete), so `db vacuum` rewrites the full text instead.
        _set(raw, "secure_delete", 1, 1)
        _set(raw, "journal_size_limit", 64 * 1024 * 1024, 64 * 1024 * 1024)
        set_durability(raw, durability)
    except BaseException:
        raw.close()
        raise
    return raw


def run_on_snapshot(path: Path, look: Callable[[Db], T], stopped: Callable[[], bool]) -> T:
    """The answer of `look` to what is committed at one moment, on a connection that only reads, in the caller's thread.

    Whatever it runs is interrupted once `stopped` says so.
    """
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        raw.set_progress_handler(stopped, 5000)
        db = Db(raw)
        load_vec(db)
        db.execute("BEGIN")
        return look(db)
    finally:
        raw.close()


def set_durability(raw: apsw.Connection, durability: str) -> None:
    """`full` syncs every commit to the disk; `normal` may lose the last ones when the power fails."""
    _set(raw, "synchronous", durability, {"normal": 1, "full": 2}[durability])


def _set(raw: apsw.Connection, pragma: str, value: str | int, expected: str | int) -> None:
    raw.pragma(pragma, value)
    found = raw.pragma(pragma)
    if found != expected:
        raise apsw.CantOpenError(f"PRAGMA {pragma} is {found!r} where {expected!r} was set")


def load_vec(db: Db) -> Extension:
    """Load sqlite-vec; without it the daemon still keeps and finds everything by keyword."""
    try:
        db.raw.enable_load_extension(True)
        db.raw.load_extension(_vec_path())
        return Extension(db.value("SELECT vec_version()"))
    except (apsw.Error, OSError) as error:
        return Extension(None, str(error))
    finally:
        db.raw.enable_load_extension(False)


def _vec_path() -> str:
    """Where sqlite-vec's library is. Importing its package would import numpy, which outweighs us."""
    spec = importlib.util.find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        raise OSError("the package sqlite-vec is not installed")
    return str(Path(spec.origin).with_name("vec0"))
