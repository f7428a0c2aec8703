"""The process that runs `query`: started by query_pool.py, and killed by it when a statement does not end in time.

It reads tasks from its standard input and writes an answer to each to its standard output. Each task opens its own
read-only connection, so an idle process holds neither a lock nor a snapshot.
"""

import importlib
import math
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import apsw
import msgspec

from clankers_protocol.errors import QueryRefused
from clankers_protocol.framing import MAX_FRAME
from clankersd.db.errors import STORAGE_ERRORS, describe_error
from clankersd.processes.child import limit_resources, read_messages, write_message

MAX_HEAP_BYTES = 256 * 1024 * 1024
MAX_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_TEMPORARY_BYTES = 1024 * 1024 * 1024
MAX_JSON_BYTES = MAX_FRAME - 1024 * 1024
ALARM_DELAY_SECONDS = 5
"""Time after the deadline before the process ends itself, in case the daemon is gone and cannot kill it."""


class Task(msgspec.Struct):
    """A statement to run."""

    path: str
    sql: str
    limit: int
    seconds: float


class Result(msgspec.Struct, tag="result"):
    """The rows as JSON, ready to be sent."""

    json: bytes


class Refused(msgspec.Struct, tag="refused"):
    """The statement is invalid, does more than read, or needs too many resources."""

    message: str
    suggestions: list[str] | None


class TimedOut(msgspec.Struct, tag="timed out"):
    """The statement was interrupted at its deadline."""


class Unreadable(msgspec.Struct, tag="unreadable"):
    """The database file cannot be read."""

    problem: str


Answer = Result | Refused | TimedOut | Unreadable


def main() -> None:
    """Answer tasks until the daemon closes the pipe."""
    importlib.import_module("clankersd.admin.readonly_sql")  # before the first task, whose time is limited
    apsw.hard_heap_limit(MAX_HEAP_BYTES)
    limit_resources({resource.RLIMIT_AS: MAX_MEMORY_BYTES, resource.RLIMIT_FSIZE: MAX_TEMPORARY_BYTES})
    with suppress(BrokenPipeError, KeyboardInterrupt):
        write_message(sys.stdout.buffer, b"")  # it can take tasks now
        for message in read_messages(sys.stdin.buffer):
            task = msgspec.msgpack.decode(message, type=Task)
            signal.alarm(math.ceil(task.seconds) + ALARM_DELAY_SECONDS)
            write_message(sys.stdout.buffer, msgspec.msgpack.encode(_run(task)))
            signal.alarm(0)


def _run(task: Task) -> Answer:
    from clankersd.admin.readonly_sql import query_file  # the daemon imports this module for its types

    try:
        rows = query_file(Path(task.path), task.sql, task.limit, task.seconds)
        # As many rows as fit into one frame: escaped text takes up to six times its length.
        while len(encoded := msgspec.json.encode(rows)) > MAX_JSON_BYTES:
            if len(rows.rows) <= 1:
                return Refused("the first row is too large to be sent: select fewer columns, or use substr()", None)
            rows.rows = rows.rows[: len(rows.rows) // 2]
            rows.truncated = True
        return Result(encoded)
    except QueryRefused as refusal:
        return Refused(refusal.message, refusal.data and refusal.data["suggestions"])
    except apsw.InterruptError:
        return TimedOut()
    except MemoryError:
        return Refused("the answer needs more memory than a query may use: ask for less", None)
    except STORAGE_ERRORS as error:
        return Unreadable(describe_error(error))
    except (apsw.Error, UnicodeError) as error:
        return Refused(str(error), None)


if __name__ == "__main__":
    main()
