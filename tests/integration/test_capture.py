"""Capture as its owner sees it: secrets stay out on every path, projects may decline, and status tells the truth."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually

SECRET = "hunter2hunter2x9"
LEAK = f"export DB_PASSWORD={SECRET}"
MARKED = "export DB_PASSWORD=[redacted:password]"


def hook(
    connection: RawConnection, harness: str = "claude-code", at: int | None = None, **event: Any
) -> dict[str, Any]:
    params = {"harness": harness, "event": event} | ({"at": at} if at else {})
    return connection.request("hook.event", params)


def claude(connection: RawConnection, name: str, session: str = "s", at: int | None = None, **more: Any) -> None:
    reply = hook(connection, at=at, hook_event_name=name, session_id=session, **more)
    assert reply["result"] == {"ok": True}, reply


def everything(connection: RawConnection) -> str:
    """Every text in the database."""
    tables = (
        "sessions",
        "messages",
        "tools",
        "session_errors",
        "compaction_events",
        "chunks",
        "memories",
        "told_messages",
    )
    return json.dumps([connection.call("query", sql=f"SELECT * FROM {table}")["rows"] for table in tables])


def redacted(connection: RawConnection) -> int:
    """How many passwords were taken out so far."""
    return int(connection.call("capture.status")["redacted"].get("password", 0))


def status_of(connection: RawConnection, harness: str) -> dict[str, Any]:
    harnesses = connection.call("capture.status")["harnesses"]
    return next(dict(each) for each in harnesses if each["harness"] == harness)


# -- redaction

UPSERTS: dict[str, dict[str, Any]] = {
    "upsertSession": {"session": {"id": "s", "title": LEAK, "summary": LEAK, "context": {"note": LEAK}}},
    "upsertMessage": {"message": {"id": "m", "sessionId": "s", "textContent": LEAK, "metadata": {"password": SECRET}}},
    "upsertTool": {"tool": {"id": "t", "sessionId": "s", "toolName": "Bash", "toolInput": LEAK, "toolOutput": LEAK}},
    "upsertSessionError": {"sessionError": {"id": "e", "sessionId": "s", "errorMessage": LEAK}},
    "upsertCompactionEvent": {"compactionEvent": {"id": "c", "sessionId": "s", "summary": LEAK}},
}


@pytest.mark.parametrize("method", UPSERTS)
def test_upsert_stores_no_secret(rpc: RawConnection, method: str) -> None:
    before = redacted(rpc)
    rpc.call(method, **UPSERTS[method])
    assert SECRET not in everything(rpc)
    assert "[redacted:password]" in everything(rpc)
    assert redacted(rpc) > before


def test_batch_stores_no_secret(rpc: RawConnection) -> None:
    rpc.call("events.batch", events=[next(iter([params])) for params in UPSERTS.values()])
    assert SECRET not in everything(rpc)


def test_hooks_store_no_secret(rpc: RawConnection) -> None:
    claude(rpc, "UserPromptSubmit", prompt=LEAK, prompt_id="p", cwd="/w")
    claude(rpc, "PostToolUse", tool_use_id="t", tool_name="Bash", tool_input={"command": LEAK}, tool_response=LEAK)
    claude(rpc, "Stop", last_assistant_message=f"I ran {LEAK}", prompt_id="p")
    claude(rpc, "StopFailure", error=LEAK, last_assistant_message=LEAK, prompt_id="p")
    claude(rpc, "PostCompact", compact_summary=LEAK, prompt_id="p")
    hook(rpc, "generic", message={"id": "m", "sessionId": "s", "role": "user", "textContent": LEAK})
    hook(rpc, "opencode", type="session.error", properties={"sessionID": "o", "error": {"name": LEAK}})
    assert SECRET not in everything(rpc)
    assert rpc.call("session.get", id="s")["title"] == MARKED


def test_memories_hold_no_secret_and_say_so(rpc: RawConnection) -> None:
    added = rpc.call("memory.add", content=f"The staging database: {LEAK}", summary=LEAK)
    assert added["memory"]["content"] == f"The staging database: {MARKED}"
    assert "secrets were taken out: password" in added["note"]
    rpc.call("memory.update", id=added["memory"]["id"], content=f"The other database: {LEAK}")
    record = {"id": "imported-memory", "content": LEAK, "scope": "global", "createdAt": 1}
    rpc.call("memory.import", memories=[record])
    assert SECRET not in everything(rpc)


def test_secret_cannot_be_searched_for(rpc: RawConnection) -> None:
    claude(rpc, "UserPromptSubmit", prompt=f"deploy it with {LEAK}", prompt_id="p", cwd="/w")
    assert [hit["text"] for hit in rpc.call("search", query="deploy")["hits"]]
    assert rpc.call("search", query=SECRET, mode="keyword")["hits"] == []


def test_tool_output_is_capped_and_the_cut_shows_no_half_of_a_secret(rpc: RawConnection) -> None:
    output = "x" * 970 + f"\n{LEAK}\n" + "y" * 50_000
    rpc.call("daemon.configure", key="tool_output_characters", value=1000)
    rpc.call("upsertTool", tool={"id": "t", "sessionId": "s", "toolName": "Bash", "toolOutput": output})
    rpc.call("daemon.configure", key="tool_output_characters", value=None)
    (tool,) = rpc.call("tool.list", sessionId="s")["tools"]
    assert tool["toolOutput"].endswith("… [truncated]")
    assert len(tool["toolOutput"]) < 1100
    assert SECRET[:6] not in tool["toolOutput"]


# -- projects that decline


def test_nothing_of_a_project_that_declines_is_stored(home: Path, rpc: RawConnection) -> None:
    project = home / "private"
    (project / "deep" / "down").mkdir(parents=True)
    (project / ".clankers-ignore").touch()
    where = str(project / "deep" / "down")
    before = status_of(rpc, "claude-code")["optedOut"]
    claude(rpc, "SessionStart", session="private", source="startup", cwd=where)
    claude(rpc, "UserPromptSubmit", session="private", prompt="hello", prompt_id="p", cwd=where)
    rpc.call("upsertSession", session={"id": "other", "projectPath": where, "title": "hello"})
    rpc.call("upsertMessage", message={"id": "m", "sessionId": "other", "textContent": "hello"})
    rpc.call("upsertTool", tool={"id": "t", "sessionId": "other", "toolName": "Bash"})
    hook(rpc, "opencode", type="session.created", properties={"info": {"id": "oc", "directory": where}})
    message = {"info": {"id": "m2", "role": "user"}, "sessionID": "oc", "parts": [{"type": "text", "text": "hello"}]}
    hook(rpc, "opencode", type="clankers.message", properties=message)
    assert "hello" not in everything(rpc)
    assert rpc.call("session.list")["sessions"] == []
    assert status_of(rpc, "claude-code")["optedOut"] - before == 2


def test_project_declines_through_links_and_in_worktrees(home: Path, rpc: RawConnection) -> None:
    project, worktree, link = home / "declining", home / "worktree", home / "link"
    (project / "sub" / "deep").mkdir(parents=True)
    (project / ".clankers-ignore").touch()
    link.symlink_to(project / "sub")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(project)]
    for command in (["init", "-q"], ["commit", "-qm", "x", "--allow-empty"], ["worktree", "add", "-q", str(worktree)]):
        subprocess.run([*git, *command], check=True)
    for number, where in enumerate([link / "deep", worktree]):
        claude(rpc, "UserPromptSubmit", session=f"s{number}", prompt="hello", prompt_id="p", cwd=str(where))
        rpc.call("upsertSession", session={"id": f"u{number}", "projectPath": str(where), "title": "hello"})
    assert "hello" not in everything(rpc)
    assert rpc.call("session.list")["sessions"] == []


def test_project_may_change_its_mind(home: Path, rpc: RawConnection) -> None:
    project = home / "undecided"
    project.mkdir()
    marker = project / ".clankers-ignore"
    marker.touch()
    claude(rpc, "UserPromptSubmit", session="undecided", prompt="one", prompt_id="p1", cwd=str(project))
    marker.unlink()

    def stored() -> Any:
        claude(rpc, "UserPromptSubmit", session="undecided", prompt="two", prompt_id="p2", cwd=str(project))
        return rpc.request("message.list", {"sessionId": "undecided"}).get("result", {}).get("messages")

    messages = eventually(stored, "the marker's absence is seen")
    assert [each["textContent"] for each in messages] == ["two"]


# -- status


def test_what_comes_is_counted_and_what_tells_nothing_is_ignored(fresh_daemon: DaemonProcess) -> None:
    with fresh_daemon.connect() as connection:
        assert status_of(connection, "claude-code")["state"] == "never"
        claude(connection, "SessionStart", source="startup", cwd="/w")
        claude(connection, "SomethingNewInAYear", cwd="/w", surprise=[1])
        claude(connection, "Notification", message="waiting")
        assert hook(connection, no="session")["result"] == {"ok": True}
        status = status_of(connection, "claude-code")
        assert (status["events"], status["ignored"], status["refused"]) == (4, 3, 0)
        assert status["state"] == "alive"
        assert connection.call("capture.status")["ok"]


def test_refused_event_is_counted_with_its_reason(rpc: RawConnection) -> None:
    hook(rpc, "generic", session={"id": "s"})  # lists the harness, if no other test did
    before = status_of(rpc, "generic")["refused"]
    reply = hook(rpc, "generic", message={"id": 5})
    assert reply["error"]["code"] == -32602
    status = status_of(rpc, "generic")
    assert status["refused"] == before + 1
    assert "Expected `str`" in status["lastRefusal"]


def test_upsert_of_a_plugin_shows_as_its_source(rpc: RawConnection) -> None:
    rpc.call("upsertSession", session={"id": "s", "source": "windsurf", "title": "t"})
    assert status_of(rpc, "windsurf")["state"] == "alive"


def test_dead_capture_is_detected_and_explained(home: Path) -> None:
    user = home / "user"
    folder = user / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    with running_daemon(home, HOME=str(user)) as daemon, daemon.connect() as connection:
        now = round(time.time() * 1000)
        claude(connection, "SessionStart", source="startup", cwd="/w", at=now - 3_600_000)
        assert status_of(connection, "claude-code")["state"] == "alive"
        (folder / "s.jsonl").write_text("{}\n")
        status = status_of(connection, "claude-code")
        assert status["state"] == "dead"
        assert "clankers-ctl plugin status claude-code" in status["explanation"]
        assert not connection.call("capture.status")["ok"]
        claude(connection, "UserPromptSubmit", prompt="hi", prompt_id="p", cwd="/w")
        assert status_of(connection, "claude-code")["state"] == "alive"


def test_harness_that_is_used_without_its_plugin_is_pointed_out(home: Path) -> None:
    folder = home / "user" / ".claude" / "projects" / "-w"
    folder.mkdir(parents=True)
    (folder / "s.jsonl").write_text("{}\n")
    with running_daemon(home, HOME=str(home / "user")) as daemon, daemon.connect() as connection:
        status = status_of(connection, "claude-code")
        assert status["state"] == "never"
        assert "clankers-ctl plugin install claude-code" in status["explanation"]
        assert connection.call("capture.status")["ok"]


def test_spool_and_what_was_rejected_show(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    rejected = shared_daemon.data / "spool" / "rejected"
    rejected.mkdir(parents=True)
    for number in range(7):
        path = rejected / f"{number}.json"
        path.write_text("{}")
        os.utime(path, (number, number))
    report = rpc.call("capture.status")
    shutil.rmtree(rejected)
    assert not report["ok"]
    assert report["spool"]["rejected"] == 7
    assert [each["name"] for each in report["spool"]["newest"]] == ["6.json", "5.json", "4.json", "3.json", "2.json"]


# -- the life of a session


def test_ended_is_not_final_and_old_news_does_not_end_it_again(rpc: RawConnection) -> None:
    def state() -> tuple[str, int | None]:
        session = rpc.call("session.get", id="s")
        return session["status"], session["endedAt"]

    day = 1_700_000_000_000
    claude(rpc, "SessionStart", source="startup", cwd="/w", at=day)
    claude(rpc, "SessionEnd", reason="other", cwd="/w", at=day + 1000)
    assert state() == ("ended", day + 1000)
    claude(rpc, "SessionStart", source="startup", cwd="/w", at=day)  # replayed
    assert state() == ("ended", day + 1000)
    claude(rpc, "SessionStart", source="resume", cwd="/w", at=day + 2000)
    assert state() == ("active", None)
    claude(rpc, "SessionEnd", reason="other", cwd="/w", at=day + 1000)  # replayed
    assert state() == ("active", None)
    claude(rpc, "SessionEnd", reason="other", cwd="/w", at=day + 3000)
    assert state() == ("ended", day + 3000)


def test_session_whose_start_was_missed_is_placed_by_its_prompt_and_stays_there(rpc: RawConnection) -> None:
    claude(rpc, "UserPromptSubmit", prompt="first", prompt_id="p1", cwd="/w/one")
    claude(rpc, "UserPromptSubmit", prompt="second", prompt_id="p2", cwd="/w/one/deeper")
    session = rpc.call("session.get", id="s")
    assert (session["projectPath"], session["title"], session["userPrompt"]) == ("/w/one", "first", "first")


def test_denied_tool_is_known_from_its_batch_and_a_late_success_corrects_it(rpc: RawConnection) -> None:
    call: dict[str, Any] = {"tool_use_id": "t", "tool_name": "Bash", "tool_input": {"command": "rm -r /"}}
    claude(rpc, "PreToolUse", **call)
    claude(rpc, "PostToolBatch", tool_calls=[call | {"tool_response": "needs approval"}])
    (tool,) = rpc.call("tool.list", sessionId="s")["tools"]
    assert (tool["success"], tool["errorMessage"], tool["toolOutput"]) == (False, "needs approval", None)
    claude(rpc, "PostToolUse", **call, tool_response={"stdout": "done", "stderr": ""}, duration_ms=7)
    (tool,) = rpc.call("tool.list", sessionId="s")["tools"]
    assert (tool["success"], tool["errorMessage"], tool["toolOutput"], tool["durationMs"]) == (True, None, "done", 7)


@pytest.mark.parametrize("value", [None, 5, [], {}, "x" * 100, {"a": [1, {"b": None}]}, True, 1e300])
def test_fields_of_any_type_are_survived(rpc: RawConnection, value: Any) -> None:
    names = (
        "SessionStart UserPromptSubmit PreToolUse PostToolUse PostToolUseFailure PostToolBatch Stop StopFailure "
        "PostCompact PostModelSwitch SessionEnd SubagentStop"
    )
    keys = (
        "cwd prompt prompt_id source model tool_name tool_use_id tool_input tool_response duration_ms tool_calls error "
        "last_assistant_message compact_summary trigger reason transcript_path agent_transcript_path to_model "
        "permission_mode"
    )
    for name in names.split():
        claude(rpc, name, **dict.fromkeys(keys.split(), value))
        claude(rpc, name, prompt_id="p", tool_use_id="t", tool_name="n", tool_calls=[value, {"tool_use_id": value}])


# -- Codex and Gemini


def test_codex_hooks_and_notify_tell_of_the_same_turn_once(rpc: RawConnection) -> None:
    def codex(**event: Any) -> None:
        assert hook(rpc, "codex", **event)["result"] == {"ok": True}

    common = {"session_id": "c", "cwd": "/w", "model": "gpt-5-codex", "transcript_path": None}
    for _ in range(2):
        codex(hook_event_name="SessionStart", source="startup", **common)
        codex(hook_event_name="UserPromptSubmit", turn_id="1", prompt="list it", **common)
        call = {"tool_name": "Bash", "tool_use_id": "call_1", "tool_input": {"command": "ls"}}
        codex(hook_event_name="PreToolUse", turn_id="1", **call, **common)
        codex(hook_event_name="PostToolUse", turn_id="1", **call, tool_response="a\nb", **common)
        codex(hook_event_name="Stop", turn_id="1", last_assistant_message="a and b", **common)
        codex(**{
            "type": "agent-turn-complete", "thread-id": "c", "turn-id": "1", "cwd": "/w",
            "input-messages": ["list it"], "last-assistant-message": "a and b",
        })  # fmt: skip
    session = rpc.call("session.get", id="c")
    assert (session["source"], session["provider"], session["model"]) == ("codex", None, "gpt-5-codex")
    assert session["counts"] | {"errors": 0} == {
        "messages": 2, "tools": 1, "failedTools": 0, "errors": 0, "compactions": 0,
    }  # fmt: skip


def test_gemini_hooks_are_stored_once(rpc: RawConnection) -> None:
    common: dict[str, Any] = {"session_id": "g", "cwd": "/w", "transcript_path": "/w/x.json"}

    def gemini(name: str, second: int, **more: Any) -> None:
        moment = f"2026-01-15T10:00:{second:02}.000Z"
        reply = hook(rpc, "gemini", hook_event_name=name, timestamp=moment, **common, **more)
        assert reply["result"] == {"ok": True}

    for _ in range(2):
        gemini("SessionStart", 0, source="startup")
        gemini("BeforeAgent", 1, prompt="read it")
        failing = {"tool_name": "read_file", "tool_input": {"absolute_path": "/w/a"}}
        gemini("AfterTool", 2, **failing, tool_response={"llmContent": "", "error": {"message": "no such file"}})
        gemini("AfterTool", 3, **failing, tool_response={"llmContent": "text", "returnDisplay": "text"})
        gemini("AfterAgent", 4, prompt="read it", prompt_response="it says text")
        gemini("PreCompress", 5, trigger="auto")  # comes before every request to the model, and is no compaction
        gemini("PreCompress", 5, trigger="manual")
        gemini("SessionEnd", 6, reason="exit")
    session = rpc.call("session.get", id="g")
    assert (session["status"], session["source"], session["title"]) == ("ended", "gemini", "read it")
    counts = session["counts"]
    assert (counts["messages"], counts["tools"], counts["failedTools"], counts["compactions"]) == (2, 2, 1, 1)
    good, bad = sorted(rpc.call("tool.list", sessionId="g")["tools"], key=lambda each: not each["success"])
    assert (good["toolOutput"], good["filePath"]) == ("text", "/w/a")
    assert "no such file" in bad["errorMessage"]
