"""Lines of session files that were not recorded: forks, compactions, titles, and the chats of older versions."""

import json
from pathlib import Path
from typing import Any

from clankers_protocol.events import CompactionEvent
from clankersd.capture.events import (
    CapturedEvent,
    CompactionReported,
    MessageReported,
    SessionNote,
    SessionReported,
    ToolReported,
)
from clankersd.capture.harnesses import HARNESSES, find_occasion

AT = "2026-11-17T12:00:00.000Z"
LATER = "2026-11-17T12:00:05.000Z"


def read(harness: str, *lines: dict[str, Any]) -> list[CapturedEvent]:
    make_reader = HARNESSES[harness].transcript_reader
    assert make_reader
    reader = make_reader("given", {}, 0)
    for offset, line in enumerate(lines):
        reader.read_line(offset, line)
    reader.end(len(lines))
    return reader.events


def texts(events: list[CapturedEvent]) -> list[str | None]:
    return [event.message.text_content for event in events if isinstance(event, MessageReported)]


def compactions(events: list[CapturedEvent]) -> list[CompactionEvent]:
    return [event.compaction for event in events if isinstance(event, CompactionReported)]


def notes(events: list[CapturedEvent]) -> list[dict[str, Any]]:
    return [event.facts for event in events if isinstance(event, SessionNote)]


def titles(events: list[CapturedEvent]) -> list[str | None]:
    return [event.session.title for event in events if isinstance(event, SessionReported)]


def qwen_line(kind: str, uuid: str, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "sessionId": "s", "timestamp": AT, "type": kind, "cwd": "/p", **more}


def qwen_prompt(uuid: str, text: str, **more: Any) -> dict[str, Any]:
    return qwen_line("user", uuid, provenance="real_user", message={"parts": [{"text": text}]}, **more)


def test_qwen_fork_has_only_what_is_new_in_it() -> None:
    copy = {"forkedFrom": {"sessionId": "original", "messageUuid": "u1"}}
    events = read("qwen", qwen_prompt("u1", "old", **copy), qwen_prompt("u2", "new"))
    assert texts(events) == ["new"]
    assert notes(events) == [{"startedBy": "fork", "forkedFrom": "original"}]


def test_qwen_compression_has_its_summary_and_tokens() -> None:
    info = {"originalTokenCount": 900, "newTokenCount": 90, "triggerReason": "manual"}
    history = [{"role": "user", "parts": [{"text": "<state_snapshot>\nIt was written.\n</state_snapshot>\nResume."}]}]
    payload = {"info": info, "compressedHistory": history}
    line = qwen_line("system", "c1", subtype="chat_compression", systemPayload=payload)
    (found,) = compactions(read("qwen", qwen_prompt("u1", "hello"), line))
    assert (found.tokens_before, found.tokens_after, found.cause) == (900, 90, "manual")
    assert found.summary == "It was written."


def test_qwen_title_and_injected_context_are_told_apart_from_the_prompt() -> None:
    context = "\n<qwen:user-prompt-submit-context>\nrecalled\n</qwen:user-prompt-submit-context>"
    title = qwen_line("system", "t1", subtype="custom_title", systemPayload={"customTitle": "Greetings"})
    events = read("qwen", qwen_prompt("u1", f"hello{context}"), title)
    assert (texts(events), titles(events)) == (["hello"], ["Greetings"])


def copilot_line(kind: str, number: int, **data: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"e{number}", "timestamp": AT, "data": data}


def test_copilot_compaction_has_its_summary_cause_and_tokens() -> None:
    counts = {"preCompactionTokens": 900, "postCompactionTokens": 90, "summaryContent": "It was written."}
    events = read(
        "copilot",
        copilot_line("session.start", 1, sessionId="s", context={"cwd": "/p"}),
        copilot_line("user.message", 2, content="hello"),
        copilot_line("user.message", 3, content="how to read PDF files", source="skill-pdf"),
        copilot_line("session.compaction_complete", 4, success=False),
        copilot_line("session.compaction_start", 5, trigger="manual"),
        copilot_line("session.compaction_complete", 6, success=True, **counts),
    )
    (found,) = compactions(events)
    assert (found.tokens_before, found.tokens_after, found.cause) == (900, 90, "manual")
    assert (found.summary, texts(events)) == ("It was written.", ["hello"])


def pi_line(kind: str, line_id: str, at: str = LATER, **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": line_id, "timestamp": at, **more}


def test_pi_fork_has_only_what_is_new_in_it_and_its_compaction() -> None:
    header = {"type": "session", "id": "s", "timestamp": LATER, "cwd": "/p", "parentSession": "/x/2026_original.jsonl"}
    events = read(
        "pi",
        header,
        pi_line("message", "1", AT, message={"role": "user", "content": "old"}),
        pi_line("message", "2", message={"role": "user", "content": "new"}),
        pi_line("compaction", "3", summary="It was written.", tokensBefore=900),
        pi_line("session_info", "4", name="Greetings"),
    )
    assert (texts(events), titles(events)) == (["new"], ["Greetings"])
    assert notes(events) == [{"startedBy": "fork", "forkedFrom": "original"}]
    (found,) = compactions(events)
    assert (found.id, found.tokens_before, found.summary) == ("s-3", 900, "It was written.")


def test_pi_answer_has_its_cost_and_thoughts() -> None:
    usage = {"input": 10, "cacheRead": 5, "cacheWrite": 1, "output": 7, "cost": {"total": 0.25}}
    blocks = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]
    answer = {"role": "assistant", "content": blocks, "usage": usage, "model": "m"}
    header = {"type": "session", "id": "s", "timestamp": AT, "cwd": "/p"}
    events = read("pi", header, pi_line("message", "1", message=answer))
    (message,) = (event.message for event in events if isinstance(event, MessageReported))
    assert (message.text_content, message.prompt_tokens, message.completion_tokens) == ("Yes.", 16, 7)
    assert message.metadata == {"reasoning": "Hm.", "costUsd": 0.25}


def test_pi_session_without_a_file_is_not_captured() -> None:
    context = {"sessionId": "s", "cwd": "/p"}
    payload = {"event": {"type": "before_agent_start", "prompt": "hello"}, "ctx": context}
    assert HARNESSES["pi"].read_hook(payload, 1).events == []
    payload["ctx"] = context | {"sessionFile": "/home/user/.pi/agent/sessions/x/1_s.jsonl"}
    assert len(HARNESSES["pi"].read_hook(payload, 1).events) == 2


def test_gemini_chat_of_an_older_version_is_imported(tmp_path: Path) -> None:
    call = {"id": "c1", "name": "read_file", "args": {"path": "a"}, "status": "success", "resultDisplay": "text"}
    messages = [
        {"id": "m1", "timestamp": AT, "type": "user", "content": "read it"},
        {"id": "m2", "timestamp": LATER, "type": "gemini", "content": "It says text.", "toolCalls": [call]},
    ]
    chat = {"sessionId": "s", "projectHash": "1f", "startTime": AT, "lastUpdated": LATER, "messages": messages}
    path = tmp_path / "tmp" / "1f" / "chats" / "session-2025-11-17T12-00-s.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(chat | {"summary": "Reading"}, indent=2))
    gemini = HARNESSES["gemini"]
    assert gemini.find_history
    assert gemini.read_history
    (past,) = gemini.find_history([tmp_path], 0)
    history = gemini.read_history(past)
    assert history.malformed == 0
    assert (texts(history.events), titles(history.events)) == (["read it", "It says text."], ["Reading"])
    (tool,) = (event.tool for event in history.events if isinstance(event, ToolReported))
    assert (tool.id, tool.tool_output, tool.success) == ("s-c1", "text", True)


def test_qwen_recalls_for_prompts_but_not_after_tools() -> None:
    payload = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": "/p"}
    assert find_occasion("qwen", payload | {"prompt": ""}) is None
    found = find_occasion("qwen", payload | {"prompt": "hello"})
    assert found
    assert found.hook_output("x") == {
        "hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "x"}
    }


def test_copilot_recalls_at_the_start_and_for_prompts_of_the_user() -> None:
    payload = {"sessionId": "s", "cwd": "/p"}
    start = find_occasion("copilot", payload | {"hookEventName": "sessionStart", "source": "new"})
    prompt = find_occasion("copilot", payload | {"hookEventName": "userPromptSubmitted", "prompt": "hello"})
    compaction = find_occasion("copilot", payload | {"hookEventName": "preCompact"})
    assert start
    assert prompt
    assert compaction
    assert (start.kind, start.trigger, start.hook_output("x")) == ("start", "startup", {"additionalContext": "x"})
    assert (prompt.kind, prompt.prompt, prompt.starts_with_prompt) == ("prompt", "hello", True)
    assert (compaction.trigger, compaction.is_answered) == ("compact", False)
    agent = {"hookEventName": "userPromptSubmitted", "prompt": "task", "agentId": "a", "parentAgentId": "s"}
    assert find_occasion("copilot", payload | agent) is None
    assert find_occasion("copilot", payload | {"hookEventName": "agentStop"}) is None


def test_pi_recalls_for_prompts_and_notes_compactions() -> None:
    context = {"sessionId": "s", "cwd": "/p"}
    prompt = find_occasion("pi", {"event": {"type": "before_agent_start", "prompt": "hello"}, "ctx": context})
    compaction = find_occasion("pi", {"event": {"type": "session_compact"}, "ctx": context})
    assert prompt
    assert compaction
    assert (prompt.kind, prompt.starts_with_prompt, prompt.hook_output("x")) == ("prompt", True, {"text": "x"})
    assert (compaction.trigger, compaction.is_answered) == ("compact", False)
    assert find_occasion("pi", {"event": {"type": "turn_end"}, "ctx": context}) is None
