"""The real Claude Code with our plugin: afterwards the database holds exactly what happened."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import ClaudeCode, claude_binary, machine
from e2e.mock_model import SUMMARY, MockModel, Reply, Use
from support import RawConnection
from writers import eventually

pytestmark = pytest.mark.timeout(600)

SESSION = "11111111-2222-4333-8444-555555555555"
SEARCH = "mcp__plugin_clankers_clankers__search"


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


PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "fork": "[[fork]] try another way",
    "ask": "[[ask]] what was written into the greeting file?",
}


@dataclass
class Worked:
    """What is there after the sessions."""

    connection: RawConnection
    model: MockModel
    project: Path
    fork: str

    def messages(self, session: str, role: str) -> list[dict[str, Any]]:
        return list(self.connection.call("message.list", sessionId=session, role=role)["messages"])

    def tools(self, session: str) -> dict[str, dict[str, Any]]:
        return {tool["id"]: tool for tool in self.connection.call("tool.list", sessionId=session)["tools"]}


@pytest.fixture(scope="module", params=["with the daemon up", "with the daemon down"])
def worked(request: pytest.FixtureRequest) -> Iterator[Worked]:
    """Two sessions and a fork, with a compaction and a resume; the daemon there all along, or only afterwards."""
    with machine(scripts) as here:
        claude = ClaudeCode(here, claude_binary())
        if request.param == "with the daemon up":
            here.daemon.start()
        assert claude.run(PROMPTS["build"], options=["--session-id", SESSION]) == SESSION
        assert claude.run("/compact", PROMPTS["again"], options=["--resume", SESSION]) == SESSION
        fork = claude.run(PROMPTS["fork"], options=["--resume", SESSION, "--fork-session"])
        if request.param == "with the daemon down":
            here.daemon.start()
        with here.daemon.connect() as connection:
            eventually(lambda: all(_ended(connection, one) for one in (SESSION, fork)), "both sessions ended")
            yield Worked(connection, here.model, here.project, fork)


def _ended(connection: RawConnection, session: str) -> bool:
    found = connection.request("session.get", {"id": session})
    return "result" in found and found["result"]["status"] == "ended"


def test_the_session_is_there_from_its_beginning_to_its_end(worked: Worked) -> None:
    session = worked.connection.call("session.get", id=SESSION)
    assert (session["source"], session["status"]) == ("claude-code", "ended")
    assert session["projectPath"] == str(worked.project)
    assert session["createdAt"] < session["endedAt"]
    assert session["userPrompt"] == PROMPTS["build"]
    assert {one["id"] for one in worked.connection.call("session.list")["sessions"]} == {SESSION, worked.fork}


def test_every_prompt_is_there_once(worked: Worked) -> None:
    prompts = [one for one in worked.messages(SESSION, "user") if not (one["metadata"] or {}).get("agentId")]
    assert [one["textContent"] for one in prompts] == [PROMPTS[name] for name in ("build", "again")]
    assert [one["textContent"] for one in worked.messages(worked.fork, "user")] == [PROMPTS["fork"]]


def test_every_message_of_the_model_is_there_with_its_tokens(worked: Worked) -> None:
    for session, names in ((SESSION, ("build", "scout", "again")), (worked.fork, ("fork",))):
        said = [(one.reply.text, one.prompt_tokens, one.completion_tokens) for one in worked.model.of(*names)]
        stored = [
            (one["textContent"] or "", one["promptTokens"], one["completionTokens"])
            for one in worked.messages(session, "assistant")
        ]
        assert sorted(stored) == sorted(said)


def test_the_tokens_add_up_to_the_models_own_count(worked: Worked) -> None:
    totals = worked.connection.call("stats")["totals"]
    assert totals["promptTokens"] == sum(one.prompt_tokens for one in worked.model.said)
    assert totals["completionTokens"] == sum(one.completion_tokens for one in worked.model.said)


def test_every_tool_is_there_with_what_went_in_and_what_came_out(worked: Worked) -> None:
    used = {
        use_id: use
        for said in worked.model.of("build", "scout", "again")
        for use_id, use in zip(said.tool_ids, said.reply.uses, strict=True)
    }
    tools = worked.tools(SESSION)
    assert tools.keys() == used.keys()
    for use_id, use in used.items():
        assert tools[use_id]["toolName"] == use.tool
        assert json.loads(tools[use_id]["toolInput"]).items() >= dict(use.input).items()
        assert tools[use_id]["success"] is (use.input.get("command") != "exit 3")
        assert tools[use_id]["durationMs"] >= 0
    assert not worked.tools(worked.fork)


@pytest.mark.parametrize(
    ("tool", "came_out"),
    [
        ({"command": "echo looked"}, "looked"),
        ({"content": "hello\n"}, "greeting.txt"),
        ({"new_string": "bye"}, "bye"),
        ({"command": "cat greeting.txt"}, "bye"),
        ({"description": "Scout"}, "It says bye."),
    ],
)
def test_what_came_out_of_a_tool(worked: Worked, tool: dict[str, str], came_out: str) -> None:
    (found,) = [one for one in worked.tools(SESSION).values() if json.loads(one["toolInput"]).items() >= tool.items()]
    assert came_out in found["toolOutput"]


def test_a_tool_that_failed_says_how(worked: Worked) -> None:
    (failed,) = [one for one in worked.tools(SESSION).values() if not one["success"]]
    assert "Exit code 3" in failed["errorMessage"]


def test_files_that_tools_changed_are_found_by_their_path(worked: Worked) -> None:
    changed = worked.connection.call("tool.list", filePath=str(worked.project / "greeting.txt"))["tools"]
    assert [one["toolName"] for one in changed] == ["Write", "Edit"]


def test_the_compaction_is_there(worked: Worked) -> None:
    (compaction,) = worked.connection.call("session.compactions", sessionId=SESSION)
    assert compaction["tokensBefore"] > 0
    assert SUMMARY in compaction["summary"]


def test_nothing_went_wrong(worked: Worked) -> None:
    assert worked.connection.call("session.errors", sessionId=SESSION) == []
    assert worked.connection.call("stats")["totals"]["errors"] == 0


def test_a_fork_knows_where_it_came_from(worked: Worked) -> None:
    assert SESSION in json.dumps(worked.connection.call("session.get", id=worked.fork)["metadata"])


def test_it_is_found_again(worked: Worked) -> None:
    hits = worked.connection.call("search", query="write a greeting", project=str(worked.project))["hits"]
    assert SESSION in {hit["ref"]["sessionId"] for hit in hits}


def test_the_model_is_told_of_earlier_work_and_searches_it_through_the_harness() -> None:
    with machine(scripts) as here:
        claude = ClaudeCode(here, claude_binary())
        here.daemon.start()
        claude.run(PROMPTS["build"], options=["--session-id", SESSION])
        later = claude.run(PROMPTS["ask"])
        asked, answered = here.model.of("ask")
        assert f"[{SESSION}]" in json.dumps(asked.request)
        assert "«written»" in json.dumps(answered.request, ensure_ascii=False)
        with here.daemon.connect() as connection:
            told = connection.call("session.injections", sessionId=later)
            assert [one["kind"] for one in told] == ["start", "prompt"]
            assert json.dumps(told[0]["text"])[1:-1] in json.dumps(asked.request)
            eventually(lambda: _ended(connection, later), "the later session ended")
            (search,) = connection.call("tool.list", sessionId=later)["tools"]
            assert (search["toolName"], search["success"]) == (SEARCH, True)
            assert "«greeting»" in search["toolOutput"]
