"""History that was there before the daemon is brought in once, whatever it looks like, and told of."""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

DAY = 24 * 3600


@pytest.fixture
def user(shared_daemon: DaemonProcess) -> Iterator[Path]:
    """The home folder of the daemon's user, who has no history yet."""
    path = shared_daemon.home / "user"
    yield path
    shutil.rmtree(path)
    path.mkdir()


def imported(connection: RawConnection, harness: str, **params: Any) -> dict[str, Any]:
    start = {"harness": harness, **params}
    job = eventually(lambda: connection.request("import.start", start).get("result"), "an import begins")["jobId"]
    done = eventually(lambda: (each := connection.call("job.status", id=job))["state"] != "running" and each, "it ends")
    assert done["state"] == "done", done
    return dict(done["result"])


def transcript(user: Path, session: str, *texts: str, cwd: str = "/w", age_days: float = 1) -> Path:
    """A session of Claude Code's, with these prompts and an answer to each."""
    folder = user / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{session}.jsonl"
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        day = f"2026-01-{10 + number:02}T10:00"
        common = {"sessionId": session, "cwd": cwd}
        name = f"{session}-{number}"
        lines.append({"type": "user", "uuid": name, "timestamp": f"{day}:00Z", "message": {"content": text}, **common})
        answer = {"id": f"msg_{name}", "model": "opus", "content": [{"type": "text", "text": f"{text}!"}]}
        lines.append({"type": "assistant", "uuid": f"a-{name}", "timestamp": f"{day}:05Z", "message": answer, **common})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    moment = time.time() - age_days * DAY
    os.utime(path, (moment, moment))
    return path


def counted(summary: dict[str, Any]) -> tuple[int, int, int]:
    return summary["files"], summary["sessions"], summary["messages"]


def test_claude_codes_history_comes_in_once(rpc: RawConnection, user: Path) -> None:
    transcript(user, "one", "first", "second")
    transcript(user, "two", "third")
    assert counted(imported(rpc, "claude-code")) == (2, 2, 6)
    assert counted(imported(rpc, "claude-code")) == (2, 0, 0)
    session = rpc.call("session.get", id="one")
    assert (session["title"], session["projectPath"], session["status"]) == ("first", "/w", "ended")
    assert session["createdAt"] == 1_768_039_200_000
    found = rpc.call("message.list", sessionId="one")["messages"]
    assert [each["textContent"] for each in found] == ["first", "first!", "second", "second!"]
    assert rpc.call("search", query="third")["hits"]


def test_dry_run_tells_the_same_and_stores_nothing(rpc: RawConnection, user: Path) -> None:
    transcript(user, "one", "first", "the PASSWORD=hunter2hunter2x is it")
    before = rpc.call("capture.status")["redacted"]
    tried = imported(rpc, "claude-code", dryRun=True)
    assert rpc.call("session.list")["sessions"] == []
    assert rpc.call("capture.status")["redacted"] == before
    done = imported(rpc, "claude-code")
    assert tried == done | {"dryRun": True}
    assert done["redacted"] >= 1


def test_since_leaves_out_what_rested_longer(rpc: RawConnection, user: Path) -> None:
    transcript(user, "old", "first", age_days=30)
    transcript(user, "new", "second", age_days=1)
    since = round((time.time() - 7 * DAY) * 1000)
    assert counted(imported(rpc, "claude-code", since=since)) == (1, 1, 2)
    assert rpc.call("session.list")["sessions"][0]["id"] == "new"


def test_declined_projects_bad_lines_and_links_out_do_not_stop_it(rpc: RawConnection, user: Path, home: Path) -> None:
    (home / "private").mkdir()
    (home / "private" / ".clankers-ignore").touch()
    transcript(user, "private", "psst", cwd=str(home / "private"))
    path = transcript(user, "odd", "first")
    path.write_bytes(b"\xff garbage\n{}\n" + path.read_bytes() + b'{"type": "user"}\n{"half')
    (path.parent / "link.jsonl").symlink_to(home / "clankers.toml")
    (path.parent / "empty.jsonl").touch()
    summary = imported(rpc, "claude-code")
    assert (summary["optedOut"], summary["malformed"], summary["messages"]) == (1, 1, 2)
    assert [each["id"] for each in rpc.call("session.list")["sessions"]] == ["odd"]


def test_with_no_history_nothing_comes_in(rpc: RawConnection) -> None:
    assert counted(imported(rpc, "claude-code")) == (0, 0, 0)
    assert counted(imported(rpc, "opencode")) == (0, 0, 0)


def test_harness_that_keeps_no_history_we_know_is_refused(rpc: RawConnection) -> None:
    error = rpc.request("import.start", {"harness": "emacs"})["error"]
    assert error["code"] == -32602
    assert "$.harness" in error["message"]


# -- OpenCode

SCHEMA = """
    CREATE TABLE session (
        id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, title TEXT, cost REAL, tokens_input INTEGER,
        tokens_output INTEGER, tokens_reasoning INTEGER, tokens_cache_read INTEGER, tokens_cache_write INTEGER,
        agent TEXT, model TEXT, time_created INTEGER, time_updated INTEGER);
    CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);
    CREATE TABLE part (
        id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);
"""
BEGAN = 1_768_471_200_000
USER = {"role": "user", "time": {"created": BEGAN + 1}, "model": {"modelID": "m", "providerID": "p"}}
ANSWER = {
    "role": "assistant", "time": {"created": BEGAN + 2, "completed": BEGAN + 900}, "modelID": "m", "parentID": "msg_u",
    "tokens": {"input": 70, "output": 20, "reasoning": 1, "cache": {"read": 9, "write": 0}},
}  # fmt: skip
PARTS: dict[str, list[dict[str, Any]]] = {
    "msg_u": [{"type": "text", "text": "list it"}, {"type": "text", "text": "context", "synthetic": True}],
    "msg_a": [
        {"type": "text", "text": "I look."},
        {"type": "tool", "tool": "bash", "callID": "c1", "state": {
            "status": "completed", "input": {"command": "ls"}, "output": "a\n", "metadata": {"exit": 0},
            "time": {"start": BEGAN + 10, "end": BEGAN + 30},
        }},
        {"type": "tool", "tool": "read", "callID": "c2", "state": {
            "status": "error", "input": {"filePath": "/w/x"}, "error": "File not found",
            "time": {"start": BEGAN + 40, "end": BEGAN + 41},
        }},
        {"type": "text", "text": "There is a."},
    ],
}  # fmt: skip


def database(user: Path, session: str = "ses_1") -> Path:
    path = user / "share" / "opencode" / "opencode.db"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as db:
        db.executescript(SCHEMA)
        model = json.dumps({"id": "m", "providerID": "p"})
        row = (session, None, "/w", "A title", 0.5, 70, 20, 1, 9, 0, "build", model, BEGAN, BEGAN + 1000)
        db.execute(f"INSERT INTO session VALUES ({', '.join('?' * len(row))})", row)
        for at, (message_id, info) in enumerate((("msg_u", USER), ("msg_a", ANSWER))):
            db.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", (message_id, session, at, at, json.dumps(info)))
            for number, part in enumerate(PARTS[message_id]):
                values = (f"prt_{message_id}_{number}", message_id, session, number, number, json.dumps(part))
                db.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", values)
        db.execute("INSERT INTO message VALUES ('msg_bad', ?, 9, 9, '{not json')", (session,))
    db.close()
    return path


def storage(user: Path, session: str = "ses_1") -> None:
    """The same session as older versions stored it."""
    folder = user / "share" / "opencode" / "storage"

    def put(path: Path, record: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))

    times = {"created": BEGAN, "updated": BEGAN + 1000}
    put(
        folder / "session" / "p" / f"{session}.json",
        {"id": session, "directory": "/w", "title": "A title", "time": times},
    )
    for message_id, info in (("msg_u", USER), ("msg_a", ANSWER)):
        record = {**info, "id": message_id, "sessionID": session}
        put(folder / "message" / session / f"{message_id}.json", record)
        for number, part in enumerate(PARTS[message_id]):
            name = f"prt_{message_id}_{number}"
            put(folder / "part" / message_id / f"{name}.json", {**part, "id": name, "messageID": message_id})
    (folder / "message" / session / "msg_bad.json").write_text("{not json")


@pytest.mark.parametrize("keep", [database, storage])
def test_opencodes_history_comes_in_once(rpc: RawConnection, user: Path, keep: Any) -> None:
    keep(user)
    tried = imported(rpc, "opencode", dryRun=True)
    summary = imported(rpc, "opencode")
    assert tried == summary | {"dryRun": True}
    assert (*counted(summary), summary["tools"], summary["malformed"]) == (1, 1, 2, 2, 1)
    assert counted(imported(rpc, "opencode")) == (1, 0, 0)
    asked, answered = rpc.call("message.list", sessionId="ses_1")["messages"]
    assert (asked["id"], asked["role"], asked["textContent"]) == ("msg_u", "user", "list it")
    assert (answered["textContent"], answered["promptTokens"], answered["completionTokens"]) == (
        "I look.\n\nThere is a.", 79, 21,
    )  # fmt: skip
    good, bad = rpc.call("tool.list", sessionId="ses_1")["tools"]
    assert (good["toolName"], good["success"], good["toolOutput"], good["durationMs"]) == ("bash", True, "a\n", 20)
    assert (bad["success"], bad["errorMessage"], bad["filePath"]) == (False, "File not found", "/w/x")
    session = rpc.call("session.get", id="ses_1")
    assert (session["title"], session["projectPath"], session["createdAt"]) == ("A title", "/w", BEGAN)
    assert rpc.call("stats")["totals"]["promptTokens"] == 79


def test_session_in_both_places_comes_in_from_the_database(rpc: RawConnection, user: Path) -> None:
    database(user)
    storage(user)
    storage(user, "ses_2")
    assert imported(rpc, "opencode")["sessions"] == 2


def test_opencodes_own_database_is_left_as_it_is(rpc: RawConnection, user: Path) -> None:
    path = database(user)
    before = path.read_bytes()
    imported(rpc, "opencode")
    assert path.read_bytes() == before


# -- clankers-ctl import


def test_command_tells_what_came_in(shared_daemon: DaemonProcess, user: Path) -> None:
    transcript(user, "one", "first", "PASSWORD=hunter2hunter2x")
    tried = ctl(shared_daemon, "import", "claude-code", "--dry-run")
    assert tried.code == 0, tried.err
    assert "would import" in tried.out
    done = ctl(shared_daemon, "import", "claude-code", "--since", "2w")
    assert "Read 1 transcript" in done.out
    assert [line.split()[-1] for line in done.out.splitlines() if line.strip().startswith("messages")] == ["4"]
    assert "redacted" in done.out
    again = ctl(shared_daemon, "import", "claude-code", "--json").json
    assert again["result"]["messages"] == 0


def test_command_refuses_what_it_does_not_know(shared_daemon: DaemonProcess) -> None:
    assert ctl(shared_daemon, "import", "emacs").code == 2
