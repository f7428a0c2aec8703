"""Manners of the commands: what goes to standard error, plural forms, errors for people, and --help."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection

from clankers.ctl import cli
from clankers.ctl.command import without_place
from clankers.ctl.formatting import count_of, plural

FAMILY = "👩\u200d👩\u200d👧\u200d👦"


@pytest.fixture
def filled(rpc: RawConnection) -> RawConnection:
    rpc.call("upsertSession", session={"id": "s-1", "title": "One", "projectPath": "/home/me/shop"})
    rpc.call("upsertMessage", message={"id": "m-1", "sessionId": "s-1", "role": "user", "textContent": "one login"})
    rpc.call("memory.add", content="The login uses cookies.", pinned=True)
    return rpc


@pytest.mark.parametrize(
    "words",
    [
        "status", "sessions", "session s-1", "show m-1", "search one login", "memory list", "memory context",
        "recall --project /home/me/shop", "memory search login", "query SELECT_1", "config show", "thread list",
        "stats", "index status", "reindex", "memory stats", "rpc daemon.status", "memory graph MEMORY --dot FILE",
    ],
)  # fmt: skip
def test_nothing_but_errors_and_hints_goes_to_a_piped_standard_error(
    shared_daemon: DaemonProcess, filled: RawConnection, words: str, tmp_path: Path
) -> None:
    memory = filled.call("memory.list")["memories"][0]["id"]
    places = {"MEMORY": memory, "FILE": str(tmp_path / "graph.dot"), "SELECT_1": "SELECT 1"}
    ran = ctl(shared_daemon, *[places.get(word, word) for word in words.split()])
    assert (ran.code, ran.err) == (0, "")


def test_counts_of_one_are_singular(shared_daemon: DaemonProcess, filled: RawConnection) -> None:
    out = ctl(shared_daemon, "status").out
    assert "1 session," in out
    assert "1 message," in out
    assert re.search(r"in 1 project\b", ctl(shared_daemon, "stats").out)
    assert (count_of(1, "memory_relationships"), count_of(2, "memories")) == ("1 memory relationship", "2 memories")
    assert (plural(2, "entity"), plural(2, "day"), plural(1, "memory")) == ("2 entities", "2 days", "1 memory")


def test_place_in_the_request_is_only_in_the_json_of_an_error(shared_daemon: DaemonProcess) -> None:
    for words in (["show", ""], ["schedule", "add", "never", "x"]):
        ran = ctl(shared_daemon, *words, "--json")
        assert "- at `$." in ran.json["error"]["message"]
        shown = ctl(shared_daemon, *words)
        assert (shown.code, "$." in shown.err, " - at " in shown.err) == (1, False, False)
    wrong = ctl(shared_daemon, "rpc", "session.list", '{"limit": "x"}')
    assert (wrong.code, wrong.err.endswith("Expected `int`, got `str` (limit)\n")) == (2, True)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("invalid params: Expected `int` >= 1 - at `$.limit`", "invalid params: Expected `int` >= 1 (limit)"),
        ("invalid params: no such session - at `$.sessionId`", "invalid params: no such session (session id)"),
        ("there is no limit - at `$.limit`", "there is no limit"),
        ("not an id - at `$.id`", "not an id"),
        ("too long - at `$.items[3].name`", "too long (name)"),
        ("session not found: x", "session not found: x"),
    ],
)
def test_error_names_the_field_in_words(message: str, shown: str) -> None:
    assert without_place(message) == shown


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}".strip())
        else:
            yield f"{path} {name}".strip(), command


def test_help_of_project_says_what_it_does_in_each_command() -> None:
    helps: dict[str, str] = {}
    for path, command in leaves(cli):
        for option in command.params:
            if isinstance(option, click.Option) and "--project" in option.opts:
                helps[path] = option.help or ""
    assert len(helps) > 10
    for path, text in helps.items():
        assert re.match(r"(Only|Assign|Store|Recall|Give|Forget|Project|Pause|Resume|Move)\b", text), path
        assert "folder" in text, path
        nouns = {"sessions": "session", "stats": "session", "thread list": "thread", "thread search": "thread"}
        assert nouns.get(path, "") in text, path


def test_import_says_where_it_looked(shared_daemon: DaemonProcess) -> None:
    out = ctl(shared_daemon, "import", "claude-code", "--dry-run", "--since", "1s").out
    assert re.search(r"looked in\s+\S*/\.claude", out)


def test_mcp_server_explains_itself() -> None:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "clankers.mcp", *words], capture_output=True, text=True, timeout=60, check=False
        )

    helped = run("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "MCP server" in helped.stdout
    wrong = run("--port", "80")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--help" in wrong.stderr


def test_hidden_characters_are_never_printed_raw(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    rpc.call("memory.add", content=f"pass\u200dword \u202eevil\u2069 {FAMILY} \u2800end")
    for words in (["memory", "list"], ["memory", "list", "--json"], ["memory", "search", "evil"]):
        out = ctl(shared_daemon, *words).out
        assert not set(out) & set("\u202e\u2069\u2800"), words
        assert "s\u200dw" not in out, words
        assert FAMILY in out, words
    assert "\u202e" in ctl(shared_daemon, "memory", "list", "--json").json["memories"][0]["content"]
    narrow = ctl(shared_daemon, "memory", "list", COLUMNS="34").out
    assert narrow.count("👩") in (0, 2)


def test_rpc_calls_any_method(shared_daemon: DaemonProcess, filled: RawConnection) -> None:
    assert ctl(shared_daemon, "rpc", "session.list", '{"limit": 1}').json["sessions"][0]["id"] == "s-1"
    assert ctl(shared_daemon, "rpc", "search", "-", typed='{"query": "login"}').json["hits"]
    wrong = ctl(shared_daemon, "rpc", "session.lst")
    assert wrong.code == 2
    assert "session.list" in wrong.err
    assert ctl(shared_daemon, "rpc", "session.list", '{"limit": "x"}').code == 2


def test_commands_for_what_only_rpc_had(shared_daemon: DaemonProcess, rpc: RawConnection, tmp_path: Path) -> None:
    def run(*words: str, typed: str = "") -> str:
        ran = ctl(shared_daemon, *words, typed=typed)
        assert ran.code == 0, ran.err
        return ran.out

    one, two = (rpc.call("memory.add", content=text)["memory"]["id"] for text in ("Postgres holds data", "Blue logo"))
    run("entity", "add", "PostgreSQL", "--type", "technology", "--summary", "The database")
    run("entity", "add", "Pg", "--type", "technology")
    assert "mentions" in run("entity", "link", one, "Pg", "--role", "subject")
    assert "PostgreSQL" in run("entity", "merge", "Pg", "PostgreSQL")
    assert "Postgres holds data" in run("entity", "show", "PostgreSQL")
    assert "PostgreSQL" in run("entity", "list", "--query", "postgre")
    assert "Deleted PostgreSQL and 1 link." in run("entity", "delete", "PostgreSQL", "--yes")
    relation = json.loads(run("relation", "add", one, "related_to", two, "--json"))["id"]
    assert "RELATED_TO" in run("relation", "list", "--memory", one)
    run("relation", "close", relation)
    assert ctl(shared_daemon, "relation", "list", "--memory", one).err == "No relations.\n"
    assert "has salience" in run("memory", "reinforce", one, "--amount", "0.5")
    assert "has salience" in run("memory", "deemphasize", one)
    assert "is now global, in scope custom:x" in run("memory", "promote", one, "--scope", "custom:x")
    run("skill", "create", "bisect", "--description", "Find it", "--instructions", "-", typed="git bisect start")
    assert "version 2" in run("skill", "edit", "bisect", "--tag", "git")
    assert "git bisect start" in run("skill", "show", "bisect")
    run("skill", "delete", "bisect", "--yes")
    run("thread", "post", "refund", "The parcel arrived.")
    assert "The parcel arrived." in run("thread", "messages", "refund")
    run("client-settings", "set", "plugin", "theme", "dark")
    assert run("client-settings", "get", "plugin", "theme") == '"dark"\n'
    assert "dark" in run("client-settings", "list", "plugin")
    assert run("client-settings", "delete", "plugin", "theme") == "Deleted 1 setting.\n"
    summary = ctl(shared_daemon, "memory", "summarize", "refund")
    assert summary.code == 1
    assert "model" in summary.err
