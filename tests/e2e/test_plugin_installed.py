"""Claude Code with the plugin that `clankers-ctl plugin install` leaves: it captures, and goes without a trace."""

import json
from pathlib import Path

import pytest
from e2e.harnesses import ClaudeCode, claude_binary, machine
from e2e.mock_model import Reply
from helpers.ctl import ctl
from helpers.waiting import eventually

pytestmark = pytest.mark.timeout(600)

SETTINGS = b'{"permissions": {"allow": ["Bash"]},\n\n  "model": "claude-sonnet-4-5"}'


def scripts(_project: Path) -> dict[str, list[Reply]]:
    return {"greet": [Reply("Good morning.")]}


def test_installed_plugin_captures_and_leaves_no_trace() -> None:
    binary = claude_binary()
    with machine(scripts) as here:
        settings = here.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_bytes(SETTINGS)
        here.daemon.start()
        assert ctl(here.daemon, "plugin", "install", "claude-code", CLAUDE_CONFIG_DIR="").code == 0

        asked = {"type": "user", "message": {"role": "user", "content": "[[greet]] say good morning"}}
        command: list[str | Path] = [
            binary,
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--verbose",
        ]
        claude = ClaudeCode(here, binary)
        events = here.run(command, claude.environ(), json.dumps(asked) + "\n")
        session = next(event["session_id"] for event in events if event.get("subtype") == "init")
        with here.daemon.connect() as connection:
            eventually(
                lambda: connection.call("session.get", id=session)["counts"]["messages"] == 2,
                "both messages are stored",
            )
            texts = [each["textContent"] for each in connection.call("message.list", sessionId=session)["messages"]]
        assert texts == ["[[greet]] say good morning", "Good morning."]

        assert ctl(here.daemon, "plugin", "uninstall", "claude-code", CLAUDE_CONFIG_DIR="").code == 0
        assert settings.read_bytes() == SETTINGS
        noted = [path for path in (here.home / ".claude").rglob("*.json") if "clankers" in path.read_text()]
        assert noted == []
