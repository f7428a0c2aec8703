"""Announcements of captured events: subscribers are told of every stored row, by its id, and of nothing else."""

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import eventually


@pytest.fixture
def writer(rpc: RawConnection) -> RawConnection:
    """The connection that stores."""
    return rpc


@pytest.fixture
def reader(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """The connection that subscribes."""
    with shared_daemon.connect() as connection:
        yield connection


def subscribe(connection: RawConnection, *kinds: str, **filters: Any) -> None:
    connection.call("subscribe", kinds=list(kinds), **filters)


def announced(writer: RawConnection, reader: RawConnection) -> list[tuple[str, str, str]]:
    """Kind, action and id of everything announced so far."""
    last = str(uuid.uuid4())
    subscribe(reader, "skill")
    text = f"---\nname: end-{last}\ndescription: The end\n---\nStop.\n"
    writer.call("skill.import", text=text, folder=f"end-{last}")
    found: list[tuple[str, str, str]] = []
    while True:
        told = reader.notifications.pop(0) if reader.notifications else reader.receive()
        if told["params"]["kind"] == "skill":
            return found
        found.append((told["params"]["kind"], told["params"]["action"], told["params"]["id"]))


def stored(connection: RawConnection, table: str) -> set[str]:
    return {row[0] for row in connection.call("query", sql=f"SELECT id FROM {table}")["rows"]}


def ids(changes: list[tuple[str, str, str]], kind: str) -> set[str]:
    """What is there according to the announcements."""
    found: set[str] = set()
    for changed, action, name in changes:
        if changed == kind:
            (found.discard if action == "deleted" else found.add)(name)
    return found


def check_all_announced(writer: RawConnection, reader: RawConnection, messages: int) -> None:
    changes = announced(writer, reader)
    assert len(stored(writer, "messages")) == messages
    assert ids(changes, "message") == stored(writer, "messages")
    assert ids(changes, "session") == stored(writer, "sessions")


def hook(connection: RawConnection, name: str, session: str = "s", **fields: Any) -> None:
    event = {"hook_event_name": name, "session_id": session, "cwd": "/w", **fields}
    connection.call("hook.event", harness="claude-code", event=event, at=1_768_000_000_000)


def transcript(home: Path, session: str, prompts: int, cwd: str = "/w") -> Path:
    folder = home / "user" / ".claude" / "projects" / f"-{uuid.uuid4()}"
    folder.mkdir(parents=True)
    lines = []
    for number in range(prompts):
        common = {"sessionId": session, "cwd": cwd, "timestamp": f"2026-01-15T10:{number:02}:00.000Z"}
        prompt = {"role": "user", "content": f"question {number}"}
        answer = {"id": f"{session}-msg-{number}", "model": "opus", "content": [{"type": "text", "text": "an answer"}]}
        lines.append({"type": "user", "uuid": f"{session}-u{number}", "promptId": f"p{number}", "message": prompt})
        lines.append({"type": "assistant", "uuid": f"{session}-a{number}", "message": answer})
        lines[-2:] = [{**common, **line} for line in lines[-2:]]
    path = folder / f"{session}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run_import(connection: RawConnection, **params: Any) -> None:
    job = connection.call("import.start", harness="claude-code", **params)["jobId"]
    ended = eventually(lambda: (job_ := connection.call("job.status", id=job))["state"] != "running" and job_, "ended")
    assert ended["state"] == "done", ended


def test_hook_s_answer_is_announced_by_the_id_and_role_of_its_row(writer: RawConnection, reader: RawConnection) -> None:
    subscribe(reader, "message", role="assistant")
    hook(writer, "UserPromptSubmit", prompt="Why?", prompt_id="p1")
    hook(writer, "Stop", last_assistant_message="Because.", prompt_id="p1")
    [(_, action, name)] = announced(writer, reader)
    rows = writer.call("query", sql="SELECT id FROM messages WHERE role = 'assistant'")["rows"]
    assert (action, [[name]]) == ("stored", rows)


def test_hook_events_announce_what_they_store(writer: RawConnection, reader: RawConnection) -> None:
    subscribe(reader, "session", "message")
    hook(writer, "SessionStart", source="startup")
    hook(writer, "UserPromptSubmit", prompt="Why?", prompt_id="p1")
    hook(writer, "Stop", last_assistant_message="Because.", prompt_id="p1")
    hook(writer, "Stop", last_assistant_message="Because.", prompt_id="p1")
    hook(writer, "SessionEnd", reason="other")
    check_all_announced(writer, reader, messages=2)


def test_end_of_a_session_is_announced(writer: RawConnection, reader: RawConnection) -> None:
    hook(writer, "SessionStart", source="startup")
    subscribe(reader, "session")
    event = {"hook_event_name": "SessionEnd", "session_id": "s", "cwd": "/w"}
    writer.call("hook.event", harness="claude-code", event=event, at=1_768_000_999_000)
    assert announced(writer, reader) == [("session", "stored", "s")]


def test_placeholder_session_is_announced_once(writer: RawConnection, reader: RawConnection) -> None:
    subscribe(reader, "session", "message")
    for name in ("a", "b"):
        writer.call("upsertMessage", message={"id": name, "sessionId": "s", "role": "user", "textContent": "x"})
    assert announced(writer, reader) == [
        ("session", "stored", "s"),
        ("message", "stored", "a"),
        ("message", "stored", "b"),
    ]


def test_opted_out_session_announces_nothing(writer: RawConnection, reader: RawConnection, tmp_path: Path) -> None:
    (tmp_path / ".clankers-ignore").touch()
    subscribe(reader, "session", "message")
    writer.call("upsertSession", session={"id": "private", "projectPath": str(tmp_path)})
    message = {"id": "m", "sessionId": "private", "role": "user", "textContent": "a secret"}
    writer.call("upsertMessage", message=message)
    writer.call("events.batch", events=[{"message": message}, {"session": {"id": "private", "title": "t"}}])
    writer.call("hook.event", harness="generic", event={"message": message})
    hook(writer, "UserPromptSubmit", session="private", prompt="x", prompt_id="p", cwd=str(tmp_path))
    hook(writer, "Stop", session="private", last_assistant_message="y", prompt_id="p", cwd=str(tmp_path))
    check_all_announced(writer, reader, messages=0)


def test_batch_announces_what_it_stores_and_not_what_it_refuses(writer: RawConnection, reader: RawConnection) -> None:
    subscribe(reader, "session", "message")
    good = [{"message": {"id": f"m{n}", "sessionId": "s", "role": "user", "textContent": "x"}} for n in range(3)]
    bad = [{"message": {"id": "bad"}}, {"message": {"id": 7}}, {"nonsense": {}}]
    reply = writer.call("events.batch", events=[good[0], bad[0], good[1], *bad[1:], good[2]])
    assert reply["ok"] is False
    check_all_announced(writer, reader, messages=3)


def test_transcript_announces_what_it_adds(
    shared_daemon: DaemonProcess, writer: RawConnection, reader: RawConnection
) -> None:
    subscribe(reader, "session", "message")
    path = transcript(shared_daemon.home, "t", prompts=3)
    hook(writer, "Stop", session="t", transcript_path=str(path), last_assistant_message="an answer", prompt_id="p2")
    eventually(lambda: len(stored(writer, "messages")) == 6, "the transcript is read")
    check_all_announced(writer, reader, messages=6)


def test_import_announces_what_it_adds_and_a_dry_run_nothing(
    shared_daemon: DaemonProcess, writer: RawConnection, reader: RawConnection
) -> None:
    subscribe(reader, "session", "message")
    shutil.rmtree(shared_daemon.home / "user" / ".claude", ignore_errors=True)  # transcripts of other tests
    transcript(shared_daemon.home, "old", prompts=4)
    run_import(writer, dryRun=True)
    assert announced(writer, reader) == []
    run_import(writer)
    check_all_announced(writer, reader, messages=8)


def test_threads_announce_what_they_store(writer: RawConnection, reader: RawConnection) -> None:
    subscribe(reader, "session", "message")
    thread = writer.call("thread.create", chatId="room", title="t")["id"]
    assert "error" in writer.request("thread.create", {"id": thread, "chatId": "room"})
    writer.call("message.store", threadId=thread, role="user", content="x", id="m")
    writer.call("thread.update", id=thread, title="u")
    check_all_announced(writer, reader, messages=1)
