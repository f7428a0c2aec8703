"""The real Copilot CLI, pi and Qwen Code with our plugins: the database holds what happened, and no trace is left."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import Machine, Stored, answers, holds_in_time, imported, machine, tokens
from e2e.mock_model import ASIDE, Reply, Use
from e2e.more_harnesses import Copilot, Pi, Qwen, copilot_binary, pi_program, qwen_program
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)

Harness = Copilot | Pi | Qwen

PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "ask": "[[ask]] what was written into the greeting file?",
}


@dataclass(frozen=True)
class Tools:
    """Names and fields of a harness's tools, and what it says of a missing file."""

    shell: str
    write: str
    content: str
    read: str
    path: str
    search: str
    missing: str
    distill: str


KINDS: dict[str, tuple[Callable[[Machine], Harness], Tools]] = {
    "copilot": (
        lambda here: Copilot(here, copilot_binary()),
        Tools(
            "bash",
            "create",
            "file_text",
            "view",
            "path",
            "clankers-search",
            "Path does not exist",
            "[[distill]] clankers-distill",
        ),
    ),
    "pi": (
        lambda here: Pi(here, pi_program()).set_up(),
        Tools("bash", "write", "content", "read", "path", "clankers_search", "ENOENT", "/clankers-distill"),
    ),
    "qwen": (
        lambda here: Qwen(here, qwen_program()).set_up(),
        Tools(
            "run_shell_command",
            "write_file",
            "content",
            "read_file",
            "file_path",
            "mcp__clankers__search",
            "File not found",
            "/clankers:distill",
        ),
    ),
}


def scripts(project: Path, tools: Tools) -> dict[str, list[Reply]]:
    greeting = str(project / "greeting.txt")

    def shell(command: str) -> Use:
        return Use(tools.shell, {"command": command, "description": "try", "is_background": False})

    return {
        "build": [
            Reply("Let me look.", [shell("echo looked")]),
            Reply("", [shell("echo oops >&2; exit 3")]),
            Reply("", [Use(tools.write, {tools.path: greeting, tools.content: "hello\n"})]),
            Reply("", [Use(tools.read, {tools.path: str(project / "missing.txt")})]),
            Reply("The greeting is written."),
        ],
        "again": [Reply("Going on.")],
        "distill": [Reply("", [Use("skill", {"skill": "clankers-distill"})]), Reply("There is nothing to keep.")],
        "ask": [Reply("", [Use(tools.search, {"query": "greeting written"})]), Reply("I remember.")],
    }


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_happened_is_what_is_stored_and_is_offered_back(name: str) -> None:
    make, tools = KINDS[name]
    with machine(lambda project: scripts(project, tools)) as here:
        harness = make(here)
        folder = f".{name}"
        harness.plugin("install", "--yes")
        first = harness.run(PROMPTS["build"])  # the daemon is away: its hooks write to the spool
        here.daemon.start()
        assert harness.run(PROMPTS["again"], "--continue") == first
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, name, tools, first))
            later = harness.run(PROMPTS["ask"])
            holds_in_time(lambda: check_recall(here, connection, tools, first, later))
            check_distill(here, connection, harness, tools)
            assert set(imported(connection, name).values()) == {0}, "capture has missed nothing"
        harness.plugin("uninstall")
        assert harness.traces(folder) == []


def check(here: Machine, connection: RawConnection, name: str, tools: Tools, first: str) -> None:
    stored = Stored(connection)
    session = connection.call("session.get", id=first)
    assert (session["source"], session["model"]) == (name, "mock-model")
    assert session["projectPath"] == str(here.project)
    assert stored.prompts(first) == [PROMPTS["build"], PROMPTS["again"]]
    assert stored.answers(first) == answers(here.model.of("build", "again"))
    assert stored.tokens() == tokens(here.model.of("build", "again"))
    looked, failed, written, missing = (told(tool) for tool in stored.tools(first))
    assert looked == (tools.shell, True, "looked", None)
    assert failed == (tools.shell, False, "oops", "exit code 3")
    assert written[:2] == (tools.write, True)
    assert missing[:3] == (tools.read, False, None)
    assert (missing[3] or "").startswith(tools.missing)
    assert [one["id"] for one in connection.call("session.list")["sessions"]] == [first]


def told(tool: dict[str, Any]) -> tuple[str, bool, str | None, str | None]:
    output = (tool.get("toolOutput") or "").strip() or None
    return tool["toolName"], tool["success"], output, tool.get("errorMessage")


def check_recall(here: Machine, connection: RawConnection, tools: Tools, first: str, later: str) -> None:
    """A later session is told of the first one, and its model searches; what was told is not the user's words."""
    asked, answered = here.model.of("ask")
    assert f"[{first}]" in connection.call("session.injections", sessionId=later)[0]["text"]
    assert first in json.dumps(asked.request)
    assert Stored(connection).prompts(later) == [PROMPTS["ask"]]
    (search,) = Stored(connection).tools(later)
    assert (search["toolName"], search["success"]) == (tools.search, True)
    assert "«greeting»" in json.dumps(answered.request, ensure_ascii=False)


def check_distill(here: Machine, connection: RawConnection, harness: Harness, tools: Tools) -> None:
    """The command gives the model its prompt, and the model is told of the skill. In Copilot the model loads it."""
    before = len(here.model.said)
    session = harness.run(f"{tools.distill} the tests")
    requests = json.dumps([said.request for said in here.model.said[before:]])
    assert "Call `remember` once for each fact" in requests
    assert "clankers-memory" in requests
    last = "There is nothing to keep." if tools.distill.startswith("[[") else ASIDE
    holds_in_time(lambda: assert_said(connection, session, last))


def assert_said(connection: RawConnection, session: str, answer: str) -> None:
    assert answer in [said for said, *_ in Stored(connection).answers(session)]


AGENTS: dict[str, Use] = {
    "copilot": Use(
        "task",
        {"description": "a helper", "prompt": "[[child]] say done", "agent_type": "general-purpose", "name": "child"},
    ),
    "qwen": Use(
        "agent", {"description": "a helper", "prompt": "[[child]] say done", "subagent_type": "general-purpose"}
    ),
}


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_sub_agent_is_a_session_with_a_parent(name: str) -> None:
    make, _ = KINDS[name]
    script = {
        "delegate": [Reply("", [AGENTS[name]]), Reply("The helper is done.")],
        "child": [Reply("Child finished.")],
    }
    with machine(lambda _: script) as here:
        harness = make(here)
        here.daemon.start()
        harness.plugin("install", "--yes")
        parent = harness.run("[[delegate]] ask a helper")
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check_agents(here, connection, parent))
            assert set(imported(connection, name).values()) == {0}, "capture has missed nothing"


def check_agents(here: Machine, connection: RawConnection, parent: str) -> None:
    sessions = connection.call("session.list")["sessions"]
    (child,) = (session["id"] for session in sessions if session["id"] != parent)
    stored = Stored(connection)
    assert connection.call("session.get", id=child)["metadata"]["parentId"] == parent
    assert (stored.prompts(parent), stored.prompts(child)) == (["[[delegate]] ask a helper"], ["[[child]] say done"])
    assert stored.answers(child) == answers(here.model.of("child"))
    assert stored.answers(parent)[-1][0] == "The helper is done."


COMPACTING: dict[str, list[str]] = {
    "copilot": ["[[much]] say much", "/compact"],
    "pi": [f"[[much]] say much{' and more of it' * 8000}"],
    "qwen": ["[[much]] say much", "/compress"],
}
"""Prompts with which a harness compacts: a command, or a prompt that fills the context, as the model counts it."""

ERRORS = {"copilot": "400 the model is out of order", "pi": "the model is out of order", "qwen": "400 the model is"}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_failed_request_and_compaction_are_stored(name: str) -> None:
    make, _ = KINDS[name]
    script = {
        "begin": [Reply("Fine.")],
        "much": [Reply("Much was said.", prompt_tokens=99_000)],
        "after": [Reply("Still here.")],
        "broken": [Reply("the model is out of order", status=400)],
    }
    with machine(lambda _: script) as here:
        harness = make(here)
        here.daemon.start()
        harness.plugin("install", "--yes")
        session = harness.run("[[begin]] begin")
        for prompt in [*COMPACTING[name], "[[after]] and now"]:
            assert harness.run(prompt, "--continue") == session
        broken = harness.run("[[broken]] try this", fails=name != "pi")
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check_compaction_and_error(connection, name, session, broken))
            assert set(imported(connection, name).values()) == {0}, "capture has missed nothing"


def check_compaction_and_error(connection: RawConnection, name: str, session: str, broken: str) -> None:
    stored = Stored(connection)
    (compaction,) = connection.call("session.compactions", sessionId=session)
    assert compaction["tokensBefore"] > 1_000
    assert bool(compaction["summary"]) == (name != "qwen"), "Qwen Code does not tell the summary"
    assert [prompt[:9] for prompt in stored.prompts(session)] == ["[[begin]]", "[[much]] ", "[[after]]"]
    assert [answer for answer, *_ in stored.answers(session)] == ["Fine.", "Much was said.", "Still here."]
    assert (stored.prompts(broken), stored.answers(broken)) == (["[[broken]] try this"], [])
    (error,) = connection.call("query", sql="SELECT session_id, error_message FROM session_errors", limit=10)["rows"]
    assert error[0] == broken
    assert ERRORS[name] in error[1]
