"""Inject each storage fault into a real daemon under load, and count the acknowledged events that are lost.

The record of acknowledged events is kept by the clients, apart from the daemon. Exits 1 when an event is lost or a
database is damaged.
"""

import argparse
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from helpers.daemon import DaemonProcess
from helpers.writers import stored
from rich.console import Console
from rich.table import Table
from tests.faults.storage import FAULTS, Inject, Run

console = Console(highlight=False, width=110)


@dataclass
class Tally:
    """What came of one kind of fault."""

    times: int = 0
    acknowledged: int = 0
    lost: int = 0
    damaged: int = 0
    failed: int = 0
    seconds: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often each fault is injected")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"one or more of: {', '.join(FAULTS)}")
    options = parser.parse_args()
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    tallies = {name: Tally() for name in options.faults or FAULTS}
    for name, tally in tallies.items():
        for _ in range(options.times):
            suffer(name, FAULTS[name], tally)
    print_table(tallies)
    return int(any(tally.lost or tally.damaged or tally.failed for tally in tallies.values()))


def suffer(name: str, inject: Inject, tally: Tally) -> None:
    """Inject a fault once, and count what is left."""
    tally.times += 1
    with tempfile.TemporaryDirectory(prefix="clk-") as folder:
        run = Run(DaemonProcess(Path(folder), CLANKERS_EMBEDDER="none"))
        try:
            run.daemon.start()
            run.begin_writing()
            begun = time.monotonic()
            given_up = inject(run)
            wait_until_healthy(run)
            tally.seconds.append(time.monotonic() - begun)
            run.begin_writing()
            promised = run.stop_writing()
            run.crash()
            lost = promised - given_up - stored(run.daemon.database)
            tally.acknowledged += len(promised)
            tally.lost += len(lost)
            tally.damaged += integrity_check(run.daemon.database) != "ok"
        except Exception:  # the other faults are still of interest
            tally.failed += 1
            console.print(f"{name}:\n{traceback.format_exc()}", style="red")
        finally:
            run.daemon.close()


def wait_until_healthy(run: Run, within_seconds: float = 60) -> None:
    """Wait until `health` is ok and a new event is acknowledged."""
    deadline = time.monotonic() + within_seconds
    with run.daemon.connect() as connection:
        while time.monotonic() < deadline:
            reply = connection.request("upsertMessage", {"message": {"id": "probe", "sessionId": "probe"}})
            if "error" not in reply and connection.call("health")["ok"]:
                return
            time.sleep(0.01)
    raise AssertionError(f"not healthy after {within_seconds:g} s")


def integrity_check(database: Path) -> str:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return str(db.pragma("integrity_check"))
    finally:
        db.close()


def print_table(tallies: dict[str, Tally]) -> None:
    table = Table("Fault", box=None, pad_edge=False)
    for heading in ("Times", "Acknowledged", "Lost", "Damaged", "Failed", "Healthy after (s)", "Longest (s)"):
        table.add_column(heading, justify="right")
    for name, tally in tallies.items():
        ordered = sorted(tally.seconds) or [float("nan")]
        counts = (tally.times, tally.acknowledged, tally.lost, tally.damaged, tally.failed)
        table.add_row(
            name, *(f"{count:,}" for count in counts), f"{ordered[len(ordered) // 2]:.2f}", f"{ordered[-1]:.2f}"
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
