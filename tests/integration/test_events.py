"""Capture: partial updates, placeholders, replays, batches."""

from typing import Any

import pytest
from helpers.daemon import RawConnection

FULL = {
    "id": "s", "title": "Fix the parser", "projectPath": "/home/me/parser", "projectName": "parser",
    "model": "m-1", "provider": "p", "source": "opencode", "status": "active", "promptTokens": 100,
    "completionTokens": 50, "cost": 0.25, "messageCount": 4, "toolCallCount": 3, "permissionMode": "auto",
    "createdAt": 1700000000000, "updatedAt": 1700000005000, "endedAt": 1700000009000, "summary": "done",
    "userPrompt": "fix it", "context": {"branch": "main"}, "chatId": "chat", "metadata": {"k": [1, 2]},
}  # fmt: skip


def stored(connection: RawConnection) -> dict[str, Any]:
    session = dict(connection.call("session.get", id="s"))
    return {name: session[name] for name in FULL}


def test_session_is_read_back_as_it_was_sent(rpc: RawConnection) -> None:
    rpc.call("upsertSession", session=FULL)
    assert stored(rpc) == FULL


@pytest.mark.parametrize(
    "partial",
    [
        {"id": "s"},
        {"id": "s", **dict.fromkeys(set(FULL) - {"id"})},
        {"id": "s", **{name: "" for name, value in FULL.items() if isinstance(value, str) and name != "id"}},
        {"id": "s", "title": "Untitled Session", "promptTokens": 0, "completionTokens": 0, "cost": 0,
         "messageCount": 0, "toolCallCount": 0, "createdAt": 1800000000000, "metadata": {}},
    ],
)  # fmt: skip
def test_absent_empty_and_default_values_overwrite_nothing(rpc: RawConnection, partial: dict[str, Any]) -> None:
    rpc.call("upsertSession", session=FULL)
    rpc.call("upsertSession", session=partial)
    assert stored(rpc) == FULL


def test_given_values_replace_and_counters_only_grow(rpc: RawConnection) -> None:
    rpc.call("upsertSession", session=FULL)
    rpc.call(
        "upsertSession",
        session={"id": "s", "title": "New", "status": "ended", "promptTokens": 120, "completionTokens": 10},
    )
    session = stored(rpc)
    assert (session["title"], session["status"]) == ("New", "ended")
    assert (session["promptTokens"], session["completionTokens"]) == (120, 50)


def test_event_before_its_session_makes_a_placeholder_that_the_session_fills(
    rpc: RawConnection,
) -> None:
    message = {"id": "m", "sessionId": "s", "role": "user", "textContent": "hi", "createdAt": 1700000001000}
    rpc.call("upsertMessage", message=message)
    assert rpc.call("session.get", id="s")["title"] is None
    rpc.call("upsertSession", session=FULL | {"updatedAt": None, "endedAt": None})
    session = rpc.call("session.get", id="s")
    assert session["createdAt"] == FULL["createdAt"]
    assert session["title"] == FULL["title"]
    assert session["counts"]["messages"] == 1


@pytest.mark.parametrize(
    ("method", "key", "extra"),
    [
        ("upsertTool", "tool", {"toolName": "Bash"}),
        ("upsertSessionError", "sessionError", {"errorType": "x"}),
        ("upsertCompactionEvent", "compactionEvent", {"tokensBefore": 5}),
    ],
)
def test_every_kind_of_event_may_come_before_its_session(
    rpc: RawConnection, method: str, key: str, extra: dict[str, Any]
) -> None:
    rpc.call(method, **{key: {"id": "e", "sessionId": "later", **extra}})
    assert sum(rpc.call("session.get", id="later")["counts"].values()) == 1


def test_time_a_session_was_first_heard_of_gives_way_to_its_real_one_once(
    rpc: RawConnection,
) -> None:
    rpc.call("upsertSession", session={"id": "s", "status": "busy"})
    rpc.call("upsertSession", session={"id": "s", "createdAt": 1600000000000})
    rpc.call("upsertSession", session={"id": "s", "createdAt": 1500000000000})
    assert rpc.call("session.get", id="s")["createdAt"] == 1600000000000


def test_seconds_are_taken_for_seconds_and_fractions_for_what_they_are(rpc: RawConnection) -> None:
    rpc.call("upsertSession", session={"id": "s", "createdAt": 1700000000.25})
    rpc.call(
        "upsertTool",
        tool={"id": "t", "sessionId": "s", "toolName": "Bash", "durationMs": 12.6, "createdAt": 1700000001},
    )
    assert rpc.call("session.get", id="s")["createdAt"] == 1700000000250
    (tool,) = rpc.call("tool.list", sessionId="s")["tools"]
    assert (tool["durationMs"], tool["createdAt"]) == (13, 1700000001000)


def test_replaying_events_changes_nothing(rpc: RawConnection) -> None:
    events = [
        {"session": FULL},
        {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hello"}},
        {"tool": {"id": "t", "sessionId": "s", "toolName": "Bash", "toolInput": "{}", "success": False}},
        {"sessionError": {"id": "e", "sessionId": "s", "errorMessage": "boom"}},
        {"compactionEvent": {"id": "c", "sessionId": "s", "tokensBefore": 100, "tokensAfter": 10}},
    ]
    rpc.call("events.batch", events=events)
    before = [rpc.call("session.get", id="s"), rpc.call("session.timeline", sessionId="s")]
    for event in events:
        rpc.call("events.batch", events=[event])
    assert [
        rpc.call("session.get", id="s"),
        rpc.call("session.timeline", sessionId="s"),
    ] == before


def test_message_and_a_tool_are_completed_by_later_events(rpc: RawConnection) -> None:
    rpc.call("upsertMessage", message={"id": "m", "sessionId": "s", "role": "assistant", "model": "m-1"})
    rpc.call("upsertMessage", message={"id": "m", "sessionId": "s", "textContent": "done", "promptTokens": 7})
    (message,) = rpc.call("message.list", sessionId="s")["messages"]
    assert (message["role"], message["model"]) == ("assistant", "m-1")
    assert (message["textContent"], message["promptTokens"]) == ("done", 7)
    rpc.call("upsertTool", tool={"id": "t", "sessionId": "s", "toolName": "Edit", "toolInput": "{}"})
    rpc.call("upsertTool", tool={"id": "t", "sessionId": "s", "toolName": "Edit", "success": True})
    (tool,) = rpc.call("tool.list", sessionId="s")["tools"]
    assert (tool["toolInput"], tool["success"]) == ("{}", True)


def test_bad_event_of_a_batch_fails_alone_and_is_reported_in_its_place(rpc: RawConnection) -> None:
    outcome = rpc.call(
        "events.batch",
        events=[
            {"session": {"id": "s"}},
            {"message": {"id": "m"}},
            {"tool": {"id": 5}},
            {"session": {"id": "a"}, "message": {"id": "b"}},
            {},
            {"message": {"id": "m", "sessionId": "s"}},
        ],
    )
    assert outcome["ok"] is False
    assert [one["ok"] for one in outcome["outcomes"]] == [True, False, False, False, False, True]
    assert outcome["outcomes"][1]["error"] == {
        "code": 4001, "message": "invalid message payload", "data": {"field": "sessionId"},
    }  # fmt: skip
    assert [one["error"]["code"] for one in outcome["outcomes"][2:5]] == [-32602] * 3
    assert rpc.call("session.get", id="s")["counts"]["messages"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("promptTokens", -1), ("promptTokens", 2**63), ("cost", -0.5), ("createdAt", -5), ("createdAt", 1e18),
     ("title", 5), ("metadata", "text"), ("id", "x" * 2000)],
)  # fmt: skip
def test_bad_value_is_refused_by_name_and_changes_nothing(rpc: RawConnection, field: str, value: object) -> None:
    rpc.call("upsertSession", session=FULL)
    error = rpc.request("upsertSession", {"session": {"id": "s", "title": "changed", field: value}})["error"]
    assert error["code"] == -32602
    assert f"$.session.{field}" in error["message"]
    assert stored(rpc) == FULL


@pytest.mark.parametrize(
    "text", ["", "\x00 nul", "\u202e right to left", "\U0001f600" * 10, "'; DROP TABLE sessions;--"]
)
def test_any_text_is_kept_as_it_is(rpc: RawConnection, text: str) -> None:
    rpc.call("upsertMessage", message={"id": "m", "sessionId": "s", "textContent": text})
    (message,) = rpc.call("message.list", sessionId="s")["messages"]
    assert message["textContent"] == (text or None)
