"""Extracted summaries over the socket: computed from stored rows, told at the next start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.recorded import (
    OPENCODE,
    needs_fixtures,
    opencode_events,
    put_chats,
    put_openclaw_database,
    put_rollouts,
    put_transcripts,
)
from helpers.waiting import eventually

PROJECT = "/home/me/shop"
T0 = 1_700_000_000_000

PUT_FILES: dict[str, Callable[[Path], object]] = {
    "claude-code": put_transcripts,
    "codex": put_rollouts,
    "gemini": put_chats,
    "openclaw": put_openclaw_database,
}
CHANGED = """
    SELECT session_id, file_path FROM tools WHERE success = 1 AND file_path IS NOT NULL
       AND tool_name IN ('Edit', 'Write', 'edit', 'write', 'apply_patch', 'write_file', 'replace')
"""
DUE = "SELECT count(*) FROM extracted_summaries WHERE computed < requested"


def summaries(connection: RawConnection) -> dict[str, str | None]:
    """The summaries by session, once all that were requested are computed."""
    eventually(lambda: query(connection, DUE) == [[0]], "every requested summary is computed")
    return dict(query(connection, "SELECT session_id, summary FROM extracted_summaries"))


def query(connection: RawConnection, sql: str) -> Any:
    return connection.call("query", sql=sql, limit=5000)["rows"]


def end_sessions(connection: RawConnection) -> None:
    for (session_id,) in query(connection, "SELECT id FROM sessions"):
        connection.call("upsertSession", session={"id": session_id, "endedAt": T0 + 9_000_000})


def import_history(connection: RawConnection, harness: str) -> None:
    job = connection.call("import.start", harness=harness)["jobId"]
    eventually(lambda: connection.call("job.status", id=job)["state"] == "done", "the history is imported")


def call(connection: RawConnection, number: int, name: str, given: str, *, success: bool, path: str = "") -> None:
    tool = {"id": f"t-{number}", "sessionId": "old", "toolName": name, "toolInput": given, "success": success}
    if path:
        tool["filePath"] = path
    connection.call("upsertTool", tool=tool | {"createdAt": T0 + 100 + number})


@pytest.fixture
def worked(rpc: RawConnection) -> RawConnection:
    """A session of a project with a goal, a decision, changed files, and commands that failed."""
    rpc.call("upsertSession", session={"id": "old", "projectPath": PROJECT, "createdAt": T0, "title": "Rounding"})
    texts = {
        ("p-1", "user"): "The invoice exporter rounds cents wrongly, fix the rounding.",
        ("p-2", "user"): "We decided to use Decimal everywhere in the exporter.",
        ("p-3", "assistant"): "Rounding now uses Decimal. The tests cover negative totals.",
    }
    for number, ((name, role), text) in enumerate(texts.items()):
        message = {"id": name, "sessionId": "old", "role": role, "textContent": text, "createdAt": T0 + 10 * number}
        rpc.call("upsertMessage", message=message)
    call(rpc, 1, "Bash", '{"command": "make test"}', success=False)
    call(rpc, 2, "Edit", "{}", success=True, path=f"{PROJECT}/src/export.py")
    call(rpc, 3, "Write", "{}", success=False, path=f"{PROJECT}/src/refused.py")
    call(rpc, 4, "Bash", '{"command": "make test"}', success=True)
    call(rpc, 5, "Bash", '{"command": "npm run deploy"}', success=False)
    return rpc


EXPECTED = (
    "Goal: The invoice exporter rounds cents wrongly, fix the rounding.\n"
    "Result: Rounding now uses Decimal. The tests cover negative totals.\n"
    "Decided: We decided to use Decimal everywhere in the exporter.\n"
    "Changed: src/export.py.\n"
    "Failed, then worked: `make test`.\n"
    "Open: `npm run deploy` still fails."
)


def test_summary_is_extracted_when_a_session_ends(worked: RawConnection) -> None:
    assert summaries(worked) == {}
    end_sessions(worked)
    assert summaries(worked) == {"old": EXPECTED}


def test_summary_is_told_at_the_next_start_and_leaves_the_own_summary_alone(worked: RawConnection) -> None:
    compaction = {"id": "c-1", "sessionId": "old", "summary": "The harness's own words.", "createdAt": T0 + 50}
    worked.call("upsertSession", session={"id": "old", "summary": "The harness's own words."})
    worked.call("upsertCompactionEvent", compactionEvent=compaction)
    assert summaries(worked) == {"old": EXPECTED}
    assert worked.call("session.get", id="old")["summary"] == "The harness's own words."
    told = worked.call("recall.preview", kind="start", project=PROJECT)["text"]
    assert f"[old] 2023-11-14: {' '.join(EXPECTED.split())}" in told
    full = worked.call("recall.get", id="old")["text"]
    assert full == f"{EXPECTED}\n…\nThe harness's own words."


def test_summary_that_a_client_gave_is_told_instead(worked: RawConnection) -> None:
    worked.call("upsertSession", session={"id": "old", "summary": "Given by the client.", "endedAt": T0 + 9000})
    assert summaries(worked) == {"old": EXPECTED}
    assert "Rounding: Given by the client." in worked.call("recall.preview", kind="start", project=PROJECT)["text"]


def test_summary_follows_rows_that_come_after_the_end(worked: RawConnection) -> None:
    end_sessions(worked)
    summaries(worked)
    call(worked, 6, "Write", "{}", success=True, path=f"{PROJECT}/late.py")
    assert "Changed: src/export.py, late.py." in str(summaries(worked)["old"])
    requests = query(worked, "SELECT requested FROM extracted_summaries")
    call(worked, 6, "Write", "{}", success=True, path=f"{PROJECT}/late.py")
    assert query(worked, "SELECT requested FROM extracted_summaries") == requests, "a replay changes nothing"


def test_summary_forgets_what_was_forgotten(worked: RawConnection) -> None:
    end_sessions(worked)
    assert "deploy" in str(summaries(worked)["old"])
    job = worked.call("forget.start", matching="npm run deploy")["jobId"]
    eventually(lambda: worked.call("job.status", id=job)["state"] == "done", "it is forgotten")
    found = "SELECT count(*) FROM extracted_summaries WHERE summary LIKE '%deploy%'"
    assert query(worked, found) == [[0]]
    assert "deploy" not in str(summaries(worked))


@needs_fixtures
def test_summaries_of_recorded_sessions_are_short_and_name_the_changed_files(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        for harness, put_files in PUT_FILES.items():
            put_files(fresh_daemon.home / "user")
            import_history(connection, harness)
        for stream in sorted(OPENCODE.glob("streams/*.jsonl")):
            for at, event in opencode_events(stream):
                connection.call("hook.event", harness="opencode", event=event, at=at)
        end_sessions(connection)
        found = summaries(connection)
        changed = query(connection, CHANGED)
        assert len({session_id for session_id, _ in changed}) >= 6
        for session_id, path in changed:
            assert Path(path).name in str(found[session_id]), (session_id, path)
        assert max(len(summary or "") for summary in found.values()) < 600
        worked_before = {session_id: summary for session_id, summary in found.items() if summary}
        import_history(connection, "codex")
        assert {key: each for key, each in summaries(connection).items() if each} == worked_before
