"""`make bench-search`: how long a search takes, beside what numpy and FTS5 alone take for the same question.

Messages of a Zipf vocabulary go in by events.batch; then the same questions are asked in each mode, alone and while
events are being written. Trust the ratios. Exits 1 when a bar is missed.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw
import sqlite_vec
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import cpu_seconds, real_disk, rss
from tests.bench.waiting import wait_until_in_memory

from clankersd.index.mirror import LabelSet, Mirror

VOCABULARY = 50_000
PER_SESSION = 40
PROJECTS = 20
BATCH = 1000
QUESTIONS = 150
POOL = 150  # POOL_SIZE of clankersd.search.plan; importing that would load numpy, and its threads, too early
WRITING_SECONDS = 5.0
WRITES_PER_SECOND = 100
MIN_FOUND = 0.99
CALLS_MS = 0.05  # calls of numpy before and after the product of all, which count in a small store only
MAX_VECTOR_BYTES = 600
MAX_GROWTH = 3  # times the median of a hybrid search, from 100,000 to 1,000,000 chunks
WRITERS_SESSION = "writing"
MODES = ("hybrid", "keyword", "vector")

console = Console(highlight=False, width=110)


# --- What is searched


class Texts:
    """Messages of 20 to 120 words, as frequent as words of a language are, and questions about them."""

    def __init__(self, seed: int = 5) -> None:
        self._chance = random.Random(seed)
        self._words = [self._word(number) for number in range(VOCABULARY)]
        self._weights = list(accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))
        self._topics = [self._chance.sample(range(200, VOCABULARY), 60) for _ in range(400)]
        self._samples: list[list[str]] = []

    def _word(self, number: int) -> str:
        syllables = [
            "ka",
            "to",
            "mi",
            "ren",
            "sul",
            "vor",
            "pe",
            "dan",
            "lis",
            "gor",
            "ne",
            "ba",
            "chu",
            "fi",
            "wex",
            "or",
        ]
        word = ""
        while number or not word:
            number, digit = divmod(number, len(syllables))
            word += syllables[digit]
        return word

    def message(self, topic: int) -> str:
        """A third of the words are of the session's topic."""
        length = self._chance.randint(20, 120)
        words = self._chance.choices(self._words, cum_weights=self._weights, k=length)
        for place in range(0, length, 3):
            words[place] = self._words[self._chance.choice(self._topics[topic])]
        if self._chance.random() < 0.01:
            self._samples.append(words)
        return " ".join(words)

    def events(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        for number in range(first, last):
            session = number // PER_SESSION
            if number % PER_SESSION == 0:
                yield {"session": {"id": f"s{session}", "projectPath": f"/home/me/p{session % PROJECTS}"}}
            yield {
                "message": {
                    "id": f"m{number}", "sessionId": f"s{session}", "role": ("user", "assistant")[number % 2],
                    "textContent": self.message(session % len(self._topics)),
                    "createdAt": 1_700_000_000_000 + number * 60_000,
                }
            }  # fmt: skip

    def questions(self, count: int) -> list[str]:
        """3 to 12 words that stand together in a message, the common ones too."""
        chance = random.Random(9)
        found = []
        for _ in range(count):
            words = chance.choice(self._samples)
            length = chance.randint(3, 12)
            start = chance.randrange(max(1, len(words) - length))
            found.append(" ".join(words[start : start + length]))
        return found


# --- Measuring


@dataclass
class Times:
    """Milliseconds; `cpu` is the median of the CPU time, which other processes disturb less."""

    what: str
    p50: float
    p99: float
    cpu: float | None = None


def timed(what: str, questions: list[str], ask: Callable[[str], Any], pid: int | None = None) -> Times:
    """Ask each question once; the CPU time is that of the process `pid`."""
    for question in questions[:10]:
        ask(question)  # warm
    taken, cpu = [], []
    for question in questions:
        began, used = time.perf_counter(), cpu_ms(pid)
        ask(question)
        taken.append((time.perf_counter() - began) * 1000)
        cpu.append(cpu_ms(pid) - used)
    taken.sort()
    p99 = taken[len(taken) * 99 // 100]
    return Times(what, statistics.median(taken), p99, None if pid is None else statistics.median(cpu))


def cpu_ms(pid: int | None) -> float:
    """CPU time of all threads of a process, from the scheduler: `cpu_seconds` counts in hundredths of a second."""
    if pid is None or pid == os.getpid():  # the scheduler knows of a thread once it has paused
        return time.process_time() * 1e3
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e6


def load(connection: RawConnection, texts: Texts, first: int, last: int) -> tuple[float, float]:
    """Store messages; seconds until all are stored, and until all have their vector."""
    began = time.perf_counter()
    batch: list[dict[str, Any]] = []
    for event in texts.events(first, last):
        batch.append(event)
        if len(batch) >= BATCH:
            assert connection.call("events.batch", events=batch)["ok"]
            batch = []
    assert connection.call("events.batch", events=batch)["ok"]
    stored = time.perf_counter() - began
    while connection.call("index.status")["live"]["pending"]:
        time.sleep(0.5)
    return stored, time.perf_counter() - began


WRITER = """
import json, sys, time
from helpers.daemon import RawConnection
from pathlib import Path
socket, seconds, per_second = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
text = sys.argv[4]
taken = []
with RawConnection(socket) as connection:
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        name = f"w{time.time_ns()}"
        message = {"id": name, "sessionId": sys.argv[5], "role": "user", "textContent": text + name}
        connection.call("upsertMessage", message=message)
        taken.append(time.perf_counter() - now)
        time.sleep(max(0, len(taken) / per_second - (time.perf_counter() - began)))
print(json.dumps(sorted(taken)))
"""


def start_writer(daemon: DaemonProcess, text: str, seconds: float) -> "subprocess.Popen[str]":
    """Start a process that stores messages at a steady rate, and prints what each took."""
    command = [sys.executable, "-c", WRITER, str(daemon.socket_path), str(seconds), str(WRITES_PER_SECOND), text]
    command.append(WRITERS_SESSION)
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}  # for the helpers
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


def collect_latencies(process: "subprocess.Popen[str]", what: str) -> Times:
    """Wait for a writer to end, and return the times of its upserts."""
    out, _ = process.communicate()
    taken = [seconds * 1000 for seconds in json.loads(out)]
    return Times(what, statistics.median(taken), taken[len(taken) * 99 // 100])


# --- What it is compared with


def copy_database(daemon: DaemonProcess, folder: Path) -> apsw.Connection:
    """Copy the database, and open the copy read-only: nobody else uses it."""
    path = folder / "copy.db"
    source = apsw.Connection(str(daemon.database), flags=apsw.SQLITE_OPEN_READONLY)
    source.execute("VACUUM INTO ?", (str(path),))
    source.close()
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.enable_load_extension(True)
    db.load_extension(sqlite_vec.loadable_path())
    db.execute("PRAGMA mmap_size = 4000000000")
    return db


def all_vectors(db: apsw.Connection) -> Any:
    import numpy as np

    [(table,)] = db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING vec0%'")
    rows = db.execute(f"SELECT embedding FROM {table}")
    return np.frombuffer(b"".join(blob for (blob,) in rows), np.float32).reshape(-1, 256).copy()


def bare_fts(db: apsw.Connection, questions: list[str]) -> Times:
    """Any of the words, ranked by bm25."""
    sql = "SELECT rowid FROM chunks_fts WHERE chunks_fts MATCH ? ORDER BY rank LIMIT ?"

    def match(question: str) -> Any:
        return db.execute(sql, (" OR ".join(f'"{word}"' for word in question.split()), POOL)).fetchall()

    return timed("FTS5: all words with OR, bm25", questions, match, os.getpid())


@dataclass
class InMemory:
    """The daemon's copy in memory by itself, and an exact product of the same vectors with the same queries."""

    all: Times
    project: Times
    exact: Times
    exact_project: Times
    ten: float
    pool: float
    bytes_per_vector: float


def measure_mirror(vectors: Any, questions: list[str]) -> InMemory:
    """Measure the copy: all vectors and one project of PROJECTS, the share of the true 10 and POOL nearest, memory."""
    import numpy as np

    projects = np.arange(len(vectors)) // PER_SESSION % PROJECTS

    def filled(count: int) -> Mirror:
        mirror = Mirror(1, vectors.shape[1])
        for start in range(0, count, BATCH):
            part = zip(range(start, start + BATCH), vectors[start : start + BATCH], projects[start:], strict=False)
            mirror.add([(number, vector.tobytes(), "sessions", int(project)) for number, vector, project in part])
        return mirror

    filled(BATCH)  # what only adding a batch takes is not counted
    before = rss(os.getpid())
    mirror = filled(len(vectors))
    grown = (rss(os.getpid()) - before) / len(vectors)
    chance = np.random.default_rng(4)
    queries = {question: _between_two(vectors, chance) for question in questions}
    one_project = [LabelSet(lambda label: True, frozenset({3}))]

    def exact(query: Any, project: int | None = None) -> list[int]:
        rows = None if project is None else np.flatnonzero(projects == project)
        similarity = (vectors if rows is None else vectors[rows]) @ query
        best = np.argpartition(-similarity, POOL)[:POOL]
        best = best[np.argsort(-similarity[best])]
        return (best if rows is None else rows[best]).tolist()  # type: ignore[no-any-return]

    own, shares = os.getpid(), []
    for query in list(queries.values())[:25]:
        for project, labels in ((None, []), (3, one_project)):
            order, found = exact(query, project), [chunk for chunk, _ in mirror.nearest(query, POOL, None, labels)]
            ten = [chunk for chunk, _ in mirror.nearest(query, 10, None, labels)]
            shares.append([len({*ten} & {*order[:10]}) / 10, len({*found} & {*order}) / POOL])
    ten_share, pool_share = (statistics.fmean(column) for column in zip(*shares, strict=True))
    return InMemory(
        timed(
            f"the copy in memory alone, {POOL} nearest",
            questions,
            lambda q: mirror.nearest(queries[q], POOL, None),
            own,
        ),
        timed("… of one project of 20", questions, lambda q: mirror.nearest(queries[q], POOL, None, one_project), own),
        timed("numpy: exact product, float32", questions, lambda q: exact(queries[q]), own),
        timed("… of one project of 20", questions, lambda q: exact(queries[q], 3), own),
        ten_share,
        pool_share,
        grown,
    )


def _between_two(vectors: Any, chance: Any) -> Any:
    one, other = vectors[chance.integers(len(vectors), size=2)]
    mixed = one + other / 2
    return mixed / (mixed @ mixed) ** 0.5


# --- The whole


def measure(
    daemon: DaemonProcess, connection: RawConnection, questions: list[str], folder: Path, chunks: int
) -> tuple[bool, Times]:
    """Print the table of one size; tells whether its bars are met, and what a hybrid search took."""
    assert daemon.process
    shown: list[Times] = []

    def ask(mode: str, **params: Any) -> Callable[[str], Any]:
        return lambda question: connection.call("search", query=question, mode=mode, **params)

    before = cpu_seconds(daemon.process.pid)
    pid = daemon.process.pid
    alone = {mode: timed(f"search, {mode}", questions, ask(mode), pid) for mode in MODES}
    cpu = (cpu_seconds(daemon.process.pid) - before) / (len(MODES) * (len(questions) + 10))
    shown += alone.values()
    in_project = timed("search, hybrid, one project of 20", questions, ask("hybrid", project="/home/me/p3"), pid)
    shown.append(in_project)
    shown.append(timed("search, vector, one project of 20", questions, ask("vector", project="/home/me/p3"), pid))
    shown.append(timed("search, vector, all but a role", questions[:50], ask("vector", filters=[NOT_TOOL]), pid))
    quiet = collect_latencies(start_writer(daemon, questions[0] * 6, WRITING_SECONDS), "upsert, nobody searching")
    for mode in MODES:
        process = start_writer(daemon, questions[0] * 6, WRITING_SECONDS)
        time.sleep(0.5)
        enough = questions[: 40 if alone[mode].p50 > 20 else QUESTIONS]
        shown.append(timed(f"search, {mode}, {WRITES_PER_SECOND} upserts a second", enough, ask(mode)))
        process.kill()
        process.wait()
    busy = searched_upserts(daemon, connection, questions)
    db = copy_database(daemon, folder)
    vectors = all_vectors(db)
    fts = bare_fts(db, questions)
    mirror = measure_mirror(vectors, questions)
    db.close()
    (folder / "copy.db").unlink()
    table(
        f"{chunks:,} chunks", [*shown, quiet, busy, mirror.all, mirror.exact, mirror.project, mirror.exact_project, fts]
    )
    console.print(
        f"the copy in memory finds {mirror.ten:.1%} of the 10 nearest, {mirror.pool:.1%} of the {POOL} nearest, "
        f"and takes {mirror.bytes_per_vector / 1e3:.2f} KB a vector"
    )
    console.print(f"CPU per search {cpu * 1e3:.1f} ms; the daemon has {rss(daemon.process.pid) / 1e6:.0f} MB")
    met = judge_vectors(mirror)
    if chunks >= 100_000:  # in a small store, constant costs decide
        met &= judge_searches(alone, in_project, quiet, busy, mirror.exact, fts)
    return met, alone["hybrid"]


NOT_TOOL = {"field": "role", "op": "ne", "value": "tool"}


def searched_upserts(daemon: DaemonProcess, connection: RawConnection, questions: list[str]) -> Times:
    """Measure upserts while another client searches without a pause."""
    process = start_writer(daemon, questions[0] * 6, WRITING_SECONDS)
    number = 0
    while process.poll() is None:
        connection.call("search", query=questions[number % len(questions)])
        number += 1
    return collect_latencies(process, "upsert, while somebody searches")


def table(title: str, rows: list[Times]) -> None:
    shown = Table(title=title, title_justify="left")
    for name in ("", "p50 ms", "p99 ms", "CPU ms"):
        shown.add_column(name, justify="right" if name else "left")
    for row in rows:
        shown.add_row(row.what, f"{row.p50:.2f}", f"{row.p99:.2f}", "" if row.cpu is None else f"{row.cpu:.2f}")
    console.print(shown)


def judge_vectors(copy: InMemory) -> bool:
    """Compare the copy in memory with an exact product; numpy has both cores for it, the daemon one."""
    is_complete, is_small = copy.ten >= MIN_FOUND, copy.bytes_per_vector <= MAX_VECTOR_BYTES
    met = judge(
        [
            ("vector part p50 / exact product and the cost of calls", copy.all.p50, copy.exact.p50 + CALLS_MS),
            ("… of a project / exact product of it", copy.project.p50, copy.exact_project.p50),
        ]
    )
    verdict = "ok  " if is_complete else "MISS"
    console.print(f"{verdict}  of the 10 nearest {copy.ten:.2%} are found, {MIN_FOUND:.0%} needed")
    verdict = "ok  " if is_small else "MISS"
    console.print(f"{verdict}  a vector takes {copy.bytes_per_vector:.0f} of {MAX_VECTOR_BYTES} bytes")
    return met and is_complete and is_small


def judge_searches(
    alone: dict[str, Times], in_project: Times, quiet: Times, busy: Times, exact: Times, fts: Times
) -> bool:  # fmt: skip
    """Compare searches with each other and with what they are made of."""
    return judge(
        [
            ("hybrid p50 of a project / of everything", in_project.p50, alone["hybrid"].p50),
            ("keyword p50 / a third of FTS5's OR", alone["keyword"].p50, fts.p50 / 3),
            ("hybrid p50 / both bars and 5 ms", alone["hybrid"].p50, exact.p50 + fts.p50 / 3 + 5),
            ("upsert p99 while searching / twice alone", busy.p99, 2 * quiet.p99),
        ]
    )


def judge(bars: list[tuple[str, float, float]]) -> bool:
    """Print each figure with its bar; True if all are met."""
    for what, figure, bar in bars:
        verdict = "ok  " if figure <= bar else "MISS"
        console.print(f"{verdict}  {what}: {figure:.2f} ms of {bar:.2f} ms, {figure / bar:.2f}")
    return all(figure <= bar for _, figure, bar in bars)


def judge_growth(hundred_thousand: float, million: float) -> bool:
    """Compare the median of a hybrid search at both sizes."""
    return judge(
        [(f"hybrid p50 at 1,000,000 / {MAX_GROWTH} times that at 100,000", million, MAX_GROWTH * hundred_thousand)]
    )


def run_size(home: Path, size: int, *, pause: bool, only_fill: bool) -> tuple[bool, Times]:
    """Fill a store unless a former run did, and measure it; tells whether the bars are met, and the hybrid search."""
    file = home / "questions.json"
    home.mkdir(parents=True, exist_ok=True)
    environ = {"CLANKERS_EMBEDDER": "static", "CLANKERS_SEARCH_SECONDS": "30", "CLANKERS_BACKUP_HOURS": "0"}
    if not file.exists():
        texts = Texts()
        with running_daemon(home, **environ) as daemon, daemon.connect(timeout=600) as connection:
            storing, indexing = load(connection, texts, 0, size)
            console.print(
                f"\n{size:,} messages stored in {storing:.1f} s ({size / storing:,.0f}/s), "
                f"with vectors after {indexing:.1f} s ({size / indexing:,.0f}/s)"
            )
            daemon.stop()
        file.write_text(json.dumps(texts.questions(QUESTIONS)))
    if only_fill:
        return True, Times("", 0, 0)
    began = time.perf_counter()
    with running_daemon(home, **environ) as daemon, daemon.connect(timeout=600) as connection:
        started = time.perf_counter() - began
        connection.call("search", query="warm up", mode="vector")
        wait_until_in_memory(connection)
        loaded = time.perf_counter() - began
        console.print(f"\n{size:,} chunks: started in {started:.2f} s, vectors in memory after {loaded:.1f} s")
        if pause:
            assert daemon.process
            console.input(f"daemon {daemon.process.pid}: Enter to go on ")
        result = measure(daemon, connection, json.loads(file.read_text()), home, size)
        connection.call("session.delete", id=WRITERS_SESSION)
    console.print(f"this size took {time.perf_counter() - began:.0f} s")
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--million", action="store_true", help="a million chunks too; takes long")
    parser.add_argument("--most", type=int, default=100_000, help="the largest size")
    parser.add_argument("--store", type=Path, help="keep the filled stores in this folder, and use those in it")
    parser.add_argument("--fill", action="store_true", help="only fill the stores of --store")
    parser.add_argument("--pause", action="store_true", help="wait for Enter before measuring, to attach a profiler")
    given = parser.parse_args()
    if given.fill and not given.store:
        parser.error("--fill needs --store")
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= (1_000_000 if given.million else given.most)]
    results = {}
    with contextlib.ExitStack() as stack:
        folder = given.store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-", dir=real_disk())))
        for size in sizes:
            results[size] = run_size(folder / str(size), size, pause=given.pause, only_fill=given.fill)
    met = all(is_met for is_met, _ in results.values())
    if {100_000, 1_000_000} <= results.keys() and not given.fill:
        met &= judge_growth(results[100_000][1].p50, results[1_000_000][1].p50)
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
