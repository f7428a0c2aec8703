"""Files as they are given: regular ones, not too large, and nothing else."""

import hashlib
import os
import stat
from typing import BinaryIO


class Refused(Exception):
    """The document cannot be taken apart; the message says why and what may be done."""


def open_regular(path: str, largest: int) -> BinaryIO:
    """The regular file at `path`; neither a link nor a pipe leads away or holds anybody up."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise Refused("it is a link: name the file itself") from error
        raise
    try:
        _check(os.fstat(opened), largest)
        return os.fdopen(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


def _check(status: os.stat_result, largest: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Refused("it is not a regular file")
    if status.st_size > largest:
        raise Refused(f"it is larger than {largest // 1024 // 1024} MiB: see document_megabytes")


def digest_of(file: BinaryIO) -> str:
    """The SHA-256 of what is left of a file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it is any that can be read into
