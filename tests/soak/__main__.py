"""Soak: mixed load with random kills and faults, compared with a model of every acknowledged operation.

Exits 1 when the database differs from the model, is damaged, or an unexpected error was answered.
"""

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from helpers.daemon import DaemonProcess
from helpers.waiting import eventually
from helpers.writers import quick_check
from rich.console import Console
from rich.table import Table
from tests.soak.model import Model, read_actual
from tests.soak.workers import Counters, Gate, Worker

WORKERS = 6
FAULT_SECONDS = 0.5
CHECK_EVERY_SECONDS = 60.0

console = Console(highlight=False, width=110)


@dataclass
class Sizes:
    """Memory, WAL and descriptors of the daemon at one moment."""

    resident_mb: float
    wal_mb: float
    descriptors: int


@dataclass
class Soak:
    """One soak: the daemon, its clients, and what happened."""

    daemon: DaemonProcess
    chance: random.Random
    model: Model = field(default_factory=Model)
    gate: Gate = field(default_factory=Gate)
    counters: Counters = field(default_factory=Counters)
    faults: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    checks: int = 0

    def measure(self) -> Sizes:
        assert self.daemon.process
        process = Path("/proc", str(self.daemon.process.pid))
        wal = Path(f"{self.daemon.database}-wal")
        return Sizes(
            int((process / "statm").read_text().split()[1]) * resource.getpagesize() / 1e6,
            wal.stat().st_size / 1e6 if wal.exists() else 0.0,
            len(list((process / "fd").iterdir())),
        )

    # -- faults

    def kill(self) -> None:
        self.daemon.kill()
        self.daemon.close()
        self.daemon.start()

    def restart(self) -> None:
        assert self.daemon.stop() == 0
        self.daemon.close()
        self.daemon.start()

    def pause(self) -> None:
        self.daemon.signal(signal.SIGSTOP)
        time.sleep(FAULT_SECONDS)
        self.daemon.signal(signal.SIGCONT)

    def delete_log(self) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{self.daemon.database}{suffix}").unlink(missing_ok=True)

    def delete_log_and_kill(self) -> None:
        self.delete_log()
        self.kill()

    def limit_file_size(self) -> None:
        assert self.daemon.process
        pid = self.daemon.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        time.sleep(FAULT_SECONDS)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def lock(self) -> None:
        other = apsw.Connection(str(self.daemon.database))
        other.set_busy_timeout(5000)
        try:
            with suppress(apsw.BusyError):
                other.execute("BEGIN IMMEDIATE")
                time.sleep(FAULT_SECONDS)
                other.execute("ROLLBACK")
        finally:
            other.close()

    def start_job(self) -> None:
        with self.daemon.connect() as connection:
            connection.request(self.chance.choice(["backup.create", "db.vacuum", "reindex", "doctor.check"]), {})

    def strike(self) -> None:
        """Inject one fault."""
        faults: dict[str, tuple[int, Callable[[], None]]] = {
            "kill -9": (5, self.kill),
            "restart": (1, self.restart),
            "SIGSTOP": (1, self.pause),
            "wal and shm deleted": (1, self.delete_log),
            "wal and shm deleted, kill -9": (1, self.delete_log_and_kill),
            "file size limit": (1, self.limit_file_size),
            "database locked": (1, self.lock),
            "job": (3, self.start_job),
        }
        (name,) = self.chance.choices(list(faults), [weight for weight, _ in faults.values()])
        faults[name][1]()
        self.faults[name] += 1

    def check(self) -> None:
        """Compare the database with the model while nobody writes."""
        with self.gate.closed():
            self.wait_until_healthy()
            with self.daemon.connect(60) as connection:
                actual = read_actual(self.daemon.database, connection, self.model)
            self.differences += self.model.differences(actual)
            if (verdict := quick_check(self.daemon.database)) != "ok":
                self.differences.append(f"quick_check: {verdict}")
            self.checks += 1

    def wait_until_healthy(self) -> None:
        with self.daemon.connect(60) as connection:
            eventually(lambda: connection.call("health")["ok"], "the daemon is healthy", within=60)


def soak(seconds: float, seed: int, folder: Path) -> tuple[Soak, list[Sizes]]:
    """Run the soak; returns it with the sizes after warming up and at the end."""
    run = Soak(DaemonProcess(folder, CLANKERS_BACKUP_HOURS="0"), random.Random(seed))
    run.daemon.start()
    workers = [Worker(f"w{number}", run.daemon, run.model, run.gate, run.counters) for number in range(WORKERS)]
    try:
        for worker in workers:
            worker.start()
        until = time.monotonic() + seconds
        time.sleep(min(5.0, seconds / 4))
        sizes = [run.measure()]
        checked_at = time.monotonic()
        while time.monotonic() < until:
            run.strike()
            if time.monotonic() - checked_at > CHECK_EVERY_SECONDS:
                run.check()
                checked_at = time.monotonic()
            time.sleep(run.chance.uniform(0.2, 3.0))
        run.check()
        sizes.append(run.measure())
        for worker in workers:
            worker.leaving.set()
        for worker in workers:
            worker.join()
            if worker.crash is not None:
                raise worker.crash
    finally:
        run.daemon.close()
    return run, sizes


def report(run: Soak, sizes: list[Sizes], seconds: float, seed: int) -> None:
    counters = run.counters
    refused = sum(counters.refused.values())
    console.print(f"{seconds / 60:.1f} minutes, seed {seed}, {WORKERS} clients")
    console.print(f"operations acknowledged  {counters.acknowledged:,}")
    console.print(f"refused                  {refused:,} {dict(counters.refused)}")
    console.print(f"connections lost         {counters.lost_connections:,}")
    console.print(f"faults                   {run.faults.total()}: {dict(run.faults)}")
    console.print(f"kills                    {sum(count for name, count in run.faults.items() if 'kill' in name)}")
    known = sum(len(values) == 1 for values in run.model.allowed.values())
    console.print(f"things in the model      {len(run.model.allowed):,}, of which {known:,} with one allowed value")
    console.print(f"compared                 {run.checks} times")
    console.print(f"lost or wrong            {len(run.differences)}")
    for difference in run.differences[:20]:
        console.print(f"  {difference}", markup=False, style="red")
    console.print(f"unexpected errors        {len(counters.unexpected)}")
    for problem in list(dict.fromkeys(counters.unexpected))[:20]:
        console.print(f"  {problem}", markup=False, style="red")
    for when, size in zip(("start", "end"), sizes, strict=True):
        console.print(
            f"{when:5}  RSS {size.resident_mb:.0f} MB, WAL {size.wal_mb:.1f} MB, {size.descriptors} descriptors"
        )
    table = Table("Method", box=None, pad_edge=False)
    for heading in ("Requests", "p50 (ms)", "p99 (ms)"):
        table.add_column(heading, justify="right")
    for method, times in sorted(counters.seconds.items()):
        ordered = sorted(times)
        p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        table.add_row(method, f"{len(ordered):,}", f"{p50 * 1e3:.1f}", f"{p99 * 1e3:.1f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the soak")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="which faults come when")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clk-soak-") as folder:
        run, sizes = soak(options.minutes * 60, options.seed, Path(folder))
    report(run, sizes, options.minutes * 60, options.seed)
    return int(bool(run.differences or run.counters.unexpected))


if __name__ == "__main__":
    sys.exit(main())
