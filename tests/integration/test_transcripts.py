"""Transcripts fill in what hooks missed, from where they were read to, whatever happens to the file meanwhile."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

SESSION = "5e551011-0000-4000-8000-000000000001"


def project_folder(home: Path) -> Path:
    """Where Claude Code keeps the transcripts of a project."""
    path = home / "user" / ".claude" / "projects" / f"-{uuid.uuid4()}"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def folder(shared_daemon: DaemonProcess) -> Iterator[Path]:
    """A project folder of Claude Code that no other test has, in the home of the daemon's user."""
    path = project_folder(shared_daemon.home)
    yield path
    shutil.rmtree(path)


class Transcript:
    """A transcript as Claude Code writes it, line by line."""

    def __init__(self, folder: Path, session: str = SESSION) -> None:
        self.path = folder / f"{session}.jsonl"
        self.session = session
        self.lines = 0

    def write(self, **line: Any) -> None:
        self.lines += 1
        common = {"sessionId": self.session, "cwd": "/w", "timestamp": f"2026-01-15T10:{self.lines:02}:00.000Z"}
        with self.path.open("a") as file:
            file.write(json.dumps(common | line) + "\n")

    def prompt(self, number: int, text: str) -> None:
        message = {"role": "user", "content": text}
        self.write(type="user", uuid=f"u{number}", promptId=f"p{number}", message=message)

    def answer(self, number: int, *blocks: dict[str, Any], tokens: int = 100) -> None:
        """One API message, a line for each of its blocks, all with the same usage."""
        usage = {"input_tokens": tokens, "output_tokens": 7, "cache_read_input_tokens": 3}
        for block in blocks:
            message = {"id": f"msg_{number}", "model": "opus", "role": "assistant", "content": [block], "usage": usage}
            self.write(type="assistant", uuid=f"a{number}-{self.lines}", message=message)

    def result(self, tool: str, output: str, failed: bool = False) -> None:
        block = {"type": "tool_result", "tool_use_id": tool, "content": output, "is_error": failed}
        self.write(type="user", uuid=f"r-{tool}", message={"role": "user", "content": [block]})


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def use(tool: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool, "name": "Bash", "input": given}


def tell(connection: RawConnection, name: str, transcript: Transcript, **more: Any) -> None:
    event = {
        "hook_event_name": name,
        "session_id": transcript.session,
        "cwd": "/w",
        "transcript_path": str(transcript.path),
    }
    assert connection.request("hook.event", {"harness": "claude-code", "event": event | more})["result"] == {"ok": True}


def messages(connection: RawConnection, session: str = SESSION) -> list[tuple[str, str | None, int | None]]:
    reply = connection.request("message.list", {"sessionId": session})
    found = reply["result"]["messages"] if "result" in reply else []
    return [(each["id"], each["textContent"], each["promptTokens"]) for each in found]


def reading(connection: RawConnection) -> dict[str, Any]:
    return dict(connection.call("capture.status")["transcripts"])


def test_transcript_adds_what_no_hook_sent_after_a_stop(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    transcript.prompt(1, "list the files")
    transcript.answer(1, {"type": "thinking", "thinking": "hm"}, say("I will look."), use("t1", command="ls"))
    transcript.result("t1", "a\nb")
    transcript.answer(2, say("There are a and b."))
    tell(rpc, "Stop", transcript, prompt_id="p1", last_assistant_message="There are a and b.")
    eventually(lambda: len(messages(rpc)) == 3, "all messages are there")
    found = {text: tokens for _, text, tokens in messages(rpc)}
    assert found == {"list the files": None, "I will look.": 103, "There are a and b.": 103}
    (tool,) = rpc.call("tool.list", sessionId=SESSION)["tools"]
    assert (tool["toolName"], tool["toolOutput"], tool["success"], tool["messageId"]) == ("Bash", "a\nb", True, "msg_1")
    session = rpc.call("session.get", id=SESSION)
    assert (session["title"], session["model"], session["source"]) == ("list the files", "opus", "claude-code")
    assert rpc.call("stats")["totals"]["promptTokens"] == 206


def test_end_that_a_hook_told_is_taken_over_when_it_is_written_at_last(rpc: RawConnection, folder: Path) -> None:
    before = reading(rpc)["files"]
    transcript = Transcript(folder)
    transcript.prompt(1, "hello")
    tell(rpc, "UserPromptSubmit", transcript, prompt_id="p1", prompt="hello")
    tell(rpc, "Stop", transcript, prompt_id="p1", last_assistant_message="Hi there.")
    eventually(lambda: reading(rpc)["files"] == before + 1, "the transcript is read")
    assert [text for _, text, _ in messages(rpc)] == ["hello", "Hi there."]
    transcript.answer(1, say("Hi there."))
    eventually(lambda: messages(rpc)[-1][2] == 103, "it is looked at again")
    (prompt, _, _), (answer, text, _) = sorted(messages(rpc), key=lambda each: each[1] or "", reverse=True)
    assert (prompt, text) == ("p1", "Hi there.")
    assert answer.startswith("p1-")


def test_message_that_is_cut_in_two_readings_is_whole_in_the_end(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    transcript.prompt(1, "go")
    transcript.answer(1, say("First half."))
    tell(rpc, "SessionStart", transcript, source="resume")
    eventually(lambda: ("msg_1", "First half.", 103) in messages(rpc), "its beginning is there")
    transcript.answer(1, say("Second half."))
    tell(rpc, "Stop", transcript, prompt_id="p1", last_assistant_message="First half.\nSecond half.")
    whole = ("msg_1", "First half.\n\nSecond half.", 103)
    eventually(lambda: whole in messages(rpc), "it is whole")
    assert len(messages(rpc)) == 2


def test_lines_that_are_no_json_are_skipped_and_counted(rpc: RawConnection, folder: Path) -> None:
    before = reading(rpc)["malformed"]
    transcript = Transcript(folder)
    transcript.prompt(1, "one")
    with transcript.path.open("ab") as file:
        file.write(b'{"type": "user", "cut off\n\xff\xfe\n[1, 2]\n\n"text"\n')
    transcript.prompt(2, "two")
    tell(rpc, "SessionEnd", transcript, reason="other")
    eventually(lambda: len(messages(rpc)) == 2, "what is around them is read")
    assert reading(rpc)["malformed"] == before + 4


def test_text_that_was_cut_in_the_middle_of_a_character_is_stored(rpc: RawConnection, folder: Path) -> None:
    """JavaScript writes the half of a character that a slice has left as an escape."""
    malformed = reading(rpc)["malformed"]
    transcript = Transcript(folder)
    transcript.prompt(1, "look at \ud83d")
    transcript.answer(1, say("it is \ud83d\ude00"), use("t1", command="ls"))
    transcript.result("t1", "many files \ud83d")
    tell(rpc, "SessionEnd", transcript)
    eventually(lambda: len(messages(rpc)) == 2, "both messages are stored")
    assert [text for _, text, _ in messages(rpc)] == ["look at \ufffd", "it is \U0001f600"]
    (tool,) = rpc.call("tool.list", sessionId=SESSION)["tools"]
    assert tool["toolOutput"] == "many files \ufffd"
    assert reading(rpc)["malformed"] == malformed


def test_tool_result_of_any_type_stops_neither_its_transcript_nor_others(rpc: RawConnection, folder: Path) -> None:
    transcript, other = Transcript(folder), Transcript(folder, SESSION.replace("1", "2"))
    transcript.answer(1, use("t1", command="ls"))
    transcript.result("t1", {"stdout": "done", "stderr": [5]})  # type: ignore[arg-type]
    transcript.answer(2, say("all is well"))
    other.answer(3, say("and here"))
    for each in (transcript, other):
        tell(rpc, "SessionEnd", each)
    eventually(lambda: len(messages(rpc)) == 2 and len(messages(rpc, other.session)) == 1, "both are read")


def test_line_that_is_being_written_is_read_when_it_is_finished(rpc: RawConnection, folder: Path) -> None:
    before = reading(rpc)["malformed"]
    transcript = Transcript(folder)
    transcript.prompt(1, "one")
    line = json.dumps({"type": "user", "uuid": "u2", "sessionId": SESSION, "message": {"content": "two"}})
    with transcript.path.open("a") as file:
        file.write(line[:40])
    tell(rpc, "Stop", transcript)
    eventually(lambda: len(messages(rpc)) == 1, "the first is read")
    with transcript.path.open("a") as file:
        file.write(line[40:] + "\n")
    tell(rpc, "Stop", transcript)
    eventually(lambda: len(messages(rpc)) == 2, "the second is read")
    assert reading(rpc)["malformed"] == before


def test_transcript_that_was_replaced_is_read_from_its_beginning(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    for number in range(5):
        transcript.prompt(number, f"before {number}")
    tell(rpc, "Stop", transcript)
    eventually(lambda: len(messages(rpc)) == 5, "it is read")
    transcript.path.unlink()
    for number in range(10, 12):
        transcript.prompt(number, f"after {number}")
    tell(rpc, "SessionStart", transcript, source="resume")
    eventually(lambda: len(messages(rpc)) == 7, "the other is read")


def test_transcript_that_was_cut_short_changes_nothing(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    for number in range(5):
        transcript.prompt(number, f"prompt {number}")
    tell(rpc, "Stop", transcript)
    eventually(lambda: len(messages(rpc)) == 5, "it is read")
    os.truncate(transcript.path, transcript.path.stat().st_size // 2)
    transcript.path.open("a").close()
    with transcript.path.open("a") as file:
        file.write("\n")
    transcript.prompt(9, "the last")
    tell(rpc, "Stop", transcript)
    eventually(lambda: len(messages(rpc)) == 6, "it is read on")


def test_many_megabytes_are_read_piece_by_piece(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    for number in range(30):
        transcript.prompt(number, f"prompt {number}")
        transcript.answer(number, use(f"t{number}", command="cat big"))
        transcript.result(f"t{number}", "x" * 200_000)
    transcript.result("t0", "y" * 3_000_000)
    transcript.prompt(30, "the last")
    tell(rpc, "SessionEnd", transcript, reason="other")
    eventually(lambda: len(messages(rpc)) == 61, "all of it is read")
    tools = rpc.call("tool.list", sessionId=SESSION, limit=100)["tools"]
    assert len(tools) == 30
    assert max(len(tool["toolOutput"]) for tool in tools) < 11_000


def test_subagents_transcript_belongs_to_its_session(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    transcript.prompt(1, "delegate")
    path = folder / SESSION / "subagents"
    path.mkdir(parents=True)
    agent = Transcript(path)
    agent.path = path / "agent-a1.jsonl"
    own = {"isSidechain": True, "agentId": "a1"}
    agent.write(type="user", uuid="x1", promptId="p1", message={"role": "user", "content": "do it"}, **own)
    message = {"id": "msg_9", "content": [say("Done by the agent.")], "usage": {"input_tokens": 5, "output_tokens": 2}}
    agent.write(type="assistant", uuid="x2", message=message, attributionAgent="scout", **own)
    tell(rpc, "SubagentStop", transcript, agent_id="a1", agent_transcript_path=str(agent.path))
    eventually(lambda: len(messages(rpc)) == 2, "both are read")
    (found,) = (each for each in rpc.call("message.list", sessionId=SESSION)["messages"] if each["id"] == "msg_9")
    assert found["metadata"]["agentId"] == "a1"
    assert found["metadata"]["agentType"] == "scout"
    assert [text for _, text, _ in messages(rpc)].count("do it") == 0
    message = {"id": "msg_10", "content": [say("One more thing.")]}
    agent.write(type="assistant", uuid="x3", message=message, **own)
    tell(rpc, "SessionEnd", transcript, reason="other")
    eventually(lambda: len(messages(rpc)) == 3, "what the agent wrote late is read at the session's end")


def outside(home: Path, folder: Path) -> Path:
    secret = home / "elsewhere.jsonl"
    Transcript(home, "elsewhere").prompt(1, "not for you")
    return secret


def linked(home: Path, folder: Path) -> Path:
    path = folder / "link.jsonl"
    path.symlink_to(outside(home, folder))
    return path


def through_a_linked_folder(home: Path, folder: Path) -> Path:
    (home / "far").mkdir()
    Transcript(home / "far", "elsewhere").prompt(1, "not for you")
    (folder / "near").symlink_to(home / "far")
    return folder / "near" / "elsewhere.jsonl"


def upwards(home: Path, folder: Path) -> Path:
    return folder / ".." / ".." / ".." / ".." / outside(home, folder).name


def pipe(home: Path, folder: Path) -> Path:
    os.mkfifo(folder / "pipe.jsonl")
    return folder / "pipe.jsonl"


def directory(home: Path, folder: Path) -> Path:
    (folder / "folder.jsonl").mkdir()
    return folder / "folder.jsonl"


@pytest.mark.parametrize("place", [outside, linked, through_a_linked_folder, upwards, pipe, directory])
def test_only_the_harnesss_own_files_are_opened(
    shared_daemon: DaemonProcess, rpc: RawConnection, folder: Path, place: Any
) -> None:
    bad, good = Transcript(folder, "bad"), Transcript(folder)
    bad.path = place(shared_daemon.home, folder)
    good.prompt(1, "hello")
    tell(rpc, "Stop", bad)
    tell(rpc, "Stop", good)
    eventually(lambda: len(messages(rpc)) == 1, "the good one is read")
    assert messages(rpc, "bad") == []
    assert messages(rpc, "elsewhere") == []


def test_another_folder_is_read_when_the_configuration_names_it(home: Path) -> None:
    other = home / "config-dir" / "projects" / "-w"
    other.mkdir(parents=True)
    transcript = Transcript(other)
    transcript.prompt(1, "hello")
    settings = {"HOME": str(home / "user"), "CLANKERS_TRANSCRIPT_FOLDERS": str(home / "config-dir")}
    with running_daemon(home, **settings) as daemon, daemon.connect() as connection:
        tell(connection, "Stop", transcript)
        eventually(lambda: len(messages(connection)) == 1, "it is read")


def test_what_was_written_while_the_daemon_was_away_is_read_at_its_start(home: Path) -> None:
    transcript = Transcript(project_folder(home))
    transcript.prompt(1, "one")
    with running_daemon(home, HOME=str(home / "user")) as daemon, daemon.connect() as connection:
        tell(connection, "Stop", transcript)
        eventually(lambda: len(messages(connection)) == 1, "it is read")
        daemon.stop()
    transcript.prompt(2, "two")
    with running_daemon(home, HOME=str(home / "user")) as daemon, daemon.connect() as connection:
        eventually(lambda: len(messages(connection)) == 2, "it is read on")


def test_transcript_that_was_wanted_when_the_daemon_died_is_read_by_the_next(home: Path) -> None:
    transcript = Transcript(project_folder(home))
    with running_daemon(home, HOME=str(home / "user")) as daemon, daemon.connect() as connection:
        tell(connection, "Stop", transcript)
        daemon.kill()
    transcript.prompt(1, "one")
    with running_daemon(home, HOME=str(home / "user")) as daemon, daemon.connect() as connection:
        eventually(lambda: len(messages(connection)) == 1, "it is read")


def test_compaction_is_stored_once_with_its_summary_and_tokens(rpc: RawConnection, folder: Path) -> None:
    transcript = Transcript(folder)
    transcript.prompt(1, "go")
    tell(
        rpc,
        "PostCompact",
        transcript,
        prompt_id="p1",
        trigger="auto",
        compact_summary="<summary>short</summary>",
    )

    def compactions() -> list[tuple[Any, ...]]:
        found = rpc.call("session.compactions", sessionId=SESSION)
        return [(each["cause"], each["summary"], each["tokensBefore"], each["tokensAfter"]) for each in found]

    assert compactions() == [("auto", "short", None, None)]
    tokens = {"trigger": "auto", "preTokens": 1000, "postTokens": 50}
    transcript.write(type="system", subtype="compact_boundary", uuid="b1", compactMetadata=tokens)
    text = "This session is being continued.\n\nSummary:\nshort"
    transcript.write(type="user", uuid="s1", promptId="p1", isCompactSummary=True, message={"content": text})
    tell(rpc, "SessionEnd", transcript, reason="other")
    eventually(lambda: compactions() == [("auto", "short", 1000, 50)], "the tokens are filled in")
    assert rpc.call("session.get", id=SESSION)["summary"] == "short"
    assert [text for _, text, _ in messages(rpc)] == ["go"]


def test_project_that_declines_is_not_read(rpc: RawConnection, home: Path, folder: Path) -> None:
    before = reading(rpc)["files"]
    project = home / "private"
    project.mkdir()
    (project / ".clankers-ignore").touch()
    private, public = Transcript(folder, "private"), Transcript(folder)
    private.write(type="user", uuid="u1", cwd=str(project), message={"content": "psst"})
    public.prompt(1, "hello")
    tell(rpc, "Stop", private)
    tell(rpc, "Stop", public)
    eventually(lambda: len(messages(rpc)) == 1, "the public one is read")
    eventually(lambda: reading(rpc)["files"] == before + 2, "the other one was looked at")
    assert messages(rpc, "private") == []


def test_deleted_session_does_not_come_back_by_being_looked_at(rpc: RawConnection, folder: Path) -> None:
    deleted, other = Transcript(folder), Transcript(folder, "other")
    deleted.prompt(1, "forget this")
    deleted.answer(1, say("Forgotten."))
    tell(rpc, "SessionEnd", deleted, reason="other")
    eventually(lambda: len(messages(rpc)) == 2, "it is read")
    rpc.call("session.delete", id=SESSION)
    event = {
        "hook_event_name": "SubagentStop",
        "session_id": "other",
        "cwd": "/w",
        "transcript_path": str(deleted.path),
    }
    rpc.call("hook.event", harness="claude-code", event=event)
    other.prompt(2, "hello")
    tell(rpc, "Stop", other)
    eventually(lambda: len(messages(rpc, "other")) == 1, "the next one is read")
    assert messages(rpc) == []
