"""Extraction of summaries: parts, limits, and what is left out."""

import pytest

from clankersd.memories.extraction.rules import SessionMessage, ToolCall
from clankersd.recall.summaries.extract import MAX_SUMMARY_CHARACTERS, SessionRows, Summary, changed_files, extract


def call(name: str, given: str = "{}", *, success: bool | None = True, path: str | None = None) -> ToolCall:
    return ToolCall(message_id=None, name=name, input=given, success=success, error="", path=path, at=0)


def command(line: str, *, success: bool) -> ToolCall:
    return call("Bash", f'{{"command": "{line}"}}', success=success)


def rows(*calls: ToolCall) -> SessionRows:
    return SessionRows("/p", ["Fix the rounding of the exporter."], [], list(calls))


def test_summary_of_a_question_and_an_answer_is_none() -> None:
    messages = [
        SessionMessage("1", "user", "Why is the sky blue at noon?", 1),
        SessionMessage("2", "assistant", "Rayleigh scattering.", 2),
    ]
    assert extract(SessionRows("/p", ["Why is the sky blue at noon?"], messages, [])) is None


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([command("make test", success=False), command("make test", success=True)], "worked: `make test`."),
        (
            [command("uv pip sync", success=False), command("uv pip sync a.txt", success=True)],
            "worked: `uv pip sync` (as `uv pip sync a.txt`).",
        ),
        ([command("make test", success=False)], "Open: `make test` still fails."),
        ([command("make test", success=True), command("make test", success=False)], "Open: `make test` still fails."),
        (
            [call("TodoWrite", '{"todos": [{"content": "a", "status": "completed"}, {"content": "b"}]}')],
            "Open: b.",
        ),
        ([call("update_plan", '{"plan": [{"step": "write docs", "status": "pending"}]}')], "Open: write docs."),
    ],
)
def test_summary_follows_commands_and_plans(calls: list[ToolCall], line: str) -> None:
    assert str(extract(rows(*calls))).endswith(line)


def test_changed_files_are_those_of_successful_edits_and_of_every_part_of_a_patch() -> None:
    patch = r'{"command": "*** Begin Patch\n*** Update File: a.py\n@@\n*** Add File: sub/b.py\n+x\n*** End Patch"}'
    calls = [
        call("Write", path="/p/w.py"),
        call("Edit", path="/p/refused.py", success=False),
        call("Read", path="/p/read.py"),
        call("mcp__fs__write_file", path="/p/m.py"),
        call("apply_patch", patch, path="/p/a.py"),
    ]
    assert changed_files(calls) == ["/p/w.py", "/p/m.py", "/p/a.py", "/p/sub/b.py"]


@pytest.mark.parametrize("number", [1, 12, 40, 5000])
def test_summary_with_long_parts_and_many_files_keeps_its_limit(number: int) -> None:
    long = "many words " * 40
    files = [f"packages/component/src/feature_{each}/implementation_{each}.py" for each in range(number)]
    summary = Summary(long, long, [long, long], files, [long], [long, long]).render()
    assert summary is not None
    assert len(summary) <= MAX_SUMMARY_CHARACTERS
    shown = summary.split("Changed: ")[1].split("\n")[0]
    assert "implementation_0.py" in shown
    named = shown.count("implementation_")
    assert named == number or f"and {number - named} more." in shown
