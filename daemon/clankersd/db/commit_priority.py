"""Let threads that prepare bulk work wait while a commit runs its statements.

Every call into SQLite gives up the interpreter lock, and taking it back from a busy thread takes a switch interval. The
thirty calls that store one event would so take ten times as long beside a thread that redacts a thousand of them. The
thread with bulk work therefore waits while statements run. It goes on while the commit is written to the disk.
"""

import threading
from collections import deque
from contextlib import suppress
from functools import cache
from typing import Any

MAX_WAIT_SECONDS = 0.1
"""Bulk work continues after this time, even if the transaction is still running its statements."""


class _Statements:
    """Context manager: the statements of a commit run.

    A flag, since every commit passes it twice: a generator and an event would take several times as long.
    """

    def __init__(self) -> None:
        self.are_running = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        self.are_running = True

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Release the threads that wait."""
        self.are_running = False
        while self._waiting:
            with suppress(IndexError):  # the thread of another connection has released the last
                self._waiting.popleft().set()

    def wait_for_end(self) -> None:
        ended = threading.Event()
        self._waiting.append(ended)
        if self.are_running:  # asked again: whoever ends them now finds this thread waiting
            ended.wait(MAX_WAIT_SECONDS)


_statements = _Statements()


def bulk_work_held() -> _Statements:
    """Hold threads that call `yield_to_commits` until the block ends, or calls `release_bulk_work`."""
    return _statements


def release_bulk_work() -> None:
    """Release the threads that are held: what follows takes long in SQLite, and does not need the interpreter lock."""
    _statements.end()


def yield_to_commits() -> None:
    """Wait while a commit runs its statements: called between two items of bulk work. The event loop does not wait."""
    if _statements.are_running and threading.current_thread() is not threading.main_thread():
        _statements.wait_for_end()


def yield_core() -> None:
    """Let another thread or process that waits for this core run first: called between two steps of a computation.

    A thread that computes without a pause keeps its core for a whole time slice, some milliseconds. What the system
    does on that core at the end of a sync to the disk would wait for it, and the commit with it.
    """
    if (sched_yield := _load_sched_yield()) is not None:
        sched_yield()


@cache
def _load_sched_yield() -> Any:
    """Return the function of the C library: ctypes calls it without the interpreter lock, which `os` would keep."""
    import ctypes  # takes memory that only a search is worth

    try:
        return ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError):
        return None
