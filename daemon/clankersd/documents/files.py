"""Open the files that documents are read from: regular files of limited size only."""

import hashlib
import io
import os
from pathlib import Path
from typing import BinaryIO

from clankersd import safe_files

PSEUDO_FILE_SYSTEMS = frozenset(
    (
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
        "fusectl", "hugetlbfs", "mqueue", "nsfs", "pipefs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs",
        "smackfs", "sockfs", "sysfs", "tracefs",
    )
)  # fmt: skip
"""File systems whose files the kernel generates: their size is not that of the content, and some never end."""

MOUNTS = Path("/proc/self/mountinfo")


class ExtractionError(Exception):
    """A document that cannot be extracted; the message states why and what to do about it."""


class SizedFile(io.FileIO):
    """A file that ends where it ended when it was opened, even if it grows or is longer than its size says."""

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__(descriptor, "rb")
        self.size = size

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]  # callers pass bytes only
        left = max(self.size - self.tell(), 0)
        return super().readinto(memoryview(buffer)[:left])

    def readall(self) -> bytes:
        return super().read(max(self.size - self.tell(), 0))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            return super().seek(self.size + offset)
        return super().seek(offset, whence)


def open_regular(path: str, max_bytes: int) -> BinaryIO:
    """Open the regular file at `path` without following a link and without blocking; raises ExtractionError."""
    try:
        file = safe_files.open_regular(path, max_bytes=max_bytes)
    except safe_files.SymbolicLink as error:
        raise ExtractionError(f"{error}: name the file itself") from error
    except safe_files.TooLarge as error:
        raise ExtractionError(f"{error}: see document_megabytes") from error
    except safe_files.UnsafeFile as error:
        raise ExtractionError(str(error)) from error
    with file:
        status = os.fstat(file.fileno())
        if status.st_blocks == 0 and (kind := _file_system(status.st_dev)) in PSEUDO_FILE_SYSTEMS:
            raise ExtractionError(f"it is not stored on a disk: the kernel generates it ({kind})")
        return io.BufferedReader(SizedFile(os.dup(file.fileno()), status.st_size))


def _file_system(device: int) -> str | None:
    """Return the type of the file system on a device; None if the system does not report it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split(" ", 3)[2:3] == [number]:
            return source.partition(" ")[0]
    return None


def sha256_of(file: BinaryIO) -> str:
    """Compute the SHA-256 of the rest of a file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # accepts any readable file
