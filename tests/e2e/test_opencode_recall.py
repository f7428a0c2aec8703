"""What is recalled reaches the model through the real OpenCode, and does not end up in what was said."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harnesses import Machine, OpenCode, machine, opencode_binary
from e2e.mock_model import Reply, Use

pytestmark = pytest.mark.timeout(600)

KNOWN = "The login cookie lacks the Secure attribute, so that Safari drops it."
PROMPT = "[[ask]] why does Safari drop the login cookie?"


def scripts(_project: Path) -> dict[str, list[Reply]]:
    look = Use("bash", {"command": "sleep 2", "description": "Look"})
    return {"ask": [Reply("", [look]), Reply("Because of the attribute.")]}


@pytest.fixture
def opencode_machine() -> Iterator[Machine]:
    opencode_binary()
    with machine(scripts) as made:
        made.daemon.start()
        yield made


def test_what_is_recalled_stands_beside_the_prompt_in_the_request_only(opencode_machine: Machine) -> None:
    with opencode_machine.daemon.connect() as connection:
        told = [
            {"session": {"id": "before", "projectPath": str(opencode_machine.project), "title": "Login"}},
            {"message": {"id": "m", "sessionId": "before", "role": "assistant", "textContent": KNOWN}},
        ]
        for event in told:
            connection.call("hook.event", harness="generic", event=event)
        session = OpenCode(opencode_machine, opencode_binary()).set_up().run(PROMPT)

        # OpenCode does not wait for it: on a slow machine it may come with the turn's second request.
        *_, asked = [said.request for said in opencode_machine.model.said if said.script == "ask"]
        (spoken,) = [message for message in asked["messages"] if message["role"] == "user"]
        assert KNOWN in json.dumps(spoken, ensure_ascii=False)
        (prompt,) = connection.call("message.list", sessionId=session, role="user")["messages"]
        assert KNOWN not in prompt["textContent"]
        assert "m" in [
            known for each in connection.call("session.injections", sessionId=session) for known in each["ids"]
        ]
