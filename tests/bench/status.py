"""`make bench-status`: what `health`, `daemon.status` and `index.status` take in a store of a million chunks.

A large and an empty store are asked in turns, so that other work on the machine moves all figures together. The first
answer of each method, which may count the rows, is shown apart. Exits 1 when the large store takes too many times as
long as the empty one.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import apsw
from helpers.daemon import DaemonProcess
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import NO_EMBEDDER, Bar, judge, real_disk

CHUNKS = 1_000_000
METHODS = ("health", "daemon.status", "index.status")
CALLS = 300
MAX_TIMES_EMPTY = 3.0

_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)"

console = Console(highlight=False, width=110)


def fill(database: Path, chunks: int) -> None:
    """Store chunks, and for ten of them six tool calls and four messages, directly in the file of a stopped daemon."""
    db = apsw.Connection(str(database))
    try:
        db.pragma("synchronous", "off")
        with db:
            db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('filler', 1, 1)")
            db.execute(
                f"{_NUMBERS} INSERT INTO messages (id, session_id, role, text_content, created_at) "
                "SELECT 'm' || n, 'filler', 'user', 'some words of a message', n FROM numbers",
                {"count": chunks * 4 // 10},
            )
            db.execute(
                f"{_NUMBERS} INSERT INTO tools (id, session_id, tool_name, success, created_at) "
                "SELECT 't' || n, 'filler', 'Bash', 1, n FROM numbers",
                {"count": chunks * 6 // 10},
            )
            db.execute(
                f"{_NUMBERS} INSERT INTO chunks (chunk_id, chunking, source, session_id, position, start_line, "
                "end_line, start_offset, end_offset, tokens, created_at, hash, text) "
                "SELECT 'c' || n, 1, 'sessions', 'filler', 0, 1, 1, 0, 20, 5, n, 'h' || n, 'some words of a chunk' "
                "FROM numbers",
                {"count": chunks},
            )
    finally:
        db.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.status", description=__doc__)
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="chunks in the large store")
    options = parser.parse_args()
    first: dict[tuple[str, str], float] = {}
    taken: dict[tuple[str, str], list[float]] = {
        (store, method): [] for store in ("empty", "large") for method in METHODS
    }
    with ExitStack() as stack:
        connections = {}
        for store in ("empty", "large"):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-status-", dir=real_disk()))
            daemon = DaemonProcess(Path(folder), CLANKERS_BACKUP_HOURS="0", **NO_EMBEDDER)
            stack.callback(daemon.close)
            if store == "large":
                daemon.start().stop()
                daemon.close()
                fill(daemon.database, options.chunks)
            daemon.start()
            connections[store] = stack.enter_context(daemon.connect(60))
        for number in range(-1, CALLS):
            for (store, method), times in taken.items():
                began = time.perf_counter()
                connections[store].call(method)
                seconds = time.perf_counter() - began
                if number < 0:
                    first[store, method] = seconds
                else:
                    times.append(seconds)
    shown = Table(f"{options.chunks:,} chunks", "store", "first ms", "p50 ms", "p99 ms", box=None)
    for (store, method), times in taken.items():
        ordered = sorted(times)
        cells = (first[store, method], statistics.median(ordered), ordered[len(ordered) * 99 // 100])
        shown.add_row(method, store, *(f"{cell * 1e3:.1f}" for cell in cells))
    console.print(shown)
    medians = {key: statistics.median(times) for key, times in taken.items()}
    return judge(
        [
            Bar(f"{method}, large / empty", medians["large", method] / medians["empty", method], MAX_TIMES_EMPTY, ".2f")
            for method in METHODS
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
