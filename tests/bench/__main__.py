"""`make bench`: how fast the daemon is, beside what bare SQLite and bare sockets do in the same run.

Trust the ratios: other work on the machine moves all the figures together. Exits 1 when a bar is missed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.daemon import DaemonProcess, running_daemon
from rich.console import Console
from rich.table import Table
from tests.bench.baselines import commit_loop, rows_loop
from tests.bench.load import BATCH

NO_EMBEDDER = {"CLANKERS_EMBEDDER": "none"}
"""The write path is measured by itself: vectors are made in the background, and bench-indexing measures them."""

SECONDS = 3.0
STARTS = 7
TURNS = 3
MAX_IDLE_RSS = 60e6
MAX_START = 0.5
MAX_COST = 1 / 3
MAX_TIMES_BARE = 3.0

console = Console(highlight=False, width=110)


@dataclass
class Row:
    """One line of the table; times in seconds, `cpu` per request."""

    what: str
    rate: float
    p50: float | None = None
    p99: float | None = None
    cpu: float | None = None


@dataclass
class Bar:
    """A figure that must not be above its limit."""

    what: str
    figure: float
    limit: float
    shown: str

    @property
    def met(self) -> bool:
        return self.figure <= self.limit


def cpu_seconds(pid: int) -> float:
    """CPU seconds used by a process so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


_runs = iter(range(1_000_000))


def load(socket: Path, pid: int, what: str, mode: str, connections: int = 1) -> Row:
    """Run the load generator, and return its figures and the CPU time of the server."""
    command = [sys.executable, "-m", "tests.bench.load", mode, str(socket), f"r{next(_runs)}"]
    before = cpu_seconds(pid)
    done = subprocess.run(
        [*command, f"--connections={connections}", f"--seconds={SECONDS}"], capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what}: the load generator failed: {done.stderr.decode()}")
    seen: dict[str, Any] = json.loads(done.stdout)
    if seen["failures"]:
        raise SystemExit(f"{what}: {seen['failures']} of {seen['requests']} requests failed")
    events = seen["requests"] * (BATCH if mode == "batch" else 1)
    cpu = (cpu_seconds(pid) - before) / events
    return Row(what, events / seen["seconds"], seen["p50"], seen["p99"], cpu)


@contextmanager
def baseline_server(kind: str, folder: Path) -> Iterator[tuple[Path, int]]:
    """A server of tests.bench.baselines: its socket and process."""
    socket = folder / f"{kind}.sock"
    command = [sys.executable, "-m", "tests.bench.baselines", kind, str(socket), str(folder / f"{kind}.db")]
    with subprocess.Popen(command) as process:
        try:
            while not socket.exists():
                time.sleep(0.01)
            yield socket, process.pid
        finally:
            process.kill()


def start_time(home: Path) -> float:
    """Seconds from spawning the daemon until it has answered `health`."""
    daemon = DaemonProcess(home)
    began = time.perf_counter()
    daemon.start(wait=False)
    try:
        while True:
            try:
                with daemon.connect() as connection:
                    connection.call("health")
                return time.perf_counter() - began
            except OSError:
                time.sleep(0.002)
    finally:
        daemon.stop()
        daemon.close()


def measure_starts(folder: Path) -> tuple[float, float]:
    """The start that makes the database, and the median of those that find one."""
    home = folder / "start"
    home.mkdir()
    first = start_time(home)
    return first, statistics.median(start_time(home) for _ in range(STARTS))


def measure_loops(folder: Path) -> list[Row]:
    """Bare SQLite: a commit for each upsert, and one for 64."""
    alone = commit_loop(folder / "alone.db", 1, SECONDS / 2)
    together = commit_loop(folder / "together.db", 64, SECONDS / 2)
    return [Row("bare SQLite, a commit each", 1 / alone), Row("bare SQLite, a commit for 64", 1 / together)]


def measure_servers(folder: Path) -> list[Row]:
    """Servers with less in them than a daemon."""
    with baseline_server("echo", folder) as (socket, pid):
        echo_one = load(socket, pid, "echo server, 1 connection", "persistent", 1)
        echo = load(socket, pid, "echo server, 64 connections", "persistent", 64)
    with baseline_server("naive", folder) as (socket, pid):
        naive = load(socket, pid, "bare server, a commit each, 64 connections", "persistent", 64)
    return [echo_one, echo, naive]


def measure_daemon(daemon: DaemonProcess) -> list[Row]:
    """The daemon under other loads than many connections."""
    assert daemon.process
    socket, pid = daemon.socket_path, daemon.process.pid
    return [
        load(socket, pid, "clankersd, 1 connection", "persistent", 1),
        load(socket, pid, "clankersd, 8 connections", "persistent", 8),
        load(socket, pid, "clankersd, a connection per call", "per-call"),
        load(socket, pid, f"clankersd, events.batch of {BATCH}", "batch"),
    ]


class UngroupedDaemon(DaemonProcess):
    """The same daemon in every respect but one: it commits every request by itself."""

    command = (
        "import clankersd.db.write_queue as queue; queue.MAX_WRITES_PER_COMMIT = 1; "
        "import clankersd.main as m; m.main()"
    )

    def start(self, *flags: str, wait: bool = True) -> "UngroupedDaemon":
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.command, *flags], env=self.environ, stdin=subprocess.DEVNULL
        )
        if wait:
            self.wait_until_ready()
        return self


def measure_grouping(folder: Path) -> tuple[Row, Row]:
    """64 connections with group commit and without, in turns, so that the machine's moods touch both.

    Both begin with an empty database, as the bare loop does: in a large one each event writes to more pages.
    """
    homes = folder / "grouped", folder / "ungrouped"
    for home in homes:
        home.mkdir()
    grouped, ungrouped = DaemonProcess(homes[0], **NO_EMBEDDER), UngroupedDaemon(homes[1], **NO_EMBEDDER)
    together: list[Row] = []
    apart: list[Row] = []
    measured = (
        (grouped, "clankersd, 64 connections", together),
        (ungrouped, "clankersd, a commit each, 64 connections", apart),
    )
    try:
        for daemon, _, _ in measured:
            daemon.start()
        for _ in range(TURNS):
            for daemon, what, rows in measured:
                assert daemon.process
                rows.append(load(daemon.socket_path, daemon.process.pid, what, "persistent", 64))
    finally:
        for daemon, _, _ in measured:
            daemon.close()
    return middle(together), middle(apart)


def middle(rows: list[Row]) -> Row:
    """The row of the median rate."""
    return sorted(rows, key=lambda row: row.rate)[len(rows) // 2]


def real_disk() -> Path:
    """A folder on a disk: on tmpfs a commit costs nothing and the figures mean nothing."""
    for folder in (Path("/var/tmp"), Path.home(), Path.cwd()):
        kind = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True)
        if kind.stdout.strip() not in ("tmpfs", "ramfs") and os.access(folder, os.W_OK):
            return folder
    raise SystemExit("there is no writable folder on a real disk to measure in")


def table(rows: list[Row]) -> Table:
    shown = Table("", "per second", "p50 ms", "p99 ms", "CPU µs each", box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in rows:
        shown.add_row(
            row.what,
            f"{row.rate:,.0f}",
            "" if row.p50 is None else f"{row.p50 * 1e3:.2f}",
            "" if row.p99 is None else f"{row.p99 * 1e3:.2f}",
            "" if row.cpu is None else f"{row.cpu * 1e6:.0f}",
        )
    return shown


def ratios(grouped: Row, others: list[Row]) -> Table:
    """The wall time of an upsert at 64 connections as a part of what others take."""
    shown = Table("an upsert at 64 connections takes", "times", box=None, pad_edge=False)
    shown.columns[1].justify = "right"
    for other in others:
        shown.add_row(f"of {other.what}", f"{other.rate / grouped.rate:.2f}")
    return shown


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="clk-bench-", dir=real_disk()) as name:
        folder = Path(name)
        # An installed package has its bytecode, but the sources that are measured here may never have been compiled.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        subprocess.run([sys.executable, "-c", "import clankersd.app"], check=True)
        first_start, start = measure_starts(folder)
        home = folder / "home"
        home.mkdir()
        with running_daemon(home, **NO_EMBEDDER) as daemon:
            assert daemon.process
            idle = rss(daemon.process.pid)
            alone, eight, *rest = measure_daemon(daemon)
            loaded = rss(daemon.process.pid)
        grouped, ungrouped = measure_grouping(folder)
        bare_alone = rows_loop(folder / "rows-alone.db", 1, SECONDS)
        bare_together = rows_loop(folder / "rows-together.db", 64, SECONDS)
        baselines = [ungrouped, *measure_loops(folder), *measure_servers(folder)]
    console.print(table([alone, eight, grouped, *rest, *baselines]))
    console.print("p50, p99 of events.batch are per batch, the rest per event\n")
    console.print(ratios(grouped, [alone, *baselines]))
    assert alone.cpu is not None
    assert grouped.cpu is not None
    for row, bare in ((alone, bare_alone), (grouped, bare_together)):
        console.print(f"CPU of {row.what}: {(row.cpu or 0) * 1e6:.0f} µs; in a bare loop {bare * 1e6:.0f} µs")
    console.print(
        f"\nmemory: idle {idle / 1e6:.1f} MB, after load {loaded / 1e6:.1f} MB"
        f"\nready after: {first_start:.3f} s with a new database, {start:.3f} s with an old one\n"
    )
    cost = ungrouped.rate / grouped.rate
    return judge(
        [
            Bar("cost of an upsert with group commit / with a commit each", cost, MAX_COST, ".2f"),
            Bar("CPU of an upsert alone / of its rows in a bare loop", alone.cpu / bare_alone, MAX_TIMES_BARE, ".2f"),
            Bar("the same with 64 connections", grouped.cpu / bare_together, MAX_TIMES_BARE, ".2f"),
            Bar("idle memory (MB)", idle / 1e6, MAX_IDLE_RSS / 1e6, ".1f"),
            Bar("ready after (s)", start, MAX_START, ".3f"),
        ]
    )


def judge(bars: list[Bar]) -> int:
    """Print each bar with its verdict; 1 when one is missed."""
    for bar in bars:
        verdict = "ok    " if bar.met else "MISSED"
        console.print(f"{verdict} {bar.what}: {bar.figure:{bar.shown}} (at most {bar.limit:{bar.shown}})")
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
