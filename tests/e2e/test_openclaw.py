"""The real OpenClaw with our plugin: afterwards the database holds exactly what happened, and no trace is left."""

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harnesses import CACHE, Machine, Stored, answers, holds_in_time, imported, machine
from e2e.mock_model import Reply, Use
from e2e.openclaw import OpenClaw, needs_switch, node_program, openclaw_program
from helpers.daemon import RawConnection

pytestmark = [needs_switch, pytest.mark.timeout(1500)]

PROMPTS = {
    "build": "[[build]] write a greeting into a file",
    "again": "[[again]] now go on",
    "child": "[[child]] delegate this to a helper",
    "main": "[[main]] begin the day",
    "main again": "[[main]] go on with it",
    "ask": "[[ask]] what was written into the greeting file?",
}


def scripts(project: Path) -> dict[str, list[Reply]]:
    greeting = str(project / "greeting.txt")
    return {
        "build": [
            Reply("Let me look.", [Use("exec", {"command": "echo looked"})]),
            Reply("", [Use("exec", {"command": "echo oops >&2; exit 3"})]),
            Reply("", [Use("write", {"path": greeting, "content": "hello\n"})]),
            Reply("", [Use("read", {"path": str(project / "missing.txt")})]),
            Reply("The greeting is written."),
        ],
        "again": [Reply("Going on.")],
        "child": [
            Reply("", [Use("sessions_spawn", {"task": "say that it is done", "label": "helper"})]),
            Reply("The helper was started."),
        ],
        "main": [Reply("A new day.")],
        "ask": [
            Reply("", [Use("memory_search", {"query": "what does the parrot eat"})]),
            Reply("", [Use("memory_get", {"path": "MEMORY.md", "from": 3, "lines": 1})]),
            Reply("I remember."),
        ],
    }


def test_what_happened_is_what_is_stored_and_is_offered_back() -> None:
    with machine(scripts) as here:
        (here.project / "MEMORY.md").write_text("# Memory\n\nThe parrot eats walnuts.\n")
        openclaw = OpenClaw(here, node_program(), openclaw_program()).set_up()
        before = openclaw.config.read_bytes()
        openclaw.plugin("install", "--yes", "--memory-slot")
        with openclaw.gateway():
            openclaw.turn("work", PROMPTS["build"])  # the daemon is away: its hooks write to the spool
            here.daemon.start()
            openclaw.turn("work", PROMPTS["again"])
            with here.daemon.connect() as connection:
                holds_in_time(lambda: check(here, connection))
                openclaw.compact("work")
                openclaw.turn("team", PROMPTS["child"])
                holds_in_time(lambda: check_child(connection))
                holds_in_time(lambda: check_compaction(connection))
                check_heartbeat(here, openclaw, connection)
                openclaw.turn("later", PROMPTS["ask"])
                holds_in_time(lambda: check_recall(here, connection))
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check_ended(connection))
            stored = rows(connection)
            assert set(imported(connection, "openclaw").values()) == {0}, "capture has missed nothing"
            assert rows(connection) == stored
        openclaw.plugin("uninstall")
        left = json.loads(openclaw.config.read_text())
        left.pop("meta", None)  # OpenClaw's own note
        assert left == json.loads(before)
        assert named(openclaw.folder) == []


def by_prompt(connection: RawConnection, name: str) -> dict[str, Any]:
    found = [one for one in connection.call("session.list")["sessions"] if one.get("userPrompt") == PROMPTS[name]]
    assert len(found) == 1, found
    return dict(found[0])


def check(here: Machine, connection: RawConnection) -> None:
    stored, session = Stored(connection), by_prompt(connection, "build")
    assert (session["source"], session["model"], session["provider"]) == ("openclaw", "mock-model", "mock")
    assert session["projectPath"] == str(here.project)
    assert stored.prompts(session["id"]) == [PROMPTS["build"], PROMPTS["again"]]
    assert stored.answers(session["id"]) == answers(here.model.of("build", "again"))
    tools = [
        (tool["toolName"], tool["success"], tool.get("errorMessage"), tool.get("filePath"))
        for tool in stored.tools(session["id"])
    ]
    missing = str(here.project / "missing.txt")
    assert tools == [
        ("exec", True, None, None),
        ("exec", False, "exit code 3", None),
        ("write", True, None, str(here.project / "greeting.txt")),
        ("read", False, f"File not found: {missing}.", missing),
    ]


def check_compaction(connection: RawConnection) -> None:
    [compaction] = connection.call("session.compactions", sessionId=by_prompt(connection, "build")["id"])
    assert compaction["summary"]
    assert compaction["tokensBefore"] > 0


def check_child(connection: RawConnection) -> None:
    parent = by_prompt(connection, "child")
    children = [
        one
        for one in connection.call("session.list")["sessions"]
        if (one.get("metadata") or {}).get("parentId") == parent["id"]
    ]
    assert [child["userPrompt"] for child in children] == ["say that it is done"]
    assert Stored(connection).prompts(parent["id"]) == [PROMPTS["child"]]


def check_heartbeat(here: Machine, openclaw: OpenClaw, connection: RawConnection) -> None:
    """A heartbeat asks the model in the name of the user, and is not stored as a prompt."""
    openclaw.turn("main", PROMPTS["main"])
    asked = len(here.model.said)
    openclaw.wake("the build has finished")
    holds_in_time(lambda: model_was_asked(here, asked))
    openclaw.turn("main", PROMPTS["main again"])
    session = by_prompt(connection, "main")
    holds_in_time(lambda: has_prompts(connection, session["id"], [PROMPTS["main"], PROMPTS["main again"]]))


def model_was_asked(here: Machine, times: int) -> None:
    assert len(here.model.said) > times


def has_prompts(connection: RawConnection, session_id: str, prompts: list[str]) -> None:
    assert Stored(connection).prompts(session_id) == prompts


def check_recall(here: Machine, connection: RawConnection) -> None:
    """A later session is told of the first one, and its memory tools are answered by the daemon."""
    first, later = by_prompt(connection, "build"), by_prompt(connection, "ask")
    asked, searched, read = here.model.of("ask")
    assert f"[{first['id']}]" in connection.call("session.injections", sessionId=later["id"])[0]["text"]
    assert first["id"] in json.dumps(asked.request)
    assert "clankers-memory" in json.dumps(asked.request), "the skill is listed"
    tools = [tool["function"]["name"] for tool in asked.request["tools"]]
    assert any("clankers" in name and name.endswith("remember") for name in tools), tools
    assert Stored(connection).prompts(later["id"]) == [PROMPTS["ask"]]
    assert "MEMORY.md#L" in json.dumps(searched.request)
    results = [message for message in read.request["messages"] if message["role"] == "tool"]
    assert '"text": "The parrot eats walnuts."' in results[-1]["content"]
    assert [tool["success"] for tool in Stored(connection).tools(later["id"])] == [True, True]


def check_ended(connection: RawConnection) -> None:
    """The gateway has stopped, so every session that a user had has ended."""
    for name in ("build", "child", "ask"):
        assert by_prompt(connection, name)["status"] == "ended"


def rows(connection: RawConnection) -> list[Any]:
    tables = ("messages", "tools", "session_errors", "compaction_events")
    return [connection.call("query", sql=f"SELECT * FROM {table} ORDER BY id", limit=1000)["rows"] for table in tables]


def named(folder: Path) -> list[str]:
    """The files of OpenClaw that name us, except those that hold conversations."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".sqlite" not in path.name]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return [name for name, content in contents.items() if b"clankers" in content.replace(bytes(CACHE), b"")]
