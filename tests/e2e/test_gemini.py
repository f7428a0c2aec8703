"""The real Gemini CLI with our extension: afterwards the database holds exactly what happened, and no trace is left."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import Gemini, Machine, Stored, answers, gemini_program, holds_in_time, imported, machine, tokens
from e2e.mock_model import Reply, Use
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)

PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "ask": "[[ask]] what was written into the greeting file?",
}


def scripts(project: Path) -> dict[str, list[Reply]]:
    shell, greeting = "run_shell_command", str(project / "greeting.txt")
    return {
        "build": [
            Reply("Let me look.", [Use(shell, {"command": "echo looked"})]),
            Reply("", [Use(shell, {"command": "echo oops >&2; exit 3"})]),
            Reply("", [Use("write_file", {"file_path": greeting, "content": "hello\n"})]),
            Reply("", [Use("read_file", {"file_path": str(project / "missing.txt")})]),
            Reply("The greeting is written."),
        ],
        "again": [Reply("Going on.")],
        "ask": [Reply("", [Use("mcp_clankers_search", {"query": "greeting written"})]), Reply("I remember.")],
    }


def test_what_happened_is_what_is_stored_and_is_offered_back() -> None:
    with machine(scripts) as here:
        gemini = Gemini(here, gemini_program()).set_up()
        folder = here.home / ".gemini"
        gemini.plugin("install", "--yes")
        first = gemini.run(PROMPTS["build"])  # the daemon is away: its hooks write to the spool
        here.daemon.start()
        assert gemini.run(PROMPTS["again"], "--resume", "latest") == first
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, first))
            later = gemini.run(PROMPTS["ask"])
            holds_in_time(lambda: check_recall(here, connection, first, later))
            assert set(imported(connection, "gemini").values()) == {0}, "capture has missed nothing"
        gemini.plugin("uninstall")
        assert not (folder / "extensions").exists()
        named = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "chats"]
        assert [path for path in named if b"clankers" in path.read_bytes()] == []


def check(here: Machine, connection: RawConnection, first: str) -> None:
    stored = Stored(connection)
    session = connection.call("session.get", id=first)
    assert (session["source"], session["model"], session["projectPath"]) == (
        "gemini",
        "gemini-2.5-flash",
        str(here.project),
    )
    assert stored.prompts(first) == [PROMPTS["build"], PROMPTS["again"]]
    assert stored.answers(first) == answers(here.model.of("build", "again"))
    assert stored.tokens() == tokens(here.model.of("build", "again"))
    looked, failed, written, missing = (told(tool) for tool in stored.tools(first))
    assert looked == ("run_shell_command", True, "looked", None)
    assert failed == ("run_shell_command", False, "oops", "exit code 3")
    assert written[:2] == ("write_file", True)
    assert missing == ("read_file", False, None, "File not found")
    assert connection.call("session.compactions", sessionId=first) == []
    assert [one["id"] for one in connection.call("session.list")["sessions"]] == [first]


def told(tool: dict[str, Any]) -> tuple[str, bool, str | None, str | None]:
    error = tool.get("errorMessage")
    return tool["toolName"], tool["success"], tool.get("toolOutput"), error.partition(":")[0] if error else None


def check_recall(here: Machine, connection: RawConnection, first: str, later: str) -> None:
    """A later session is told of the first one, and its model searches; what was told is not the user's words."""
    asked, answered = here.model.of("ask")
    assert f"[{first}]" in connection.call("session.injections", sessionId=later)[0]["text"]
    assert first in json.dumps(asked.request)
    assert "clankers-memory" in json.dumps(asked.request), "the model is told of the skill"
    assert Stored(connection).prompts(later) == [PROMPTS["ask"]]
    (search,) = Stored(connection).tools(later)
    assert (search["toolName"], search["success"]) == ("mcp_clankers_search", True)
    assert "«greeting»" in json.dumps(answered.request, ensure_ascii=False)
