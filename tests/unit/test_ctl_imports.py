"""What `clankers-ctl` loads: a command pays for itself only."""

import subprocess
import sys

import click
import pytest
from helpers.ctl import command

from clankers.ctl import cli
from clankers.ctl.lazy import LazyGroup

NEVER = (
    "rich",
    "prompt_toolkit",
    "platformdirs",
    "tomlkit",
    "httpx",
    "anyio",
    "asyncio",
    "clankersd",
    "mcp",
    "clankers.ctl.docs",
)


@pytest.mark.parametrize("words", [["--help"], ["memory", "--help"], ["sessions", "--help"], ["search", "x"]])
def test_command_loads_no_other_commands_and_no_slow_library(words: list[str]) -> None:
    program = [sys.executable, "-X", "importtime", *command("--socket", "/nonexistent", *words)[1:]]
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "CLANKERS_HOOK_AUTOSTART": "false"}
    ran = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}

    assert "clankers.ctl.command" in loaded
    assert [name for name in sorted(loaded) if name.startswith(NEVER)] == []


def test_help_lines_are_those_of_the_commands() -> None:
    for group in (cli, cli.commands["memory"]):
        assert isinstance(group, LazyGroup)
        lines = {name: each.get_short_help_str(80) for name, each in group.commands.items()}
        assert group.help_lines == lines
        assert [name for name, line in lines.items() if line.endswith("...")] == [], "help lines that are cut off"


def test_lazy_group_loads_the_named_command() -> None:
    found = cli.commands["memory"]
    assert isinstance(found, click.Group)
    assert found.commands["add"].name == "add"
    assert cli.get_command(click.Context(cli), "no-such-command") is None
