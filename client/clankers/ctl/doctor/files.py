"""Checks and repairs of the daemon's files; they work whether or not the daemon is running."""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from clankers.ctl.formatting import format_bytes, format_duration, plural
from clankers.spool import MAX_SPOOL_BYTES
from clankers_protocol.admin import Finding, StatusReport
from clankers_protocol.capture import LostEvents
from clankers_protocol.database_files import describe_backup, find_backups
from clankers_protocol.paths import Paths

REPAIR = "clankers-ctl doctor --repair"
SQLITE_HEADER = b"SQLite format 3\0"

MAX_WAL_BYTES = 256 * 2**20
"""The daemon keeps the WAL below a quarter of this, unless another program reads the database all the time."""

PROBLEM_FREE_BYTES = 100 * 2**20
WARNING_FREE_BYTES = 2**30
"""In addition to the size of the database, which a backup needs."""

OLD_BACKUP_SECONDS = 7 * 86_400
FIRST_BACKUP_SECONDS = 300
"""Uptime after which the daemon has made its first backup."""

SLOW_SPOOL_SECONDS = 60
"""A running daemon stores spooled events within seconds."""

RECENT_LOSS_SECONDS = 86_400
ABANDONED_SECONDS = 3600
"""An unfinished file this old is no longer being written."""

OTHERS_MASK, OTHERS_WRITE_MASK = 0o077, 0o022
MAX_LISTED = 3


def check_files(paths: Paths, status: StatusReport | None) -> list[Finding]:
    """Run all checks of files. `status` is that of the daemon, if it is running."""
    return [
        _check_database_file(paths),
        _check_disk(paths),
        _check_permissions(paths),
        _check_backups(paths, status),
        _check_replaced_files(paths),
        _check_logs(paths),
        _check_leftovers(paths),
        _check_spool(paths, is_running=status is not None),
        _check_rejected_events(paths),
        _check_lost_events(paths),
    ]


def _check_database_file(paths: Paths) -> Finding:
    """Check that the database is readable and starts like a SQLite file."""
    name, path = "database file", paths.database
    try:
        with path.open("rb") as file:
            header = file.read(len(SQLITE_HEADER))
    except FileNotFoundError:
        return Finding(name, "ok", f"{path} does not exist yet. The daemon creates it when it starts.")
    except OSError as error:
        return Finding(name, "problem", f"{path} cannot be read: {error.strerror}.", f"chmod 600 {path}")
    if header and header != SQLITE_HEADER:
        advice = "clankers-ctl backup list; then clankers-ctl backup restore NAME"
        return Finding(name, "problem", f"{path} is not a SQLite database.", advice)
    wal_bytes = _file_bytes(path.with_name(f"{path.name}-wal"))
    finding = f"{path} is {format_bytes(_file_bytes(path))}, its write-ahead log {format_bytes(wal_bytes)}."
    if wal_bytes > MAX_WAL_BYTES:
        advice = "close other programs that read the database: they keep the write-ahead log from shrinking"
        return Finding(name, "warning", finding, advice)
    return Finding(name, "ok", finding)


def _check_disk(paths: Paths) -> Finding:
    """Check that there is enough disk space for new data and for a backup."""
    free_bytes = shutil.disk_usage(_nearest_existing(paths.database.parent)).free
    finding = f"The disk of the database has {format_bytes(free_bytes)} free."
    if free_bytes < PROBLEM_FREE_BYTES:
        return Finding("disk", "problem", finding, "free some disk space: soon nothing can be stored")
    if free_bytes < WARNING_FREE_BYTES + _file_bytes(paths.database):
        advice = "free some disk space: a backup needs as much space as the database"
        return Finding("disk", "warning", finding, advice)
    return Finding("disk", "ok", finding)


def _check_permissions(paths: Paths) -> Finding:
    """Check that other users cannot read or change the daemon's files."""
    accessible = list(_accessible_to_others(paths))
    if not accessible:
        return Finding("permissions", "ok", "Only you can read the data.")
    shown = _list_some([f"{_printable(path)} ({mode:04o})" for path, mode in accessible])
    return Finding("permissions", "problem", f"Other users can access your data: {shown}.", REPAIR, repairable=True)


def tighten_permissions(paths: Paths) -> list[str]:
    """Remove the access of other users to the daemon's files; return what was done."""
    steps = []
    for path, mode in list(_accessible_to_others(paths)):
        allowed = mode & ~(OTHERS_WRITE_MASK if path == paths.config else OTHERS_MASK)
        with suppress(PermissionError):  # a file of another user: the check reports it again
            path.chmod(allowed)
            steps.append(f"set the mode of {_printable(path)} from {mode:04o} to {allowed:04o}")
    return steps


def _check_backups(paths: Paths, status: StatusReport | None) -> Finding:
    """Check that the newest backup is recent, readable and not empty."""
    create = "clankers-ctl backup create; clankers-ctl config show says how often the daemon makes one (backup_hours)"
    backups = sorted(find_backups(paths.backups, "clankers-*"), key=lambda path: path.stat().st_mtime)
    is_empty = status.counts.get("sessions") == 0 if status else not paths.database.exists()
    if not backups and is_empty:
        return Finding("backups", "ok", "There is nothing to back up yet.")
    if not backups and status and status.uptime_seconds < FIRST_BACKUP_SECONDS:
        return Finding("backups", "ok", "There is no backup yet. The daemon makes the first one within a few minutes.")
    if not backups:
        return Finding("backups", "warning", "There is no backup.", create)
    newest = backups[-1]
    age = max(time.time() - newest.stat().st_mtime, 0)
    finding = f"{newest.name} is {format_duration(age)} old and {format_bytes(_file_bytes(newest))} large"
    described = describe_backup(newest)
    if described.problem:
        finding = f"The newest backup cannot be used: {newest} ({described.problem})."
        return Finding("backups", "problem", finding, f"rm {newest}")
    if not described.sessions:
        return Finding("backups", "warning", f"{finding}, but has no sessions.", create)
    if age > OLD_BACKUP_SECONDS:
        return Finding("backups", "warning", f"{finding}.", create)
    return Finding("backups", "ok", f"{finding}, with {plural(described.sessions, 'session')}.")


def _check_replaced_files(paths: Paths) -> Finding:
    """Look for replaced databases and write-ahead logs that still take up disk space."""
    name, database = "replaced files", paths.database.resolve()
    replaced: list[Path] = []
    for suffix in (".replaced", ".damaged", "-wal.foreign"):
        replaced += sorted(database.parent.glob(f"{database.name}{suffix}-*"))
    if not replaced:
        return Finding(name, "ok", "There are no files of replaced databases.")
    total = format_bytes(sum(map(_file_bytes, replaced)))
    finding = f"{plural(len(replaced), 'file')} of replaced databases take up {total}."
    advice = f"once you are sure that no data is missing: rm {' '.join(str(path) for path in replaced)}"
    return Finding(name, "warning", finding, advice)


def _check_logs(paths: Paths) -> Finding:
    """Check that the daemon can write its log."""
    folder = _nearest_existing(paths.logs)
    if not os.access(folder, os.W_OK | os.X_OK):
        finding = f"{folder} is not writable, so the daemon cannot write a log."
        return Finding("logs", "problem", finding, f"chmod 700 {folder}")
    return Finding("logs", "ok", f"The logs are in {paths.logs}.")


def _check_leftovers(paths: Paths) -> Finding:
    """Look for files that were never finished."""
    leftovers = list(_leftovers(paths))
    if not leftovers:
        return Finding("leftovers", "ok", "There are no unfinished files.")
    shown = _list_some([str(path) for path in leftovers])
    return Finding("leftovers", "warning", f"There are unfinished files: {shown}.", REPAIR, repairable=True)


def remove_leftovers(paths: Paths) -> list[str]:
    """Remove files that were never finished; return what was done."""
    leftovers = list(_leftovers(paths))
    for path in leftovers:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return [f"removed {path}" for path in leftovers]


def _check_spool(paths: Paths, is_running: bool) -> Finding:
    """Check the events that hooks have spooled for the daemon."""
    if problem := _check_spool_folder(paths.spool):
        return problem
    events = list(_spooled_events(paths.spool))
    if not events:
        return Finding("spool", "ok", "No events are waiting.")
    if unreadable := _unreadable_entries(paths.spool):
        finding = f"{paths.spool} contains entries that the daemon cannot read as events: {_list_some(unreadable)}."
        advice = "start the daemon, which moves them to the rejected events, or remove them"
        return Finding("spool", "problem", finding, advice)
    age = max(time.time() - min(modified for modified, _ in events), 0)
    total_bytes = sum(length for _, length in events)
    verb = "is" if len(events) == 1 else "are"
    waiting = f"{plural(len(events), 'event')} ({format_bytes(total_bytes)}) {verb} waiting to be stored"
    finding = f"{waiting}, the oldest for {format_duration(age)}."
    if total_bytes > MAX_SPOOL_BYTES // 2:
        finding = f"{finding} Above {format_bytes(MAX_SPOOL_BYTES)}, new events are lost."
        return Finding("spool", "problem", finding, "start the daemon")
    if is_running and age > SLOW_SPOOL_SECONDS:
        advice = "check again in a minute; if events are still waiting: clankers-ctl logs --level warn"
        return Finding("spool", "warning", finding, advice)
    return Finding("spool", "ok", finding)


def _check_spool_folder(folder: Path) -> Finding | None:
    """Report a spool directory that the daemon cannot list."""
    try:
        found = folder.stat()
        os.scandir(folder).close()
    except FileNotFoundError:
        if folder.is_symlink():
            return Finding("spool", "problem", f"{folder} is a broken symbolic link.", f"rm {folder}")
        return None
    except OSError as error:
        finding = f"{folder} cannot be read: {error.strerror}. Hook events are lost."
        advice = f"make it a directory that you own: sudo chown {os.geteuid()} {folder}"
        return Finding("spool", "problem", finding, advice)
    if found.st_uid != os.geteuid():
        finding = f"{folder} belongs to another user (uid {found.st_uid}), so events that hooks spool are not stored."
        return Finding("spool", "problem", finding, f"sudo chown -R {os.geteuid()} {folder}")
    return None


def _unreadable_entries(folder: Path) -> list[str]:
    """List entries that hooks did not write: anything but regular files of this user."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".json") and (not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid()):
                    names.append(_printable(entry.name))
    return sorted(names)


def _check_rejected_events(paths: Paths) -> Finding:
    """Check for events that the daemon could not store."""
    folder = paths.spool / "rejected"
    events = list(_spooled_events(folder))
    if not events:
        return Finding("rejected events", "ok", "No events were rejected.")
    age = format_duration(max(time.time() - max(modified for modified, _ in events), 0))
    verb = "is" if len(events) == 1 else "are"
    finding = f"{plural(len(events), 'event')} could not be stored and {verb} in {folder}, the newest for {age}."
    advice = (
        f"see why: clankers-ctl logs --level error; list them: ls {folder}; "
        f"try again: mv {folder}/*.json {paths.spool}/; remove them: rm {folder}/*.json"
    )
    return Finding("rejected events", "problem", finding, advice)


def _check_lost_events(paths: Paths) -> Finding:
    """Check for events that hooks could neither send nor spool."""
    try:
        lost = LostEvents.parse((paths.data / "lost-events").read_bytes())
    except OSError:
        lost = None
    if lost is None:
        return Finding("lost events", "ok", "Hooks have lost no events.")
    age = max(time.time() - lost.last_at / 1000, 0)
    count = plural(lost.count, "event")
    finding = f"Hooks have lost {count}, the last one {format_duration(age)} ago: {lost.last_reason}."
    if age > RECENT_LOSS_SECONDS:
        return Finding("lost events", "ok", finding)
    advice = f"free disk space for {paths.data}, and see {paths.logs}/hook.log"
    return Finding("lost events", "problem", finding, advice)


def _accessible_to_others(paths: Paths) -> Iterator[tuple[Path, int]]:
    """Yield files that other users should not have access to but have, with their mode."""
    for path in _daemon_files(paths):
        with suppress(FileNotFoundError):
            found = path.lstat()
            mode = stat.S_IMODE(found.st_mode)
            mask = OTHERS_WRITE_MASK if path == paths.config else OTHERS_MASK
            # The mode of a link itself means nothing, and chmod would change the target of the link.
            if mode & mask and not stat.S_ISLNK(found.st_mode):
                yield path, mode


def _daemon_files(paths: Paths) -> Iterator[Path]:
    yield from (paths.data, paths.socket, paths.config)
    with suppress(OSError):
        yield from paths.database.parent.glob(f"{paths.database.name}*")
    for folder in (paths.logs, paths.backups, paths.spool, paths.spool / "rejected"):
        if folder.is_dir():
            yield folder
            with suppress(PermissionError):  # a folder that we cannot list is not accessible to others either
                yield from [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]


def _spooled_events(folder: Path) -> Iterator[tuple[float, int]]:
    """Yield the modification time and size of each event in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                with suppress(FileNotFoundError):  # it has just been stored
                    found = entry.stat(follow_symlinks=False)
                    yield found.st_mtime, found.st_size


def _leftovers(paths: Paths) -> Iterator[Path]:
    candidates = [
        *paths.backups.glob("*.unfinished"),
        *(paths.data / "models").glob(".*.unfinished"),
        *(paths.data / "plugins").rglob(".*.clankers"),
        paths.config.with_suffix(".unfinished"),
    ]
    for path in candidates:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS and not _is_locked(path):
                yield path


def _is_locked(path: Path) -> bool:
    """Return True if a process is working on the file: a model download holds a lock on its folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _list_some(items: list[str]) -> str:
    """Join the first few items, and say how many more there are."""
    more = f" and {len(items) - MAX_LISTED:,} more" if len(items) > MAX_LISTED else ""
    return ", ".join(items[:MAX_LISTED]) + more


def _printable(path: str | Path) -> str:
    """Return a path as valid Unicode: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())
