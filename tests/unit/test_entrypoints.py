"""How a session was started, as harnesses say it: by a person, a script, an SDK or a schedule."""

import json
from collections import Counter
from typing import Any

import pytest
from helpers.recorded import CLAUDE, CODEX, needs_fixtures

from clankersd.capture.events import CapturedEvent, SessionNote
from clankersd.capture.harnesses.claude_code.transcripts import ClaudeTranscriptReader
from clankersd.capture.harnesses.codex.rollouts import RolloutReader
from clankersd.capture.harnesses.openclaw.hooks import read_hook


def entrypoints(events: list[CapturedEvent]) -> list[Any]:
    notes = [event.facts.get("entrypoint") for event in events if isinstance(event, SessionNote)]
    return [note for note in notes if note]


@pytest.mark.parametrize(
    ("said", "expected"),
    [(["sdk-cli", "sdk-cli"], "sdk-cli"), (["sdk-cli", "cli"], "cli"), (["cli", "sdk-cli"], "cli"), ([None], None)],
)
def test_claude_session_continued_by_a_person_is_no_script(said: list[str | None], expected: str | None) -> None:
    reader = ClaudeTranscriptReader("s", {}, 0)
    for number, entrypoint in enumerate(said):
        line = {"type": "user", "sessionId": "s", "uuid": str(number), "message": {"role": "user", "content": "Hi"}}
        reader.read_line(number, line | ({"entrypoint": entrypoint} if entrypoint else {}))
    reader.end(9)
    assert entrypoints(reader.events) == ([expected] if expected else [])
    assert reader.state.get("entrypoint") == expected


@needs_fixtures
def test_recorded_sessions_say_how_they_were_started() -> None:
    found: Counter[str] = Counter()
    for path in [*CLAUDE.glob("transcripts/*/*.jsonl"), *CODEX.glob("rollouts/*.jsonl")]:
        lines = path.read_text().splitlines()
        is_codex = CODEX in path.parents
        reader = RolloutReader("x", {}, 0) if is_codex else ClaudeTranscriptReader(path.stem, {}, 0)
        for number, line in enumerate(lines):
            reader.read_line(number, json.loads(line))
        reader.end(len(lines))
        found.update(entrypoints(reader.events))
    assert found["sdk-cli"] > 3
    assert found["exec"] > 3
    assert found["cli"] > 1
    assert set(found) == {"sdk-cli", "exec", "cli"}


@pytest.mark.parametrize(("key", "expected"), [("agent:main:cron:job-1:run:2", ["cron"]), ("agent:main:lab", [])])
def test_openclaw_session_of_a_cron_job_is_marked(key: str, expected: list[str]) -> None:
    context = {"sessionId": "s", "sessionKey": key, "workspaceDir": "/p", "trigger": "user"}
    payload = {"hook": "before_prompt_build", "event": {"prompt": "x"}, "ctx": context}
    assert entrypoints(read_hook(payload, 1).events) == expected
