"""`clankers-ctl backup`: list the backups, and restore one."""

import fcntl
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from clankers.ctl.command import Ctl, common_options
from clankers.ctl.formatting import format_bytes, format_time, plural
from clankers.ctl.output import Column, echo, print_json, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonStatus
from clankers_protocol.database_files import replace_database, sync
from clankers_protocol.errors import RpcError
from clankers_protocol.paths import Paths, default_paths
from clankers_protocol.wire import Wire

STOP_SECONDS = 60
COLUMNS = [
    Column("Name", min_width=20),
    Column("Made"),
    Column("Size", align_right=True),
    Column("Sessions", align_right=True),
]


class Backup(Wire):
    """One file in the folder of backups. `problem` says why it cannot be restored."""

    name: str
    path: str
    made_at: int
    bytes: int
    sessions: int | None = None
    problem: str | None = None


class Restored(Wire):
    """What a restore did."""

    database: str
    backup: str
    sessions: int
    replaced: str | None
    stopped_daemon: int | None


@click.group()
def backup() -> None:
    """List the backups of the database, and restore one.

    The daemon makes a backup before each migration, and on a schedule:

    \b
      clankers-ctl schedule add "03:00 daily" "Nightly backup" --builtin backup

    \b
    Examples:
      clankers-ctl backup list
      clankers-ctl backup restore clankers-20250131T030000000000-scheduled.db
    """


@backup.command(name="list")
@common_options
def list_(ctl: Ctl) -> None:
    """List the backups, newest first. The daemon need not run.

    \b
    Examples:
      clankers-ctl backup list
      clankers-ctl backup list --json | jq -r '.backups[0].name'
    """
    paths = _paths(ctl)
    found = [_described(path) for path in paths.backups.glob("*.db")]
    found.sort(key=lambda each: each.made_at, reverse=True)
    if ctl.json:
        print_json({"backups": found})
    elif not found:
        echo(f"There are no backups in {paths.backups}.")
    else:
        rows = [[each.name, format_time(each.made_at), format_bytes(each.bytes), _contents(each)] for each in found]
        print_table(COLUMNS, rows)


@backup.command()
@click.argument("backup", metavar="NAME|FILE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def restore(ctl: Ctl, backup: str, yes: bool) -> None:
    """Replace the database by a backup, and keep the replaced one beside it.

    Give a name from `backup list`, or the path of any copy of the database. It is copied and checked first; the
    backup itself stays as it is. A running daemon is stopped. The replaced database and its write-ahead log are kept as
    clankers.db.replaced-TIME.

    \b
    Examples:
      clankers-ctl backup restore clankers-20250131T030000000000-scheduled.db
      clankers-ctl backup restore ~/clankers-copy.db --yes --json
    """
    paths = _paths(ctl)
    source = _find(paths, backup)
    database = paths.database.resolve()
    new = database.with_name(f"{database.name}.restoring")
    try:
        sessions = _copy_and_check(source, new)
        if not yes:
            echo(f"{source.name} holds {plural(sessions, 'session')}. A running daemon is stopped.", err=True)
            click.confirm(f"Replace {database} by it?", abort=True, err=True)
        with _daemon_stopped(paths.database) as stopped:
            replaced = replace_database(database, new, "replaced")
    finally:
        for left in database.parent.glob(f"{new.name}*"):
            left.unlink(missing_ok=True)
    done = Restored(str(database), str(source), sessions, str(replaced) if replaced else None, stopped)
    if ctl.json:
        print_json(done)
        return
    secho(f"Restored {source.name} with {plural(sessions, 'session')}.", fg="green")
    if replaced:
        echo(f"The replaced database is {replaced}; delete it once nothing is missing.")
    if stopped:
        echo("The daemon was stopped. The next hook or client starts it again; or run clankersd.")


def _paths(ctl: Ctl) -> Paths:
    """Where the daemon that runs keeps its files, else where one would."""
    ours = default_paths()
    try:
        status = ctl.call(DaemonStatus(), timeout=10)
    except (DaemonUnavailable, TimeoutError, RpcError):
        return ours
    places = (status.data_path, status.db_path, status.socket_path, status.log_path, status.config_path)
    return Paths(*map(Path, places))


def _find(paths: Paths, backup: str) -> Path:
    for path in (paths.backups / backup, Path(backup).expanduser()):
        if path.is_file():
            return path.absolute()
    raise click.ClickException(f"there is no backup {backup!r}: see clankers-ctl backup list")


def _described(path: Path) -> Backup:
    found = path.stat()
    about = Backup(path.name, str(path), int(found.st_mtime * 1000), found.st_size)
    import apsw

    try:
        about.sessions = _count_sessions(path)
    except apsw.Error as error:
        about.problem = str(error)
    return about


def _contents(each: Backup) -> str:
    return f"unusable: {each.problem}" if each.problem else f"{each.sessions:,}"


def _count_sessions(path: Path) -> int:
    import apsw

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)
    try:
        return int(db.execute("SELECT count(*) FROM sessions").get)
    finally:
        db.close()


def _copy_and_check(source: Path, new: Path) -> int:
    """Copy a backup, with what its own WAL holds, and check the copy; return its number of sessions."""
    import apsw

    for left in new.parent.glob(f"{new.name}*"):
        left.unlink()
    descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.close(descriptor)
    try:
        original = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        copy = apsw.Connection(str(new))
        try:
            with copy.backup("main", original, "main") as copying:
                while not copying.done:
                    copying.step(4096)
            copy.pragma("journal_mode", "delete")  # one file, nothing beside it
            copy.pragma("application_id", secrets.randbelow(2**31 - 1) + 1)  # no WAL of another copy belongs to it
            problems = [str(row[0]) for row in copy.execute("PRAGMA integrity_check") if row[0] != "ok"]
            sessions = int(copy.execute("SELECT count(*) FROM sessions").get)
        finally:
            copy.close()
            original.close()
    except apsw.Error as error:
        raise click.ClickException(f"{source} cannot be restored: {error}") from error
    if problems:
        raise click.ClickException(f"{source} is damaged, nothing was changed: {problems[0]}")
    sync(new)
    return sessions


@contextmanager
def _daemon_stopped(database: Path) -> Iterator[int | None]:
    """Hold the lock that a daemon holds while it has the database open, and end the daemon that has it.

    Yields the process id of that daemon, None when there was none.
    """
    lock = database.with_name(f"{database.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    stopped: int | None = None
    deadline = time.monotonic() + STOP_SECONDS
    try:
        while not _is_free(descriptor):
            holder = lock.read_text().strip()
            if time.monotonic() > deadline or not holder.isdigit():
                raise click.ClickException(
                    f"clankersd (process {holder or 'unknown'}) has the database open and does not stop. Stop it, with "
                    "systemctl --user stop clankersd.socket clankersd.service or with kill, then run this command again"
                )
            if int(holder) != stopped:  # each once: the second SIGTERM ends a daemon at once
                stopped = int(holder)
                with suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGTERM)
            time.sleep(0.05)
        yield stopped
    finally:
        os.close(descriptor)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
