"""Safe reading of files that another program may have planted, replaced or made unreadable."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO


class UnsafeFile(Exception):
    """The file must not be read; the message says why."""


class SymbolicLink(UnsafeFile):
    """The path is a symbolic link."""


class TooLarge(UnsafeFile):
    """The file is larger than its reader accepts."""


def open_regular(
    path: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    owner: int | None = None,
    single_link: bool = False,
) -> BinaryIO:
    """Open the regular file at `path` for reading, without following a link and without blocking.

    `owner` is the user id that the file must belong to; `single_link` refuses a file with further hard links.
    Raises UnsafeFile for a file that breaks one of these rules, and OSError for one that cannot be opened.
    """
    _check(os.lstat(path), max_bytes, owner, single_link)  # opening a device or a pipe can have effects of its own
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), max_bytes, owner, single_link)  # the file may have been replaced in between
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(
    path: str | os.PathLike[str],
    *,
    max_bytes: int,
    owner: int | None = None,
    single_link: bool = False,
) -> bytes:
    """Read all of the regular file at `path`; raises like `open_regular`, also if the file grows during the read."""
    with open_regular(path, max_bytes=max_bytes, owner=owner, single_link=single_link) as file:
        return read_at_most(file, max_bytes)


def read_at_most(file: BinaryIO, max_bytes: int) -> bytes:
    """Read the rest of `file`; raises TooLarge if it exceeds `max_bytes`, regardless of its reported size."""
    pieces: list[bytes] = []
    left = max_bytes + 1
    while left and (piece := file.read(min(left, 1024 * 1024))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise _too_large(max_bytes)
    return b"".join(pieces)


def open_below(path: str, folders: Sequence[Path]) -> BinaryIO:
    """Open a regular file that lies below one of the folders, also after following links; raises as `open_regular`."""
    real = os.path.realpath(path)
    if not any(real.startswith(os.path.realpath(folder).rstrip("/") + "/") for folder in folders):
        raise UnsafeFile("it is outside the harness's folders")
    return open_regular(real)


def printable_name(path: str | os.PathLike[str]) -> str:
    """Return the file's name as valid Unicode: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace")  # noqa: PTH119


def _check(status: os.stat_result, max_bytes: int | None, owner: int | None, single_link: bool) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise SymbolicLink("it is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFile("it is not a regular file")
    if owner is not None and status.st_uid != owner:
        raise UnsafeFile(f"it belongs to another user (uid {status.st_uid})")
    if single_link and status.st_nlink > 1:
        raise UnsafeFile(f"it has {status.st_nlink} hard links")
    if max_bytes is not None and status.st_size > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> TooLarge:
    mebibytes = max_bytes // 1024 // 1024
    return TooLarge(f"it is larger than {f'{mebibytes} MiB' if mebibytes else f'{max_bytes} bytes'}")
