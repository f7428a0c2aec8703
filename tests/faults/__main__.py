"""Inject each fault into a real daemon under load, and count the acknowledged writes that are lost.

The record of acknowledged writes is kept by the clients, apart from the daemon. "Given up" counts those that the fault
itself takes away: the owner restores an older backup, or their bytes are overwritten on the disk. Exits 1 when one is
lost, a database is damaged, or the daemon does not become healthy again.
"""

import argparse
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.faults import power, resources, storage, upgrades, writes  # noqa: F401  # each registers its faults
from tests.faults.harness import FAULTS, Fault, Run, integrity_check

HEADINGS = ("Times", "Acknowledged", "Given up", "Lost", "Damaged", "Failed", "Healthy after (s)", "Longest (s)")

console = Console(highlight=False, width=150)


@dataclass
class Tally:
    """What came of one kind of fault."""

    times: int = 0
    acknowledged: int = 0
    given_up: int = 0
    lost: int = 0
    damaged: int = 0
    failed: int = 0
    skipped: str | None = None
    seconds: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return the row of the table, without the fault itself."""
        if self.skipped:
            return [f"not tried: {self.skipped}", *[""] * (len(HEADINGS) - 1)]
        ordered = sorted(self.seconds) or [float("nan")]
        counts = (self.times, self.acknowledged, self.given_up, self.lost, self.damaged, self.failed)
        return [*(f"{count:,}" for count in counts), f"{ordered[len(ordered) // 2]:.2f}", f"{ordered[-1]:.2f}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often each fault is injected")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names of faults, or parts of them; default: all")
    options = parser.parse_args()
    chosen = [name for name in FAULTS if not options.faults or any(part in name for part in options.faults)]
    if not chosen:
        parser.error(f"there is no such fault; there are: {', '.join(FAULTS)}")
    if options.list:
        console.print("\n".join(chosen))
        return 0
    tallies = {name: Tally() for name in chosen}
    for name, tally in tallies.items():
        console.print(f"{name} …", style="dim")
        for _ in range(options.times):
            suffer(FAULTS[name], tally)
    print_table(tallies, options.markdown)
    return int(any(tally.lost or tally.damaged or tally.failed for tally in tallies.values()))


def suffer(fault: Fault, tally: Tally) -> None:
    """Inject a fault once, and count what is left."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder:
        try:
            with fault.disk(Path(folder)):
                tally.times += 1
                run = Run(fault.make_daemon(Path(folder)))
                try:
                    strike(fault, run, tally)
                finally:
                    run.daemon.close()
        except NotImplementedError as error:
            tally.skipped = str(error)
        except Exception:  # the other faults are still of interest
            tally.failed += 1
            console.print(f"{fault.name}:\n{traceback.format_exc()}", style="red", markup=False)


def strike(fault: Fault, run: Run, tally: Tally) -> None:
    run.daemon.start()
    run.begin_writing()
    begun = time.monotonic()
    given_up = fault.inject(run)
    wait_until_healthy(run)
    tally.seconds.append(time.monotonic() - begun)
    run.begin_writing()
    promised = run.stop_writing()
    run.crash()
    tally.acknowledged += len(promised) + sum(map(len, run.promised.values()))
    tally.given_up += len(given_up)
    tally.lost += len(run.missing(given_up))
    for note in run.notes:
        console.print(f"  {note}")
    tally.damaged += integrity_check(run.daemon.database) != "ok"


def wait_until_healthy(run: Run, within_seconds: float = 60) -> None:
    """Wait until `health` is ok and a new event is acknowledged."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        with suppress(BlockingIOError), run.daemon.connect() as connection:  # raised while its queue is full
            reply = connection.request("upsertMessage", {"message": {"id": "probe", "sessionId": "probe"}})
            if "error" not in reply and connection.call("health")["ok"]:
                return
        time.sleep(0.01)
    raise AssertionError(f"not healthy after {within_seconds:g} s")


def print_table(tallies: dict[str, Tally], as_markdown: bool) -> None:
    if as_markdown:
        print("| Fault | How it is injected |", " | ".join(HEADINGS), "|")
        print("|---|---|" + "---:|" * len(HEADINGS))
        for name, tally in tallies.items():
            print(f"| {name} | {FAULTS[name].how} |", " | ".join(tally.cells()), "|")
        return
    table = Table("Fault", "How it is injected", box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name, tally in tallies.items():
        table.add_row(name, FAULTS[name].how, *tally.cells())
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
