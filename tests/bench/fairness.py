"""`make bench-fairness`: how long one hook event takes beside other work, as a multiple of what it takes alone.

A probe sends single hook events, one after the other. It runs alone before and after each load; the loads run in
processes of their own. Ratios compare p99 of the same run, so other work on the machine moves both sides together.
Exits 1 when a ratio is above the limit.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from rich.console import Console
from rich.table import Table
from tests.bench.__main__ import Bar, judge, real_disk
from tests.bench.events import event
from tests.bench.search import PER_SESSION, Texts

MESSAGES = 10_000
BATCH_EVENTS = 1_000
LINES_PER_REQUEST = 500
OLD_SOURCE = "opencode"
"""Harness whose sessions retention removes."""

TRANSCRIPTS = 400
SEARCH_CLIENTS = 20
QUERY_CLIENTS = 8
PROBE_SECONDS = 6.0
PAUSE_SECONDS = 0.005
SETTLE_SECONDS = 0.5
MAX_RATIO = 5.0
HOOK_BUDGET_SECONDS = 0.2

# About two seconds each.
SLOW_QUERY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000000) SELECT count(*), sum(i % 7) FROM n"
)

console = Console(highlight=False, width=120)


# --- Loads: each runs in a process of its own until it is killed


def call_in_threads(
    socket: Path, clients: int, next_call: Callable[[random.Random], tuple[str, dict[str, object]]]
) -> None:
    """Send calls from several connections at once, each waiting for its reply before the next."""
    done = [0] * clients

    def run(number: int) -> None:
        chance = random.Random(number)
        with RawConnection(socket, timeout=600) as connection:
            while True:
                method, params = next_call(chance)
                connection.request(method, params)
                done[number] += 1

    for number in range(clients):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    report_progress(lambda: sum(done))


def report_progress(count: Callable[[], int]) -> None:
    """Print how many calls or jobs are done, until killed."""
    while True:
        report(count())
        time.sleep(0.1)


def report(done: int) -> None:
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()


def search_load(socket: Path, folder: Path) -> None:
    questions = json.loads((folder / "questions.json").read_text())
    call_in_threads(socket, SEARCH_CLIENTS, lambda chance: ("search", {"query": chance.choice(questions), "limit": 10}))


def query_load(socket: Path, _folder: Path) -> None:
    call_in_threads(socket, QUERY_CLIENTS, lambda _: ("query", {"sql": SLOW_QUERY}))


def batch_load(socket: Path, _folder: Path) -> None:
    def next_call(chance: random.Random) -> tuple[str, dict[str, object]]:
        prefix = f"batch-{chance.random()}"
        return "events.batch", {"events": [event(prefix, number) for number in range(BATCH_EVENTS)]}

    call_in_threads(socket, 2, next_call)


def repeat_job(socket: Path, method: str, params: dict[str, object]) -> None:
    """Start a job again as soon as it has ended."""
    done = 0
    with RawConnection(socket, timeout=600) as connection:
        while True:
            job = connection.request(method, params)["result"]["jobId"]
            report(done)
            while connection.call("job.status", id=job)["state"] == "running":
                time.sleep(0.05)
            done += 1
            report(done)


def import_load(socket: Path, _folder: Path) -> None:
    repeat_job(socket, "import.start", {"harness": "claude-code"})


def reindex_load(socket: Path, _folder: Path) -> None:
    repeat_job(socket, "reindex", {})


def doctor_load(socket: Path, _folder: Path) -> None:
    repeat_job(socket, "doctor.check", {})


def vacuum_load(socket: Path, _folder: Path) -> None:
    """Delete sessions, so that there are pages to give back, then vacuum."""
    number = 0
    with RawConnection(socket, timeout=600) as connection:
        while True:
            report(number)
            for _ in range(20):
                connection.request("session.delete", {"id": f"s{MESSAGES // PER_SESSION - number}"})
                number += 1
            job = connection.call("db.vacuum")["jobId"]
            while connection.call("job.status", id=job)["state"] == "running":
                time.sleep(0.05)
            report(number)


def backup_load(socket: Path, folder: Path) -> None:
    """Make the built-in backup action due again as soon as it has run."""
    done = 0
    with RawConnection(socket, timeout=600) as connection:
        action = connection.call("schedule.create", description="b", schedule="00:00 daily", builtin="backup")["id"]
        while True:
            with_database(
                folder / "clankers" / "clankers.db",
                f"UPDATE scheduled_actions SET next_run = {int(time.time() * 1000) - 1} WHERE id = '{action}'",
            )
            connection.call("schedule.enable", id=action)
            report(done)
            while len(connection.call("schedule.history", actionId=action)["runs"]) <= done:
                time.sleep(0.02)
            done += 1
            report(done)


def export_load(socket: Path, _folder: Path) -> None:
    """Export everything, over and over."""
    done = 0
    with RawConnection(socket, timeout=600) as connection:
        while True:
            job = connection.call("export.start")["jobId"]
            report(done)
            while not connection.call("export.read", jobId=job)["isLast"]:
                pass
            done += 1
            report(done)


def lines_load(socket: Path, _folder: Path) -> None:
    """Import the sessions of an export, each time under other ids."""
    records: list[dict[str, Any]] = []
    with RawConnection(socket, timeout=600) as connection:
        job, text, is_last = connection.call("export.start")["jobId"], "", False
        while not is_last:
            piece = connection.call("export.read", jobId=job)
            text, is_last = text + piece["text"], piece["isLast"]
        for line in text.splitlines()[1:]:
            record = json.loads(line)
            if record["kind"] in ("session", "message"):
                records.append(record)
        done = 0
        while True:
            for start in range(0, len(records), LINES_PER_REQUEST):
                report(done)
                part = records[start : start + LINES_PER_REQUEST]
                renamed = [
                    {**record, **{key: f"{done}-{record[key]}" for key in ("id", "sessionId") if key in record}}
                    for record in part
                ]
                connection.call("import.lines", lines=renamed)
            done += 1


def retention_load(socket: Path, _folder: Path) -> None:
    """Store sessions that are too old, and have retention remove them."""
    done = 0
    with RawConnection(socket, timeout=600) as connection:
        while True:
            events = [event(f"old-{done}", number) for number in range(BATCH_EVENTS)]
            for each in events:
                if "session" in each:
                    each["session"] |= {"source": OLD_SOURCE, "updatedAt": each["session"]["createdAt"]}
            connection.call("events.batch", events=events)
            report(done)
            job = connection.call("retention.start")["jobId"]
            while connection.call("job.status", id=job)["state"] == "running":
                time.sleep(0.05)
            done += 1
            report(done)


def with_database(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    connection.pragma("wal_autocheckpoint", 0)  # the daemon opens its database again if another program writes to it
    try:
        connection.execute(sql)
    finally:
        connection.close()


LOADS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "search": (f"{SEARCH_CLIENTS} searching clients", search_load),
    "batch": (f"events.batch of {BATCH_EVENTS:,}, 2 clients", batch_load),
    "import": ("import of transcripts", import_load),
    "reindex": ("reindex", reindex_load),
    "query": (f"{QUERY_CLIENTS} clients with slow queries", query_load),
    "doctor": ("doctor", doctor_load),
    "backup": ("backup", backup_load),
    "vacuum": ("deletes and vacuum", vacuum_load),
    "export": ("export", export_load),
    "lines": (f"import of an export, {LINES_PER_REQUEST} records a request", lines_load),
    "retention": ("retention of old sessions", retention_load),
}


# --- Measuring


@dataclass
class Measured:
    """Latencies of single events in seconds, and how many units of the load were done a second."""

    latencies: list[float]
    load_rate: float | None = None

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def probe(daemon: DaemonProcess, seconds: float, run: str) -> list[float]:
    """Send hook events one at a time for a while."""
    latencies = []
    with daemon.connect(timeout=120) as connection:
        until = time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < until:
            number += 1
            payload = {
                "session_id": f"probe-{run}",
                "cwd": "/nowhere",
                "hook_event_name": "UserPromptSubmit",
                "prompt_id": f"p{run}-{number}",
                "prompt": f"why is the watcher test {number} flaky on slow machines?",
            }
            began = time.perf_counter()
            connection.call("hook.event", harness="claude-code", event=payload)
            latencies.append(time.perf_counter() - began)
            time.sleep(PAUSE_SECONDS)
    return latencies


@contextmanager
def loaded(daemon: DaemonProcess, kind: str, folder: Path) -> Iterator[Callable[[], int]]:
    """Run a load beside the block; the block can ask how much of it is done."""
    command = [sys.executable, "-m", "tests.bench.fairness", "--load", kind, str(daemon.socket_path), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    counts = [-1]  # until it has begun

    def read() -> None:
        assert process.stdout
        for line in process.stdout:
            counts[0] = int(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lambda: counts[0]
        if process.poll() is not None:
            raise SystemExit(f"the load {kind!r} ended by itself")
    finally:
        process.kill()
        process.wait()
        reader.join()


def settle(daemon: DaemonProcess) -> None:
    """Wait until no job runs and nothing waits for a vector."""
    with daemon.connect(timeout=300) as connection:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            jobs = [job for job in connection.call("job.list") if job["state"] == "running"]
            for job in jobs:
                connection.request("job.cancel", {"id": job["id"]})
            if not jobs and connection.call("search", query="watcher", limit=1)["pending"] == 0:
                break
            time.sleep(0.1)
    time.sleep(SETTLE_SECONDS)


def fill(daemon: DaemonProcess, folder: Path, messages: int) -> None:
    texts = Texts()
    events = list(texts.events(0, messages))
    with daemon.connect(timeout=300) as connection:
        for start in range(0, len(events), 1000):
            connection.call("events.batch", events=events[start : start + 1000])
    (folder / "questions.json").write_text(json.dumps(texts.questions(100)))
    write_transcripts(folder / "user", texts)


def write_transcripts(user: Path, texts: Texts) -> None:
    """Claude Code sessions of 100 messages each."""
    projects = user / ".claude" / "projects" / "-w"
    projects.mkdir(parents=True)
    for number in range(TRANSCRIPTS):
        session, lines = f"history-{number}", []
        for turn in range(100):
            name = f"{session}-{turn}"
            at = datetime.fromtimestamp(1_700_000_000 + number * 10_000 + turn, UTC).isoformat()
            common = {"uuid": name, "timestamp": at, "sessionId": session, "cwd": "/w"}
            text = texts.message(number)
            if turn % 2 == 0:
                lines.append({"type": "user", "message": {"content": text}, **common})
            else:
                answer = {"id": f"msg_{name}", "model": "m", "content": [{"type": "text", "text": text}]}
                lines.append({"type": "assistant", "message": answer, **common})
        (projects / f"{session}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure(daemon: DaemonProcess, kind: str, folder: Path, seconds: float) -> Measured:
    with loaded(daemon, kind, folder) as count:
        while count() < 0:
            time.sleep(0.01)
        time.sleep(SETTLE_SECONDS)
        before, began = count(), time.perf_counter()
        latencies = probe(daemon, seconds, kind)
        return Measured(latencies, (count() - before) / (time.perf_counter() - began))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", nargs=3, metavar=("KIND", "SOCKET", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages stored before measuring")
    parser.add_argument("--seconds", type=float, default=PROBE_SECONDS, help="length of each measurement")
    parser.add_argument("loads", nargs="*", help=f"loads to measure, of {', '.join(LOADS)}; all when not given")
    options = parser.parse_args()
    if options.load:
        kind, socket, folder = options.load
        LOADS[kind][1](Path(socket), Path(folder))
        return 0
    chosen = options.loads or list(LOADS)
    alone: list[Measured] = []
    beside: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="clk-fair-", dir=real_disk()) as name:
        folder = Path(name)
        settings = {"HOME": str(folder / "user"), "CLANKERS_RETENTION": f"{OLD_SOURCE}/sessions=30d"}
        with running_daemon(folder, **settings) as daemon:
            fill(daemon, folder, options.messages)
            settle(daemon)
            probe(daemon, 1.0, "warm-up")
            for kind in chosen:
                alone.append(Measured(probe(daemon, options.seconds / 2, f"alone-{kind}")))
                beside[kind] = measure(daemon, kind, folder, options.seconds)
                settle(daemon)
            alone.append(Measured(probe(daemon, options.seconds / 2, "alone-last")))
    p99_alone = statistics.median(each.quantile(0.99) for each in alone)
    everything_alone = Measured([latency for each in alone for latency in each.latencies])
    table = Table("one event", "events", "p50 ms", "p99 ms", "max ms", "p99 ratio", "over 200 ms", "load/s", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for what, seen in [("alone", everything_alone), *((LOADS[kind][0], seen) for kind, seen in beside.items())]:
        p99 = p99_alone if seen is everything_alone else seen.quantile(0.99)
        late = sum(latency > HOOK_BUDGET_SECONDS for latency in seen.latencies) / len(seen.latencies)
        table.add_row(
            what,
            f"{len(seen.latencies):,}",
            f"{seen.quantile(0.5) * 1e3:.2f}",
            f"{p99 * 1e3:.2f}",
            f"{max(seen.latencies) * 1e3:.1f}",
            f"{p99 / p99_alone:.1f}",
            f"{late:.1%}",
            "" if seen.load_rate is None else f"{seen.load_rate:.1f}",
        )
    console.print(table)
    return judge(
        [
            Bar(f"p99 beside {LOADS[kind][0]} / alone", seen.quantile(0.99) / p99_alone, MAX_RATIO, ".1f")
            for kind, seen in beside.items()
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
