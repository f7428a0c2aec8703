"""`make bench-indexing`: how fast text becomes searchable, from messages and from files, and what one change costs.

Exits 1 when a change of one file touches other chunks than its own.
"""

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from rich.console import Console
from tests.bench.__main__ import cpu_seconds, real_disk
from tests.bench.search import Texts

MESSAGES = 5_000
FILES = 1_000
BATCH = 500

console = Console(highlight=False, width=110)


def status(connection: RawConnection) -> dict[str, Any]:
    return dict(connection.call("index.status"))


def until_whole(connection: RawConnection, chunks: int | None = None) -> int:
    """Wait until every chunk has its vector; how many there are."""
    while True:
        now = status(connection)
        made = int(sum(now["chunks"].values()))
        if not now["backlog"] and not now["live"]["pending"] and now["live"]["vectors"] == made >= (chunks or 1):
            return made
        time.sleep(0.02)


def report(what: str, count: int, unit: str, seconds: float, cpu: float) -> None:
    console.print(
        f"{what}: {count:,} {unit} in {seconds:.1f} s, {count / seconds:,.0f}/s, {cpu * 1e3 / count:.2f} ms of CPU each"
    )


def measure_messages(home: Path) -> None:
    """Messages in, until the last has its vector."""
    with running_daemon(home, CLANKERS_EMBEDDER="static") as daemon, daemon.connect(600) as connection:
        events = list(Texts().events(0, MESSAGES))
        began, before = time.perf_counter(), spent(daemon)
        for start in range(0, len(events), BATCH):
            assert connection.call("events.batch", events=events[start : start + BATCH])["ok"]
        report("messages stored, with words", MESSAGES, "messages", time.perf_counter() - began, spent(daemon) - before)
        chunks = until_whole(connection, MESSAGES)
        seconds = time.perf_counter() - began
        report("messages stored, with vectors", chunks, "chunks", seconds, spent(daemon) - before)
        began, before = time.perf_counter(), spent(daemon)
        for start in range(0, len(events), BATCH):
            assert connection.call("events.batch", events=events[start : start + BATCH])["ok"]
        report("the same once more", MESSAGES, "messages", time.perf_counter() - began, spent(daemon) - before)
        assert until_whole(connection) == chunks


def measure_files(home: Path) -> bool:
    """A folder of markdown files from nothing, and then one of them changed."""
    texts, chance = Texts(11), random.Random(1)
    folder = home / "work" / "memory"
    folder.mkdir(parents=True)
    for number in range(FILES):
        (folder / f"note{number}.md").write_text(markdown(texts, chance, number))
    environ = {"CLANKERS_EMBEDDER": "static", "CLANKERS_WATCH_ROOTS": str(home / "work")}
    daemon = DaemonProcess(home, **environ, CLANKERS_WATCH_DEBOUNCE_MS="100")
    began = time.perf_counter()
    try:
        with daemon.start().connect(600) as connection:
            while status(connection)["files"]["files"] < FILES:
                time.sleep(0.05)
            found = time.perf_counter() - began
            chunks = until_whole(connection)
            seconds = time.perf_counter() - began
            report("files found and cut", FILES, "files", found, spent(daemon))
            report("files with vectors, the start included", chunks, "chunks", seconds, spent(daemon))
            unchanged = connection.call("index.sync")
            console.print(
                f"comparing all again: {unchanged['seconds'] * 1e3:.0f} ms, {unchanged['unchanged']:,} unchanged"
            )
            return change_one(connection, folder / f"note{FILES // 2}.md", chunks)
    finally:
        daemon.close()


def change_one(connection: RawConnection, path: Path, chunks: int) -> bool:
    """Change one file's last paragraph, and count the chunks that are other rows than before."""
    before = rows(connection)
    own = {number for number, owner in before.items() if owner == str(path)}
    began = time.perf_counter()
    path.write_text(path.read_text() + "\n\nzyzzyva is the last word\n")
    while not connection.call("search", query="zyzzyva", mode="keyword")["hits"]:
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    until_whole(connection)
    after = rows(connection)
    gone, new = before.keys() - after.keys(), after.keys() - before.keys()
    others = {number for number in gone if number not in own} | {one for one in new if after[one] != str(path)}
    console.print(
        f"one file changed: found after {seconds * 1e3:.0f} ms (100 ms of them debounce); of its {len(own)} chunks "
        f"{len(gone & own)} replaced, {len(new)} new; of the {chunks - len(own):,} others {len(others)}"
    )
    met = not others and 0 < len(new) <= len(own)
    console.print(f"{'ok  ' if met else 'MISS'}  a change touches its own file's chunks alone")
    return met


def rows(connection: RawConnection) -> dict[int, str]:
    sql = "SELECT chunks.id, path FROM chunks JOIN files ON files.id = file_id"
    return dict(connection.call("query", sql=sql, limit=100_000)["rows"])


def markdown(texts: Texts, chance: random.Random, number: int) -> str:
    """A note of a few sections, a page or three long."""
    sections = [f"## Part {part}\n\n{texts.message(number % 400)}\n" for part in range(chance.randint(4, 12))]
    return f"# Note {number}\n\n" + "\n".join(sections)


def spent(daemon: DaemonProcess) -> float:
    assert daemon.process
    return cpu_seconds(daemon.process.pid)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk()) as name:
        for part in ("messages", "files"):
            (Path(name) / part).mkdir()
        measure_messages(Path(name) / "messages")
        met = measure_files(Path(name) / "files")
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
