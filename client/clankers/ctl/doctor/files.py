"""What can be seen of the daemon's files, whether it runs or not."""

import fcntl
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from clankers.ctl.formatting import format_bytes, format_duration, plural
from clankers.spool import MOST_BYTES
from clankers_protocol.admin import Finding
from clankers_protocol.capture import LostEvents
from clankers_protocol.paths import Paths

REPAIR = "clankers-ctl doctor --repair"
HEADER = b"SQLite format 3\0"

MOST_WAL = 256 * 2**20
"""The daemon keeps it below a quarter of that, unless somebody else reads the database all the time."""

LEAST_ROOM, ROOM = 100 * 2**20, 2**30
OLD_BACKUP_SECONDS = 7 * 86_400
WAITING_SECONDS = 60
"""The daemon stores what is kept within seconds."""

RECENT_LOSS_SECONDS = 86_400
LEFT_SECONDS = 3600
"""What is unfinished for so long nobody is going to finish."""

OTHERS, OTHERS_WRITE = 0o077, 0o022


def database_file(paths: Paths) -> Finding:
    """Whether the database is there and looks like one."""
    name, path = "database file", paths.database
    try:
        with path.open("rb") as file:
            header = file.read(len(HEADER))
    except FileNotFoundError:
        return Finding(name, "ok", f"{path} is not there yet: the daemon makes it when it starts.")
    except OSError as error:
        return Finding(name, "problem", f"{path} cannot be read: {error.strerror}.", f"chmod 600 {path}")
    if header and header != HEADER:
        advice = "clankers-ctl backup list; then clankers-ctl backup restore NAME"
        return Finding(name, "problem", f"{path} is not a database.", advice)
    wal = _size(path.with_name(f"{path.name}-wal"))
    told = f"{path} has {format_bytes(_size(path))}, its write-ahead log {format_bytes(wal)}."
    if wal > MOST_WAL:
        return Finding(name, "warning", told, "close other programs that read it: they keep the log from shrinking")
    return Finding(name, "ok", told)


def disk(paths: Paths) -> Finding:
    """Whether there is room for more, and for a backup."""
    free = shutil.disk_usage(_there(paths.database.parent)).free
    told = f"{format_bytes(free)} are free where the database is."
    if free < LEAST_ROOM:
        return Finding("disk", "problem", told, "free some space: soon nothing can be stored")
    if free < ROOM + _size(paths.database):
        return Finding("disk", "warning", told, "free some space: a backup needs as much as the database")
    return Finding("disk", "ok", told)


def permissions(paths: Paths) -> Finding:
    """Whether nobody else can read or change what is kept."""
    open_ones = list(_open_to_others(paths))
    if not open_ones:
        return Finding("permissions", "ok", "Only you can read what is kept.")
    shown = ", ".join(f"{_printable(path)} ({mode:04o})" for path, mode in open_ones[:3])
    more = f" and {len(open_ones) - 3:,} more" if len(open_ones) > 3 else ""
    told = f"Others can get at what is yours: {shown}{more}."
    return Finding("permissions", "problem", told, REPAIR, repairable=True)


def tighten(paths: Paths) -> list[str]:
    """Take from everybody else what they can do with our files; tells what was done."""
    done = []
    for path, mode in list(_open_to_others(paths)):
        allowed = mode & ~(OTHERS_WRITE if path == paths.config else OTHERS)
        with suppress(PermissionError):  # it is not ours: the check says so again
            path.chmod(allowed)
            done.append(f"set the mode of {_printable(path)} from {mode:04o} to {allowed:04o}")
    return done


def backups(paths: Paths) -> Finding:
    """How old the newest backup is, and whether it holds anything."""
    schedule = 'clankers-ctl schedule add "03:00 daily" "Nightly backup" --builtin backup'
    found = sorted(paths.backups.glob("clankers-*.db"), key=lambda path: path.stat().st_mtime)
    if not found:
        return Finding("backups", "warning", "There is no backup.", schedule)
    newest = found[-1]
    age = max(time.time() - newest.stat().st_mtime, 0)
    told = f"{newest.name} is {format_duration(age)} old and has {format_bytes(_size(newest))}"
    try:
        sessions = _sessions(newest)
    except sqlite3.Error as error:
        return Finding("backups", "problem", f"The newest backup cannot be used: {newest} ({error}).", f"rm {newest}")
    if not sessions:
        return Finding("backups", "warning", f"{told}, but holds no sessions.", schedule)
    if age > OLD_BACKUP_SECONDS:
        return Finding("backups", "warning", f"{told}.", schedule)
    return Finding("backups", "ok", f"{told}, with {plural(sessions, 'session')}.")


def replaced(paths: Paths) -> Finding:
    """Look for databases and write-ahead logs that were replaced or moved aside and still take up space."""
    name, database = "replaced files", paths.database.resolve()
    kept = [
        path
        for kind in (".replaced", ".damaged", "-wal.foreign")
        for path in sorted(database.parent.glob(f"{database.name}{kind}-*"))
    ]
    if not kept:
        return Finding(name, "ok", "No replaced database is kept.")
    told = f"{plural(len(kept), 'file')} of replaced databases ({format_bytes(sum(map(_size, kept)))}) are kept."
    return Finding(name, "warning", told, f"once nothing is missing: rm {' '.join(str(path) for path in kept)}")


def spool(paths: Paths, running: bool) -> Finding:
    """What hooks have kept for the daemon."""
    if problem := _spool_problem(paths.spool):
        return problem
    kept = list(_kept(paths.spool))
    if not kept:
        return Finding("spool", "ok", "No events wait.")
    if strange := _strange(paths.spool):
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3:,} more" if len(strange) > 3 else "")
        told = f"{paths.spool} holds what the daemon cannot read as events: {shown}."
        return Finding("spool", "problem", told, "start the daemon, which sets it aside, or remove it")
    age, bulk = max(time.time() - min(at for at, _ in kept), 0), sum(length for _, length in kept)
    waits = f"{plural(len(kept), 'event')} ({format_bytes(bulk)}) {'waits' if len(kept) == 1 else 'wait'} to be stored"
    told = f"{waits}, the oldest for {format_duration(age)}."
    if bulk > MOST_BYTES // 2:
        return Finding(
            "spool", "problem", f"{told} Above {format_bytes(MOST_BYTES)} new ones are lost.", "start the daemon"
        )
    if running and age > WAITING_SECONDS:
        return Finding(
            "spool", "warning", told, "look again in a minute; is it no less: clankers-ctl logs --level warn"
        )
    return Finding("spool", "ok", told)


def _spool_problem(folder: Path) -> Finding | None:
    """Report a spool directory that the daemon cannot list."""
    try:
        found = folder.stat()
        os.scandir(folder).close()
    except FileNotFoundError:
        if folder.is_symlink():
            return Finding("spool", "problem", f"{folder} is a link that leads nowhere.", f"rm {folder}")
        return None
    except OSError as error:
        told = f"{folder} cannot be read: {error.strerror}. Hook events are lost."
        return Finding("spool", "problem", told, f"make it a directory of yours: sudo chown {os.geteuid()} {folder}")
    if found.st_uid != os.geteuid():
        told = f"{folder} belongs to another user (uid {found.st_uid}): what hooks keep there is not stored."
        return Finding("spool", "problem", told, f"sudo chown -R {os.geteuid()} {folder}")
    return None


def _strange(folder: Path) -> list[str]:
    """List what hooks did not write there: no files, or files of another user."""
    strange = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".json") and (not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid()):
                    strange.append(_printable(entry.name))
    return sorted(strange)


def lost_events(paths: Paths) -> Finding:
    """Events that hooks could neither send nor spool."""
    try:
        lost = LostEvents.parse((paths.data / "lost-events").read_bytes())
    except OSError:
        lost = None
    if lost is None:
        return Finding("lost events", "ok", "Hooks have lost no events.")
    age = max(time.time() - lost.last_at / 1000, 0)
    told = f"Hooks have lost {plural(lost.count, 'event')}, the last {format_duration(age)} ago: {lost.last_reason}."
    if age > RECENT_LOSS_SECONDS:
        return Finding("lost events", "ok", told)
    return Finding("lost events", "problem", told, f"make room where {paths.data} is, and see {paths.logs}/hook.log")


def set_aside(paths: Paths) -> Finding:
    """Events that can never be stored as they are."""
    folder = paths.spool / "rejected"
    kept = list(_kept(folder))
    if not kept:
        return Finding("set aside", "ok", "No events were set aside.")
    age = format_duration(max(time.time() - max(at for at, _ in kept), 0))
    told = f"{plural(len(kept), 'event')} could not be stored and {'lies' if len(kept) == 1 else 'lie'} in {folder}, "
    advice = (
        f"why: clankers-ctl logs --level error; look: ls {folder}; "
        f"try again: mv {folder}/*.json {paths.spool}/; remove: rm {folder}/*.json"
    )
    return Finding("set aside", "problem", f"{told}the newest for {age}.", advice)


def leftovers(paths: Paths) -> Finding:
    """Files that something was written into and never finished."""
    left = list(_left(paths))
    if not left:
        return Finding("leftovers", "ok", "Nothing unfinished lies about.")
    named = ", ".join(str(path) for path in left[:3]) + (f" and {len(left) - 3:,} more" if len(left) > 3 else "")
    return Finding("leftovers", "warning", f"Unfinished files lie about: {named}.", REPAIR, repairable=True)


def remove_leftovers(paths: Paths) -> list[str]:
    """Remove what nobody is going to finish; tells what was done."""
    left = list(_left(paths))
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return [f"removed {path}" for path in left]


def logs(paths: Paths) -> Finding:
    """Whether the daemon can write its log."""
    there = _there(paths.logs)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("logs", "problem", f"{there} cannot be written: there will be no log.", f"chmod 700 {there}")
    return Finding("logs", "ok", f"They are in {paths.logs}.")


def _open_to_others(paths: Paths) -> Iterator[tuple[Path, int]]:
    """What others have rights to that they should not have, with its mode."""
    for path in _ours(paths):
        with suppress(FileNotFoundError):
            found = path.lstat()
            mode = stat.S_IMODE(found.st_mode)
            # A link's own mode means nothing, and changing it would change what it leads to.
            if mode & (OTHERS_WRITE if path == paths.config else OTHERS) and not stat.S_ISLNK(found.st_mode):
                yield path, mode


def _ours(paths: Paths) -> Iterator[Path]:
    yield from (paths.data, paths.socket, paths.config)
    with suppress(OSError):
        yield from paths.database.parent.glob(f"{paths.database.name}*")
    for folder in (paths.logs, paths.backups, paths.spool, paths.spool / "rejected"):
        if folder.is_dir():
            yield folder
            with suppress(PermissionError):  # what cannot be listed is open to nobody
                yield from [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]


def _kept(folder: Path) -> Iterator[tuple[float, int]]:
    """Time and size of the events in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                with suppress(FileNotFoundError):  # it was stored just now
                    found = entry.stat(follow_symlinks=False)
                    yield found.st_mtime, found.st_size


def _left(paths: Paths) -> Iterator[Path]:
    places = [
        *paths.backups.glob("*.unfinished"),
        *(paths.data / "models").glob(".*.unfinished"),
        *(paths.data / "plugins").rglob(".*.clankers"),
        paths.config.with_suffix(".unfinished"),
    ]
    for path in places:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_SECONDS and not _is_held(path):
                yield path


def _is_held(path: Path) -> bool:
    """Whether somebody is at work on it: whoever fetches a model holds a lock on its folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _sessions(backup: Path) -> int:
    with closing(sqlite3.connect(f"{backup.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM sessions").fetchone()[0])


def _printable(path: str | Path) -> str:
    """Return a path as valid Unicode: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _there(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    return next(each for each in (folder, *folder.parents) if each.exists())
