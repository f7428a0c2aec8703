"""Files that appear whole and for their owner alone, and how far a long reading or writing is."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from clankers.ctl.command import Ctl
from clankers.ctl.edits import explain_os_errors
from clankers.ctl.output import console
from clankers_protocol.safe_writes import writable_path


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file that has its name when the block ends, mode 0600; unless all went well, all is as it was."""
    with explain_os_errors():
        target = writable_path(path)
    if target.exists() and not target.is_file():
        raise click.ClickException(f"{path} is there and is no file.")
    try:
        descriptor, unfinished = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(unfinished).replace(target)
    except BaseException as error:
        Path(unfinished).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:  # the disk's, not that of a daemon that went away
            raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
        raise


@contextmanager
def progress(ctl: Ctl, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else nothing; it is told how much is done."""
    if ctl.json or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # slow to load

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
