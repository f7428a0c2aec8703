"""Detect that another program deleted, replaced, truncated or wrote to the database files, and save what can be saved.

An open SQLite connection still works on a file that has lost its name, so a commit may succeed and still be lost.
The guard therefore compares the files at the database's path with those that were opened: after each commit and before
its acknowledgement, and also before each commit that does not follow another at once.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import apsw
import structlog

from clankers_protocol.database_files import replace_database
from clankersd.db import wal
from clankersd.db.backup import back_up, has_empty_pages
from clankersd.db.commit_priority import bulk_work_held
from clankersd.db.connection import Db
from clankersd.db.errors import FILE_DELETED, RESTORE_HINT, FileChanged, FileGone
from clankersd.db.wal_link import link_wal, put_back_wal

CLOSE_BUSY_TIMEOUT_MS = 500

VERIFIED_SECONDS = 0.001
"""Time after a check within which the next commit begins without another one: when one follows the other, two checks of
each would cost as much as half of its statements. A commit is always verified before it is acknowledged."""

SHM_REGION_BYTES = 32_768
SHM_REGION_FRAMES = 4096
SHM_HEADER_FRAMES = 34
"""SQLite indexes the WAL in regions of so many frames; the header takes the room of some frames of the first."""

FOREIGN_WAL_WARNING = (
    "a write-ahead log that does not belong to the database was moved aside: {name}; delete it once nothing is missing"
)
DAMAGED_FILE_WARNING = (
    "the database file was truncated by another program and replaced by a complete copy; "
    "delete the damaged file once nothing is missing: {name}"
)
RESCUED_WARNING = (
    "the database was saved as {name} when its file was deleted or overwritten; "
    "to use it: clankers-ctl backup restore {name}"
)

log = structlog.get_logger(component="store")

Inode = tuple[int, int]
"""Device and inode number."""


class FileState(NamedTuple):
    """Identity and size of the files at the path of the database; None for a file that does not exist.

    In WAL mode only a checkpoint writes to the database file, so between our checkpoints its size and time stay.
    """

    database: Inode | None = None
    database_bytes: int = 0
    database_changed_ns: int = 0
    wal: Inode | None = None
    wal_bytes: int = 0
    shm: Inode | None = None
    shm_bytes: int = 0

    @staticmethod
    def of(path: str, real_path: str) -> "FileState":
        """Read the state now; `real_path` is the target that the path's symbolic link had when it was opened."""
        database, wal_file, shm = _stat(path), _stat(f"{real_path}-wal"), _stat(f"{real_path}-shm")
        return FileState(
            _inode(database),
            database.st_size if database else 0,
            database.st_mtime_ns if database else 0,
            _inode(wal_file),
            wal_file.st_size if wal_file else 0,
            _inode(shm),
            shm.st_size if shm else 0,
        )

    @property
    def identity(self) -> tuple[Inode | None, ...]:
        return self.database, self.wal, self.shm

    def after_checkpoint(self, current: "FileState") -> "FileState":
        """Accept the size and time that our checkpoint gave the file, unless the file was replaced in between."""
        if current.database != self.database:
            return self
        return self._replace(database_bytes=current.database_bytes, database_changed_ns=current.database_changed_ns)

    def is_same_database(self, other: "FileState") -> bool:
        """Return True if the database file is the same and no other program wrote to it."""
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


def _inode(status: os.stat_result | None) -> Inode | None:
    return (status.st_dev, status.st_ino) if status else None


class FileGuard:
    """State of the open database files, WAL generation stamps, and rescue of what only our connection can still read.

    Methods that take a `Db` run in the connection's thread.
    """

    def __init__(self, path: Path, backups: Path) -> None:
        self.path = path
        self.backups = backups
        self.unflushed_pages = 0
        """Pages in the WAL since the last checkpoint, which may have left some to a later one because of a reader."""

        self.rescued: Path | None = None
        """Backup made when the files were closed, because they could no longer be trusted."""

        self._opened = FileState()
        self._verified_at = 0.0
        self._path = str(path)
        self._set_real_path(str(path))
        self._page_bytes = 0
        self._wal_frames = 0
        self._shm_bytes = 0
        self._frames_before_commit = self._frames_at_checkpoint = 0
        self._needs_stamp = False
        self._generations: set[int] = set()
        self._replacement: Path | None = None
        self._warnings: dict[Path, str] = {}

    @property
    def warnings(self) -> list[str]:
        """Files that were moved aside or saved and that the owner should look at, each in a sentence."""
        return [warning for path, warning in self._warnings.items() if path.exists()]

    # -- opening

    def list_leftovers(self) -> None:
        """Warn about files that were moved aside when the database was opened, now or by an earlier daemon."""
        database = self.path.resolve()
        for path in database.parent.glob(f"{database.name}-wal.{wal.FOREIGN_SUFFIX}-*"):
            self._warnings[path] = FOREIGN_WAL_WARNING.format(name=path.name)
        for path in database.parent.glob(f"{database.name}.damaged-*[0-9]"):
            self._warnings[path] = DAMAGED_FILE_WARNING.format(name=path.name)

    def database_inode(self) -> Inode | None:
        """Return the identity of the file that lies at the path now."""
        return _inode(_stat(str(self.path)))

    def on_database_opened(self, db: Db) -> None:
        """Read the state of the files that were just opened."""
        self._set_real_path(os.path.realpath(self.path))
        self._page_bytes = db.value("PRAGMA page_size")
        self.rescued = None
        self.unflushed_pages = self._wal_frames = self._frames_before_commit = self._frames_at_checkpoint = 0
        self._shm_bytes = 0
        self._verified_at = 0.0
        self._generations.clear()
        db.raw.set_wal_hook(self._count_frames)

    def stamp_on_open(self, db: Db) -> FileState:
        """Stamp the database and return the state of its files.

        A database without stamps must not share its WAL with the first stamp.
        """
        has_no_stamp = not db.raw.pragma("application_id")
        self._stamp(db)
        if has_no_stamp:
            with suppress(apsw.BusyError):  # another program reads; the next checkpoint does it
                db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self._wal_frames = 0
            self._stamp(db)
        stamp = wal.read_stamp(db)
        self._generations |= {stamp.generation, stamp.previous}
        wal.read_header(self.path)  # SQLite keeps the descriptor for the next time: take it now, not at some checkpoint
        return self._current_state()

    def accept(self, state_on_open: FileState, inode_before_open: Inode | None) -> None:
        """Take the files at the path as ours from now on; raises FileGone if they were replaced during the opening."""
        self._opened = self._current_state()
        if None in state_on_open.identity or state_on_open.identity != self._opened.identity:
            raise FileGone("the database file or its write-ahead log was replaced while it was being opened")
        if inode_before_open is not None and inode_before_open != self._opened.database:
            raise FileGone("the database file was replaced while it was being opened")
        self._link_wal()

    # -- each use

    def verify(self) -> None:
        """Raise FileGone if another program could not read what is or will be committed."""
        if not self._is_unchanged():
            self._find_change()
        self._verified_at = time.monotonic()

    def _is_unchanged(self) -> bool:
        """Compare the files with those that were opened, without finding out what is different: for every commit."""
        opened = self._opened
        try:
            database, wal_file, shm = os.stat(self._path), os.stat(self._wal_path), os.stat(self._shm_path)  # noqa: PTH116
        except OSError:
            return False
        is_unchanged = (
            database.st_mtime_ns == opened.database_changed_ns
            and database.st_size == opened.database_bytes
            and (database.st_dev, database.st_ino) == opened.database
            and (wal_file.st_dev, wal_file.st_ino) == opened.wal
            and (shm.st_dev, shm.st_ino) == opened.shm
            and shm.st_size >= max(self._shm_bytes, self._used_shm_bytes())
            and self._is_wal_complete(wal_file.st_size)
        )
        if is_unchanged:
            self._shm_bytes = shm.st_size
        return is_unchanged

    def _find_change(self) -> None:
        """Raise an error that says how the files differ from those that were opened."""
        current, opened = self._current_state(), self._opened
        if current.database is None:
            raise FileGone(FILE_DELETED)
        if current.database != opened.database:
            raise FileGone("the database file was replaced while it was open")
        if current.database_bytes < opened.database_bytes:
            raise FileGone(f"the database file was truncated while it was open: {RESTORE_HINT}")
        if current.wal != opened.wal or current.shm != opened.shm:
            raise FileGone("the database's write-ahead log was deleted or replaced while it was open")
        self._shm_bytes = max(self._shm_bytes, self._used_shm_bytes(), current.shm_bytes)
        if current.shm_bytes < self._shm_bytes:
            # SQLite has mapped the file: touching a page beyond its end would end the process with SIGBUS. As zeros it
            # is an index that SQLite builds again from the WAL.
            os.truncate(f"{self._real_path}-shm", self._shm_bytes)
            raise FileGone("the index of the database's write-ahead log was truncated while it was open")
        if not current.is_same_database(opened):
            raise FileChanged("another program wrote to the database file while it was open")
        if not self._is_wal_complete(current.wal_bytes):
            raise FileGone("the database's write-ahead log was truncated while it was open")

    def verify_before_commit(self) -> None:
        """Do as `verify` does, unless that was done a moment ago."""
        if time.monotonic() - self._verified_at > VERIFIED_SECONDS:
            self.verify()

    def verify_commit(self, db: Db) -> None:
        """Raise FileGone if the commit that just ended went into files that other programs do not see."""
        try:
            self.verify()
        except FileChanged as error:
            # The writes are committed, so they must not run again. After a mere checkpoint by another program they can
            # be read; the next use of the connection detects the change again and reopens the database.
            if not (self._is_wal_complete(self._current_state().wal_bytes) and self._has_our_stamp(db)):
                raise FileGone(str(error)) from error

    def before_commit(self) -> bool:
        """Note the length of the WAL; return True if the commit must begin with a new generation stamp."""
        self._frames_before_commit = self._wal_frames
        return self._needs_stamp

    def stamp_committed(self) -> None:
        """Note that the last commit began with a new generation stamp."""
        self._needs_stamp = False

    def stamp_if_needed(self, db: Db) -> None:
        """Start a new WAL generation in a transaction of its own, if one is due."""
        if self._needs_stamp:
            self._stamp(db)

    def checkpoint(self, db: Db) -> None:
        """Write the WAL to the database as far as readers allow, without waiting for them."""
        with bulk_work_held():
            self.verify()
        try:
            db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        finally:
            with bulk_work_held():
                self._accept_checkpoint(db)
        self._needs_stamp = True  # the next commit may restart the WAL
        self.unflushed_pages, self._frames_at_checkpoint = 0, self._wal_frames

    def truncate_wal(self, db: Db) -> None:
        """Write the WAL to the database and truncate it, unless another program is reading it."""
        self.verify()
        try:
            db.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._wal_frames = 0
        except apsw.BusyError:
            log.info("WAL not truncated", reason="another connection reads it")
        finally:
            self._accept_checkpoint(db)
        self._needs_stamp = True

    # -- closing

    def secure(self, db: Db) -> None:
        """Make sure, before the files are closed, that the next program can read all acknowledged writes."""
        current, opened = self._current_state(), self._opened
        if current.wal is None and opened.wal is not None and put_back_wal(self._real_path, opened.wal[1]):
            current = self._current_state()  # from here on a crash loses nothing
        names_are_ours = current.wal == opened.wal and current.shm == opened.shm
        wal_is_complete = current.wal != opened.wal or self._is_wal_complete(current.wal_bytes)
        if not names_are_ours:
            # Closing would delete the files at these names, which are not ours any more.
            db.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if current.database != opened.database:  # deleted or replaced: only this connection still has it
            self._rescue(db)
        elif not (current.is_same_database(opened) and wal_is_complete):
            # File and WAL do not fit together any more, so nothing is written; `wal.prepare_to_open` decides.
            db.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            is_shorter = current.database_bytes < opened.database_bytes and not self._is_complete_copy(db)
            if is_shorter or current.is_same_database(opened):  # truncated
                # Of a WAL with a hole any page may be missing, of a short file those beyond its end.
                pages_in_file = current.database_bytes // self._page_bytes if wal_is_complete else 0
                self._replacement = self._rescue(db, pages_in_file)
            elif not (names_are_ours and self._has_our_stamp(db)):
                self._rescue(db)
            return
        db.raw.set_busy_timeout(CLOSE_BUSY_TIMEOUT_MS)  # a program that still reads leaves the WAL for the next start
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if names_are_ours else apsw.SQLITE_CHECKPOINT_FULL
        try:
            in_wal, written = db.raw.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            in_wal, written = 1, 0
        if current.database == opened.database and not names_are_ours and written < in_wal:
            self._rescue(db)

    def replace_truncated(self) -> None:
        """Put the rescued copy in the place of a truncated database file, after the connection was closed."""
        copy, self._replacement = self._replacement, None
        if copy is None:
            return
        try:
            damaged = replace_database(self.path, copy, "damaged")
            log.warning("truncated database replaced by its copy", damaged=damaged and damaged.name)
        except OSError as error:  # the copy stays among the backups
            log.error("truncated database not replaced", error=str(error))

    # -- inside

    def _set_real_path(self, real_path: str) -> None:
        self._real_path, self._wal_path, self._shm_path = real_path, f"{real_path}-wal", f"{real_path}-shm"

    def _current_state(self) -> FileState:
        return FileState.of(self._path, self._real_path)

    def _count_frames(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._wal_frames:  # another program's checkpoint let this commit restart the WAL
            self._needs_stamp = True
        if frames < self._frames_at_checkpoint:
            self._frames_at_checkpoint = 0
        self.unflushed_pages, self._wal_frames = frames - self._frames_at_checkpoint, frames
        return apsw.SQLITE_OK

    def _stamp(self, db: Db) -> None:
        with db.transaction():
            wal.new_generation(db)
        self._needs_stamp = False

    def _accept_checkpoint(self, db: Db) -> None:
        """Accept the file as our checkpoint left it; raises FileGone if another program overwrote it meanwhile.

        A file that was copied over ours has another generation in its header. The state is taken first, so that a later
        copy differs from it.
        """
        state = self._current_state()
        stamp = wal.read_stamp(db)
        self._generations |= {stamp.generation, stamp.previous}
        on_disk, _ = wal.read_header(self.path)
        if on_disk.generation not in self._generations:
            raise FileGone("the database file was overwritten while it was open")
        self._opened = self._opened.after_checkpoint(state)
        self._link_wal()

    def _link_wal(self) -> None:
        opened = self._opened
        if opened.database is not None:
            link_wal(self._real_path, opened.database[1], opened.database_bytes, opened.database_changed_ns)

    def _used_shm_bytes(self) -> int:
        """Return the size that the index of the WAL has at least."""
        return SHM_REGION_BYTES * (1 + (self._wal_frames + SHM_HEADER_FRAMES - 1) // SHM_REGION_FRAMES)

    def _is_wal_complete(self, wal_bytes: int) -> bool:
        """Check the WAL's size, and look for the hole that a commit leaves if the WAL was truncated just before it."""
        if wal_bytes < wal.frame_bytes(self._page_bytes, self._wal_frames):
            return False
        last = min(self._frames_before_commit, self._wal_frames)
        return last == 0 or wal.has_frame(self._wal_path, self._page_bytes, last)

    def _has_our_stamp(self, db: Db) -> bool:
        """Tell a checkpoint by another program, which does no harm, from a file that was overwritten."""
        try:
            on_disk, _ = wal.read_header(self.path)
        except apsw.Error:
            return False
        ours = wal.read_stamp(db)
        return on_disk.generation in (ours.generation, ours.previous)

    def _is_complete_copy(self, db: Db) -> bool:
        """Tell a database that was copied over ours, such as a smaller backup, from our file cut short."""
        return wal.is_complete(self.path) and not self._has_our_stamp(db)

    def _rescue(self, db: Db, pages_in_file: int | None = None) -> Path | None:
        """Save everything this connection can still read as a backup.

        SQLite reads lost pages that it has not cached as zeros. The first `pages_in_file` pages are not lost; None
        skips the check.
        """
        try:
            backup = back_up(db, self.backups, "rescued")
            if pages_in_file is not None and has_empty_pages(backup, pages_in_file):
                backup.unlink()
                raise apsw.CorruptError("not every page of the truncated file was cached")
        except (apsw.Error, OSError) as error:
            log.error("rescue failed", error=str(error))
            return None
        log.warning("database rescued", backup=backup.name)
        self._warnings[backup] = RESCUED_WARNING.format(name=backup.name)
        self.rescued = backup
        return backup
