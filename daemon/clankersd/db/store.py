"""The store: every read and write of the daemon, and what to do when the file gives trouble."""

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
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
BULK_SECONDS = 0.004
"""How long the bulk writes of one commit may take before single events get their turn."""

READ_SECONDS = 10.0
SHORT_READ_SECONDS = 0.02
"""A read that holds the one connection for longer is interrupted, and begun again on a connection of its own."""

MAX_SNAPSHOT_READS = 4
WAIT_WINDOW_SECONDS = 60.0
LONG_WAIT_SECONDS = 2.0
"""From this wait on, `health` reports a problem."""

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


@dataclass(frozen=True)
class _Write:
    """A change that waits for its commit."""

    change: Callable[[Db], Any]
    future: asyncio.Future[Any]
    since: float
    source: object


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
        self.source_of_write: Callable[[], object] = lambda: None
        self._urgent: deque[_Write] = deque()
        self._bulk: deque[_Write] = deque()
        self._bulk_sources: Counter[object] = Counter()
        self._bulk_turn = True
        self._unanswered = 0
        self._committing_since: float | None = None
        self._waits: deque[tuple[float, float]] = deque()
        self._snapshot_reads = anyio.CapacityLimiter(MAX_SNAPSHOT_READS)
        self._woken = anyio.Event()

    @property
    def waiting(self) -> int:
        """Writes that are not yet committed."""
        return self._unanswered

    @property
    def write_wait_seconds(self) -> float:
        """How long the oldest single write waits now."""
        try:
            since = self._urgent[0].since
        except IndexError:
            return time.monotonic() - self._committing_since if self._committing_since else 0.0
        return time.monotonic() - min(since, self._committing_since or since)

    @property
    def longest_write_wait_seconds(self) -> float:
        """The longest wait of a single write within the last minute, up to now."""
        oldest = time.monotonic() - WAIT_WINDOW_SECONDS
        return max([self.write_wait_seconds, *(wait for at, wait in self._waits if at > oldest)])

    @property
    def wait_problem(self) -> str | None:
        """What to say when a write waits long now."""
        if (now := self.write_wait_seconds) > LONG_WAIT_SECONDS:
            return f"events wait to be stored: the oldest for {now:.1f} s; see clankers-ctl jobs and clankers-ctl logs"
        return None

    @property
    def busy(self) -> bool:
        """Whether events are coming in just now, more than one now and then."""
        return self.waiting > 0 or self._last_rush > time.monotonic() - RUSH_SECONDS

    # -- for features

    async def write(self, change: Callable[[Db], T], bulk: bool = False) -> T:
        """Run `change` in the next commit; returns once that commit is on the disk.

        Single writes go before bulk ones, of which each commit takes only what is done in a few milliseconds; the
        writes of one source keep their order.

        `change` may be run a second time when another one of its batch fails, so it must touch nothing
        but the database. It is run even when the caller is cancelled meanwhile.
        """
        self._serving()
        return await self._enqueue(change, bulk)

    async def write_all(self, changes: Iterable[Callable[[Db], Any]]) -> list[Outcome]:
        """Run many changes in order, in as many commits as it takes; returns once all of them are on the disk.

        Each is a bulk write, so single events are committed in between. A change that fails fails alone.
        """
        self._serving()
        futures = [self._enqueue(change, bulk=True) for change in changes]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
        return [Outcome(error=one) if isinstance(one, Exception) else Outcome(one) for one in results]

    async def read(self, query: Callable[[Db], T], seconds: float = READ_SECONDS) -> T:
        """Return the answer of `query` to what is committed; it may take `seconds` and must not write.

        A query that takes long is begun again on a connection of its own, so it must bear being run twice.
        """
        began = time.monotonic()
        short = min(seconds, SHORT_READ_SECONDS)

        def bounded(db: Db) -> T:
            self._verify_file()
            deadline = time.monotonic() + short
            db.stop_when(lambda: self._closing or time.monotonic() > deadline)
            try:
                return query(db)
            except apsw.SQLError as error:  # a virtual table may report an interrupt as an error of its own
                if time.monotonic() > deadline:
                    raise apsw.InterruptError(str(error)) from error
                raise
            finally:
                db.stop_when(None)

        try:
            return await self._serving(unreadable).run(bounded)
        except apsw.InterruptError:
            return await self._read_snapshot(query, began + seconds, seconds)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            raise unreadable(in_words(error)) from error

    async def _read_snapshot(self, query: Callable[[Db], T], deadline: float, seconds: float) -> T:
        """Return the answer of `query` on a snapshot connection; raises DeadlineExceeded after `deadline`."""
        try:
            with anyio.fail_after(deadline - time.monotonic()):
                return await self.aside(query)
        except (TimeoutError, apsw.InterruptError) as error:
            raise DeadlineExceeded(f"the answer took longer than {seconds:g} s: ask for less") from error

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

        def due() -> bool:
            return stopped.is_set() or self._closing

        try:
            return await anyio.to_thread.run_sync(
                look_at, self.path, look, due, abandon_on_cancel=True, limiter=self._snapshot_reads
            )
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
            while self.waiting:
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
            while self.waiting:
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

    def _enqueue(self, change: Callable[[Db], T], bulk: bool) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        source = self.source_of_write()
        bulk = bulk or source in self._bulk_sources  # behind what the same source has sent before
        if bulk and source is not None:
            self._bulk_sources[source] += 1
        (self._bulk if bulk else self._urgent).append(
            _Write(change, future, time.monotonic(), source if bulk else None)
        )
        self._unanswered += 1
        self._woken.set()
        return future

    async def _commit_waiting(self) -> None:
        """Commit single writes that wait, or some bulk writes, or both; answer those whose writes were run."""
        singles: list[_Write] = []
        bulk: list[_Write] = []

        def take() -> None:
            singles.extend(self._urgent.popleft() for _ in range(min(len(self._urgent), MOST_PER_COMMIT)))
            self._committing_since = singles[0].since if singles else None
            if self._bulk_turn or not singles:  # every second commit, so that neither waits for ever
                room = MOST_PER_COMMIT - len(singles)
                bulk.extend(self._bulk.popleft() for _ in range(min(len(self._bulk), room)))
            self._bulk_turn = not bulk

        with anyio.CancelScope(shield=True):  # a batch taken is a batch answered
            outcomes = await self._commit(take, singles, bulk)
        batch = singles + bulk
        self._bulk.extendleft(reversed(batch[len(outcomes) :]))
        self._committing_since = None
        self._note_waits(singles)
        self._unanswered -= len(outcomes)
        for write, outcome in zip(batch, outcomes, strict=False):
            if write.source is not None:
                self._bulk_sources[write.source] -= 1
                if not self._bulk_sources[write.source]:
                    del self._bulk_sources[write.source]
            outcome.give_to(write.future)

    async def _commit(self, take: Callable[[], None], singles: list[_Write], bulk: list[_Write]) -> list[Outcome]:
        def commit(db: Db) -> list[Outcome]:
            take()  # here, so that what came while this waited for the thread comes along
            changes, optional = [write.change for write in singles], [write.change for write in bulk]
            outcomes = commit_together(db, changes, optional, BULK_SECONDS)
            self._verify_file()  # what went into a deleted file is not stored
            return outcomes

        try:
            outcomes = await self._serving().run(commit, urgent=True)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            if not singles + bulk:  # the connection was closed before it could begin
                take()
            return [Outcome(error=unavailable(in_words(error))) for _ in singles + bulk]
        except StorageUnavailable as error:
            take()
            return [Outcome(error=error) for _ in singles + bulk]
        self._count(len(outcomes))
        return outcomes

    def _note_waits(self, writes: list[_Write]) -> None:
        """Remember how long the longest of these writes has waited; the deque keeps falling values only."""
        if not writes:
            return
        now = time.monotonic()
        wait = now - writes[0].since
        while self._waits and (self._waits[-1][1] <= wait):
            self._waits.pop()
        self._waits.append((now, wait))
        while self._waits[0][0] < now - WAIT_WINDOW_SECONDS:
            self._waits.popleft()

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
