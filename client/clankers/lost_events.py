"""Count of the events that hooks could neither send nor spool. Imported only when that happens.

The record is one line of fixed length, `COUNT MILLISECONDS REASON`, overwritten in place, so that a full disk does not
keep it from being written. The daemon makes the file ahead of time, and reads it.
"""

import os
import stat
import time

RECORD_BYTES = 512
LOCK_TRIES, LOCK_SECONDS = 20, 0.005


def count_loss(path: str, reason: str) -> int:
    """Add one to the count in the file at `path`; returns the count. Raises OSError."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise OSError(f"{path} is not a file of our own")
        for _ in range(LOCK_TRIES):  # hooks may fail side by side, but must not wait for long
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_SECONDS)
        before = os.pread(descriptor, RECORD_BYTES, 0).partition(b" ")[0]
        count = int(before) + 1 if before.isdigit() else 1
        line = f"{count} {time.time_ns() // 1_000_000} {' '.join(reason.split())}".encode(errors="replace")
        os.pwrite(descriptor, line[: RECORD_BYTES - 1].ljust(RECORD_BYTES - 1) + b"\n", 0)
    finally:
        os.close(descriptor)
    return count
