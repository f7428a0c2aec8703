"""`clankers-ctl search`, `index` and `reindex` as one runs them; and that the manual names every command."""

import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from helpers.ctl import command, ctl, on_a_terminal
from helpers.daemon import DaemonProcess, running_daemon
from helpers.fake_daemon import Peer, played
from rich.cells import cell_len

from clankers import Client
from clankers.ctl import cli

NOW = int(time.time() * 1000)
HOUR = 3_600_000
LOGIN = "5d6f0c9e-8d0e-4a52-9c4e-5f1f5c1b7a10"
RETRY = "7d6f0c9e-8d0e-4a52-9c4e-5f1f5c1b7a10"
MANUAL = Path(__file__).parents[2] / "docs" / "clankers-ctl.md"

ASKING = [
    ["search", "login"],
    ["index", "status"],
    ["index", "sync"],
    ["index", "add", "."],
    ["index", "remove", "."],
    ["reindex"],
    ["model", "list"],
    ["model", "use", "static", "--yes"],
]
"""The commands that need the daemon."""


def fill(daemon: DaemonProcess) -> None:
    """Two conversations, and notes in a file."""
    with Client(daemon.socket_path, timeout=30) as client:
        client.events.session(LOGIN, title="Fix the login", project_path="/src/shop", created_at=NOW - 2 * HOUR)
        client.events.message(
            "m1", LOGIN, role="user", text_content="The login fails on Safari \x1b[31mred\x1b[0m", created_at=NOW - HOUR
        )
        client.events.message(
            "m2", LOGIN, role="assistant", text_content="A cookie without Secure, « hélas ».", created_at=NOW - HOUR + 1
        )
        client.events.tool(
            "t1", LOGIN, tool_name="Bash", tool_output="\x1b[31mE  cookie_jar is EMPTY", created_at=NOW - HOUR + 2
        )
        client.events.session(RETRY, title="Retry budget", project_path=str(daemon.home), created_at=NOW - 100 * HOUR)
        for number in range(12):
            client.events.message(
                f"r{number}",
                RETRY,
                role="user",
                text_content=f"The retry number {number} was refused",
                created_at=NOW - 100 * HOUR + number,
            )
    notes = daemon.home / "notes"
    notes.mkdir()
    (notes / "deploy.md").write_text("# Deploys\n\nThe login service goes last.\n")
    with daemon.connect() as connection:
        connection.call("index.add", path=str(notes))
    wait_until_indexed(daemon)


def wait_until_indexed(daemon: DaemonProcess) -> None:
    deadline = time.monotonic() + 30
    with daemon.connect() as connection:
        while time.monotonic() < deadline:
            report = connection.call("index.status")
            if not report["backlog"] and not (report["live"] or {}).get("pending"):
                return
            time.sleep(0.02)
    raise AssertionError("the index did not catch up")


@pytest.fixture(scope="module")
def filled() -> Iterator[DaemonProcess]:
    """A daemon that searches by words and meaning, for tests that only read."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as daemon:
        fill(daemon)
        yield daemon


@pytest.fixture(scope="module")
def wordy() -> Iterator[DaemonProcess]:
    """A daemon without an embedder."""
    with (
        tempfile.TemporaryDirectory(prefix="clk-") as folder,
        running_daemon(Path(folder), CLANKERS_EMBEDDER="none") as daemon,
    ):
        fill(daemon)
        yield daemon


@pytest.fixture
def down(home: Path) -> DaemonProcess:
    """A daemon that was never started."""
    return DaemonProcess(home)


# The manual


def paths(group: click.Group, path: tuple[str, ...] = ("clankers-ctl",)) -> Iterator[str]:
    for name, found in group.commands.items():
        yield " ".join((*path, name))
        if isinstance(found, click.Group):
            yield from paths(found, (*path, name))


@pytest.mark.parametrize("path", list(paths(cli)))
def test_manual_has_every_command(path: str) -> None:
    assert re.search(rf"{re.escape(path)}\b", MANUAL.read_text())


def test_manual_has_every_option_of_search_commands() -> None:
    text = MANUAL.read_text()

    for name in ("search", "index", "reindex", "model"):
        found = cli.commands[name]
        leaves = found.commands.values() if isinstance(found, click.Group) else [found]
        for option in (each for leaf in leaves for each in leaf.params if isinstance(each, click.Option)):
            assert option.opts[0] in text, f"{name} {option.opts[0]}"


# All alike


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_commands_without_a_daemon_exit_3(down: DaemonProcess, words: list[str]) -> None:
    ran = ctl(down, *words)

    assert (ran.code, ran.out) == (3, "")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["search", "login"],
        ["search", "login", "--all", "--explain"],
        ["search", "nothing like it", "--mode", "keyword"],
        ["index", "status"],
        ["index", "sync"],
        ["model", "list"],
        ["model", "use", "static"],
    ],
    ids=" ".join,
)
def test_json_option_prints_only_json_on_stdout(filled: DaemonProcess, words: list[str]) -> None:
    ran = ctl(filled, *words, "--json")

    assert ran.code == 0, ran.err
    json.loads(ran.out)


@pytest.mark.parametrize(
    "words",
    [
        ["search"],
        ["search", "x", "--limit", "101"],
        ["search", "x", "--mode", "psychic"],
        ["search", "x", "--source", "tools"],
        ["search", "x", "--tool-calls", "--explain"],
        ["search", "x", "--diversity", "1.1"],
        ["search", "x", "--half-life", "0"],
        ["search", "x", "--since", "soon"],
        ["index", "add", "/no/such/folder"],
        ["reindex", "--embedder", "magic"],
        ["reindex", "--model", "alone"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2(down: DaemonProcess, words: list[str]) -> None:
    assert ctl(down, *words).code == 2


@pytest.mark.parametrize(
    "words",
    [["search", "login", "retry"], ["search", "login", "--explain"], ["index", "status"], ["model", "list"]],
    ids=" ".join,
)
def test_output_fits_a_narrow_terminal(filled: DaemonProcess, words: list[str]) -> None:
    lines = ctl(filled, *words, COLUMNS="60").out.splitlines()

    assert lines
    assert max(map(cell_len, lines)) <= 60


# search


def test_search_shows_the_snippet_and_origin_of_a_hit(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "Safari", "login", "--limit", "1")

    assert ran.code == 0
    heading, origin, snippet, _, summary = ran.out.splitlines()
    assert re.fullmatch(r"1\. [01]\.\d{3}  Fix the login", heading)
    assert re.fullmatch(r" +user · \d{4}-\d\d-\d\d \d\d:\d\d · /src/shop · session 5d6f0c9e", origin)
    assert "«login»" in snippet
    assert "«Safari»" in snippet
    assert summary.startswith("1 hit by keyword and vector search in ")


def test_search_of_tool_calls_reads_their_whole_output(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "empty", "COOKIE_JAR", "--tool-calls")
    assert ran.code == 0, ran.err
    assert "Fix the login" in ran.out
    assert "E «cookie_jar» is «EMPTY»" in ran.out
    assert "\x1b" not in ran.out
    found = ctl(filled, "search", "empty", "cookie_jar", "--tool-calls", "--json").json
    assert [(hit["toolId"], found["scanned"], found["cursor"]) for hit in found["hits"]] == [("t1", 1, None)]


def test_search_shows_the_lines_of_a_hit_in_a_file(filled: DaemonProcess) -> None:
    out = ctl(filled, "search", "deploys", "--source", "memory").out

    assert f"{filled.home}/notes/deploy.md:1-3\n" in out


def test_search_highlights_matches_on_a_terminal(filled: DaemonProcess) -> None:
    out = on_a_terminal(filled, "search", "cookie", "--limit", "1")

    assert re.search(r"\x1b\[1;33mcookie\x1b\[0m", out)
    assert "«cookie»" not in out
    assert "« hélas »" in out


def test_search_keeps_the_marks_on_a_terminal_without_styles(filled: DaemonProcess) -> None:
    assert "«cookie»" in on_a_terminal(filled, "search", "cookie", "--limit", "1", TERM="dumb")


def test_search_text_cannot_control_the_terminal(filled: DaemonProcess) -> None:
    out = on_a_terminal(filled, "search", "Safari", "--limit", "1")

    assert "␛[31mred" in out
    assert "\x1b[31mred" not in out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--source", "memory"], {None}),
        (["--source", "sessions", "--mode", "keyword"], {LOGIN}),
        (["--source", "memory", "--source", "sessions", "--mode", "keyword"], {LOGIN, None}),
        (["--project", "/src/shop"], {LOGIN}),
        (["--session", LOGIN[:8]], {LOGIN}),
        (["--since", "3h", "--source", "sessions"], {LOGIN}),
        (["--until", "2d"], {RETRY}),
        (["--mode", "keyword"], {LOGIN, None}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_search_filters_hits(filled: DaemonProcess, words: list[str], found: set[str | None]) -> None:
    told = ctl(filled, "search", "login", *words, "--json").json

    assert {hit["ref"].get("sessionId") for hit in told["hits"]} == found


def test_search_of_the_current_folder_is_that_of_its_project(filled: DaemonProcess) -> None:
    told = ctl(filled, "search", "refused", "--project", ".", "--json", cwd=filled.home).json

    assert {hit["ref"]["projectPath"] for hit in told["hits"]} == {str(filled.home)}


def test_search_in_an_unknown_session_is_an_error(filled: DaemonProcess) -> None:
    assert ctl(filled, "search", "login", "--session", "no-such-session").code == 1


def test_search_pages_continue_each_other(filled: DaemonProcess) -> None:
    def chunks(*words: str) -> list[str]:
        told = ctl(filled, "search", "retry refused", "--mode", "keyword", *words, "--json").json
        return [hit["chunkId"] for hit in told["hits"]]

    everything = chunks("--all")
    assert len(everything) == len(set(everything)) == 13  # with the title
    assert [*chunks("--limit", "5"), *chunks("--limit", "5", "--page", "2")] == everything[:10]
    assert chunks("--limit", "5", "--page", "4") == []


def test_search_numbers_hits_across_pages(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "retry refused", "--limit", "5", "--page", "2")

    assert ran.out.startswith("6.  ")
    assert "\n10. " in ran.out
    assert "--page" in ran.err


def test_search_reports_a_page_after_the_last(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "login", "--page", "90")

    assert (ran.code, ran.out) == (0, "")
    assert "no more hits" in ran.err


def test_search_explain_prints_a_table_of_score_components(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "login", "--limit", "2", "--half-life", "3", "--diversity", "0.2", "--explain")
    table = [line.split() for line in ran.out.splitlines()]
    header = next(place for place, cells in enumerate(table) if cells[:2] == ["#", "Score"])

    assert {"Keyword", "Vector", "Recency", "Similarity", "Where"} <= set(table[header])
    assert [cells[0] for cells in table[header + 1 : header + 3]] == ["1", "2"]


def test_search_without_hits_is_no_error(filled: DaemonProcess) -> None:
    ran = ctl(filled, "search", "xylophone", "--mode", "keyword", "--since", "1h")

    assert (ran.code, ran.out) == (0, "")
    assert "Nothing found for “xylophone”" in ran.err
    assert "without --project" in ran.err


def test_search_reports_degraded_results_on_stderr(wordy: DaemonProcess) -> None:
    ran = ctl(wordy, "search", "login")

    assert ran.code == 0
    assert "hits by keyword search in" in ran.out
    assert "embedder is set to none" in ran.err
    assert "embedder" not in ran.out


def test_search_without_hits_and_vectors_says_why_and_what_to_do(wordy: DaemonProcess) -> None:
    ran = ctl(wordy, "search", "xylophone")

    assert (ran.code, ran.out) == (0, "")
    assert "Nothing found" in ran.err
    assert "embedder is set to none" in ran.err
    assert "clankers-ctl index status" in ran.err


def test_search_reports_chunks_without_a_vector(home: Path, down: DaemonProcess) -> None:
    def busy(peer: Peer) -> None:
        result = {"hits": [], "mode": "hybrid", "pending": 1200, "degraded": None, "tookMs": 1.0, "cursor": None}
        peer.answer(peer.receive(), result)

    with played(home / "s", busy):
        ran = ctl(down, "search", "x", "--socket", str(home / "s"))

    assert ran.code == 0
    assert "1,200 chunks cannot be found by vector search yet" in ran.err


# index


def test_index_status_shows_counts_model_and_paths(filled: DaemonProcess) -> None:
    out = ctl(filled, "index", "status").out

    assert out.startswith("● ready")
    assert "1 of memory, 16 of sessions" in out
    assert "static: l2_supercat_256, 256 dimensions" in out
    assert "17, 0 pending" in out
    assert f"{filled.home}/notes" in out


def test_index_status_says_why_there_is_no_vector_search(wordy: DaemonProcess) -> None:
    out = ctl(wordy, "index", "status").out

    assert "keyword search only: the embedder is set to none" in out.splitlines()[0]


def test_index_status_shows_a_reindex_and_problems(home: Path, down: DaemonProcess) -> None:
    made = {"provider": "static", "model": "m", "dims": 256, "chunkTokens": 400, "chunkOverlap": 80}
    live = made | {"vectors": 40, "pending": 3, "failed": 2}
    building = made | {"provider": "onnx", "model": "e5", "vectors": 30, "pending": 90, "failed": 0}
    files = {"mode": "polling", "problem": "too many files", "dirty": True, "watched": ["/a", "/b"]}
    report = {
        "vectors": "ready", "chunks": {"sessions": 45}, "backlog": 7, "live": live, "building": building, "rate": 12.5,
        "lastError": "it has no text", "cacheEntries": 9, "inMemory": True,
        "files": files | {"lastSync": NOW, "files": 2},
    }  # fmt: skip

    with played(home / "s", lambda peer: peer.answer(peer.receive(), report)):
        out = ctl(down, "index", "status", "--socket", str(home / "s")).out

    for expected in (
        "40, 3 pending, 2 failed, held in memory", "onnx: e5", "25% (30 of 120)", "12.5 chunks a second", "7 texts",
        "9 vectors", "it has no text", "2 files, polling", "changes are waiting", "too many files", "/b",
    ):  # fmt: skip
        assert expected in out


def test_index_adds_syncs_and_removes_paths(fresh_daemon: DaemonProcess, home: Path) -> None:
    notes = home / "notes"
    notes.mkdir()
    (notes / "one.md").write_text("# One\n")

    assert ctl(fresh_daemon, "index", "add", "notes", cwd=home).out.startswith("1 added in ")
    (notes / "two.md").write_text("# Two\n")
    (notes / "one.md").write_text("# One, changed\n")
    assert ctl(fresh_daemon, "index", "status", "--json").json["files"]["watched"] == [str(notes)]
    synced = ctl(fresh_daemon, "index", "sync")
    assert synced.code == 0
    assert ctl(fresh_daemon, "index", "status", "--json").json["files"]["files"] == 2
    assert ctl(fresh_daemon, "index", "remove", "../notes", cwd=notes).out.startswith("2 removed in ")
    assert ctl(fresh_daemon, "index", "sync").out.startswith("No files in ")
    assert ctl(fresh_daemon, "index", "remove", "notes", cwd=home).code == 1


def test_index_sync_names_failed_files_and_exits_4(home: Path, down: DaemonProcess) -> None:
    synced = {"added": 1, "changed": 0, "removed": 0, "moved": 0, "unchanged": 3, "seconds": 0.5}

    with played(home / "s", lambda peer: peer.answer(peer.receive(), synced | {"failed": ["/a.md: not UTF-8"]})):
        ran = ctl(down, "index", "sync", "--socket", str(home / "s"))

    assert ran.code == 4
    assert ran.out == "1 added, 3 unchanged in 500 ms.\n"
    assert "/a.md: not UTF-8" in ran.err


# reindex


def test_reindex_reports_its_result(fresh_daemon: DaemonProcess) -> None:
    fill(fresh_daemon)
    ran = ctl(fresh_daemon, "reindex")

    assert ran.code == 0
    assert ran.out.startswith("Reindexed 17 chunks in ")

    assert ctl(fresh_daemon, "reindex", "--embedder", "none", "--json").json["result"]["chunks"] == 17
    assert ctl(fresh_daemon, "search", "login", "--json").json["mode"] == "keyword"


def job(state: str, **fields: Any) -> dict[str, Any]:
    facts = {"id": "j1", "kind": "reindex", "state": state, "done": 1, "total": 9, "note": "making vectors"}
    return facts | {"result": None, "error": None, "createdAt": 1, "finishedAt": None} | fields


def test_reindex_with_failed_chunks_exits_4(home: Path, down: DaemonProcess) -> None:
    def failing(peer: Peer) -> None:
        peer.answer(peer.receive(), {"jobId": "j1"})
        peer.answer(peer.receive(), job("done", result={"chunks": 9, "failed": 2}))

    with played(home / "s", failing):
        ran = ctl(down, "reindex", "--socket", str(home / "s"))

    assert ran.code == 4
    assert "2 chunks can only be found by keyword search" in ran.err


def test_reindex_reports_an_outage(home: Path, down: DaemonProcess) -> None:
    def waiting(peer: Peer) -> None:
        peer.answer(peer.receive(), {"jobId": "j1"})
        for note in ("making vectors", "Ollama at 127.0.0.1 cannot be reached"):
            peer.answer(peer.receive(), job("running", note=note))
        peer.answer(peer.receive(), job("failed", error="no more"))

    with played(home / "s", waiting):
        ran = ctl(down, "reindex", "--socket", str(home / "s"))

    assert ran.code == 1
    assert "Ollama at 127.0.0.1 cannot be reached" in ran.err
    assert "reindex failed: no more" in ran.err


def test_reindex_is_cancelled_by_an_interrupt(home: Path, down: DaemonProcess) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def running(peer: Peer) -> None:
        with suppress(ConnectionError):  # the interrupted end hangs up with something unread
            for request in peer.requests():
                answer(peer, request)

    def answer(peer: Peer, request: dict[str, Any]) -> None:
        if request["method"] == "reindex":
            peer.answer(request, {"jobId": "j1"})
        elif request["method"] == "job.cancel":
            cancelled.set()
            peer.answer(request, job("running"))
        else:
            asked.set()
            peer.answer(request, job("cancelled" if cancelled.is_set() else "running"))

    # Twice: an interrupt in the middle of an exchange ends the connection.
    with played(home / "s", running, running):
        words = command("reindex", "--socket", str(home / "s"))
        with subprocess.Popen(words, env=down.environ, stderr=subprocess.PIPE, text=True) as process:
            assert asked.wait(30)
            process.send_signal(signal.SIGINT)
            assert process.stderr
            said = process.stderr.read()
            assert process.wait(30) == 1

    assert cancelled.is_set(), said
    assert "reindex cancelled" in said
