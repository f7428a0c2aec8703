"""A second name for the WAL, so that deleting `-wal` does not delete what only the WAL holds.

SQLite opens its WAL once. If somebody deletes the file and the daemon ends before it notices, the last open copy ends
with the process. A hard link beside it costs one system call per checkpoint and survives that. The name of the link
says for which database file it is: its inode, size and time of change, as the last checkpoint left it. Whoever
writes to the file afterwards (another program that replayed the WAL, a restored backup) changes those, and then the
link is not used.
"""

import os
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger(component="store")

LINK_SUFFIX = ".wal-"


def restore_wal(database: Path) -> bool:
    """Put a deleted WAL back in its place before the database is opened; returns True if it did.

    Links that belong to another state of the database file are deleted.
    """
    database = database.resolve()
    wal = Path(f"{database}-wal")
    restored = False
    for link in _links(database):
        try:
            status = database.stat() if database.exists() else None
            fits = status and link.name == _link_name(database, status.st_ino, status.st_size, status.st_mtime_ns)
            if fits and link.stat().st_size and not wal.exists():
                link.rename(wal)
                restored = True
            elif not (wal.exists() and link.samefile(wal)):
                link.unlink()
        except OSError as error:
            log.warning("WAL link not read", link=link.name, error=str(error))
    return restored


def link_wal(real_path: str, inode: int, size_bytes: int, changed_ns: int) -> None:
    """Give the WAL beside an open database its second name, for this state of the database file."""
    database, wal = Path(real_path), Path(f"{real_path}-wal")
    wanted = database.with_name(_link_name(database, inode, size_bytes, changed_ns))
    try:
        for link in _links(database):
            if not link.samefile(wal):
                link.unlink()
            elif link != wanted:
                link.rename(wanted)
        if not wanted.exists():
            os.link(wal, wanted)
    except OSError as error:  # deleted at this moment, or a file system without hard links
        log.debug("WAL not linked", error=str(error))


def put_back_wal(real_path: str, inode: int) -> bool:
    """Give the deleted WAL of an open database its name again; returns True if it did."""
    for link in _links(Path(real_path)):
        with suppress(OSError):
            if link.stat().st_ino == inode:
                os.link(link, f"{real_path}-wal")  # fails if another program has made a WAL meanwhile
                return True
    return False


def unlink_empty(database: Path) -> None:
    """Delete the link to a WAL that was written to the database completely, after the database was closed."""
    for link in _links(database.resolve()):
        with suppress(OSError):
            if not link.stat().st_size:
                link.unlink()


def _links(database: Path) -> list[Path]:
    return list(database.parent.glob(f"{database.name}{LINK_SUFFIX}*"))


def _link_name(database: Path, inode: int, size_bytes: int, changed_ns: int) -> str:
    return f"{database.name}{LINK_SUFFIX}{inode}-{size_bytes}-{changed_ns}"
