"""Count of the events that hooks could neither send nor spool. Imported only when that happens.

The record is one line of fixed length, `COUNT MILLISECONDS REASON`, which is overwritten in place: that works even when
the disk is full. The daemon creates the file in advance, and reads it.
"""

import os
import stat
import time

RECORD_BYTES = 512
LOCK_ATTEMPTS = 20
LOCK_RETRY_SECONDS = 0.005


def count_loss(path: str, reason: str) -> int:
    """Increment the count in the file at `path` and return it; raises OSError."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(f"{path} is not a regular file, or has hard links")
        for _ in range(LOCK_ATTEMPTS):  # several hooks may fail together, but none may wait for long
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_RETRY_SECONDS)
        previous = os.pread(descriptor, RECORD_BYTES, 0).partition(b" ")[0]
        count = int(previous) + 1 if previous.isdigit() else 1
        line = f"{count} {time.time_ns() // 1_000_000} {' '.join(reason.split())}".encode(errors="replace")
        os.pwrite(descriptor, line[: RECORD_BYTES - 1].ljust(RECORD_BYTES - 1) + b"\n", 0)
    finally:
        os.close(descriptor)
    return count
