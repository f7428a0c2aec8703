"""The store: every read and write of the daemon, and what to do when the file gives trouble."""

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import apsw
import structlog

from clankers_protocol.database_files import replace_database
from clankers_protocol.errors import DeadlineExceeded, StorageUnavailable
from clankersd.db import fts, migrations, wal
from clankersd.db.backup import back_up, has_empty_pages
from clankersd.db.connection import (
    Connection,
    Db,
    Extension,
    Notification,
    connect,
    load_vec,
    look_at,
    set_durability,
)
from clankersd.db.errors import (
    DAMAGED,
    DELETED,
    RESTORE,
    TROUBLE,
    FileChanged,
    FileGone,
    SchemaRefused,
    in_words,
    unavailable,
    unreadable,
)
from clankersd.db.group_commit import Outcome, commit_together

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

FOREIGN_NOTE = (
    "a write-ahead log that does not belong to the database was moved aside: {name}; delete it once nothing is missing"
)
DAMAGED_NOTE = (
    "the database file was truncated by another program and replaced by a complete copy; "
    "delete the damaged file once nothing is missing: {name}"
)
RESCUED_NOTE = (
    "the database was saved as {name} when its file was deleted or overwritten; "
    "to use it: clankers-ctl backup restore {name}"
)

log = structlog.get_logger(component="store")


@dataclass
class Written:
    """What the group commit has done since the start."""

    writes: int = 0
    commits: int = 0
    largest_commit: int = 0


@dataclass(frozen=True)
class FileState:
    """Which files lie at the path of the database, and their sizes; None where there is none.

    In WAL mode only a checkpoint writes to the database file, so between our checkpoints its size and time stay.
    """

    database: tuple[int, int] | None
    database_bytes: int
    database_changed_ns: int
    wal: tuple[int, int] | None
    wal_bytes: int
    shm: tuple[int, int] | None

    @staticmethod
    def of(path: str, real_path: str) -> "FileState":
        """Look at the files now; `real_path` is where the path's symbolic link pointed when it was opened."""
        database, log_file, shm = _stat(path), _stat(f"{real_path}-wal"), _stat(f"{real_path}-shm")
        return FileState(
            _inode(database),
            database.st_size if database else 0,
            database.st_mtime_ns if database else 0,
            _inode(log_file),
            log_file.st_size if log_file else 0,
            _inode(shm),
        )

    @property
    def identity(self) -> tuple[tuple[int, int] | None, ...]:
        return self.database, self.wal, self.shm

    def after_checkpoint(self, found: "FileState") -> "FileState":
        """Take over the size and time that our checkpoint gave the file; a file replaced meanwhile is not ours."""
        if found.database != self.database:
            return self
        return replace(self, database_bytes=found.database_bytes, database_changed_ns=found.database_changed_ns)

    def same_database(self, other: "FileState") -> bool:
        """Tell whether the database file is the same and nobody else wrote to it."""
        return (self.database, self.database_bytes, self.database_changed_ns) == (
            other.database,
            other.database_bytes,
            other.database_changed_ns,
        )


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116  # six times per commit: a Path would cost more than the call
    except OSError:
        return None


def _inode(found: os.stat_result | None) -> tuple[int, int] | None:
    return (found.st_dev, found.st_ino) if found else None


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
        self.publish: Callable[[Notification], None] = lambda _notification: None
        self._durability = durability
        self._connection: Connection | None = None
        self._files = FileState(None, 0, 0, None, 0, None)
        self._real_path = str(path)
        self._page_bytes = 0
        self._notes: dict[Path, str] = {}
        self._replacement: Path | None = None
        self._generation_due = False
        self._asides: set[threading.Event] = set()
        self._failed = anyio.Event()
        self._opening = anyio.Lock()
        self._reopened: anyio.Event | None = None
        self._vanished = False
        self._damaged = False
        self._behind = False
        self._wal_pages = 0  # not yet checkpointed
        self._wal_frames = 0  # in the log
        self._frames_before = 0  # in the log before the last commit
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

    @property
    def notes(self) -> list[str]:
        """Files that were moved aside or saved and that the owner should look at, each in a sentence."""
        return [note for path, note in self._notes.items() if path.exists()]

    # -- for features

    async def write(self, change: Callable[[Db], T], bulk: bool = False) -> T:
        """Run `change` in the next commit; returns once that commit is on the disk.

        Single writes go before bulk ones, of which each commit takes only what is done in a few milliseconds; the
        writes of one source keep their order.

        `change` may be run a second time when another one of its batch fails, so it must touch nothing
        but the database. It is run even when the caller is cancelled meanwhile.
        """
        if self._reopened is not None:
            await self._reopened.wait()
        self._serving()
        return await self._enqueue(change, bulk)

    async def write_all(self, changes: Iterable[Callable[[Db], Any]]) -> list[Outcome]:
        """Run many changes in order, in as many commits as it takes; returns once all of them are on the disk.

        Each is a bulk write, so single events are committed in between. A change that fails fails alone.
        """
        if self._reopened is not None:
            await self._reopened.wait()
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
            self._verify_files()
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

        if self._reopened is not None:
            await self._reopened.wait()
        try:
            return await self._run(bounded, unreadable)
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
        except TimeoutError as error:
            raise DeadlineExceeded(f"the answer took longer than {seconds:g} s: ask for less") from error

    async def check_readable(self) -> None:
        """Raise StorageUnavailable unless the database at the path can be read.

        The check runs in the connection's thread: beside it, a checkpoint of ours would look like a foreign write.
        """
        await self.read(lambda _: None)

    async def aside(self, look: Callable[[Db], T]) -> T:
        """The answer of `look` to what is committed now, on another connection and in another thread.

        For checks that take so long that events must not wait for them; what they find wrong is theirs to tell.
        """
        self._serving(unreadable)
        return await self._aside(look, threading.Event())

    async def back_up(self, why: str) -> Path:
        """Make a verified copy of what is committed now, while events are stored."""
        self._opened(unreadable)
        stopped = threading.Event()
        return await self._aside(partial(back_up, folder=self.backups, why=why, stopped=stopped.is_set), stopped)

    async def _aside(self, look: Callable[[Db], T], stopped: threading.Event) -> T:
        self._asides.add(stopped)

        def due() -> bool:
            return stopped.is_set() or self._closing

        try:
            return await anyio.to_thread.run_sync(
                look_at, self.path, look, due, abandon_on_cancel=True, limiter=self._snapshot_reads
            )
        except TROUBLE as error:
            raise unreadable(in_words(error)) from error
        except apsw.InterruptError as error:
            raise unreadable("the database was closed meanwhile") from error
        finally:
            stopped.set()  # nobody waits for it any more
            self._asides.discard(stopped)

    async def apart(self, work: Callable[[Db], T]) -> T:
        """Run `work` by itself, outside any transaction: for vacuum, checks, migrations."""

        def stamped(db: Db) -> T:
            if self._generation_due:
                self._begin_generation(db)
            return work(db)

        try:
            return await self._opened(unreadable).run(stamped)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            raise unreadable(in_words(error)) from error

    async def empty_log(self) -> None:
        """Write the log into the database and truncate it, unless another program is reading it."""

        def checkpoint(db: Db) -> None:
            self._verify_files()
            try:
                db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self._wal_frames = 0
            except apsw.BusyError:
                log.info("log not emptied", reason="another connection reads it")
            finally:
                self._files = self._files.after_checkpoint(self._look_at_files())
            self._generation_due = True

        await self.apart(checkpoint)

    # -- life

    async def open(self) -> None:
        """Open and migrate. When that fails the store is there all the same, with a problem."""
        try:
            async with self._opening:
                if self._connection is None:
                    await self._open()
        except (apsw.Error, OSError, FileGone, SchemaRefused) as error:
            if (problem := in_words(error)) != self.problem:
                log.error("database refused", problem=problem, error=str(error))
            self.problem = problem

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
        """Look at the files every few seconds; while there is a problem, try whether it is over."""
        while True:
            with anyio.move_on_after(RETRY_SECONDS):
                await self._failed.wait()
            self._failed = anyio.Event()
            if self._connection is None:
                if not (self._vanished and not self.path.exists()):
                    await self.open()
            elif self.problem and not self._behind:
                await self._probe()
            else:
                await self._watch(self._connection)

    async def create_if_missing(self) -> bool:
        """Make a new database where the file has been deleted; tells whether it did."""
        if self._connection is not None and not self.path.exists():
            await self._note(FileGone(DELETED))
        if self._connection is not None or self.path.exists():
            return False
        await self.open()
        self._serving()
        return True

    async def set_durability(self, durability: str) -> None:
        """Apply a changed `durability`."""
        self._durability = durability
        if self._connection is not None:
            await self._connection.run(lambda db: set_durability(db.raw, durability))

    async def migrate(self) -> migrations.Change:
        """Bring the schema up to date, and serve again."""
        change = await self.apart(self._bring_up_to_date)
        self._take_version(change.after)
        return change

    async def roll_back(self) -> migrations.Change:
        """Undo the last migration, and refuse to serve until it is done again.

        Events are refused from the beginning, so that the backup holds all that was stored before.
        """
        last = (await self.read(migrations.last_applied)).version
        self._behind, self.problem = True, "the last migration is being undone"
        try:
            backup = await self.back_up(f"before-rollback-{last:04}")
            change = await self.apart(lambda db: migrations.roll_back(db, self.backups, backup))
        except BaseException:
            self._take_version(last)
            raise
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

    async def _run(self, work: Callable[[Db], T], refusal: Refusal, urgent: bool = False) -> T:
        """Run `work` in the connection's thread; once more, when only another program's checkpoint was in its way."""
        connection = self._serving(refusal)
        try:
            return await connection.run(work, urgent)
        except FileChanged as error:
            await self._reopen(connection, error)
            return await self._serving(refusal).run(work, urgent)

    async def _reopen(self, connection: Connection, error: FileChanged) -> None:
        """Open the database again after another program wrote to it; reads and writes wait for that."""
        if self._reopened is not None:
            await self._reopened.wait()
        if self._connection is not connection:
            return
        reopened = self._reopened = anyio.Event()
        try:
            await self._note(error)
            await self.open()
        finally:
            self._reopened = None
            reopened.set()

    async def _open(self) -> None:
        if foreign := await anyio.to_thread.run_sync(wal.prepare_to_open, self.path):
            log.warning("foreign WAL moved aside", file=foreign.name)
        database = self.path.resolve()
        for path in database.parent.glob(f"{database.name}-wal.{wal.FOREIGN_SUFFIX}-*"):
            self._notes[path] = FOREIGN_NOTE.format(name=path.name)
        for path in database.parent.glob(f"{database.name}.damaged-*[0-9]"):
            self._notes[path] = DAMAGED_NOTE.format(name=path.name)
        before = _inode(_stat(str(self.path)))
        connection = await connect(self.path, self._durability)
        try:
            change = await connection.run(self._prepare)
            if before is not None and before != self._files.database:
                raise FileGone("the database file was replaced while it was being opened")
        except BaseException:
            await connection.close()
            raise
        self._connection, self.problem = connection, None
        self._vanished = self._damaged = False
        self._take_version(change.after)
        if change.applied:
            log.info("migrated", applied=change.applied, backup=change.backup and change.backup.name)

    def _prepare(self, db: Db) -> migrations.Change:
        self._real_path = os.path.realpath(self.path)
        self._page_bytes = db.value("PRAGMA page_size")
        self._wal_pages = self._wal_frames = self._frames_before = 0
        db.raw.set_wal_hook(self._count_wal)
        if self._damaged:
            self._mend(db)
        self._begin_first_generation(db)
        opened = self._look_at_files()
        self.vec = load_vec(db)
        if self.vec.problem:
            log.warning("sqlite-vec is missing", problem=self.vec.problem)
        change = self._bring_up_to_date(db)
        self.path.chmod(0o600)
        self._files = self._look_at_files()
        if None in opened.identity or opened.identity != self._files.identity:
            raise FileGone("the database file or its write-ahead log was replaced while it was being opened")
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

    def _count_wal(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._wal_frames:  # another program's checkpoint let this commit restart the log
            self._generation_due = True
        self._wal_pages = self._wal_frames = frames
        return apsw.SQLITE_OK

    def _begin_first_generation(self, db: Db) -> None:
        """Stamp the database on open; a database without stamps must not share its WAL with the first one."""
        unstamped = not db.raw.pragma("application_id")
        self._begin_generation(db)
        if unstamped:
            with suppress(apsw.BusyError):  # another program reads; the next checkpoint does it
                db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self._wal_frames = 0
            self._begin_generation(db)

    def _begin_generation(self, db: Db) -> None:
        with db.transaction():
            wal.new_generation(db)
        self._generation_due = False

    def _look_at_files(self) -> FileState:
        return FileState.of(str(self.path), self._real_path)

    def _verify_files(self) -> None:
        """Raise FileGone when what is or will be committed could not be read by whoever opens the database next."""
        found, known = self._look_at_files(), self._files
        if found.database is None:
            raise FileGone(DELETED)
        if found.database != known.database:
            raise FileGone("the database file was replaced while it was open")
        if found.database_bytes < known.database_bytes:
            raise FileGone(f"the database file was truncated while it was open: {RESTORE}")
        if found.wal != known.wal or found.shm != known.shm:
            raise FileGone("the database's write-ahead log was deleted or replaced while it was open")
        if not found.same_database(known):
            raise FileChanged("another program wrote to the database file while it was open")
        if not self._log_is_whole(found):
            raise FileGone("the database's write-ahead log was truncated while it was open")

    def _log_is_whole(self, found: FileState) -> bool:
        """Look at the log's size, and for the hole that a commit leaves if the log was truncated just before it."""
        if found.wal_bytes < wal.frame_bytes(self._page_bytes, self._wal_frames):
            return False
        last = min(self._frames_before, self._wal_frames)
        return last == 0 or wal.has_frame(f"{self._real_path}-wal", self._page_bytes, last)

    async def _watch(self, connection: Connection) -> None:
        try:
            await connection.run(lambda _: self._verify_files())
        except FileChanged as error:
            await self._reopen(connection, error)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)

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
            for notification in outcome.notifications:
                self.publish(notification)
            outcome.give_to(write.future)

    async def _commit(self, take: Callable[[], None], singles: list[_Write], bulk: list[_Write]) -> list[Outcome]:
        def commit(db: Db) -> list[Outcome]:
            self._verify_files()
            take()  # here, so that what came while this waited for the thread comes along
            changes, optional = [write.change for write in singles], [write.change for write in bulk]
            self._frames_before = self._wal_frames
            if not self._generation_due:
                outcomes = commit_together(db, changes, optional, BULK_SECONDS)
            else:
                _, *outcomes = commit_together(db, [wal.new_generation, *changes], optional, BULK_SECONDS)
                self._generation_due = False
            try:
                self._verify_files()  # what went into a deleted file is not stored
            except FileChanged as error:
                # It is committed, so it must not be run again. After a mere checkpoint it can be read; the next use of
                # the connection finds the change again and opens the database anew.
                if not (self._log_is_whole(self._look_at_files()) and self._has_our_stamp(db)):
                    raise FileGone(str(error)) from error
            return outcomes

        try:
            outcomes = await self._run(commit, unavailable, urgent=True)
        except (*TROUBLE, FileGone) as error:
            await self._note(error)
            if not singles + bulk:  # the connection was closed, or the files were gone, before it could begin
                take()
            return [Outcome(error=unavailable(self.problem or in_words(error))) for _ in singles + bulk]
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

        def checkpoint(db: Db) -> None:
            self._verify_files()
            try:
                db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                self._files = self._files.after_checkpoint(self._look_at_files())
            self._generation_due = True  # the next commit may begin the log again

        with anyio.CancelScope(shield=True):
            try:
                await connection.run(checkpoint)
                self._wal_pages = 0
            except FileChanged as error:
                await self._reopen(connection, error)
            except (*TROUBLE, FileGone) as error:
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
            self._failed.set()

    async def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for stopped in self._asides:  # their view of the log must not outlive ours
            stopped.set()
        async with self._opening:  # nobody may open the files before they are closed and in order
            for step in (partial(connection.run, self._secure), connection.close):  # its thread must end in any case
                try:
                    await step()
                except (apsw.Error, OSError) as error:
                    log.warning("closing failed", error=str(error))
            new, self._replacement = self._replacement, None
            if new is None:
                return
            try:
                damaged = replace_database(self.path, new, "damaged")
                log.warning("truncated database replaced by its copy", damaged=damaged and damaged.name)
            except OSError as error:  # the copy stays among the backups
                log.error("truncated database not replaced", error=str(error))

    def _secure(self, db: Db) -> None:
        """Before the files are closed, make sure that what was acknowledged can be read by whoever opens them next."""
        found, known = self._look_at_files(), self._files
        names_are_ours = found.wal == known.wal and found.shm == known.shm
        log_is_whole = found.wal != known.wal or self._log_is_whole(found)
        if not names_are_ours:
            # Closing would delete the files at these names, which are not ours any more.
            db.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if found.database != known.database:  # deleted or replaced: only this connection still has it
            self._rescue(db)
        elif not (found.same_database(known) and log_is_whole):
            # File and log do not fit together any more, so nothing is written; `prepare_to_open` sorts it out.
            db.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if found.database_bytes < known.database_bytes or found.same_database(known):  # something was truncated
                # Of a log with a hole any page may be missing, of a short file those beyond its end.
                self._replacement = self._rescue(db, found.database_bytes // self._page_bytes if log_is_whole else 0)
            elif not (names_are_ours and self._has_our_stamp(db)):
                self._rescue(db)
            return
        db.raw.set_busy_timeout(LEAVING_MS)  # whoever still reads keeps the log, and it is read at the next start
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if names_are_ours else apsw.SQLITE_CHECKPOINT_FULL
        try:
            in_log, written = db.raw.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            in_log, written = 1, 0
        if found.database == known.database and not names_are_ours and written < in_log:
            self._rescue(db)

    def _has_our_stamp(self, db: Db) -> bool:
        """Tell a checkpoint by another program, which does no harm, from a file that was overwritten."""
        try:
            on_disk, _ = wal.read_header(self.path)
        except apsw.Error:
            return False
        ours = wal.view(db)
        return on_disk.generation in (ours.generation, ours.previous)

    def _rescue(self, db: Db, pages_in_file: int | None = None) -> Path | None:
        """Save everything this connection can still read as a backup.

        SQLite reads pages that were lost and that it has not cached as zeros; those up to `pages_in_file` are whole.
        """
        try:
            saved = back_up(db, self.backups, "rescued")
            if pages_in_file is not None and has_empty_pages(saved, pages_in_file):
                saved.unlink()
                raise apsw.CorruptError("not every page of the truncated file was cached")
        except (apsw.Error, OSError) as error:
            log.error("rescue failed", error=str(error))
            return None
        log.warning("database rescued", backup=saved.name)
        self._notes[saved] = RESCUED_NOTE.format(name=saved.name)
        if self.problem:
            self.problem += f"; all that was stored is saved as the backup {saved.name}"
        return saved
