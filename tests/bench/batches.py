"""`make bench-batches`: events.batch with texts that repeat themselves, and with real ones.

Batches of 500 from one client that waits for each reply, without an embedder. BEFORE is another checkout, whose daemon
is measured in turns with this one.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from helpers.daemon import DaemonProcess, RawConnection
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import NO_EMBEDDER, cpu_seconds, real_disk
from tests.bench.baselines import rows_loop
from tests.bench.datasets import load_sets
from tests.bench.events import EVENTS_PER_SESSION, event

from clankers_protocol.framing import Decoder, frame

SIZE = 500
BATCHES = 20
WARM_UP = 4
"""Batches that are sent first and not counted: some of what a daemon needs is loaded with the first texts."""

TURNS = 3
BARE_SECONDS = 1.0
MESSAGE_CHARACTERS = 1024
TOOL_CHARACTERS = 4096

Events = Callable[[str, int], dict[str, Any]]
"""The event of a run with this prefix and number."""


class Texts:
    """Messages of BEAM as events: complete, in pieces of 1 KB, and in tool calls."""

    def __init__(self, folder: Path) -> None:
        [beam] = load_sets(folder, ["beam"])
        self._messages = beam.texts
        random.Random(1).shuffle(self._messages)
        self._all = "\n".join(self._messages)

    def complete(self, prefix: str, number: int) -> dict[str, Any]:
        """A message of BEAM, with a number that makes it different from those of other rounds."""
        round_number, place = divmod(number, len(self._messages))
        return self._message(prefix, number, f"{self._messages[place]} #{round_number}")

    def piece(self, prefix: str, number: int) -> dict[str, Any]:
        return self._message(prefix, number, self._cut(number, MESSAGE_CHARACTERS))

    def mixed(self, prefix: str, number: int) -> dict[str, Any]:
        """The mix of `make bench`: of ten events, one is a session, five are messages and four are tool calls."""
        one = event(prefix, number)
        if "message" in one:
            one["message"]["textContent"] = self._cut(number, MESSAGE_CHARACTERS)
        elif "tool" in one:
            one["tool"]["toolInput"] = self._cut(number, TOOL_CHARACTERS)
            one["tool"]["toolOutput"] = self._cut(-number, TOOL_CHARACTERS)
        return one

    def _cut(self, seed: int, characters: int) -> str:
        start = random.Random(seed).randrange(len(self._all) - characters)
        return self._all[start : start + characters]

    def _message(self, prefix: str, number: int, text: str) -> dict[str, Any]:
        return {
            "message": {
                "id": f"{prefix}-{number}",
                "sessionId": f"{prefix}-s{number // EVENTS_PER_SESSION}",
                "role": "user" if number % 2 else "assistant",
                "textContent": text,
                "createdAt": 1_750_000_000_000 + number,
            }
        }


class CheckoutDaemon(DaemonProcess):
    """The daemon of a checkout, in this interpreter."""

    def __init__(self, home: Path, sources: Path) -> None:
        super().__init__(home, **NO_EMBEDDER)
        folders = [str(sources / part) for part in ("daemon", "client", "protocol")]
        self.program = ("-c", f"import sys; sys.path[:0] = {folders!r}; from clankersd.main import main; main()")


def request_frames(make_event: Events) -> list[bytes]:
    frames = []
    for number in range(WARM_UP + BATCHES):
        events = [make_event("b", number * SIZE + place) for place in range(SIZE)]
        message = {"jsonrpc": "2.0", "id": number, "method": "events.batch", "params": {"events": events}}
        frames.append(frame(json.dumps(message).encode()))
    return frames


def send(connection: RawConnection, frames: list[bytes]) -> None:
    """Send requests, each after the reply to the one before."""
    decoder = Decoder()
    for one in frames:
        connection.socket.sendall(one)
        while not (replies := list(decoder.feed(connection.socket.recv(1 << 20)))):
            pass
        if not json.loads(replies[0])["result"]["ok"]:
            raise SystemExit("a batch was refused")


def store(sources: Path, frames: list[bytes]) -> tuple[float, float]:
    """Store the batches in a new database; return events per second, and CPU seconds of the daemon per event."""
    with tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as name:
        daemon = CheckoutDaemon(Path(name), sources)
        try:
            daemon.start()
            assert daemon.process
            with daemon.connect(timeout=600) as connection:
                send(connection, frames[:WARM_UP])
                used, began = cpu_seconds(daemon.process.pid), time.perf_counter()
                send(connection, frames[WARM_UP:])
                taken = time.perf_counter() - began
                used = cpu_seconds(daemon.process.pid) - used
            daemon.stop()
        finally:
            daemon.close()
    return BATCHES * SIZE / taken, used / (BATCHES * SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Store batches of events.")
    parser.add_argument("--data", type=Path, help="folder with the chats of BEAM")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    given = parser.parse_args()
    kinds: dict[str, Events] = {"texts of make bench, which repeat themselves": event}
    if given.data:
        texts = Texts(given.data)
        kinds |= {
            "messages of BEAM": texts.complete,
            "… 1 KB of them each": texts.piece,
            "… and tool calls with 4 KB twice": texts.mixed,
        }
    checkouts = {"this": Path(__file__).parents[2]} | ({"before": given.before} if given.before else {})
    shown = Table("events.batch of 500", *(f"{name}, events/s" for name in checkouts), box=None, pad_edge=False)
    for title in ("CPU µs", "bare loop µs", "times before"):
        shown.add_column(title, justify="right")
    for what, make_event in kinds.items():
        frames = request_frames(make_event)
        rates: dict[str, list[float]] = {name: [] for name in checkouts}
        cpu = []
        for _ in range(TURNS):  # in turns, so that a busy machine affects all alike
            for name, sources in checkouts.items():
                rate, used = store(sources, frames)
                rates[name].append(rate)
                cpu += [used] if name == "this" else []
        with tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as folder:
            bare = rows_loop(Path(folder) / "rows.db", SIZE, BARE_SECONDS, make_event)
        medians = {name: median(values) for name, values in rates.items()}
        ratio = f"{medians['this'] / medians['before']:.2f}" if given.before else ""
        shown.add_row(
            what,
            *(f"{rate:,.0f}" for rate in medians.values()),
            f"{median(cpu) * 1e6:.0f}",
            f"{bare * 1e6:.0f}",
            ratio,
        )
    Console(highlight=False, width=120, file=sys.stdout).print(shown)


if __name__ == "__main__":
    main()
