"""The real Codex CLI with our plugin: afterwards the database holds exactly what happened, and no trace is left."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import (
    CODEX_VERSIONS,
    Codex,
    Machine,
    Stored,
    answers,
    codex_binary,
    holds_in_time,
    imported,
    machine,
    tokens,
)
from e2e.mock_model import Reply, Use
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)

PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "ask": "[[ask]] what was written into the greeting file?",
}
ADDED = "*** Begin Patch\n*** Add File: greeting.txt\n+hello\n*** End Patch\n"
MISSING = "*** Begin Patch\n*** Update File: missing.txt\n@@\n-x\n+y\n*** End Patch\n"


def scripts(_: Path) -> dict[str, list[Reply]]:
    return {
        "build": [
            Reply("Let me look.", [Use("exec_command", {"cmd": "echo looked"})]),
            Reply("", [Use("exec_command", {"cmd": "echo oops >&2; exit 3"})]),
            Reply("", [Use("apply_patch", {"input": ADDED})]),
            Reply("", [Use("apply_patch", {"input": MISSING})]),
            Reply("The greeting is written."),
        ],
        "again": [Reply("Going on.")],
        "ask": [Reply("", [Use("mcp__clankers__search", {"query": "greeting written"})]), Reply("I remember.")],
    }


@pytest.mark.parametrize("version", CODEX_VERSIONS)
def test_what_happened_is_what_is_stored_and_is_offered_back(version: str) -> None:
    with machine(scripts) as here:
        codex = Codex(here, codex_binary(version)).set_up()
        before = codex.config.read_bytes()
        codex.plugin("install")
        first = codex.run(PROMPTS["build"])  # the daemon is away: its hooks write to the spool
        here.daemon.start()
        assert codex.run(PROMPTS["again"], "resume", first) == first
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, first))
            later = codex.run(PROMPTS["ask"])
            holds_in_time(lambda: check_recall(here, connection, first, later))
            assert set(imported(connection, "codex").values()) == {0}, "capture has missed nothing"
        codex.plugin("uninstall")
        assert codex.config.read_bytes() == before
        assert [path for path in codex.config.parent.rglob("*") if "clankers" in path.name] == []


def check(here: Machine, connection: RawConnection, first: str) -> None:
    stored = Stored(connection)
    session = connection.call("session.get", id=first)
    assert (session["source"], session["provider"], session["projectPath"]) == ("codex", "mock", str(here.project))
    assert stored.prompts(first) == [PROMPTS["build"], PROMPTS["again"]]
    assert stored.answers(first) == answers(here.model.of("build", "again"))
    assert stored.tokens() == tokens(here.model.of("build", "again"))
    tools = [told(tool) for tool in stored.tools(first)]
    assert tools == [
        ("Bash", True, "looked\n", None, None),
        ("Bash", False, "oops\n", "exit code 3", None),
        ("apply_patch", True, "Success. Updated the following files:\nA greeting.txt\n", None, "greeting.txt"),
        ("apply_patch", False, None, "apply_patch verification failed", "missing.txt"),
    ]
    assert [one["id"] for one in connection.call("session.list")["sessions"]] == [first]


def told(tool: dict[str, Any]) -> tuple[str, bool, str | None, str | None, str | None]:
    error, path = tool.get("errorMessage"), tool.get("filePath")
    error = error.partition(":")[0] if error else None
    return tool["toolName"], tool["success"], tool.get("toolOutput"), error, Path(path).name if path else None


def check_recall(here: Machine, connection: RawConnection, first: str, later: str) -> None:
    """A later session is told of the first one, and its model searches through the harness."""
    asked, answered = here.model.of("ask")
    assert "clankers-memory" in json.dumps(asked.request), "the model is told of the skill"
    injections = connection.call("session.injections", sessionId=later)
    assert f"[{first}]" in injections[0]["text"]
    assert all(json.dumps(each["text"])[1:-1] in json.dumps(asked.request) for each in injections)
    assert Stored(connection).prompts(later) == [PROMPTS["ask"]]
    (search,) = Stored(connection).tools(later)
    assert (search["toolName"], search["success"]) == ("mcp__clankers__search", True)
    assert "«greeting»" in json.dumps(answered.request, ensure_ascii=False)
