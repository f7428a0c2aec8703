"""The bytes of a model, told apart without reading gigabytes."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clankersd.embedders.base import EmbedderUnavailable

BLOCKS = 16
BLOCK_SIZE = 64 * 1024


def fingerprint(path: Path) -> str:
    """A hash of the file's size and of blocks spread evenly over it; other weights give another."""
    with _open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for block in range(BLOCKS):
            file.seek(max(0, size - BLOCK_SIZE) * block // (BLOCKS - 1))
            digest.update(file.read(BLOCK_SIZE))
    return digest.hexdigest()


def read_regular_file(path: Path) -> bytes:
    """Read a whole file; raises EmbedderUnavailable when it is missing, unreadable or no regular file."""
    with _open_regular(path) as file:
        return file.read()


@contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open without blocking: opening a FIFO would wait for a writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise EmbedderUnavailable(f"{path} cannot be read: it is not a regular file", permanent=True)
            yield file
    except OSError as error:
        raise EmbedderUnavailable(f"{path} cannot be read: {error.strerror or error}", permanent=True) from error
