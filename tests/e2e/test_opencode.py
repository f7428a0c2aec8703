"""The real OpenCode with our plugin: afterwards the database holds exactly what happened."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import Machine, OpenCode, Stored, answers, holds_in_time, machine, opencode_binary, tokens
from e2e.mock_model import SUMMARY, Reply, Said, Use
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)

TOO_LONG = 99_000
"""Tokens of prompt: OpenCode compacts before it goes on."""

PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "fork": "[[fork]] try another way",
    "ask": "[[ask]] what was written into the greeting file?",
}


def scripts(project: Path) -> dict[str, list[Reply]]:
    greeting = str(project / "greeting.txt")
    return {
        "build": [
            Reply("Let me look.", [Use("bash", {"command": "echo looked", "description": "Look"})]),
            Reply("", [Use("write", {"filePath": greeting, "content": "hello\n"})]),
            Reply("", [Use("edit", {"filePath": greeting, "oldString": "hello", "newString": "bye"})]),
            Reply("", [Use("read", {"filePath": str(project / "missing.txt")})]),
            Reply("", [Use("task", {"description": "Scout", "prompt": "[[scout]] look", "subagent_type": "general"})]),
            Reply("The greeting is written."),
        ],
        "scout": [
            Reply("", [Use("bash", {"command": "cat greeting.txt", "description": "Read"})]),
            Reply("It says bye."),
        ],
        "again": [
            Reply("", [Use("bash", {"command": "echo again", "description": "Again"})], TOO_LONG),
            Reply("Going on."),
        ],
        "fork": [Reply("Another way.")],
        "ask": [Reply("", [Use("clankers_search", {"query": "greeting written"})]), Reply("I remember.")],
    }


CAME_OUT = {"bash": ["looked", "again", "bye"], "write": ["Wrote"], "edit": ["applied"], "task": ["It says bye."]}


@dataclass(frozen=True)
class Sessions:
    """The session itself, and the fork of it."""

    first: str
    fork: str

    def subagents(self, connection: RawConnection) -> str:
        """The session of the subagent, which is all there is beside them."""
        sessions = {one["id"] for one in connection.call("session.list")["sessions"]}
        assert len(sessions - {self.first, self.fork}) == 1
        return str((sessions - {self.first, self.fork}).pop())


def test_what_happened_is_what_is_stored_and_is_offered_back() -> None:
    with machine(scripts) as here:
        opencode = OpenCode(here, opencode_binary()).set_up()
        here.daemon.start()
        sessions = work(opencode)
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, sessions))
            later = opencode.run(PROMPTS["ask"])
            holds_in_time(lambda: check_recall(here, connection, sessions, later))


def test_nothing_is_missing_when_the_daemon_comes_after() -> None:
    with machine(scripts) as here:
        sessions = work(OpenCode(here, opencode_binary()).set_up())
        here.daemon.start()
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, sessions))


def work(opencode: OpenCode) -> Sessions:
    """A session with tools and a subagent, resumed and compacted, then forked."""
    first = opencode.run(PROMPTS["build"])
    assert opencode.run(PROMPTS["again"], ["--session", first]) == first
    return Sessions(first, opencode.run(PROMPTS["fork"], ["--session", first, "--fork"]))


def check(here: Machine, connection: RawConnection, sessions: Sessions) -> None:
    check_sessions(here, connection, sessions)
    check_messages(here, connection, sessions)
    check_tools(here, connection, sessions)
    (compaction,) = connection.call("session.compactions", sessionId=sessions.first)
    assert SUMMARY in compaction["summary"]
    assert connection.call("stats")["totals"]["errors"] == 0


def check_sessions(here: Machine, connection: RawConnection, sessions: Sessions) -> None:
    session = connection.call("session.get", id=sessions.first)
    assert (session["source"], session["projectPath"]) == ("opencode", str(here.project))
    child = connection.call("session.get", id=sessions.subagents(connection))
    assert child["metadata"]["parentId"] == sessions.first
    assert connection.call("session.get", id=sessions.fork)["metadata"]["forkedFrom"] == sessions.first


def check_messages(here: Machine, connection: RawConnection, sessions: Sessions) -> None:
    """Every prompt and every answer, once. The summary's text is the compaction's, its tokens are the session's."""
    stored, child = Stored(connection), sessions.subagents(connection)
    assert prompts(stored, sessions.first) == [PROMPTS["build"], PROMPTS["again"]]
    assert prompts(stored, child) == ["[[scout]] look"]
    assert prompts(stored, sessions.fork) == [PROMPTS["fork"]]
    summary = [("", one.prompt_tokens, one.completion_tokens) for one in here.model.of("summary")]
    own = [*here.model.of("build", "again"), *begun_by_itself(here)]
    assert stored.answers(sessions.first) == sorted([*answers(own), *summary])
    assert stored.answers(child) == answers(here.model.of("scout"))
    assert stored.answers(sessions.fork) == answers(here.model.of("fork"))
    assert stored.tokens() == tokens([*own, *here.model.of("summary", "scout", "fork")])


def prompts(stored: Stored, session: str) -> list[str]:
    """As they were given: `opencode run` puts quotes around them."""
    return [prompt.strip('"') for prompt in stored.prompts(session)]


def begun_by_itself(here: Machine) -> list[Said]:
    """After a compaction OpenCode asks the model to go on. Titles are made without tools, and counted nowhere."""
    return [one for one in here.model.said if one.script is None and one.request.get("tools")]


def check_tools(here: Machine, connection: RawConnection, sessions: Sessions) -> None:
    ours = {sessions.first: ("build", "again"), sessions.subagents(connection): ("scout",), sessions.fork: ("fork",)}
    for session, names in ours.items():
        used = [use for one in here.model.of(*names) for use in one.reply.uses]
        tools = Stored(connection).tools(session)
        assert len(tools) == len(used)
        for tool, use in zip(tools, used, strict=True):
            check_tool(tool, use)


def check_tool(tool: dict[str, Any], use: Use) -> None:
    assert (tool["toolName"], json.loads(tool["toolInput"])) == (use.tool, dict(use.input))
    assert tool["durationMs"] >= 0
    if use.tool == "read":
        assert tool["success"] is False
        assert "File not found" in tool["errorMessage"]
    else:
        assert tool["success"] is True
        assert any(text in tool["toolOutput"] for text in CAME_OUT[use.tool])


def check_recall(here: Machine, connection: RawConnection, sessions: Sessions, later: str) -> None:
    """A later session is told of the first one, and its model searches through the harness."""
    asked, answered = here.model.of("ask")
    assert "clankers-memory" in json.dumps(asked.request), "the model is told of the skill"
    (told,) = connection.call("session.injections", sessionId=later)
    assert f"[{sessions.first}]" in told["text"]
    assert json.dumps(told["text"])[1:-1] in json.dumps(asked.request)
    assert prompts(Stored(connection), later) == [PROMPTS["ask"]]
    (search,) = Stored(connection).tools(later)
    assert (search["toolName"], search["success"]) == ("clankers_search", True)
    assert "«greeting»" in json.dumps(answered.request, ensure_ascii=False)
