"""Writing a file completely or not at all."""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

import click

from clankers.ctl.edits import explain_os_errors
from clankers_protocol.safe_writes import writable_path


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path`, with mode 0600, if the block succeeds; otherwise change nothing."""
    with explain_os_errors():
        target = writable_path(path)
    if target.exists() and not target.is_file():
        raise click.ClickException(f"{path} exists and is not a regular file.")
    try:
        descriptor, unfinished = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise click.ClickException(f"Cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(unfinished).replace(target)
    except BaseException as error:
        Path(unfinished).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:  # an error of the disk; a lost daemon has no errno
            raise click.ClickException(f"Cannot write {path}: {error.strerror}") from error
        raise


@contextmanager
def replace_text_file(path: Path) -> Iterator[TextIO]:
    """Open a temporary text file as `replace_file` does."""
    with replace_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()
