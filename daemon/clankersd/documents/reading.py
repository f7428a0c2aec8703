"""Files as they are given: regular ones, not too large, and nothing else."""

import hashlib
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

PSEUDO_FILE_SYSTEMS = frozenset(
    (
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
        "fusectl", "hugetlbfs", "mqueue", "nsfs", "pipefs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs",
        "smackfs", "sockfs", "sysfs", "tracefs",
    )
)  # fmt: skip
"""Their files are made up by the kernel: the size is not that of the content, and some never end."""

MOUNTS = Path("/proc/self/mountinfo")


class Refused(Exception):
    """The document cannot be taken apart; the message says why and what may be done."""


class SizedFile(io.FileIO):
    """A file that ends where it ended when it was opened, even if it grows or is longer than it said."""

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__(descriptor, "rb")
        self.size = size

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]  # of bytes, as it is called
        left = max(self.size - self.tell(), 0)
        return super().readinto(memoryview(buffer)[:left])

    def readall(self) -> bytes:
        return super().read(max(self.size - self.tell(), 0))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            return super().seek(self.size + offset)
        return super().seek(offset, whence)


def open_regular(path: str, largest: int) -> BinaryIO:
    """Open the regular file at `path`; neither a link nor a pipe leads away or holds anybody up."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise Refused("it is a link: name the file itself") from error
        raise
    try:
        status = os.fstat(opened)
        _check(status, largest)
        return io.BufferedReader(SizedFile(opened, status.st_size))
    except BaseException:
        os.close(opened)
        raise


def _check(status: os.stat_result, largest: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Refused("it is not a regular file")
    if status.st_size > largest:
        raise Refused(f"it is larger than {largest // 1024 // 1024} MiB: see document_megabytes")
    if status.st_blocks == 0 and (kind := _file_system(status.st_dev)) in PSEUDO_FILE_SYSTEMS:
        raise Refused(f"it is not stored on a disk: the kernel makes it up ({kind})")


def _file_system(device: int) -> str | None:
    """Return the type of the file system on a device; None where the system does not tell."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split(" ", 3)[2:3] == [wanted]:
            return source.partition(" ")[0]
    return None


def digest_of(file: BinaryIO) -> str:
    """The SHA-256 of what is left of a file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it is any that can be read into
