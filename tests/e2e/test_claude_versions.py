"""Older versions of Claude Code, and the newest, with the plugin that `clankers-ctl` installs for them."""

from pathlib import Path

import pytest
from e2e.harnesses import CLAUDE_VERSIONS, ClaudeCode, Machine, Stored, answers, claude_binary, holds_in_time, machine
from e2e.mock_model import Reply, Use
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)

PROMPT = "[[build]] write a greeting into a file"
SEARCH = "mcp__plugin_clankers_clankers__search"
WITHOUT_PROMPT_IDS = ("2.0.77", "2.1.22")
"""Versions whose hooks do not identify a prompt: it is stored when the transcript is read, a moment later."""

OWN_RECORDS = (".claude/projects", ".claude/debug", ".claude/backups", ".claude/history.jsonl", ".claude.json.backup")
"""What Claude Code records of sessions and of its settings; it may quote our commands and tools."""


def scripts(project: Path) -> dict[str, list[Reply]]:
    greeting = str(project / "greeting.txt")
    return {
        "build": [
            Reply("Let me look.", [Use("Bash", {"command": "echo looked", "description": "Look"})]),
            Reply("", [Use("Write", {"file_path": greeting, "content": "hello\n"})]),
            Reply("Now a check.", [Use("Bash", {"command": "exit 3", "description": "Fail"})]),
            Reply("", [Use(SEARCH, {"query": "greeting"})]),
            Reply("The greeting is written."),
        ]
    }


@pytest.mark.parametrize("version", CLAUDE_VERSIONS)
def test_claude_code_of_any_version_is_captured_exactly_and_left_without_a_trace(version: str) -> None:
    with machine(scripts) as here:
        here.daemon.start()
        claude = ClaudeCode(here, claude_binary(version))
        claude.plugin("install")
        session = claude.run(PROMPT, installed=True)
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, session, version))
        claude.plugin("status")
        claude.plugin("uninstall")
        assert traces(here) == []


def check(here: Machine, connection: RawConnection, session: str, version: str) -> None:
    stored = Stored(connection)
    assert [one["id"] for one in connection.call("session.list")["sessions"]] == [session]
    assert stored.prompts(session) == [PROMPT]
    said, expected = stored.answers(session), answers(here.model.of("build"))
    if version == "2.1.22":  # its transcripts have a 1 in place of the output tokens
        said, expected = ([(text, prompt, 1) for text, prompt, _ in each] for each in (said, expected))
    assert said == expected
    tools = [(tool["toolName"], tool["success"], tool["errorMessage"]) for tool in stored.tools(session)]
    assert tools == [
        ("Bash", True, None),
        ("Write", True, None),
        ("Bash", False, "Exit code 3"),
        (SEARCH, True, None),
    ]
    found = stored.tools(session)[-1]["toolOutput"]
    if version in WITHOUT_PROMPT_IDS:
        assert "write a greeting" in found or "try everywhere" in found
    else:
        assert "write a «greeting» into a file" in found
    row = connection.call("session.get", id=session)
    assert (row["status"], row["projectPath"]) == ("ended", str(here.project))
    assert row["promptTokens"] >= sum(prompt for _, prompt, _ in said)
    assert row["completionTokens"] >= sum(completion for _, _, completion in said)
    assert row["cost"] > 0


def traces(here: Machine) -> list[str]:
    """Everything in the home that names us, except our own data and what Claude Code records of its sessions."""
    found = []
    for path in sorted(here.home.rglob("*")):
        name = str(path.relative_to(here.home))
        if name.startswith(("clankers/", "project/", "tmp/", *OWN_RECORDS)) or name == "clankers":
            continue
        if "clankers" in name or (path.is_file() and b"clankers" in path.read_bytes()):
            found.append(name)
    folders = (here.home / ".claude" / "plugins" / name for name in ("cache", "data", "marketplaces"))
    return [*found, *(str(folder) for folder in folders if folder.exists())]
