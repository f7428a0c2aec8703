"""The store: every read and write of the daemon, and what to do when the file gives trouble."""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import apsw
import structlog

from clankers_protocol.errors import DeadlineExceeded, StorageUnavailable
from clankersd.db import fts, migrations
from clankersd.db.group import Outcome, commit_together
from clankersd.db.sqlite import Connection, Db, Extension, connect, load_vec, look_at, set_durability
from clankersd.db.trouble import DAMAGED, TROUBLE, FileGone, SchemaRefused, in_words, unavailable, unreadable

T = TypeVar("T")
Refusal = Callable[[str], StorageUnavailable]

MOST_PER_COMMIT = 1000
READ_SECONDS = 10.0
RETRY_SECONDS = 2.0
CHECKPOINT_PAGES = 1000  # when nothing waits
CHECKPOINT_PAGES_BUSY = 16_000  # 64 MiB: even while writes wait
IDLE_SECONDS = 1.0
LEAVING_MS = 500
RUSH_CHANGES = 4
RUSH_SECONDS = 0.2

log = structlog.get_logger(component="store")


@dataclass
class Written:
    """What the group commit has done since the start."""

    writes: int = 0
    commits: int = 0
    largest_commit: int = 0


@dataclass(frozen=True)
class FileIdentity:
    """Which file lies at the path and which write-ahead log beside it."""

    database: tuple[int, int] | None
    wal: tuple[int, int] | None

    @staticmethod
    def of(path: Path) -> "FileIdentity":
        return FileIdentity(_inode(str(path)), _inode(f"{path}-wal"))


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # twice per commit: a Path would cost more than the call
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Store:
    """One connection. Writes are committed together, reads run between the commits."""

    def __init__(self, path: Path, backups: Path, durability: str) -> None:
        self.path = path
        self.backups = backups
        self.problem: str | None = None
        self.schema_version: int | None = None
        self.vec = Extension(None)
        self.written = Written()
        self.on_open: list[Callable[[Db], None]] = []
        self._durability = durability
        self._connection: Connection | None = None
        self._identity = FileIdentity(None, None)
        self._vanished = False
        self._damaged = False
        self._behind = False
        self._wal_pages = 0
        self._last_rush = 0.0
        self._closing = False
        self._waiting: deque[tuple[Callable[[Db], Any], asyncio.Future[Any]]] = deque()
        self._woken = anyio.Event()

    @property
    def waiting(self) -> int:
        """Writes that are not yet committed."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether events are coming in just now, more than one now and then."""
        return self.waiting > 0 or self._last_rush > time.monotonic() - RUSH_SECONDS

    # -- for features

    async def write(self, change: Callable[[Db], T]) -> T:
        """Run `change` in the next commit; returns once that commit is on the disk.

        `change` may be run a second time when another one of its batch fails, so it must touch nothing
        but the database. It is run even when the caller is cancelled meanwhile.
        """
        self._serving()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, future))
        self._woken.set()
        return await future

    async def read(self, query: Callable[[Db], T], seconds: float = READ_SECONDS) -> T:
        """The answer of `query` to what is committed; it may take `seconds` and must not write."""

        def bounded(db: Db) -> T:
            self._verify_file()
            deadline = time.monotonic() + seconds
            db.stop_when(lambda: self._closing or time.monotonic() > deadline)
            try:
                return query(db)
            finally:
                db.stop_when(None)

        try:
            return await self._serving(unreadable).run(bounded)
        except apsw.InterruptError as error:
            raise DeadlineExceeded(f"the answer took longer than {seconds:g} s: ask for less") from error
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            raise unreadable(in_words(error)) from error

    async def check_readable(self) -> None:
        """Raise StorageUnavailable unless the database at the path can be read."""
        self._serving(unreadable)
        try:
            self._verify_file()
        except FileGone as error:
            await self._note(error)
            raise unreadable(in_words(error)) from error

    async def aside(self, look: Callable[[Db], T]) -> T:
        """The answer of `look` to what is committed now, on another connection and in another thread.

        For checks that take so long that events must not wait for them; what they find wrong is theirs to tell.
        """
        self._serving(unreadable)
        stopped = threading.Event()
        try:
            return await anyio.to_thread.run_sync(look_at, self.path, look, stopped.is_set, abandon_on_cancel=True)
        except TROUBLE as error:
            raise unreadable(in_words(error)) from error
        finally:
            stopped.set()  # nobody waits for it any more

    async def apart(self, work: Callable[[Db], T]) -> T:
        """Run `work` by itself, outside any transaction: for vacuum, checks, migrations."""
        try:
            return await self._opened(unreadable).run(work)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            raise unreadable(in_words(error)) from error

    # -- life

    async def open(self) -> None:
        """Open and migrate. When that fails the store is there all the same, with a problem."""
        try:
            await self._open()
        except (apsw.Error, OSError, FileGone, SchemaRefused) as error:
            self.problem = in_words(error)
            log.error("database refused", problem=self.problem, error=str(error))

    async def run(self) -> None:
        """Commit what waits, for as long as the daemon lives."""
        while True:
            while self._waiting:
                await self._commit_waiting()
                await self._checkpoint_when(self._wal_pages > CHECKPOINT_PAGES_BUSY)
            await self._checkpoint_when(self._wal_pages > CHECKPOINT_PAGES)
            if not await self._woken_within(IDLE_SECONDS if self._wal_pages else None):
                await self._checkpoint_when(self._wal_pages > 0)

    async def tend(self) -> None:
        """While there is a problem, try every few seconds whether it is over."""
        while True:
            await anyio.sleep(RETRY_SECONDS)
            if self._connection is None:
                if not (self._vanished and not self.path.exists()):
                    await self.open()
            elif self.problem and not self._behind:
                await self._probe()

    async def create_if_missing(self) -> bool:
        """Make a new database where the file has been deleted; tells whether it did."""
        if self._connection is not None and _inode(str(self.path)) is None:
            await self._note(FileGone("the database file was deleted while it was open"))
        if self._connection is not None or self.path.exists():
            return False
        await self.open()
        self._serving()
        return True

    async def set_durability(self, durability: str) -> None:
        """Apply a changed `durability`."""
        self._durability = durability
        if self._connection is not None:
            await self.apart(lambda db: set_durability(db.raw, durability))

    async def migrate(self) -> migrations.Change:
        """Bring the schema up to date, and serve again."""
        change = await self.apart(self._bring_up_to_date)
        self._take_version(change.after)
        return change

    async def roll_back(self) -> migrations.Change:
        """Undo the last migration, and refuse to serve until it is done again."""
        change = await self.apart(lambda db: migrations.roll_back(db, self.backups))
        self._take_version(change.after)
        return change

    async def close(self) -> None:
        """Commit what waits, fold the log into the database, and let go of the file."""
        self._closing = True  # ends what is still read: whoever asked has been waited for long enough
        with anyio.CancelScope(shield=True):
            while self._waiting:
                await self._commit_waiting()
            await self._let_go()

    # -- inside

    def _opened(self, refusal: Refusal = unavailable) -> Connection:
        if self._connection is None:
            raise refusal(self.problem or "the database is not open")
        return self._connection

    def _serving(self, refusal: Refusal = unavailable) -> Connection:
        if self._behind:
            raise refusal(self.problem or "the schema is out of date")
        return self._opened(refusal)

    async def _open(self) -> None:
        connection = await connect(self.path, self._durability)
        try:
            change = await connection.run(self._prepare)
        except BaseException:
            await connection.close()
            raise
        self._connection, self.problem = connection, None
        self._vanished = self._damaged = False
        self._take_version(change.after)
        if change.applied:
            log.info("migrated", applied=change.applied, backup=change.backup and change.backup.name)

    def _prepare(self, db: Db) -> migrations.Change:
        if self._damaged:
            self._mend(db)
        self.vec = load_vec(db)
        if self.vec.problem:
            log.warning("sqlite-vec is missing", problem=self.vec.problem)
        change = self._bring_up_to_date(db)
        db.raw.set_wal_hook(self._count_wal)
        self.path.chmod(0o600)
        self._identity = FileIdentity.of(self.path)
        return change

    def _mend(self, db: Db) -> None:
        """Damage to what follows from other rows is no reason to refuse the file; any other is."""
        if mended := fts.mend(db):
            log.warning("full text made anew", tables=mended)
        if (verdict := db.value("PRAGMA quick_check")) != "ok":
            raise apsw.CorruptError(verdict)

    def _bring_up_to_date(self, db: Db) -> migrations.Change:
        change = migrations.migrate(db, self.backups)
        for prepare in self.on_open:
            prepare(db)
        return change

    def _take_version(self, version: int) -> None:
        newest = migrations.known()[-1].version
        self.schema_version = version
        self._behind = version < newest
        self.problem = (
            f"the schema is at version {version}, this program needs {newest}: run clankers-ctl db migrate"
            if self._behind
            else None
        )

    def _count_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _verify_file(self) -> None:
        found = FileIdentity.of(self.path)
        if found.database is None:
            raise FileGone("the database file was deleted while it was open: put it back, or call ensureDb")
        if found.database != self._identity.database or (self._identity.wal and found.wal != self._identity.wal):
            raise FileGone("the database file or its log was replaced while it was open")

    async def _commit_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_PER_COMMIT))]
        changes = [change for change, _ in batch]
        with anyio.CancelScope(shield=True):  # a batch taken is a batch answered
            outcomes = await self._commit(changes)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            outcome.give_to(future)

    async def _commit(self, changes: list[Callable[[Db], Any]]) -> list[Outcome]:
        def commit(db: Db) -> list[Outcome]:
            outcomes = commit_together(db, changes)
            self._verify_file()  # what went into a deleted file is not stored
            return outcomes

        try:
            outcomes = await self._serving().run(commit)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            return [Outcome(error=unavailable(in_words(error))) for _ in changes]
        except StorageUnavailable as error:
            return [Outcome(error=error) for _ in changes]
        self._count(len(changes))
        return outcomes

    def _count(self, changes: int) -> None:
        self.written.writes += changes
        self.written.commits += 1
        self.written.largest_commit = max(self.written.largest_commit, changes)
        if changes > RUSH_CHANGES:
            self._last_rush = time.monotonic()
        self.problem = None

    async def _woken_within(self, seconds: float | None) -> bool:
        with anyio.move_on_after(seconds):
            await self._woken.wait()
            self._woken = anyio.Event()
            return True
        return False

    async def _checkpoint_when(self, due: bool) -> None:
        connection = self._connection
        if not due or connection is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await connection.run(lambda db: db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE))
                self._wal_pages = 0
            except TROUBLE as error:
                await self._note(error)

    async def _probe(self) -> None:
        def touch(db: Db) -> None:
            db.execute("UPDATE _migrations SET applied_at = applied_at")

        try:
            await self.write(touch)
        except StorageUnavailable as error:
            log.debug("still in trouble", error=str(error))

    async def _note(self, error: BaseException) -> None:
        """Remember the trouble for `health`; a file that is gone or damaged is let go of."""
        problem = in_words(error)
        if problem != self.problem:
            log.error("storage trouble", problem=problem, error=str(error))
        self.problem = problem
        self._vanished = isinstance(error, FileGone) or self._vanished
        self._damaged = isinstance(error, DAMAGED) or self._damaged
        if isinstance(error, (*DAMAGED, FileGone)) and self._connection is not None:
            await self._let_go()

    async def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for step in (partial(connection.run, self._settle_log), connection.close):  # its thread must end in any case
            try:
                await step()
            except apsw.Error as error:
                log.warning("closing failed", error=str(error))

    def _settle_log(self, db: Db) -> None:
        """Empty our log into our file: left full, it would be taken for the log of whatever file is put in
        its place. A log that another file brought along is not ours to touch."""
        if FileIdentity.of(self.path).wal == self._identity.wal:
            db.raw.set_busy_timeout(LEAVING_MS)  # whoever still reads keeps the log, and it is read at the next start
            db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        else:
            db.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
