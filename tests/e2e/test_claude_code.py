"""The real Claude Code with our plugin: afterwards the database holds exactly what happened."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import ClaudeCode, Machine, Stored, answers, claude_binary, holds_in_time, machine, tokens
from e2e.mock_model import SUMMARY, Reply, Use
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)

SESSION = "11111111-2222-4333-8444-555555555555"
SEARCH = "mcp__plugin_clankers_clankers__search"
PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "fork": "[[fork]] try another way",
    "ask": "[[ask]] what was written into the greeting file?",
}


def scripts(project: Path) -> dict[str, list[Reply]]:
    greeting = str(project / "greeting.txt")
    scout = {"description": "Scout", "prompt": "[[scout]] look around", "subagent_type": "general-purpose"}
    return {
        "build": [
            Reply("Let me look.", [Use("Bash", {"command": "echo looked", "description": "Look"})]),
            Reply("", [Use("Write", {"file_path": greeting, "content": "hello\n"})]),
            Reply("", [Use("Edit", {"file_path": greeting, "old_string": "hello", "new_string": "bye"})]),
            Reply("Now a check.", [Use("Bash", {"command": "exit 3", "description": "Fail"})]),
            Reply("", [Use("Agent", scout | {"run_in_background": False})]),
            Reply("The greeting is written."),
        ],
        "scout": [
            Reply("", [Use("Bash", {"command": "cat greeting.txt", "description": "Read"})]),
            Reply("It says bye."),
        ],
        "again": [Reply("Going on.")],
        "fork": [Reply("Another way.")],
        "ask": [Reply("", [Use(SEARCH, {"query": "greeting written"})]), Reply("I remember.")],
    }


def test_what_happened_is_what_is_stored_and_is_offered_back() -> None:
    with machine(scripts) as here:
        here.daemon.start()
        claude = ClaudeCode(here, claude_binary())
        fork = work(claude)
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, fork))
            later = claude.run(PROMPTS["ask"])
            holds_in_time(lambda: check_recall(here, connection, later))
            claude.run("/compact", PROMPTS["again"], options=["--resume", later])
            check_recall_after_compaction(here, connection, later)


def test_nothing_is_missing_when_the_daemon_comes_after() -> None:
    with machine(scripts) as here:
        fork = work(ClaudeCode(here, claude_binary()))
        here.daemon.start()
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, fork))


def work(claude: ClaudeCode) -> str:
    """A session with tools and a subagent, resumed and compacted, then forked: the fork's id."""
    assert claude.run(PROMPTS["build"], options=["--session-id", SESSION]) == SESSION
    assert claude.run("/compact", PROMPTS["again"], options=["--resume", SESSION]) == SESSION
    return claude.run(PROMPTS["fork"], options=["--resume", SESSION, "--fork-session"])


def check(here: Machine, connection: RawConnection, fork: str) -> None:
    check_sessions(here, connection, fork)
    check_messages(here, connection, fork)
    check_tools(here, connection, fork)
    (compaction,) = connection.call("session.compactions", sessionId=SESSION)
    assert compaction["tokensBefore"] > 0
    assert SUMMARY in compaction["summary"]
    assert connection.call("stats")["totals"]["errors"] == 0


def check_sessions(here: Machine, connection: RawConnection, fork: str) -> None:
    assert {one["id"] for one in connection.call("session.list")["sessions"]} == {SESSION, fork}
    session = connection.call("session.get", id=SESSION)
    assert (session["source"], session["projectPath"]) == ("claude-code", str(here.project))
    assert session["status"] == "ended"
    assert session["userPrompt"] == PROMPTS["build"]
    assert session["createdAt"] < session["endedAt"]
    assert connection.call("session.get", id=fork)["metadata"]["forkedFrom"] == SESSION


def check_messages(here: Machine, connection: RawConnection, fork: str) -> None:
    """Every prompt and every answer, once; the summariser's tokens are the session's as well."""
    stored = Stored(connection)
    assert stored.prompts(SESSION) == [PROMPTS["build"], PROMPTS["again"]]
    assert stored.prompts(fork) == [PROMPTS["fork"]]
    assert stored.answers(SESSION) == answers(here.model.of("build", "scout", "again"))
    assert stored.answers(fork) == answers(here.model.of("fork"))
    assert stored.tokens() == tokens(here.model.said)
    hits = connection.call("search", query="write a greeting", project=str(here.project))["hits"]
    assert SESSION in {hit["ref"]["sessionId"] for hit in hits}


def check_tools(here: Machine, connection: RawConnection, fork: str) -> None:
    tools = {tool["id"]: tool for tool in Stored(connection).tools(SESSION)}
    used = {
        use_id: use
        for said in here.model.of("build", "scout")
        for use_id, use in zip(said.tool_ids, said.reply.uses, strict=True)
    }
    assert tools.keys() == used.keys()
    assert Stored(connection).tools(fork) == []
    for use_id, use in used.items():
        check_tool(tools[use_id], use)
    changed = connection.call("tool.list", filePath=str(here.project / "greeting.txt"))["tools"]
    assert [tool["toolName"] for tool in changed] == ["Write", "Edit"]


def check_tool(tool: dict[str, Any], use: Use) -> None:
    assert tool["toolName"] == use.tool
    assert json.loads(tool["toolInput"]).items() >= dict(use.input).items()
    assert tool["durationMs"] >= 0
    came_out = {"Look": "looked", "Read": "bye", "Scout": "It says bye."}.get(use.input.get("description", ""), "")
    if use.input.get("description") == "Fail":
        assert (tool["success"], tool["errorMessage"]) == (False, "Exit code 3")
    else:
        assert tool["success"] is True
        assert (came_out or "greeting.txt") in tool["toolOutput"]


def check_recall(here: Machine, connection: RawConnection, later: str) -> None:
    """A later session is told of the first one, and its model searches through the harness."""
    asked, answered = here.model.of("ask")
    assert "clankers-memory" in json.dumps(asked.request), "the model is told of the skill"
    (told,) = connection.call("session.injections", sessionId=later)
    assert told["kind"] == "start"
    assert f"[{SESSION}]" in told["text"]
    assert len(told["ids"]) > 1, "what matches the prompt is told with it"
    assert json.dumps(told["text"])[1:-1] in json.dumps(asked.request)
    (search,) = Stored(connection).tools(later)
    assert (search["toolName"], search["success"]) == (SEARCH, True)
    assert "«greeting»" in search["toolOutput"]
    assert "«greeting»" in json.dumps(answered.request, ensure_ascii=False)


def check_recall_after_compaction(here: Machine, connection: RawConnection, later: str) -> None:
    """What it was told is gone with the rest of its context, and is told again."""
    told = connection.call("session.injections", sessionId=later)
    assert [one["kind"] for one in told] == ["start", "start"]
    assert f"[{SESSION}]" in told[-1]["text"]
    assert json.dumps(told[-1]["text"])[1:-1] in json.dumps(here.model.of("again")[-1].request)
