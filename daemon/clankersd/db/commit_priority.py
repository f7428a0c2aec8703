"""Let threads that prepare bulk work wait while a commit runs its statements.

Every call into SQLite gives up the interpreter lock, and taking it back from a busy thread takes a switch interval. The
thirty calls that store one event would so take ten times as long beside a thread that redacts a thousand of them. The
thread with bulk work therefore waits while statements run. It goes on while the commit is written to the disk.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

MAX_WAIT_SECONDS = 0.1
"""Bulk work continues after this time, even if the transaction is still running its statements."""

BULK_CHANGE_SECONDS = 0.003
"""Time after which a bulk change begins nothing more: single events wait until it ends."""

_no_statements_run = threading.Event()
_no_statements_run.set()


@contextmanager
def statements_first() -> Iterator[None]:
    """Have threads that call `yield_to_commits` wait until the block, or `begin_disk_write` in it, is done."""
    _no_statements_run.clear()
    try:
        yield
    finally:
        _no_statements_run.set()


def begin_disk_write() -> None:
    """Release the waiting threads: the transaction has run its statements."""
    _no_statements_run.set()


def yield_to_commits() -> None:
    """Wait while a commit runs its statements: called between two items of bulk work. The event loop does not wait."""
    if not _no_statements_run.is_set() and threading.current_thread() is not threading.main_thread():
        _no_statements_run.wait(MAX_WAIT_SECONDS)


def take_briefly(items: Iterable[T]) -> Iterator[T]:
    """Yield items, at least one, until a bulk change has taken long enough; the rest is left to its next run."""
    stop_at = time.monotonic() + BULK_CHANGE_SECONDS
    for item in items:
        yield item
        if time.monotonic() > stop_at:
            return
