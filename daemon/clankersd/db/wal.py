"""Recognise a write-ahead log that does not belong to the database file beside it.

SQLite replays any `-wal` file beside a database. After a crash that recovers the last commits; after the database was
replaced by a backup it destroys the backup. To distinguish the two, the first transaction of every WAL generation
stamps the database header: `application_id` gets a random id for the generation, `user_version` the id of the
generation before. A WAL belongs to a database file if the file's generation is one that the WAL contains or
continues. Database and WAL carry the stamps themselves, so they survive `kill -9` at any moment and move with the
files. Copies made by `backup.py` get a generation of their own.
"""

import os
import secrets
import struct
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import apsw

from clankersd.db.connection import Db

FOREIGN_SUFFIX = "foreign"
PENDING_BYTE = 1 << 30
"""SQLite never uses the page that holds this byte."""

_WAL_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_MAGIC = (0x377F0682, 0x377F0683)
_STAMP_OFFSET = 60
"""Offset of `user_version` in the database header; `application_id` follows eight bytes later."""


@dataclass(frozen=True)
class Stamp:
    """The WAL generation of a database header, and the one before. Zero: made without stamps."""

    generation: int
    previous: int


@dataclass(frozen=True)
class WalContents:
    """Contents of the committed frames of a WAL."""

    page_size: int
    stamps: tuple[Stamp, ...]
    pages: frozenset[int]
    database_pages: int
    """Size of the database after the last commit."""


def new_generation(db: Db) -> None:
    """Stamp the header with a new generation, in the caller's transaction."""
    db.raw.pragma("user_version", db.raw.pragma("application_id"))
    db.raw.pragma("application_id", secrets.randbelow(2**31 - 1) + 1)


def read_stamp(db: Db) -> Stamp:
    """Return the stamp as this connection sees it, through the WAL."""
    return Stamp(db.raw.pragma("application_id"), db.raw.pragma("user_version"))


def frame_bytes(page_size: int, frames: int) -> int:
    """Return the size of a WAL file that holds this many frames."""
    return _WAL_HEADER.size + frames * (_FRAME_HEADER.size + page_size) if frames else 0


def has_frame(path: str, page_size: int, frame: int) -> bool:
    """Return True if a WAL still has its header and this frame; after a truncation and another write they are zeros."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # twice per commit: a file object would cost more
        try:
            start = frame_bytes(page_size, frame - 1) if frame > 1 else _WAL_HEADER.size
            header, found = os.pread(descriptor, _WAL_HEADER.size, 0), os.pread(descriptor, _FRAME_HEADER.size, start)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return any(header) and any(found)


def prepare_to_open(database: Path) -> Path | None:
    """Move a foreign WAL aside before SQLite replays it; return its new path.

    Raises CorruptError when the database file lost pages that the WAL does not have either.
    """
    database = database.resolve()  # the WAL lies beside the file that a link points to
    path = database.with_name(f"{database.name}-wal")
    contents = read_wal(path)
    if contents is None or not database.exists():
        return None
    if database.stat().st_size == 0:  # SQLite would delete the WAL and begin an empty database
        raise apsw.CorruptError("the database file is empty, its write-ahead log is not")
    stamp, page_size = read_header(database)
    if belongs(stamp, page_size, contents):
        if missing := _missing_pages(database.stat().st_size, contents):
            raise apsw.CorruptError(f"{missing} pages at the end of the database file are missing")
        return None
    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    moved = path.with_name(f"{path.name}.{FOREIGN_SUFFIX}-{timestamp}")
    path.rename(moved)
    return moved


def belongs(stamp: Stamp, page_size: int, contents: WalContents) -> bool:
    """Return True if a WAL may be replayed onto a database with this header.

    A WAL without page 1 was started by another program or by a version that did not stamp, and is accepted.
    """
    if page_size != contents.page_size:
        return False
    known = {stamp.generation for stamp in contents.stamps} | {stamp.previous for stamp in contents.stamps}
    return not known or stamp.generation in known


def read_header(database: Path) -> tuple[Stamp, int]:
    """Read the stamp and page size from the database file itself, without its WAL.

    Reads through SQLite: opening and closing the file otherwise would drop the locks of this process's connections.
    """
    with closing(_open_without_wal(database)) as raw:
        raw.pragma("writable_schema", 1)  # otherwise a file that a checkpoint has not yet extended is refused
        return read_stamp(Db(raw)), raw.pragma("page_size")


def _open_without_wal(database: Path) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"{database.absolute().as_uri()}?immutable=1", flags=flags)


def is_complete(database: Path) -> bool:
    """Return True if a database file has all the pages that its header counts."""
    with suppress(apsw.Error, OSError), closing(_open_without_wal(database)) as raw:
        # SQLite refuses a file that is shorter than its header says.
        return bool(0 < raw.pragma("page_count") * raw.pragma("page_size") == database.stat().st_size)
    return False


def read_wal(path: Path) -> WalContents | None:
    """Read the committed contents of a WAL; None if SQLite would find nothing to replay in it."""
    try:
        with path.open("rb") as file:
            header = file.read(_WAL_HEADER.size)
            if len(header) < _WAL_HEADER.size:
                return None
            magic, _, page_size, _, *salts, _, _ = _WAL_HEADER.unpack(header)
            if magic not in _MAGIC or not _is_intact(header):
                return None
            pages: set[int] = set()
            stamps: list[Stamp] = []
            uncommitted_pages: set[int] = set()
            uncommitted_stamps: list[Stamp] = []
            database_pages = 0
            while len(frame := file.read(_FRAME_HEADER.size + page_size)) == _FRAME_HEADER.size + page_size:
                page, size_after_commit, *frame_salts, _, _ = _FRAME_HEADER.unpack_from(frame)
                if frame_salts != salts:
                    break  # left over from an earlier generation
                uncommitted_pages.add(page)
                if page == 1:
                    previous, _, generation = struct.unpack_from(">iIi", frame, _FRAME_HEADER.size + _STAMP_OFFSET)
                    uncommitted_stamps.append(Stamp(generation, previous))
                if size_after_commit:
                    pages |= uncommitted_pages
                    stamps += uncommitted_stamps
                    uncommitted_pages, uncommitted_stamps = set(), []
                    database_pages = size_after_commit
    except FileNotFoundError:
        return None
    return WalContents(page_size, tuple(stamps), frozenset(pages), database_pages) if pages else None


def _is_intact(header: bytes) -> bool:
    """Verify the checksum of a WAL header, as SQLite does before it replays anything."""
    words = struct.unpack("<6I" if header[3] == 0x82 else ">6I", header[:24])
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == struct.unpack(">2I", header[24:])


def _missing_pages(file_bytes: int, contents: WalContents) -> int:
    """Count the pages that neither the file nor the WAL holds."""
    in_file = file_bytes // contents.page_size
    lock_page = PENDING_BYTE // contents.page_size + 1
    needed = range(in_file + 1, contents.database_pages + 1)
    return sum(page not in contents.pages and page != lock_page for page in needed)
