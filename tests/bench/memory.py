"""`make bench-memory`: what an addition with its search for duplicates costs, and a search, as memories grow many.

Trust the ratios: other work on the machine moves all the figures together. Exits 1 when a bar is missed.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from rich.console import Console
from tests.bench.__main__ import real_disk, rss
from tests.bench.search import Texts, Times, table, timed
from tests.bench.waiting import wait_until_in_memory

ADDITIONS = 300
QUESTIONS = 150
PAGE = 1000
MOST_GROWTH = 4.0
"""A hundred times as many memories may make an addition so many times as expensive."""

console = Console(highlight=False, width=110)


def contents(texts: Texts, first: int, last: int) -> Iterator[str]:
    """Facts of 8 to 25 words, each with something of its own."""
    chance = random.Random(first)
    for number in range(first, last):
        words = texts.message(number % 400).split()
        yield f"{' '.join(words[: chance.randint(8, 25)])} item{number}"


def fill(rpc: RawConnection, texts: Texts, first: int, last: int) -> None:
    """Bring memories in as they are, and wait for their vectors."""
    records = [
        {"id": f"memory-{number:08}", "content": content, "createdAt": 1_700_000_000_000 + number}
        for number, content in enumerate(contents(texts, first, last), first)
    ]
    for start in range(0, len(records), PAGE):
        done = rpc.call("memory.import", memories=records[start : start + PAGE], scopes=["*"])
        assert done["created"] == len(records[start : start + PAGE]), done["refused"]
    while rpc.call("index.status")["live"]["pending"]:
        time.sleep(0.5)
    rpc.call("memory.search", query="warm up", mode="vector")
    wait_until_in_memory(rpc)


def measure(daemon: DaemonProcess, rpc: RawConnection, texts: Texts, size: int) -> list[Times]:
    """An addition of something new, of something known, and a search."""
    fresh = list(contents(texts, 10_000_000 + size, 10_000_000 + size + ADDITIONS))
    known = [f"  {content.upper()}" for content in fresh]
    questions = texts.questions(QUESTIONS)

    def add(content: str) -> Any:
        return rpc.call("memory.add", content=content)

    def search(mode: str) -> Any:
        return lambda question: rpc.call("memory.search", query=question, mode=mode)

    shown = [timed("add, new", fresh, add), timed("add, known", known, add)]
    shown += [timed(f"search, {mode}", questions, search(mode)) for mode in ("hybrid", "keyword", "vector")]
    shown.append(timed("search in one category", questions[:50], _in_category(rpc)))
    shown.append(timed("list by strength", questions[:20], lambda _: rpc.call("memory.list", sort="salience")))
    table(f"{size:,} memories", shown)
    assert daemon.process
    console.print(
        f"{1000 / shown[0].p50:,.0f} additions a second; the daemon has {rss(daemon.process.pid) / 1e6:.0f} MB"
    )
    return shown


def _in_category(rpc: RawConnection) -> Any:
    return lambda question: rpc.call("memory.search", query=question, category="other")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=100_000, help="the largest size")
    sizes = [size for size in (1_000, 10_000, 100_000) if size <= parser.parse_args().most]
    texts, stored, costs = Texts(), 0, {}
    with tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as name:
        environ = {"CLANKERS_SEARCH_SECONDS": "30", "CLANKERS_MAINTAIN_HOURS": "0"}
        with running_daemon(Path(name), **environ) as daemon, daemon.connect(timeout=600) as rpc:
            for size in sizes:
                fill(rpc, texts, stored, size)
                stored = size
                costs[size] = measure(daemon, rpc, texts, size)[0].p50
    growth = costs[sizes[-1]] / costs[sizes[0]]
    met = growth <= MOST_GROWTH
    console.print(
        f"{'ok  ' if met else 'MISS'}  an addition at {sizes[-1]:,} / at {sizes[0]:,}: {growth:.2f}, bar {MOST_GROWTH}"
    )
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
