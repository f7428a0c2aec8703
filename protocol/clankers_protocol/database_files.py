"""Files of the database: describe, copy and check a backup, and replace the database so that it is always usable.

A backup is a SQLite file, or a dump of a PostgreSQL schema with a manifest beside it.
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from clankers_protocol.backups import BackupFile, DumpManifest

if TYPE_CHECKING:
    import apsw

COMPANIONS = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside a database; those of one database must never lie beside another."""


BACKUP_NAME = re.compile(r"clankers-(?P<time>\d{8}T\d{12})-(?P<reason>.+)\.(?:db|dump)")
SHRUNK_SHARE = 0.5
"""A backup with less than this share of the rows of an earlier one does not replace it."""

DUMP_SUFFIX = ".dump"
CAPTURED_TABLES = ("sessions", "messages", "tools", "memories", "documents")


def describe_backup(path: Path) -> BackupFile:
    """Describe a backup from its file and the number of its rows; `problem` says why it cannot be restored."""
    import apsw  # slow to load

    file = path.stat()
    made_at, reason = int(file.st_mtime * 1000), ""
    if name := BACKUP_NAME.fullmatch(path.name):
        reason = name["reason"]
        with suppress(ValueError):  # no such date: somebody renamed the file
            made_at = int(datetime.strptime(f"{name['time']}+0000", "%Y%m%dT%H%M%S%f%z").timestamp() * 1000)
    backup = BackupFile(path.name, str(path), made_at, file.st_size, reason)
    try:
        counts = count_backup_rows(path)
    except (apsw.Error, ValueError) as error:
        backup.problem = str(error)
        return backup
    if "sessions" not in counts:
        backup.problem = "it is not a database of clankers"
        return backup
    backup.sessions = counts["sessions"]
    backup.rows = sum(counts.get(table, 0) for table in CAPTURED_TABLES)
    return backup


def find_backups(folder: Path, stem: str = "*") -> list[Path]:
    """Return the backups in a folder. A pipe, which would block its reader, a device or a broken link is none."""
    return sorted(path for suffix in (".db", DUMP_SUFFIX) for path in folder.glob(stem + suffix) if path.is_file())


def delete_backup(path: Path) -> None:
    """Delete a backup, and its manifest if it has one."""
    path.unlink(missing_ok=True)
    manifest_path(path).unlink(missing_ok=True)


def manifest_path(dump: Path) -> Path:
    return dump.with_name(f"{dump.name}.json")


def read_manifest(dump: Path) -> DumpManifest:
    """Return the manifest of a dump; raises ValueError if there is none that fits it."""
    try:
        manifest = msgspec.json.decode(manifest_path(dump).read_bytes(), type=DumpManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"its manifest {manifest_path(dump).name} cannot be read") from error
    if manifest.bytes != (found := dump.stat().st_size):
        raise ValueError(f"it has {found:,} bytes instead of {manifest.bytes:,}")
    return manifest


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_backups(folder: Path) -> list[BackupFile]:
    """Describe every backup in a folder, newest first."""
    backups = [describe_backup(path) for path in find_backups(folder)]
    return sorted(backups, key=lambda backup: (backup.made_at, backup.name), reverse=True)


def select_obsolete(backups: Iterable[BackupFile], keep: int) -> list[BackupFile]:
    """Select the backups to delete so that the `keep` newest remain.

    The last good backup stays, however old it is: the newest one that is intact and has at least half as many rows as
    the largest. So an empty or damaged database never replaces the backups of a full one. A backup with a date in the
    future counts as the oldest: the clock was wrong when it was made.
    """
    now = time.time() * 1000
    newest_first = sorted(backups, key=lambda one: (one.made_at <= now, one.made_at, one.name), reverse=True)
    most_rows = max((backup.rows or 0 for backup in newest_first), default=0)
    good = [backup for backup in newest_first if backup.rows and backup.rows >= most_rows * SHRUNK_SHARE]
    return [backup for backup in newest_first[keep:] if backup not in good[:1]]


def check_database(path: Path) -> tuple[list[str], dict[str, int]]:
    """Check every page of a file that nobody writes; return the problems, and the rows of each table.

    A dump is compared with the hash of what was verified when it was made.
    """
    import apsw  # slow to load

    try:
        if path.suffix == DUMP_SUFFIX:
            manifest = read_manifest(path)
            return ["its checksum differs"] if hash_file(path) != manifest.sha256 else [], manifest.rows
        with closing(_open_immutable(path)) as db:
            problems = [str(row[0]) for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            return problems, count_rows(db)
    except (apsw.Error, ValueError) as error:
        return [str(error)], {}


def count_rows(db: "apsw.Connection") -> dict[str, int]:
    """Count the rows of every table except virtual ones."""
    names = db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
    return {str(name): int(db.execute(f'SELECT count(*) FROM main."{name}"').get) for (name,) in names.fetchall()}


def count_texts_without_index(counts: dict[str, int]) -> int:
    """Return the number of texts that wait to be indexed in a backup without index; 0 for any other."""
    return 0 if counts.get("chunks") else counts.get("index_backlog", 0)


def count_backup_rows(path: Path) -> dict[str, int]:
    """Count the rows of every table of a backup; raises ValueError or apsw.Error if it cannot be read."""
    if path.suffix == DUMP_SUFFIX:
        return read_manifest(path).rows
    with closing(_open_immutable(path)) as db:
        return count_rows(db)


def copy_database(source: Path, new: Path, is_stopped: Callable[[], bool] = lambda: False) -> dict[str, int]:
    """Copy a backup, including the content of its WAL, and check the copy; return the rows of each table.

    Raises ValueError if the backup is damaged or no database of clankers. The copy has no WAL, and no WAL fits it.
    """
    import apsw  # slow to load

    if source.suffix == DUMP_SUFFIX:
        raise ValueError(f"{source} is a dump of a PostgreSQL database: set database_url to restore it")
    for leftover in new.parent.glob(f"{new.name}*"):
        leftover.unlink()
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with (
            closing(apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)) as original,
            closing(apsw.Connection(str(new))) as copy,
        ):
            with copy.backup("main", original, "main") as copying:
                while not copying.done and not is_stopped():
                    copying.step(4096)
            copy.pragma("journal_mode", "delete")
            copy.pragma("application_id", secrets.randbelow(2**31 - 1) + 1)
    except apsw.NotADBError as error:
        raise ValueError(f"{source} is not a database") from error
    except apsw.Error as error:
        raise ValueError(f"{source} cannot be restored: {error}") from error
    problems, counts = check_database(new)
    if problems:
        raise ValueError(f"{source} is damaged: {problems[0]}. Nothing was changed.")
    if "sessions" not in counts:
        raise ValueError(f"{source} is not a database of clankers. Nothing was changed.")
    sync(new)
    return counts


def _open_immutable(path: Path) -> "apsw.Connection":
    import apsw  # slow to load

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)


def replace_database(database: Path, new: Path, why: str) -> Path | None:
    """Put `new` in the place of the database and keep the old one, with its WAL, as `DATABASE.WHY-TIME`.

    Return the path of the old database, None when there was none. Nobody may have the database open. If the process
    ends halfway, the old WAL lies beside the new database: the daemon recognises that and moves it aside.
    """
    database = database.resolve()  # SQLite keeps the WAL beside the file that a link points to
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = database.with_name(f"{database.name}.{why}-{stamp}")
    had_database = database.exists()
    if had_database:
        os.link(database, aside)
    new.replace(database)
    for suffix in COMPANIONS:
        companion = database.with_name(f"{database.name}{suffix}")
        if companion.exists():
            companion.rename(f"{aside}{suffix}")
    sync(database.parent)
    return aside if had_database else None


def sync(path: Path) -> None:
    """Make the contents of a file, or the renames in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
