"""Readers of OpenClaw: occasions for recall, results of tools, and damaged entries of transcripts."""

from typing import Any

import pytest
from backports import zstd

from clankersd.capture.events import ToolReported
from clankersd.capture.harnesses import find_occasion
from clankersd.capture.harnesses.openclaw.entries import read_message
from clankersd.capture.harnesses.openclaw.storage import MAX_ENTRY_BYTES, decode_entry


def occasion(prompt: str, **event: Any) -> Any:
    context = {"sessionId": "s", "workspaceDir": "/w"}
    return find_occasion(
        "openclaw", {"hook": "before_prompt_build", "event": {"prompt": prompt, **event}, "ctx": context}
    )


def test_prompt_is_an_occasion_for_recall() -> None:
    found = occasion("Why is it slow?", compacted=True)
    assert (found.session, found.project, found.prompt, found.trigger) == ("s", "/w", "Why is it slow?", "compact")
    assert occasion("Why is it slow?").trigger == "prompt"
    assert found.starts_with_prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "[Inter-session message] sourceSession=…",
        "A background task completed. …",
        "[OpenClaw heartbeat poll]",
        "[OpenClaw cron wake]",
        "Follow the heartbeat monitor scratch context when provided. …",
        "Read HEARTBEAT.md if it exists (workspace context). …",
    ],
)
def test_prompts_that_openclaw_writes_itself_are_not_stored_and_no_occasion(prompt: str) -> None:
    assert occasion(prompt) is None
    assert read_message({"role": "user", "content": prompt}, "s", 1) == []
    assert occasion("[Subagent Context] You are …") is None
    woken = {"role": "user", "content": "anything", "provenance": {"kind": "internal_system"}}
    assert read_message(woken, "s", 1) == []


@pytest.mark.parametrize("answer", ["NO_REPLY", "HEARTBEAT_OK\n"])
def test_answer_to_a_heartbeat_that_nobody_sees_is_not_stored(answer: str) -> None:
    assert read_message({"role": "assistant", "content": [{"type": "text", "text": answer}]}, "s", 1) == []
    assert read_message({"role": "assistant", "content": [{"type": "text", "text": f"Not {answer}"}]}, "s", 1)


@pytest.mark.parametrize(
    ("message", "success", "error"),
    [
        ({"details": {"status": "completed", "exitCode": 0}, "isError": False}, True, None),
        ({"details": {"status": "completed", "exitCode": 3}, "isError": False}, False, "exit code 3"),
        ({"details": {"status": "running"}, "isError": False}, None, None),
        ({"details": {"error": "boom"}, "isError": True}, False, "boom"),
        ({"isError": True}, False, "said"),
    ],
)
def test_result_of_a_tool_tells_whether_it_succeeded(
    message: dict[str, Any], success: bool | None, error: str | None
) -> None:
    given = {"role": "toolResult", "toolCallId": "c", "toolName": "exec", "content": [{"type": "text", "text": "said"}]}
    [event] = read_message(given | message, "s", 1)
    assert isinstance(event, ToolReported)
    assert (event.tool.success, event.tool.error_message, event.tool.tool_output) == (success, error, "said")


@pytest.mark.parametrize(
    "stored",
    [None, "", "[]", "{", 7, b"no zstd", zstd.compress(b"{"), zstd.compress(b'{"a": 1}')[:-3]],
)
def test_damaged_entry_is_none(stored: Any) -> None:
    assert decode_entry(stored) is None


def test_entry_is_decoded_plain_and_compressed_within_a_limit() -> None:
    assert decode_entry('{"a": 1}') == decode_entry(zstd.compress(b'{"a": 1}')) == {"a": 1}
    bomb = b'{"a": "' + b"x" * MAX_ENTRY_BYTES + b'"}'
    assert decode_entry(zstd.compress(bomb)) is None
