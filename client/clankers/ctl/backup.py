"""`clankers-ctl backup`: list the backups, and restore one."""

import fcntl
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import click

from clankers.ctl.command import Ctl, common_options, daemon_paths, yes_option
from clankers.ctl.formatting import format_bytes, format_time, plural
from clankers.ctl.output import Column, confirm, echo, print_json, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonStatus
from clankers_protocol.database_files import replace_database, sync
from clankers_protocol.errors import RpcError
from clankers_protocol.paths import Paths, default_paths
from clankers_protocol.wire import Wire

STOP_TIMEOUT_SECONDS = 60
COLUMNS = [
    Column("Name", min_width=20),
    Column("Made"),
    Column("Size", align_right=True),
    Column("Sessions", align_right=True),
]


class Backup(Wire):
    """One file in the backup directory. `problem` is the reason why it cannot be restored, if any."""

    name: str
    path: str
    made_at: int
    bytes: int
    sessions: int | None = None
    problem: str | None = None


class Restored(Wire):
    """Result of a restore."""

    database: str
    backup: str
    sessions: int
    replaced: str | None
    stopped_daemon: int | None


@click.group()
def backup() -> None:
    """List backups of the database, or restore one.

    The daemon makes a backup before each migration. To also make backups regularly, add a schedule:

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
    """List the backups, newest first. Works without a running daemon.

    \b
    Examples:
      clankers-ctl backup list
      clankers-ctl backup list --json | jq -r '.backups[0].name'
    """
    paths = _find_paths(ctl)
    backups = [_describe(path) for path in paths.backups.glob("*.db")]
    backups.sort(key=lambda backup: backup.made_at, reverse=True)
    if ctl.json:
        print_json({"backups": backups})
    elif not backups:
        echo(f"There are no backups in {paths.backups}.")
    else:
        rows = []
        for backup in backups:
            contents = f"unusable: {backup.problem}" if backup.problem else f"{backup.sessions:,}"
            rows.append([backup.name, format_time(backup.made_at), format_bytes(backup.bytes), contents])
        print_table(COLUMNS, rows)


@backup.command()
@click.argument("backup", metavar="NAME|FILE")
@yes_option
@common_options
def restore(ctl: Ctl, backup: str, yes: bool) -> None:
    """Replace the database with a backup. Asks for confirmation first.

    Specify a name from `backup list`, or the path of any copy of the database. The backup is first copied, and the copy
    checked; the backup itself does not change. A running daemon is stopped. The replaced database and its write-ahead
    log are renamed to clankers.db.replaced-TIME in the same folder.

    \b
    Examples:
      clankers-ctl backup restore clankers-20250131T030000000000-scheduled.db
      clankers-ctl backup restore ~/clankers-copy.db --yes --json
    """
    paths = _find_paths(ctl)
    source = _find_backup(paths, backup)
    database = paths.database.resolve()
    new = database.with_name(f"{database.name}.restoring")
    try:
        sessions = _copy_and_check(source, new)
        if not yes:
            echo(f"{source.name} has {plural(sessions, 'session')}. A running daemon will be stopped.", err=True)
            confirm(f"Replace {database} with it?", abort=True)
        with _daemon_stopped(paths.database) as stopped:
            replaced = replace_database(database, new, "replaced")
    finally:
        for leftover in database.parent.glob(f"{new.name}*"):
            leftover.unlink(missing_ok=True)
    if ctl.json:
        print_json(Restored(str(database), str(source), sessions, str(replaced) if replaced else None, stopped))
        return
    secho(f"Restored {source.name} with {plural(sessions, 'session')}.", fg="green")
    if replaced:
        echo(f"The replaced database is now {replaced}. Delete it once you are sure that you do not need it.")
    if stopped:
        echo("The daemon was stopped. The next hook or client starts it again, or you can run clankersd.")


def _find_paths(ctl: Ctl) -> Paths:
    """Return the paths of the running daemon, or the default paths if none is running."""
    try:
        status = ctl.call(DaemonStatus(), timeout=10)
    except (DaemonUnavailable, TimeoutError, RpcError):
        return default_paths()
    return daemon_paths(status)


def _find_backup(paths: Paths, backup: str) -> Path:
    for path in (paths.backups / backup, Path(backup).expanduser()):
        if path.is_file():
            return path.absolute()
    raise click.ClickException(f"There is no backup {backup!r}. Run `clankers-ctl backup list` to see the backups.")


def _describe(path: Path) -> Backup:
    import apsw  # slow to load

    file = path.stat()
    backup = Backup(path.name, str(path), int(file.st_mtime * 1000), file.st_size)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        with closing(apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)) as db:
            backup.sessions = int(db.execute("SELECT count(*) FROM sessions").get)
    except apsw.Error as error:
        backup.problem = str(error)
    return backup


def _copy_and_check(source: Path, new: Path) -> int:
    """Copy a backup, including the content of its WAL, and check the copy; return its number of sessions."""
    import apsw  # slow to load

    for leftover in new.parent.glob(f"{new.name}*"):
        leftover.unlink()
    descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.close(descriptor)
    try:
        original = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        copy = apsw.Connection(str(new))
        try:
            with copy.backup("main", original, "main") as copying:
                while not copying.done:
                    copying.step(4096)
            copy.pragma("journal_mode", "delete")  # a single file, without a WAL
            copy.pragma("application_id", secrets.randbelow(2**31 - 1) + 1)  # so that no WAL of another copy matches it
            problems = [str(row[0]) for row in copy.execute("PRAGMA integrity_check") if row[0] != "ok"]
            sessions = int(copy.execute("SELECT count(*) FROM sessions").get)
        finally:
            copy.close()
            original.close()
    except apsw.Error as error:
        raise click.ClickException(f"{source} cannot be restored: {error}") from error
    if problems:
        raise click.ClickException(f"{source} is damaged: {problems[0]}. Nothing was changed.")
    sync(new)
    return sessions


@contextmanager
def _daemon_stopped(database: Path) -> Iterator[int | None]:
    """Stop the daemon that has the database open, and hold its database lock so that no other daemon starts.

    Yields the process id of the stopped daemon, or None if none was running.
    """
    lock = database.with_name(f"{database.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    stopped: int | None = None
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    try:
        while not _try_lock(descriptor):
            holder = lock.read_text().strip()
            if time.monotonic() > deadline or not holder.isdigit():
                raise click.ClickException(
                    f"clankersd (process {holder or 'unknown'}) has the database open and does not stop. Stop it with "
                    "`systemctl --user stop clankersd.socket clankersd.service` or `kill`, then run this command again."
                )
            if int(holder) != stopped:  # a second SIGTERM would abort the work in flight
                stopped = int(holder)
                with suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGTERM)
            time.sleep(0.05)
        yield stopped
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
