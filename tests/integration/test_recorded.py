"""Everything real harnesses were seen to send is replayed, twice: no error, no duplicate, and exactly these rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.recorded import CLAUDE, OPENCODE, claude_events, needs_fixtures, opencode_events, put_transcripts
from helpers.waiting import eventually

pytestmark = needs_fixtures

Rows = tuple[int, int, int, int, int, int]
"""Prompts, answers, tools, failed tools, errors, compactions."""

BY_HOOKS: dict[str, Rows] = {
    "11111111": (3, 3, 5, 2, 0, 1),  # basic, resume, compact, aftercompact
    "59262444": (1, 1, 0, 0, 0, 0),  # fork
    "eee807ea": (1, 1, 2, 0, 0, 0),  # parallel
    "e2346e8c": (1, 1, 1, 1, 0, 0),  # perm: the tool is denied
    "655e48fa": (1, 1, 2, 0, 0, 0),  # subagent
    "d8ba1fa6": (1, 1, 2, 1, 0, 0),  # mcp
    "22be1c65": (1, 1, 0, 0, 0, 0),  # slash
    "5df9139b": (1, 1, 0, 0, 0, 0),  # before the clear
    "175853af": (1, 1, 0, 0, 0, 0),  # after it
    "3aba83d5": (1, 0, 0, 0, 0, 0),  # apierror: StopFailure did not arrive
    "582a8857": (1, 1, 1, 0, 0, 1),  # autocompact
    "810b67b1": (2, 0, 0, 0, 2, 0),  # stopfailure
    "f7e057fd": (1, 1, 1, 0, 0, 1),  # interactive
    "4f92ef96": (1, 1, 0, 0, 0, 0),  # interactive, after its clear
}

# Tool-only messages and sub-agents' are in the transcripts alone, and so are the tokens.
BY_TRANSCRIPTS: dict[str, tuple[Rows, int, int]] = {
    "11111111": ((3, 8, 5, 2, 0, 1), 112_109, 308),
    "59262444": ((1, 1, 0, 0, 0, 0), 12_500, 12),
    "eee807ea": ((1, 2, 2, 0, 0, 0), 23_960, 77),
    "e2346e8c": ((1, 2, 1, 1, 0, 0), 23_885, 59),
    "655e48fa": ((1, 4, 2, 0, 0, 0), 40_738, 118),
    "d8ba1fa6": ((1, 3, 2, 1, 0, 0), 36_237, 70),
    "22be1c65": ((1, 1, 0, 0, 0, 0), 11_955, 14),
    "5df9139b": ((1, 1, 0, 0, 0, 0), 11_913, 12),
    "175853af": ((1, 1, 0, 0, 0, 0), 12_034, 12),
    "3aba83d5": ((1, 0, 0, 0, 1, 0), 0, 0),
    "582a8857": ((1, 2, 1, 0, 0, 1), 1_005_628, 102),
    "810b67b1": ((2, 0, 0, 0, 2, 0), 0, 0),
    "f7e057fd": ((1, 2, 1, 0, 0, 1), 41_766, 107),
    "4f92ef96": ((1, 1, 0, 0, 0, 0), 14_102, 12),
}

BY_STREAM: dict[str, dict[str, tuple[Rows, int, int]]] = {
    "basic": {"ses_e1ddbe25": ((1, 6, 5, 2, 0, 0), 48_163, 271)},
    "resume": {"ses_e1ddbe25": ((1, 1, 0, 0, 0, 0), 56_433, 276)},
    "mcp": {"ses_e1dd9e4d": ((1, 3, 2, 1, 0, 0), 23_629, 77)},
    "perm": {"ses_e1dda6f5": ((1, 1, 1, 1, 0, 0), 7809, 56)},
    "slash": {"ses_e1dda170": ((1, 1, 0, 0, 0, 0), 7805, 7)},
    "todo": {"ses_e1ddaa49": ((1, 2, 1, 0, 0, 0), 15_753, 75)},
    "apierror": {"ses_e1dda3d8": ((1, 1, 0, 0, 1, 0), 0, 0)},
    "subagent": {"ses_e1ddb064": ((1, 2, 1, 0, 0, 0), 15_728, 64), "ses_e1ddad73": ((1, 2, 1, 0, 0, 0), 12_412, 51)},
    "autocompact": {"ses_e1dd9a75": ((1, 3, 1, 0, 0, 1), 107_437, 26)},
    "serve": {"ses_e1dd95ea": ((3, 10, 6, 2, 0, 1), 76_884, 348)},
}

REPLAYED_AT = 1_794_800_000_000
"""Hooks report later than what the transcripts record, as they do in life."""

FORKED = "11111111"
"""Session that the recorded fork continues."""

_ROWS = """
    SELECT (SELECT count(*) FROM messages WHERE session_id = s.id AND role = 'user') AS prompts,
           (SELECT count(*) FROM messages WHERE session_id = s.id AND role = 'assistant') AS answers,
           (SELECT count(*) FROM tools WHERE session_id = s.id) AS tools,
           (SELECT count(*) FROM tools WHERE session_id = s.id AND success = 0) AS failed,
           (SELECT count(*) FROM session_errors WHERE session_id = s.id) AS errors,
           (SELECT count(*) FROM compaction_events WHERE session_id = s.id) AS compactions,
           coalesce(s.prompt_tokens, 0), coalesce(s.completion_tokens, 0), s.id
    FROM sessions AS s
"""


@pytest.fixture
def harness_home(fresh_daemon: DaemonProcess) -> Path:
    """The home folder of the daemon's user, who runs the harness too."""
    return fresh_daemon.home / "user"


def rows(connection: RawConnection) -> dict[str, tuple[Rows, int, int]]:
    found = connection.call("query", sql=_ROWS, limit=1000)["rows"]
    return {row[-1]: (tuple(row[:6]), int(row[6]), int(row[7])) for row in found}


def short(found: dict[str, Any], length: int) -> dict[str, Any]:
    return {key[:length]: value for key, value in found.items()}


def replay(connection: RawConnection, home: Path) -> None:
    for number, (name, event) in enumerate(claude_events(home)):
        at = REPLAYED_AT + 100 * number
        reply = connection.request("hook.event", {"harness": "claude-code", "event": event, "at": at})
        assert "error" not in reply, (name, reply)


def caught_up(connection: RawConnection) -> bool:
    due = (
        "SELECT count(*) FROM transcripts WHERE wanted_at IS NOT NULL AND read_at IS NULL AND path NOT LIKE '%agent-%'"
    )
    return bool(connection.call("query", sql=due)["rows"] == [[0]])


def test_claude_codes_hooks_alone_give_these_rows(fresh_daemon: DaemonProcess, harness_home: Path) -> None:
    with fresh_daemon.connect() as connection:
        for _ in range(2):
            replay(connection, harness_home)
            assert {key: value[0] for key, value in short(rows(connection), 8).items()} == BY_HOOKS
        report = connection.call("capture.status")
        (claude,) = (each for each in report["harnesses"] if each["harness"] == "claude-code")
    assert claude["events"] == len(list(CLAUDE.glob("*.json")))
    assert (claude["refused"], claude["optedOut"]) == (0, 0)
    assert claude["lastEvent"] == "SessionEnd"


def test_with_the_transcripts_nothing_is_missing_and_nothing_twice(
    fresh_daemon: DaemonProcess, harness_home: Path
) -> None:
    put_transcripts(harness_home)
    with fresh_daemon.connect() as connection:
        for _ in range(2):
            replay(connection, harness_home)
            eventually(lambda: caught_up(connection), "the transcripts are read")
            eventually(lambda: short(rows(connection), 8) == BY_TRANSCRIPTS, "the rows are those of the transcripts")


def test_transcripts_that_come_after_the_hooks_take_over_what_the_hooks_told(
    fresh_daemon: DaemonProcess, harness_home: Path
) -> None:
    with fresh_daemon.connect() as connection:
        replay(connection, harness_home)
        before = connection.call("query", sql="SELECT id FROM messages WHERE role = 'user'")["rows"]
        # The parent's transcript first: a fork's that is read before it owns what both have.
        put_transcripts(harness_home, FORKED)
        replay(connection, harness_home)
        parent = {FORKED: BY_TRANSCRIPTS[FORKED]}.items()
        eventually(lambda: parent <= short(rows(connection), 8).items(), "the parent's transcript is read")
        put_transcripts(harness_home)
        replay(connection, harness_home)
        eventually(lambda: short(rows(connection), 8) == BY_TRANSCRIPTS, "the rows are those of the transcripts")
        after = connection.call("query", sql="SELECT id FROM messages WHERE role = 'user'")["rows"]
        early = connection.call("query", sql="SELECT id FROM messages WHERE completed_at < created_at")["rows"]
    assert early == [], "an answer is not complete before it begins"
    assert sorted(before) == sorted(after), "a prompt keeps the id by which it was told of first"


def test_history_is_imported_before_the_hooks_come_or_after(fresh_daemon: DaemonProcess, harness_home: Path) -> None:
    put_transcripts(harness_home)
    with fresh_daemon.connect() as connection:
        summary = imported(connection, harness="claude-code")
        assert short(rows(connection), 8) == BY_TRANSCRIPTS
        costs = "SELECT substr(id, 1, 8), round(cost, 5) FROM sessions WHERE id LIKE '59262444%' OR id LIKE '11111111%'"
        found = dict(map(tuple, connection.call("query", sql=costs)["rows"]))
        assert found == {"11111111": 0.4546, "59262444": 0.05024}, "a fork costs what was said in it"
        assert (summary["sessions"], summary["messages"], summary["tools"]) == (14, 45, 14)
        names = connection.call("query", sql="SELECT DISTINCT tool_name FROM tools ORDER BY 1")["rows"]
        assert [name for (name,) in names] == ["Agent", "Bash", "Edit", "Read", "Write", "mcp__labmem__recall"]
        replay(connection, harness_home)
        eventually(lambda: caught_up(connection), "the transcripts are read")
        assert short(rows(connection), 8) == BY_TRANSCRIPTS
        again = imported(connection, harness="claude-code")
        assert short(rows(connection), 8) == BY_TRANSCRIPTS
    assert (again["files"], again["sessions"], again["messages"], again["tools"]) == (15, 0, 0, 0)


def imported(connection: RawConnection, **params: Any) -> Any:
    job = eventually(lambda: connection.request("import.start", params).get("result"), "the import begins")["jobId"]
    done = eventually(lambda: (each := connection.call("job.status", id=job))["state"] != "running" and each, "it ends")
    assert done["state"] == "done", done
    return done["result"]


def test_sessions_are_linked_as_they_were_made(fresh_daemon: DaemonProcess, harness_home: Path) -> None:
    put_transcripts(harness_home)
    with fresh_daemon.connect() as connection:
        replay(connection, harness_home)

        def links() -> list[list[str | None]]:
            sql = """
                SELECT substr(id, 1, 8), metadata ->> '$.startedBy',
                       substr(coalesce(metadata ->> '$.forkedFrom', metadata ->> '$.clearedFrom'), 1, 8)
                FROM sessions WHERE metadata ->> '$.startedBy' IN ('fork', 'clear') ORDER BY 1
            """
            return list(connection.call("query", sql=sql)["rows"])

        expected = [
            ["175853af", "clear", "5df9139b"],
            ["4f92ef96", "clear", "f7e057fd"],
            ["59262444", "fork", "11111111"],
        ]
        eventually(lambda: links() == expected, "the sessions are linked")


@pytest.mark.parametrize("name", sorted(BY_STREAM))
def test_opencodes_streams_give_these_rows(home: Path, name: str) -> None:
    with running_daemon(home) as daemon, daemon.connect() as connection:
        for _ in range(2):
            for at, event in opencode_events(OPENCODE / "streams" / f"{name}.jsonl"):
                reply = connection.request("hook.event", {"harness": "opencode", "event": event, "at": at})
                assert "error" not in reply, (event, reply)
            assert short(rows(connection), 12) == BY_STREAM[name]


@pytest.mark.parametrize("harness", ["claude-code", "opencode", "codex", "copilot", "gemini", "pi", "qwen"])
def test_every_single_payload_of_either_is_survived_by_every_adapter(
    shared_daemon: DaemonProcess, harness: str
) -> None:
    with shared_daemon.connect() as connection:
        for path in sorted((*CLAUDE.glob("*.json"), *OPENCODE.glob("*.json"))):
            event = json.loads(path.read_text("utf-8"))
            reply = connection.request("hook.event", {"harness": harness, "event": event})
            assert "error" not in reply, (path.name, reply)


def test_fork_whose_original_is_gone_keeps_what_it_repeats(fresh_daemon: DaemonProcess, harness_home: Path) -> None:
    folder = put_transcripts(harness_home)
    (folder / "11111111-2222-4333-8444-555555555555.jsonl").unlink()
    for other in folder.iterdir():
        if not other.name.startswith("59262444"):
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    with fresh_daemon.connect() as connection:
        imported(connection, harness="claude-code")
        assert short(rows(connection), 8) == {"59262444": ((3, 8, 5, 2, 0, 0), 98_012, 261)}
