"""Retention: what is too old or too much is removed for good, and everything else stays."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.schedules import make_due, wake
from helpers.waiting import eventually, settled

DAY_MS = 86_400_000
TOKEN = "xylotangerine"


@pytest.fixture
def configured(rpc: RawConnection, shared_daemon: DaemonProcess) -> Iterator[DaemonProcess]:
    """The shared daemon, without retention settings after the test."""
    yield shared_daemon
    for key in ("retention", "retention_megabytes"):
        assert ctl(shared_daemon, "config", "unset", key).code == 0


def set_retention(daemon: DaemonProcess, *rules: str) -> None:
    ran = ctl(daemon, "config", "set", "retention", str(list(rules)).replace("'", '"'))
    assert ran.code == 0, ran.err


def events(session: str, source: str, days: int, output: str = "some output") -> list[dict[str, Any]]:
    """Return a session with a message and a tool call, from some days ago."""
    at = int(time.time() * 1000) - days * DAY_MS
    part = {"sessionId": session, "createdAt": at}
    tool = {"id": f"t-{session}", "toolName": "Bash", "toolInput": '{"command": "ls"}', "toolOutput": output}
    return [
        {"session": {"id": session, "source": source, "createdAt": at, "updatedAt": at}},
        {"message": part | {"id": f"m-{session}", "role": "user", "textContent": f"said {session}"}},
        {"tool": part | tool},
    ]


def fill(rpc: RawConnection, *given: list[dict[str, Any]]) -> None:
    assert rpc.call("events.batch", events=[event for some in given for event in some])["ok"]


def outputs(rpc: RawConnection, *sessions: str) -> dict[str, Any]:
    found = {}
    for session in sessions:
        for entry in rpc.call("session.timeline", sessionId=session)["entries"]:
            if entry.get("tool"):
                found[session] = entry["tool"]["toolOutput"]
    return found


def session_ids(rpc: RawConnection) -> list[str]:
    return sorted(session["id"] for session in rpc.call("session.list")["sessions"])


def test_retention_removes_by_kind_age_and_harness(rpc: RawConnection, configured: DaemonProcess) -> None:
    for session, source, days in (
        ("new", "codex", 1), ("middle", "codex", 40), ("old", "codex", 400), ("short", "opencode", 100),
    ):  # fmt: skip
        fill(rpc, events(session, source, days, output=f"{TOKEN} {session}"))
    rpc.call("memory.add", content="An old memory stays", scope="global", sessionId="old")
    settled(rpc)
    sql = "INSERT INTO recall_log (at, kind, query, facts_json) VALUES (?, 'search', 'old', '{}')"
    with closing(sqlite3.connect(configured.database)) as database, database:
        database.execute(sql, (int(time.time() * 1000) - 400 * DAY_MS,))
    set_retention(configured, "tool-outputs=30d", "sessions=365d", "opencode/sessions=90d")
    planned = ctl(configured, "retention", "run", "--dry-run", "--json").json["removed"]
    assert planned == {"tool-outputs": 3, "sessions": 2, "recall-records": 1}
    assert session_ids(rpc) == ["middle", "new", "old", "short"]
    ran = ctl(configured, "retention", "run", "--yes")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Removed 3 tool outputs, 2 sessions, 1 recall record")
    assert session_ids(rpc) == ["middle", "new"]
    assert outputs(rpc, "new", "middle") == {"new": f"{TOKEN} new", "middle": None}
    assert [one["content"] for one in rpc.call("memory.list", scopes=["*"])["memories"]] == ["An old memory stays"]
    for gone in (f"{TOKEN} middle", f"{TOKEN} old", f"{TOKEN} short"):
        for path in configured.data.glob("clankers.db*"):
            assert gone.encode() not in path.read_bytes()
    assert ctl(configured, "retention", "run", "--yes").out == "There is nothing to remove.\n"


def test_size_budget_takes_the_oldest_tool_outputs_first(rpc: RawConnection, configured: DaemonProcess) -> None:
    fill(rpc, *(events(f"s{number:03}", "codex", 500 - number, output=f"{number:03} " * 2500) for number in range(250)))
    settled(rpc)
    used = rpc.call("daemon.status")["sizes"]
    budget = (used["database"] - used["free"]) // 1_000_000 - 1
    assert budget > 1
    assert ctl(configured, "config", "set", "retention_megabytes", str(budget)).code == 0
    ran = ctl(configured, "retention", "run", "--yes", "--json")
    assert set(ran.json["removed"]) == {"tool-outputs"}
    assert ran.json["note"] is None
    removed = ran.json["removed"]["tool-outputs"]
    assert 50 < removed < 249
    assert len(rpc.call("session.list", limit=1000)["sessions"]) == 250
    assert outputs(rpc, f"s{removed - 1:03}", f"s{removed:03}")[f"s{removed - 1:03}"] is None
    assert outputs(rpc, f"s{removed:03}")[f"s{removed:03}"] is not None
    sizes = rpc.call("daemon.status")["sizes"]
    assert sizes["database"] - sizes["free"] <= budget * 1_000_000


def test_retention_is_scheduled_while_it_is_set_and_shows_in_status(
    rpc: RawConnection, configured: DaemonProcess
) -> None:
    assert rpc.call("daemon.status")["retention"] is None
    fill(rpc, events("old", "codex", 400))
    set_retention(configured, "sessions=365d")
    action = rpc.call("schedule.get", id="retention")
    assert action["builtin"] == "retention"
    report = rpc.call("daemon.status")["retention"]
    assert report["nextRun"] == action["nextRun"] > time.time() * 1000
    make_due(configured, "retention")
    wake(rpc, "retention")

    def has_run() -> bool:
        last = rpc.call("daemon.status")["retention"]["last"]
        return last is not None and last["removed"] == {"sessions": 1}

    eventually(has_run, "the scheduled action has removed the session")
    assert "removed 1 session" in ctl(configured, "status").out
    assert ctl(configured, "config", "unset", "retention").code == 0
    assert "error" in rpc.request("schedule.get", {"id": "retention"})


@pytest.mark.parametrize("rule", ["memories=3d", "sessions=0d", "sessions", "sessions=3"])
def test_retention_rules_are_checked(configured: DaemonProcess, rule: str) -> None:
    ran = ctl(configured, "config", "set", "retention", f'["{rule}"]')
    assert ran.code == 1
    assert "retention" in ran.err
    assert "KIND=DAYSd" in ran.err
