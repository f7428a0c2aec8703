"""`make bench-stalls`: how long other clients wait for `health` while one sends something large.

Every case is a request, a frame or a set of files of about the given size. The first line is the same client while
another one stores small messages. "worst ms" is the longest wait; "ran ms" the longest during which threads of it
ran, which other work on the machine does not lengthen: that one is judged.

    python -m tests.bench.stalls [--megabytes 30] [--only TEXT]...
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from helpers.daemon import DaemonProcess, running_daemon
from helpers.stalls import BRINGERS, CASES, MEGABYTE, Pinger, Stall, run_bringer, run_case, window
from rich.console import Console

LIMIT_SECONDS = 0.1
ORDINARY_SECONDS = 3.0

console = Console(highlight=False, width=120)


def ordinary(daemon: DaemonProcess) -> Stall:
    """One client that stores small messages, one after the other."""
    with daemon.connect() as connection, window() as moments:
        deadline, number = time.monotonic() + ORDINARY_SECONDS, 0
        while time.monotonic() < deadline:
            number += 1
            connection.call(
                "upsertMessage", message={"id": f"o{number}", "sessionId": "o", "textContent": "word " * 40}
            )
    return Stall("small messages", (moments[0], moments[1]), 0, f"{number} stored")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    size, late = int(options.megabytes * MEGABYTE), 0
    runs: dict[str, Callable[[DaemonProcess], Stall]] = {
        **{name: partial(run_case, one=one, size=size) for name, one in CASES.items()},
        **{name: partial(run_bringer, name=name, size=size) for name in BRINGERS},
    }
    chosen = [run for name, run in runs.items() if not options.only or any(text in name for text in options.only)]
    console.print(f"{'case':42} {'MB':>6} {'seconds':>8} {'worst ms':>9} {'ran ms':>7}  outcome")
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder), HOME=str(Path(folder) / "user")) as daemon,
        Pinger(daemon) as pinger,
    ):
        for run in (ordinary, *chosen, ordinary):
            stall = run(daemon)
            waited, ran = pinger.worst(stall.window)
            late += ran > LIMIT_SECONDS
            console.print(
                f"{stall.name:42} {stall.bytes / MEGABYTE:6.1f} {stall.seconds:8.1f}"
                f" {waited * 1000:9.0f} {ran * 1000:7.0f}  {stall.outcome}",
                style="red" if ran > LIMIT_SECONDS else None,
            )
    console.print(f"{late} cases made `health` wait longer than {LIMIT_SECONDS * 1000:.0f} ms")


if __name__ == "__main__":
    main()
