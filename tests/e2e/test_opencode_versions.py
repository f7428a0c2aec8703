"""The oldest OpenCode that is supported, with the plugin that `clankers-ctl` installs."""

from pathlib import Path

import pytest
from e2e.harnesses import (
    OPENCODE_VERSIONS,
    Machine,
    OpenCode,
    Stored,
    answers,
    holds_in_time,
    machine,
    opencode_binary,
    tokens,
)
from e2e.mock_model import Reply, Use
from helpers.daemon import RawConnection

pytestmark = pytest.mark.timeout(600)


def scripts(project: Path) -> dict[str, list[Reply]]:
    return {
        "build": [
            Reply("Let me look.", [Use("bash", {"command": "echo looked", "description": "Look"})]),
            Reply("", [Use("read", {"filePath": str(project / "missing.txt")})]),
            Reply("", [Use("clankers_search", {"query": "greeting"})]),
            Reply("The greeting is written."),
        ]
    }


def test_opencode_of_the_oldest_version_is_captured_exactly_and_left_without_a_trace() -> None:
    with machine(scripts) as here:
        here.daemon.start()
        opencode = OpenCode(here, opencode_binary(OPENCODE_VERSIONS[0])).set_up()
        session = opencode.run("[[build]] write a greeting")
        with here.daemon.connect() as connection:
            holds_in_time(lambda: check(here, connection, session))
        opencode.plugin("status")
        opencode.plugin("uninstall")
        assert list((here.home / ".config").rglob("*clankers*")) == []


def check(here: Machine, connection: RawConnection, session: str) -> None:
    stored = Stored(connection)
    assert [prompt.strip('"\n') for prompt in stored.prompts(session)] == ["[[build]] write a greeting"]
    assert stored.answers(session) == answers(here.model.of("build"))
    tools = [(tool["toolName"], tool["success"]) for tool in stored.tools(session)]
    assert tools == [("bash", True), ("read", False), ("clankers_search", True)]
    row = connection.call("session.get", id=session)
    assert (row["promptTokens"], row["completionTokens"]) == tokens(here.model.of("build"))
