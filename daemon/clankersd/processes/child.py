"""The child's side: its limits, and the messages on its standard input and output. Each follows its length."""

import resource
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

LENGTH = struct.Struct(">I")


def limit_resources(limits: dict[int, int]) -> None:
    """Set resource limits of this process for good, and forbid core dumps, which would hold what it reads."""
    for kind, limit in (limits | {resource.RLIMIT_CORE: 0}).items():
        with suppress(ValueError, OSError):  # not supported on every system, or lower already
            resource.setrlimit(kind, (limit, limit))


def read_messages(file: IO[bytes]) -> Iterator[bytes]:
    """Yield messages until the other side closes the pipe."""
    while head := file.read(LENGTH.size):
        yield file.read(LENGTH.unpack(head)[0])


def write_message(file: IO[bytes], data: bytes) -> None:
    file.write(LENGTH.pack(len(data)) + data)
    file.flush()
