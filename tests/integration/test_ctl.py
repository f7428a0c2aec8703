"""`clankers-ctl` run as a process: its output and exit codes."""

import json
import re
import shutil
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
from clankers_protocol.events import SessionEvent
from clankers_protocol.sessions import SessionGet, SessionList

NOW = int(time.time() * 1000)
HOUR = 3_600_000
SESSION = "5d6f0c9e-8d0e-4a52-9c4e-5f1f5c1b7a10"

ASKING = [
    ["status"],
    ["health"],
    ["sessions"],
    ["session", SESSION],
    ["session", "delete", SESSION, "--yes"],
    ["stats"],
    ["query", "SELECT 1"],
    ["db", "migrate"],
    ["db", "rollback", "--yes"],
    ["db", "check"],
    ["db", "vacuum"],
    ["jobs"],
]
"""The commands that need the daemon."""


def fill(daemon: DaemonProcess) -> None:
    with Client(daemon.socket_path) as client:
        client.events.session(
            SESSION,
            title="Fix the login on Safari",
            project_path="/src/shop",
            source="claude-code",
            status="ended",
            model="opus",
            prompt_tokens=12_000,
            completion_tokens=345,
            cost=0.5,
            created_at=NOW - 2 * HOUR,
            ended_at=NOW - HOUR,
        )
        client.events.message("m1", SESSION, role="user", text_content="why \x1b[31mred\x1b[0m?", created_at=NOW)
        client.events.tool(
            "t1",
            SESSION,
            tool_name="Bash",
            tool_input='{"command": "pytest -q"}',
            tool_output="\n".join(f"line {number}" for number in range(1, 21)),
            success=False,
            error_message="exit code 1",
            created_at=NOW + 1,
        )
        client.events.error("e1", SESSION, error_type="APIError", error_message="overloaded", created_at=NOW + 2)
        client.events.compaction("c1", SESSION, tokens_before=180_000, tokens_after=20_000, created_at=NOW + 3)
        client.events.session("old", title="Old", source="opencode", status="active", created_at=NOW - 240 * HOUR)


@pytest.fixture(scope="module")
def filled() -> Iterator[DaemonProcess]:
    """A daemon with two sessions, for tests that only read."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as daemon:
        fill(daemon)
        yield daemon


@pytest.fixture
def down(home: Path) -> DaemonProcess:
    """A daemon that was never started."""
    return DaemonProcess(home)


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, found in group.commands.items():
        if isinstance(found, click.Group):
            yield from leaves(found, (*path, name))
        else:
            yield (*path, name), found


# All commands alike


@pytest.mark.parametrize(("path", "leaf"), list(leaves(cli)), ids=lambda value: getattr(value, "name", str(value)))
def test_commands_have_json_and_help_with_examples(path: tuple[str, ...], leaf: click.Command) -> None:
    assert any("--json" in option.opts for option in leaf.params)
    assert leaf.help
    assert f"Examples:\n  clankers-ctl {path[0]}" in leaf.help.replace("      ", "  ")


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_commands_without_a_daemon_exit_3_and_say_how_to_start_it(down: DaemonProcess, words: list[str]) -> None:
    ran = ctl(down, *words)

    assert ran.code == 3
    assert ran.out == ""
    assert "`clankersd`" in ran.err
    assert "clankers-ctl service install" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_commands_without_a_daemon_print_the_error_as_json(down: DaemonProcess, words: list[str]) -> None:
    ran = ctl(down, *words, "--json")

    assert ran.code == 3
    assert "clankersd" in ran.json["error"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["health"],
        ["sessions"],
        ["session", SESSION],
        ["session", "delete", SESSION, "--dry-run"],
        ["stats"],
        ["query", "SELECT 1 AS one"],
        ["logs", "-n", "1"],
        ["config", "show"],
        ["config", "path"],
        ["db", "migrate"],
        ["db", "check"],
        ["db", "vacuum"],
        ["jobs"],
        ["completion", "zsh"],
    ],
    ids=" ".join,
)
def test_json_option_prints_only_json_on_stdout(filled: DaemonProcess, words: list[str]) -> None:
    ran = ctl(filled, *words, "--json")

    assert ran.code == 0, ran.err
    assert ran.json is not None


@pytest.mark.parametrize("words", [["nonsense"], ["sessions", "--limit", "0"], ["sessions", "--since", "soon"]])
def test_usage_errors_exit_2(down: DaemonProcess, words: list[str]) -> None:
    ran = ctl(down, *words)

    assert ran.code == 2
    assert ran.out == ""


def test_usage_errors_are_json_too(down: DaemonProcess) -> None:
    ran = ctl(down, "sessions", "--limit", "0", "--json")

    assert ran.code == 2
    assert "--limit" in ran.json["error"]["message"]
    assert ran.err.count("--limit") == 1


@pytest.mark.parametrize("group", ["memory", "session", "config"])
def test_group_without_a_command_prints_its_help_once(down: DaemonProcess, group: str) -> None:
    ran = ctl(down, group)

    assert ran.code == 2
    assert ran.err.startswith(f"Usage: clankers-ctl {group}")
    assert ran.err.count("Usage:") == 1
    assert "Error" not in ran.err


def test_exit_codes_are_documented(down: DaemonProcess) -> None:
    text = ctl(down, "--help").out

    for code, meaning in {1: "failed", 2: "not understood", 3: "not running", 4: "problem"}.items():
        assert re.search(rf"^ +{code} .*{meaning}", text, re.MULTILINE)


def test_socket_option_works_before_and_after_the_command(filled: DaemonProcess, down: DaemonProcess) -> None:
    assert ctl(down, "--socket", str(filled.socket_path), "health").code == 0
    assert ctl(down, "health", "--socket", str(filled.socket_path)).code == 0
    assert ctl(filled, "--socket", str(down.socket_path), "health").code == 3


def test_daemon_errors_are_one_line_and_exit_1(filled: DaemonProcess) -> None:
    ran = ctl(filled, "session", "no-such-session")

    assert (ran.code, ran.out) == (1, "")
    assert "no-such-session" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_daemon_errors_have_their_code_in_json(filled: DaemonProcess) -> None:
    ran = ctl(filled, "session", "no-such-session", "--json")

    assert ran.code == 1
    assert ran.json["error"]["code"] == 4004


def test_daemon_with_another_protocol_is_an_error(home: Path, down: DaemonProcess) -> None:
    def speak_http(peer: Peer) -> None:
        peer.send_bytes(b"HTTP/1.1 200 OK\r\n\r\n")
        peer.wait_for_the_end()

    with played(home / "s", speak_http):
        ran = ctl(down, "health", "--socket", str(home / "s"))

    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1


def test_colours_are_only_for_terminals(filled: DaemonProcess) -> None:
    assert "\x1b[" in on_a_terminal(filled, "sessions")
    assert "\x1b[" not in ctl(filled, "sessions").out


@pytest.mark.parametrize("words", [["status"], ["sessions"], ["session", SESSION], ["stats"], ["config", "show"]])
def test_output_fits_a_narrow_terminal(filled: DaemonProcess, words: list[str]) -> None:
    lines = ctl(filled, *words, COLUMNS="60").out.splitlines()

    assert lines
    assert max(map(cell_len, lines)) <= 60


def test_output_is_not_truncated_when_piped(filled: DaemonProcess) -> None:
    piped = ctl(filled, "query", "SELECT printf('%.*c', 500, 'x') AS long", COLUMNS="")

    assert "x" * 500 in piped.out


def test_output_on_an_ascii_terminal_does_not_fail(filled: DaemonProcess) -> None:
    environ = filled.environ | {"PYTHONIOENCODING": "ascii"}

    subprocess.run(command("health"), env=environ, stdout=subprocess.DEVNULL, check=True)


# status, health


def test_status_shows_process_paths_and_counts(filled: DaemonProcess) -> None:
    assert filled.process
    out = ctl(filled, "status").out

    assert "ok" in out
    assert str(filled.process.pid) in out
    assert str(filled.database) in out
    assert "2 sessions" in out


def test_health_and_status_exit_4_when_the_daemon_cannot_store(shared_daemon: DaemonProcess) -> None:
    assert ctl(shared_daemon, "db", "rollback", "--yes").code == 0

    for name in ("health", "status"):
        shown, told = ctl(shared_daemon, name), ctl(shared_daemon, name, "--json")
        assert (shown.code, told.code) == (4, 4)
        assert "db migrate" in shown.out
        assert told.json["ok"] is False

    assert ctl(shared_daemon, "db", "migrate").code == 0
    assert ctl(shared_daemon, "health").code == 0


def test_health_and_status_say_why_there_is_no_vector_search(home: Path) -> None:
    with running_daemon(home, HOME=str(home), CLANKERS_EMBEDDER="onnx") as daemon:
        for name in ("health", "status"):
            shown, told = ctl(daemon, name), ctl(daemon, name, "--json")
            assert (shown.code, told.code) == (0, 0)
            assert "● degraded: keyword search only: no ONNX model is set: set the model to a folder" in shown.out
            assert told.json["degraded"] in shown.out


# sessions


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], [SESSION, "old"]),
        (["--source", "opencode"], ["old"]),
        (["--status", "ended"], [SESSION]),
        (["--project", "/src/shop"], [SESSION]),
        (["--project", "shop"], [SESSION]),
        (["--since", "3h"], [SESSION]),
        (["--since", "1h"], []),
        (["--until", "1w"], ["old"]),
        (["--since", "2w", "--until", "1d"], ["old"]),
        (["--limit", "1"], [SESSION]),
    ],
    ids=str,
)
def test_sessions_are_filtered(filled: DaemonProcess, words: list[str], found: list[str]) -> None:
    page = ctl(filled, "sessions", *words, "--json").json

    assert [session["id"] for session in page["sessions"]] == found


def test_sessions_of_a_relative_folder_are_those_of_its_project(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path) as client:
        client.events.session("here", project_path=str(Path.cwd()))

    assert len(ctl(shared_daemon, "sessions", "--project", ".", "--json").json["sessions"]) == 1


def test_sessions_all_reads_every_page(shared_daemon: DaemonProcess) -> None:
    with Client(shared_daemon.socket_path, timeout=30) as client:
        client.events.batch(SessionEvent(f"session-{number:05}", project_path="/src/many") for number in range(1100))

    page = ctl(shared_daemon, "sessions", "--project", "/src/many", "--all", "--json").json

    assert len({session["id"] for session in page["sessions"]}) == 1100
    assert page["cursor"] is None


def test_sessions_says_that_there_are_more(filled: DaemonProcess) -> None:
    assert "--all" in ctl(filled, "sessions", "--limit", "1").err
    assert ctl(filled, "sessions").err == ""


def test_session_accepts_a_listed_short_id(filled: DaemonProcess) -> None:
    listed = ctl(filled, "sessions", "--limit", "1", COLUMNS="80").out.splitlines()[1].split()[0]

    assert len(listed) < len(SESSION)
    assert ctl(filled, "session", listed, "--json").json["session"]["id"] == SESSION


def test_session_is_shown_as_a_transcript(filled: DaemonProcess) -> None:
    out = ctl(filled, "session", SESSION).out

    for expected in (
        "Fix the login on Safari",
        "user",
        "✗ Bash",
        "pytest -q",
        "exit code 1",
        "APIError",
        "180.0k →",
    ):
        assert expected in out
    assert "line 6\n" in out
    assert "line 7" not in out
    assert "14 more lines" in out


def test_session_full_shows_all_of_a_tools_output(filled: DaemonProcess) -> None:
    assert "line 20" in ctl(filled, "session", SESSION, "--full").out


def test_session_and_query_text_cannot_control_the_terminal(filled: DaemonProcess) -> None:
    for words in (["session", SESSION], ["query", "SELECT text_content FROM messages"]):
        out = on_a_terminal(filled, *words)

        assert "␛[31mred" in out
        assert "\x1b[31mred" not in out


def test_session_json_has_all_entries(filled: DaemonProcess) -> None:
    told = ctl(filled, "session", SESSION, "--json").json

    assert [entry["kind"] for entry in told["entries"]] == ["message", "tool", "error", "compaction"]


def test_session_delete_needs_confirmation(shared_daemon: DaemonProcess) -> None:
    fill(shared_daemon)

    assert "1 message" in ctl(shared_daemon, "session", "delete", SESSION[:8], "--dry-run").out
    assert ctl(shared_daemon, "session", "delete", SESSION[:8], typed="n\n").code == 1
    with Client(shared_daemon.socket_path) as client:
        assert client.call(SessionGet(SESSION)).id == SESSION

        assert ctl(shared_daemon, "session", "delete", SESSION[:8], typed="y\n").code == 0
        left = {session.id for session in client.call(SessionList(source="opencode")).sessions}
        left |= {session.id for session in client.call(SessionList(project="/src/shop")).sessions}
        assert left == {"old"}


def test_session_delete_with_yes_does_not_ask(shared_daemon: DaemonProcess) -> None:
    fill(shared_daemon)
    ran = ctl(shared_daemon, "session", "delete", SESSION, "--yes", "--json")

    assert ran.json["counts"]["messages"] == 1
    assert ctl(shared_daemon, "session", SESSION).code == 1


# stats


def test_stats_draw_bars(filled: DaemonProcess) -> None:
    out = ctl(filled, "stats").out

    assert "█" in out
    assert "Bash" in out
    assert "12.0k in" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("columns", [80, 40])
def test_stats_draw_a_calendar_that_fits(filled: DaemonProcess, columns: int) -> None:
    out = ctl(filled, "stats", COLUMNS=str(columns)).out
    calendar = out[out.index("Messages per day") :].splitlines()
    assert max(len(line) for line in out.splitlines()) <= columns
    assert [line[:3] for line in calendar[2:9:2]] == ["Mon", "Wed", "Fri", "Sun"]
    assert sum(line.count("█") for line in calendar) >= 1
    drawn = ctl(filled, "stats", "--json").json["calendar"]
    assert f"most: {max(day['messages'] for day in drawn)}" in calendar[0]


def test_stats_are_limited_in_time(filled: DaemonProcess) -> None:
    assert ctl(filled, "stats", "--until", "1d", "--json").json["totals"]["sessions"] == 1


def test_stats_of_nothing_are_no_error(fresh_daemon: DaemonProcess) -> None:
    assert ctl(fresh_daemon, "stats").code == 0


# query


def test_query_prints_a_table(filled: DaemonProcess) -> None:
    lines = ctl(filled, "query", "SELECT id, title FROM sessions ORDER BY id").out.splitlines()

    assert lines[0].split() == ["id", "title"]
    assert lines[1].split() == [SESSION, "Fix", "the", "login", "on", "Safari"]


def test_query_prints_wide_rows_one_value_per_line(filled: DaemonProcess) -> None:
    out = ctl(filled, "query", "SELECT * FROM sessions ORDER BY id", COLUMNS="60").out

    assert re.search(r"^title +Fix the login on Safari *$", out, re.MULTILINE)


def test_query_prints_csv(filled: DaemonProcess) -> None:
    ran = ctl(filled, "query", "SELECT 'a,b' AS x, NULL AS y, 2 AS z", "--format", "csv")

    assert ran.out == 'x,y,z\n"a,b",,2\n'


@pytest.mark.parametrize("how", [["--format", "json"], ["--json"]])
def test_query_prints_json_objects(filled: DaemonProcess, how: list[str]) -> None:
    ran = ctl(filled, "query", "SELECT 1 AS x, 2 AS x", *how)

    assert ran.json == [{"x": 1, "x:2": 2}]


def test_query_reads_sql_from_standard_input(filled: DaemonProcess) -> None:
    assert ctl(filled, "query", "-", "--json", typed="SELECT 7 AS seven").json == [{"seven": 7}]


def test_query_reports_that_rows_were_left_out(filled: DaemonProcess) -> None:
    ran = ctl(filled, "query", "SELECT id FROM sessions", "--limit", "1", "--json")

    assert len(ran.json) == 1
    assert "--limit" in ran.err


def test_query_suggests_the_right_table(filled: DaemonProcess) -> None:
    ran = ctl(filled, "query", "SELECT * FROM sesions")

    assert ran.code == 1
    assert "did you mean sessions" in ran.err


def test_query_does_not_write(filled: DaemonProcess) -> None:
    assert ctl(filled, "query", "DELETE FROM sessions").code == 1
    assert ctl(filled, "sessions", "--json").json["sessions"]


# logs


def write_log(daemon: DaemonProcess, day: str, *entries: dict[str, Any] | str) -> None:
    daemon.logs.mkdir(parents=True, exist_ok=True)
    with (daemon.logs / f"clankers-{day}.jsonl").open("a") as file:
        for entry in entries:
            file.write((entry if isinstance(entry, str) else json.dumps(entry)) + "\n")


def line(message: str, level: str = "info", **facts: Any) -> dict[str, Any]:
    stamp = "2025-01-31T12:00:00.000Z"
    return {"timestamp": stamp, "level": level, "component": "rpc", "message": message, **facts}


def test_logs_are_readable_without_the_daemon(down: DaemonProcess) -> None:
    write_log(down, "2025-01-31", line("it broke", "error", session="s1", exception="Traceback:\n  boom"))
    ran = ctl(down, "logs", TZ="UTC")

    assert ran.code == 0
    assert "2025-01-31 12:00:00 error    rpc it broke session=s1\n" in ran.out
    assert "\n    Traceback:\n      boom\n" in ran.out


def test_logs_show_the_last_lines_across_days(down: DaemonProcess) -> None:
    write_log(down, "2025-01-30", line("one"), line("two"))
    write_log(down, "2025-01-31", line("three"))
    ran = ctl(down, "logs", "-n", "2", "--json")

    assert [json.loads(each)["message"] for each in ran.out.splitlines()] == ["two", "three"]


def test_logs_level_leaves_out_less_severe_lines(down: DaemonProcess) -> None:
    write_log(down, "2025-01-31", line("a", "debug"), line("b", "warning"), line("c", "error"), "not json")
    out = ctl(down, "logs", "--level", "warn").out

    assert [each.split()[-1] for each in out.splitlines()] == ["b", "c", "json"]


def test_logs_in_json_are_the_lines_of_the_file(down: DaemonProcess) -> None:
    entry = '{"level":"info",  "message":"as it stands"}'
    write_log(down, "2025-01-31", entry)

    assert ctl(down, "logs", "--json").out == entry + "\n"


def test_logs_without_files_is_an_error(down: DaemonProcess) -> None:
    ran = ctl(down, "logs")

    assert ran.code == 1
    assert str(down.logs) in ran.err


def test_logs_are_followed_across_midnight(down: DaemonProcess) -> None:
    write_log(down, "2025-01-31", line("first"))
    with subprocess.Popen(
        command("logs", "-f", "--level", "info", "--json"),
        env=down.environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout

        def next_message() -> str:
            assert process.stdout
            return str(json.loads(process.stdout.readline())["message"])

        assert next_message() == "first"
        write_log(down, "2025-01-31", line("unseen", "debug"), line("second"))
        assert next_message() == "second"
        write_log(down, "2025-01-31", line("last of the day"))
        write_log(down, "2025-02-01", line("first of the next"))
        assert next_message() == "last of the day"
        assert next_message() == "first of the next"
        process.send_signal(signal.SIGINT)

        assert process.wait(30) == 0


def test_logs_find_the_log_of_the_daemon(filled: DaemonProcess) -> None:
    assert "ready" in ctl(filled, "logs").out


# config


def test_config_shows_sets_and_unsets_a_setting(shared_daemon: DaemonProcess) -> None:
    def setting() -> tuple[Any, str]:
        settings = ctl(shared_daemon, "config", "show", "--json").json["settings"]
        return next((each["value"], each["origin"]) for each in settings if each["key"] == "query_rows")

    default = setting()
    assert default[1] == "default"

    assert ctl(shared_daemon, "config", "set", "query_rows", "7").out == "query_rows = 7 (file)\n"
    assert setting() == (7, "file")

    assert ctl(shared_daemon, "config", "unset", "query_rows").code == 0
    assert setting() == default


def test_config_set_refuses_an_unknown_key(filled: DaemonProcess) -> None:
    ran = ctl(filled, "config", "set", "no_such_key", "1")

    assert ran.code == 1
    assert "no_such_key" in ran.err


def test_config_show_without_a_daemon_shows_what_it_would_start_with(down: DaemonProcess) -> None:
    (down.home / "clankers.toml").write_text('log_level = "debug"\n')
    try:
        settings = ctl(down, "config", "show", "--json").json["settings"]
    finally:
        (down.home / "clankers.toml").unlink()

    assert {each["key"]: each["origin"] for each in settings if each["origin"] == "file"} == {"log_level": "file"}


def test_config_show_of_a_file_that_is_not_toml_is_an_error(down: DaemonProcess) -> None:
    (down.home / "clankers.toml").write_text("not toml")
    try:
        assert ctl(down, "config", "show").code == 1
    finally:
        (down.home / "clankers.toml").unlink()


def test_config_path_works_with_and_without_the_daemon(filled: DaemonProcess, down: DaemonProcess) -> None:
    assert ctl(filled, "config", "path").out == f"{filled.home / 'clankers.toml'}\n"
    assert ctl(down, "config", "path").out == f"{down.home / 'clankers.toml'}\n"


# db, jobs


def test_db_check_vacuum_and_migrate(shared_daemon: DaemonProcess) -> None:
    assert "passed" in ctl(shared_daemon, "db", "check").out
    assert "Freed" in ctl(shared_daemon, "db", "vacuum").out
    assert "Nothing to do" in ctl(shared_daemon, "db", "migrate").out

    kinds = [job["kind"] for job in ctl(shared_daemon, "jobs", "--json").json]
    assert len(kinds) == 2
    assert "done" in ctl(shared_daemon, "jobs").out


def test_db_rollback_needs_confirmation(shared_daemon: DaemonProcess) -> None:
    assert ctl(shared_daemon, "db", "rollback", typed="n\n").code == 1
    assert ctl(shared_daemon, "health").code == 0


def test_db_rollback_names_its_backup(shared_daemon: DaemonProcess) -> None:
    told = ctl(shared_daemon, "db", "rollback", "--yes", "--json").json

    assert Path(told["backup"]).is_file()
    assert ctl(shared_daemon, "db", "migrate").code == 0


def job(state: str, **fields: Any) -> dict[str, Any]:
    facts = {"id": "j1", "kind": "check", "state": state, "done": 1, "total": 9, "note": None}
    return facts | {"result": None, "error": None, "createdAt": 1, "finishedAt": None} | fields


def test_db_check_of_a_damaged_database_exits_4(home: Path, down: DaemonProcess) -> None:
    def damaged(peer: Peer) -> None:
        peer.answer(peer.receive(), {"jobId": "j1"})
        peer.answer(peer.receive(), job("done", result={"ok": False, "problems": ["row 3 is missing"]}))

    with played(home / "s", damaged):
        ran = ctl(down, "db", "check", "--socket", str(home / "s"))

    assert ran.code == 4
    assert "row 3 is missing" in ran.out


def test_jobs_that_fail_exit_1(home: Path, down: DaemonProcess) -> None:
    def failing(peer: Peer) -> None:
        peer.answer(peer.receive(), {"jobId": "j1"})
        peer.answer(peer.receive(), job("failed", error="disk full"))

    with played(home / "s", failing):
        ran = ctl(down, "db", "vacuum", "--socket", str(home / "s"))

    assert ran.code == 1
    assert "disk full" in ran.err


def test_jobs_are_cancelled_by_an_interrupt(home: Path, down: DaemonProcess) -> None:
    asked = threading.Event()
    cancelled: list[Any] = []

    def running(peer: Peer) -> None:
        with suppress(ConnectionError):  # an interrupt in the middle of an exchange ends the connection
            for request in peer.requests():
                if request["method"] == "$/cancelRequest":
                    continue  # about the request that was interrupted
                if request["method"] == "job.cancel":
                    cancelled.append(request["params"]["id"])
                    peer.answer(request, job("cancelled"))
                elif request["method"] == "job.status":
                    asked.set()
                    peer.answer(request, job("running"))
                else:
                    peer.answer(request, {"jobId": "j1"})

    # Twice: an interrupt in the middle of an exchange ends the connection.
    with played(home / "s", running, running):
        words = command("db", "check", "--socket", str(home / "s"))
        with subprocess.Popen(words, env=down.environ, stderr=subprocess.PIPE, text=True) as process:
            assert asked.wait(30)
            process.send_signal(signal.SIGINT)
            assert process.stderr
            said = process.stderr.read()
            assert process.wait(30) == 1

    assert cancelled == ["j1"]
    assert "cancelled" in said


# completion, service


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_shell(down: DaemonProcess, shell: str) -> None:
    ran = ctl(down, "completion", shell)

    assert ran.code == 0
    assert "_CLANKERS_CTL_COMPLETE" in ran.out
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=ran.out, text=True, check=True)


def completed(daemon: DaemonProcess, typed: str) -> list[str]:
    """What bash would offer for the last word."""
    words: dict[str, Any] = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    out = ctl(daemon, _CLANKERS_CTL_COMPLETE="bash_complete", **words).out
    return [offer.partition(",")[2] for offer in out.splitlines() if offer]


def test_completion_of_commands_and_options(down: DaemonProcess) -> None:
    assert completed(down, "clankers-ctl sess") == ["sessions", "session"]
    assert completed(down, "clankers-ctl doctor --r") == ["--repair"]


def test_completion_of_session_ids_and_settings(filled: DaemonProcess) -> None:
    assert completed(filled, "clankers-ctl session 5d") == [SESSION]
    assert completed(filled, "clankers-ctl session delete 5d") == [SESSION]
    assert completed(filled, "clankers-ctl config set query_r") == ["query_rows"]


def test_completion_without_a_daemon_offers_nothing(down: DaemonProcess) -> None:
    assert completed(down, "clankers-ctl session delete 5d") == []


def test_service_is_one_of_the_commands(down: DaemonProcess) -> None:
    assert "install" in ctl(down, "service", "--help").out
