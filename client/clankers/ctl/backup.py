"""`clankers-ctl backup`: make, list, check, restore and delete backups."""

import fcntl
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from clankers.ctl.command import EXIT_PROBLEM, Ctl, common_options, daemon_paths, deletion_options, yes_option
from clankers.ctl.formatting import format_bytes, format_time, plural
from clankers.ctl.jobs import run_job_or_exit
from clankers.ctl.output import Column, confirm, echo, print_facts, print_json, print_table, secho
from clankers.messages import DaemonUnavailable
from clankers_protocol.admin import DaemonStatus
from clankers_protocol.backups import BackupCreate, BackupRestore, Restored
from clankers_protocol.database_files import (
    check_database,
    copy_database,
    count_backup_rows,
    count_texts_without_index,
    delete_backup,
    describe_backup,
    list_backups,
    replace_database,
    select_obsolete,
)
from clankers_protocol.errors import MethodNotFound, RpcError
from clankers_protocol.paths import Paths, default_paths

STOP_TIMEOUT_SECONDS = 60
RESTORE_TIMEOUT_SECONDS = 3600
"""Generous: the copy of a large backup takes long, and is a plain request."""

COLUMNS = [
    Column("Name", wrap=True),
    Column("Made", optional=True),
    Column("For", optional=True),
    Column("Size", align_right=True, optional=True),
    Column("Sessions", align_right=True, optional=True),
]


@click.group()
def backup() -> None:
    """Make, check and restore backups of the database.

    The daemon makes a backup every day and keeps seven of them; the settings backup_hours and backup_keep change that.
    It also makes one before each migration.

    \b
    Examples:
      clankers-ctl backup create
      clankers-ctl backup list
      clankers-ctl backup verify
      clankers-ctl backup restore clankers-20250131T030000000000-daily.db
    """


@backup.command()
@click.option("--without-derived", is_flag=True, help="Leave out the search index, which a restore makes again.")
@common_options
def create(ctl: Ctl, without_derived: bool) -> None:
    """Make a backup now. Events are stored meanwhile. Such a backup stays until you delete it.

    \b
    Examples:
      clankers-ctl backup create
      clankers-ctl backup create --without-derived
      clankers-ctl backup create --json | jq -r .path
    """
    job = run_job_or_exit(ctl, BackupCreate(without_derived))
    note = f" Note: {job.result['note']}." if job.result.get("note") else ""
    ctl.report(job.result, f"Made {job.result['path']} ({format_bytes(job.result['bytes'])}).{note}")


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
    backups = list_backups(paths.backups)
    if ctl.json:
        print_json({"backups": backups})
    elif not backups:
        echo(f"There are no backups in {paths.backups}. Make one with `clankers-ctl backup create`.")
    else:
        rows = []
        for one in backups:
            contents = f"unusable: {one.problem}" if one.problem else f"{one.sessions:,}"
            rows.append([one.name, format_time(one.made_at), one.reason, format_bytes(one.bytes), contents])
        print_table(COLUMNS, rows)


@backup.command()
@click.argument("backup", metavar="NAME|FILE")
@common_options
def show(ctl: Ctl, backup: str) -> None:
    """Show a backup: when and for what it was made, and how many rows each table has.

    \b
    Examples:
      clankers-ctl backup show clankers-20250131T030000000000-daily.db
    """
    path = _find_backup(_find_paths(ctl), backup)
    found = describe_backup(path)
    counts = count_backup_rows(path) if not found.problem else {}
    if ctl.json:
        print_json({"backup": found, "rows": counts})
        return
    print_facts(
        [
            ("file", found.path),
            ("made", format_time(found.made_at)),
            ("for", found.reason or "unknown"),
            ("size", format_bytes(found.bytes)),
            ("problem", found.problem or "none found; `clankers-ctl backup verify` checks every page"),
        ]
    )
    if counts:
        echo("")
        captured = sorted((count, table) for table, count in counts.items() if count)
        print_table(
            [Column("Table", min_width=12), Column("Rows", align_right=True)],
            [[table, f"{count:,}"] for count, table in reversed(captured)],
        )


@backup.command()
@click.argument("backup", metavar="[NAME|FILE]", required=False)
@common_options
def verify(ctl: Ctl, backup: str | None) -> None:
    """Check every page of a backup, or of all backups. Exits with 4 if one is damaged.

    \b
    Examples:
      clankers-ctl backup verify
      clankers-ctl backup verify clankers-20250131T030000000000-daily.db
    """
    paths = _find_paths(ctl)
    chosen = [_find_backup(paths, backup)] if backup else [Path(one.path) for one in list_backups(paths.backups)]
    problems: dict[str, list[str]] = {}
    for path in chosen:
        found, counts = check_database(path)
        if not found and "sessions" not in counts:
            found = ["it is not a database of clankers"]
        problems[str(path)] = found
        if not ctl.json:
            verdict = f"damaged: {found[0]}" if found else f"ok, {sum(counts.values()):,} rows"
            secho(f"{path.name}: {verdict}", fg="red" if found else "green")
    if ctl.json:
        print_json({"backups": [{"path": path, "problems": found} for path, found in problems.items()]})
    elif not chosen:
        echo(f"There are no backups in {paths.backups}.")
    sys.exit(EXIT_PROBLEM if any(problems.values()) else 0)


@backup.command()
@click.option("--keep", type=click.IntRange(1, 1000), default=7, show_default=True, help="Keep this many backups.")
@deletion_options
@common_options
def prune(ctl: Ctl, keep: int, dry_run: bool, yes: bool) -> None:
    """Delete all but the newest backups of every kind. Asks for confirmation first.

    The last good backup always stays: the newest intact one with at least half as many rows as the largest.

    \b
    Examples:
      clankers-ctl backup prune --keep 3 --dry-run
      clankers-ctl backup prune --keep 3 --yes
    """
    obsolete = select_obsolete(list_backups(_find_paths(ctl).backups), keep)
    if not ctl.json:
        for one in obsolete:
            echo(f"{one.name} ({format_bytes(one.bytes)})")
    freed = format_bytes(sum(one.bytes for one in obsolete))
    if obsolete and not dry_run:
        if not yes:
            confirm(f"Delete {plural(len(obsolete), 'backup')}?", abort=True)
        for one in obsolete:
            delete_backup(Path(one.path))
    ctl.report(
        {"deleted": [one.name for one in obsolete], "dryRun": dry_run},
        f"{'Would delete' if dry_run else 'Deleted'} {plural(len(obsolete), 'backup')}: {freed}.",
    )


@backup.command()
@click.argument("backup", metavar="NAME|FILE")
@yes_option
@common_options
def restore(ctl: Ctl, backup: str, yes: bool) -> None:
    """Replace the database with a backup. Asks for confirmation first.

    Specify a name from `backup list`, or the path of any copy of the database. The backup is first copied, and the copy
    checked; the backup itself does not change. A running daemon swaps the files and continues; requests wait meanwhile.
    Without a daemon, this command swaps them. The replaced database is kept as clankers.db.replaced-TIME in the same
    folder.

    \b
    Examples:
      clankers-ctl backup restore clankers-20250131T030000000000-daily.db
      clankers-ctl backup restore ~/clankers-copy.db --yes --json
    """
    paths = _find_paths(ctl)
    source = _find_backup(paths, backup)
    if not yes:
        found = describe_backup(source)
        contents = (
            f"cannot be read ({found.problem})" if found.problem else f"has {plural(found.sessions or 0, 'session')}"
        )
        echo(f"{source.name} {contents}, made {format_time(found.made_at)}.", err=True)
        confirm(f"Replace {paths.database} with it?", abort=True)
    try:
        restored = ctl.call(BackupRestore(str(source)), timeout=RESTORE_TIMEOUT_SECONDS)
    except (DaemonUnavailable, MethodNotFound):
        restored = _restore_without_daemon(paths, source)
    if ctl.json:
        print_json(restored)
        return
    secho(f"Restored {source.name} with {plural(restored.sessions, 'session')}.", fg="green")
    if restored.rebuilding:
        echo(
            f"The backup has no search index. The daemon makes it again from {plural(restored.rebuilding, 'text')}, "
            "in the background; `clankers-ctl index status` shows how many are left."
        )
    if restored.replaced:
        echo(f"The replaced database is now {restored.replaced}. Delete it once you are sure that you do not need it.")


def _restore_without_daemon(paths: Paths, source: Path) -> Restored:
    url = os.environ.get("CLANKERS_DATABASE_URL", "")
    with suppress(OSError, tomllib.TOMLDecodeError):
        url = url or tomllib.loads(paths.config.read_text("utf-8")).get("database_url", "")
    if url:
        raise click.ClickException("The database is on a server: start the daemon, then run this command again.")
    database = paths.database.resolve()
    new = database.with_name(f"{database.name}.restoring")
    try:
        counts = copy_database(source, new)
        with _daemon_stopped(paths.database):
            replaced = replace_database(database, new, "replaced")
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    finally:
        for leftover in database.parent.glob(f"{new.name}*"):
            leftover.unlink(missing_ok=True)
    rebuilding = count_texts_without_index(counts)
    return Restored(str(database), str(source), counts["sessions"], str(replaced) if replaced else None, rebuilding)


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
