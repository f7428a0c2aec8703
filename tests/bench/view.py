"""The web view on a large store, as ratios to its RPC calls alone: python -m tests.bench.view [MESSAGES]

Each page is opened in Chromium. The calls that it made are then sent again over the socket, by themselves. Printed are
the calls, the bytes that the page received, the time of the calls alone, the time until the page showed its content,
and how long after the last answer that was.
"""

import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from helpers.browser import Watched, chromium, opened
from helpers.daemon import RawConnection, running_daemon
from helpers.view import running_view
from helpers.waiting import eventually
from playwright.sync_api import Request

RUNS = 5
SESSIONS = 100
BATCH = 500
SETTLED_WITHIN = 900
WORDS = [
    f"{first}{middle}{last}"
    for first in "bdfgklmnprst"
    for middle in ("ana", "eri", "olu", "unto")
    for last in "bdgklmnrstxz"
]
WEIGHTS = [1 / (rank + 1) for rank in range(len(WORDS))]
"""Some words are frequent and most are rare, as in real texts."""

TIMES = """() => {
    const shown = performance.getEntriesByName("shown").at(-1).startTime;
    const answers = performance.getEntriesByType("resource").filter((one) => one.name.includes("/api/"));
    const before = answers.filter((one) => one.responseEnd <= shown);
    const bytes = before.reduce((sum, one) => sum + one.encodedBodySize, 0);
    return [shown, Math.max(...before.map((one) => one.responseEnd)), bytes];
}"""
"""Milliseconds until the content was shown, and until the last answer before that; bytes received."""

PAGES = {
    "overview": "/overview",
    "sessions": "/sessions",
    "session": "/session?id=session-00042",
    "search": f"/search?q={WORDS[300]}+{WORDS[120]}",
    "memories": "/memories",
    "recall": "/recall",
    "files": "/files",
    "live": "/live",
}


@dataclass
class Visit:
    """One visit of a page: its calls, the bytes received, and the seconds until its content was shown."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    received: int = 0
    seconds: float = 0.0
    after_answer: float = 0.0


def fill(connection: RawConnection, messages: int) -> None:
    choose = random.Random(1)
    now = int(time.time() * 1000)
    each = messages // SESSIONS
    for number in range(SESSIONS):
        session, start = f"session-{number:05}", now - (SESSIONS - number) * 3_000_000
        events: list[dict[str, Any]] = [
            {
                "session": {
                    "id": session,
                    "title": f"Session {number}",
                    "projectPath": f"/p/{number % 7}",
                    "createdAt": start,
                }
            }
        ]
        for place in range(each):
            role = "user" if place % 6 == 0 else "assistant"
            text = " ".join(choose.choices(WORDS, WEIGHTS, k=choose.randint(8, 80)))
            said = {
                "id": f"{session}-{place}",
                "sessionId": session,
                "role": role,
                "textContent": text,
                "promptTokens": 9_000 + place,
                "completionTokens": 90,
                "createdAt": start + place * 1_000,
            }
            events.append({"message": said})
            if place % 6 == 2:
                called = {
                    "id": f"{session}-t{place}",
                    "sessionId": session,
                    "toolName": "Edit",
                    "filePath": f"/p/{place % 400}.py",
                    "success": True,
                    "createdAt": start + place * 1_000 + 1,
                }
                events.append({"tool": called})
        for first in range(0, len(events), BATCH):
            assert connection.call("events.batch", events=events[first : first + BATCH])["ok"]
    for number in range(500):
        fact = f"Fact {number}: {' '.join(choose.choices(WORDS, WEIGHTS, k=9))}."
        connection.call("memory.add", content=fact, force=True)


def visit(watched: Watched, path: str) -> Visit:
    made = Visit()

    def on_request(request: Request) -> None:
        if "/api/rpc/" in request.url:
            made.calls.append((request.url.rpartition("/")[2], json.loads(request.post_data or "{}")))

    watched.page.on("request", on_request)
    watched.visit(path)
    shown, answered, made.received = watched.page.evaluate(TIMES)
    made.seconds, made.after_answer = shown / 1000, (shown - answered) / 1000
    watched.page.remove_listener("request", on_request)
    return made


def seconds_alone(connection: RawConnection, calls: list[tuple[str, dict[str, Any]]]) -> float:
    """Send the calls of a page at once, as the page does, and wait for all replies."""
    started = time.perf_counter()
    for number, (method, params) in enumerate(calls):
        connection.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    for _ in calls:
        assert "result" in connection.receive()
    return time.perf_counter() - started


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory(prefix="clk-") as path:
        home = Path(path)
        with running_daemon(home, HOME=path) as daemon, daemon.connect(timeout=300) as connection:
            fill(connection, messages)

            def is_settled() -> bool:
                status = connection.call("index.status")
                return not status["backlog"] and not status["live"]["pending"]

            eventually(is_settled, "every chunk has its vector", within=SETTLED_WITHIN)
            print(f"{messages:,} messages in {SESSIONS} sessions, medians of {RUNS} visits")
            print(f"{'page':<10}{'calls':>6}{'KB':>6}{'RPC alone':>12}{'page':>10}{'ratio':>8}{'after the answer':>18}")
            with running_view(daemon) as view, chromium() as browser, opened(browser, view) as watched:
                for name, address in PAGES.items():
                    visit(watched, address)  # the first search loads the model
                    visits: list[Visit] = []
                    times_alone: list[float] = []
                    for _ in range(RUNS):  # in turns, so that a busy machine affects both alike
                        visits.append(visit(watched, address))
                        times_alone.append(seconds_alone(connection, visits[-1].calls))
                    alone = median(times_alone)
                    shown = median(one.seconds for one in visits)
                    after = median(one.after_answer for one in visits)
                    calls, received = len(visits[-1].calls), visits[-1].received / 1024
                    ratio = f"{shown / alone:.1f}" if calls else "–"
                    times = f"{alone * 1000:>9.0f} ms{shown * 1000:>7.0f} ms{ratio:>8}{after * 1000:>15.0f} ms"
                    print(f"{name:<10}{calls:>6}{received:>6.0f}{times}", flush=True)


if __name__ == "__main__":
    main()
