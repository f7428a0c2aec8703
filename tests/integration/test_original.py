"""The nine methods of the original clankers daemon, with its shapes, codes and messages."""

from typing import Any

import pytest
from helpers.daemon import DaemonProcess

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

ENVELOPE = {"schemaVersion": "v1", "client": {"name": "opencode-plugin", "version": "0.1.0"}}


def test_health_has_ok_and_version(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        result = connection.request("health")["result"]
    assert result["ok"] is True
    assert result["version"] == "0.1.0"


def test_database_is_there_and_named(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        assert connection.request("getDbPath")["result"] == {"dbPath": str(shared_daemon.database)}
        assert connection.call("ensureDb") == {"dbPath": str(shared_daemon.database), "created": False}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("upsertSession", {"session": {"id": "s", "title": "t", "createdAt": 1700000000000, "cost": 0}}),
        ("upsertMessage", {"message": {"id": "m", "sessionId": "s", "role": "user", "textContent": "hi"}}),
        ("upsertTool", {"tool": {"id": "t", "sessionId": "s", "toolName": "Bash", "success": True}}),
        ("upsertSessionError", {"sessionError": {"id": "e", "sessionId": "s", "errorType": "x"}}),
        ("upsertCompactionEvent", {"compactionEvent": {"id": "c", "sessionId": "s", "tokensBefore": 9}}),
        ("log.write", {"entry": {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "component": "c",
                                 "message": "m", "requestId": "r", "context": {"a": 1}}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("envelope", [ENVELOPE, {}, {"unheardOf": True}])
def test_every_event_is_answered_with_ok(
    shared_daemon: DaemonProcess, method: str, params: dict[str, Any], envelope: dict[str, Any]
) -> None:
    with shared_daemon.connect() as connection:
        assert connection.request(method, envelope | params)["result"] == {"ok": True}


WHOLE = {
    "upsertSession": ("session", "session", {"id": "x"}),
    "upsertMessage": ("message", "message", {"id": "x", "sessionId": "s"}),
    "upsertTool": ("tool", "tool", {"id": "x", "sessionId": "s", "toolName": "Bash"}),
    "upsertSessionError": ("sessionError", "session error", {"id": "x", "sessionId": "s"}),
    "upsertCompactionEvent": ("compactionEvent", "compaction event", {"id": "x", "sessionId": "s"}),
}
LACKING = [(method, field) for method, (_, _, whole) in WHOLE.items() for field in whole]


@pytest.mark.parametrize("absent", ["absent", "empty"])
@pytest.mark.parametrize(("method", "field"), LACKING)
def test_missing_required_field_is_4001_and_named(
    shared_daemon: DaemonProcess, method: str, field: str, absent: str
) -> None:
    key, words, whole = WHOLE[method]
    event = {name: value for name, value in whole.items() if name != field}
    if absent == "empty":
        event[field] = ""
    with shared_daemon.connect() as connection:
        error = connection.request(method, {key: event})["error"]
        assert error == {"code": 4001, "message": f"invalid {words} payload", "data": {"field": field}}
        assert connection.call("session.list")["sessions"] == []


@pytest.mark.parametrize("method", [*WHOLE, "log.write"])
def test_missing_params_and_wrong_types_are_32602(shared_daemon: DaemonProcess, method: str) -> None:
    key = WHOLE[method][0] if method in WHOLE else "entry"
    with shared_daemon.connect() as connection:
        assert connection.request(method)["error"] == {"code": -32602, "message": "missing params"}
        wrong_params: list[Any] = [{key: 5}, {key: []}, {key: {"id": 5, "message": 5}}, []]
        for wrong in wrong_params:
            error = connection.request(method, wrong)["error"]
            assert error["code"] == -32602
            assert error["message"].startswith("invalid params: ")


def test_unknown_method_is_32601_and_named(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        error = connection.request("upsertEverything", {})["error"]
    assert error == {"code": -32601, "message": "method not found: upsertEverything"}


def test_logged_line_lands_in_the_log_with_component_and_request_id(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        connection.call("log.write", **ENVELOPE, entry={"level": "warn", "message": "odd", "requestId": "r-1"})
        connection.call("log.write", **ENVELOPE, entry={"level": "debug", "message": "below the level"})
    logged = "".join(path.read_text() for path in shared_daemon.logs.glob("*.jsonl"))
    assert '"component":"opencode-plugin","message":"odd"' in logged
    assert '"requestId":"r-1"' in logged
    assert "below the level" not in logged


def test_half_a_character_at_a_cut_does_not_lose_the_event(shared_daemon: DaemonProcess) -> None:
    """The original plugin cuts tool output at 10,240 UTF-16 units, perhaps inside a character."""
    with shared_daemon.connect() as connection:
        connection.call("upsertTool", tool={"id": "t", "sessionId": "s", "toolName": "Bash", "toolOutput": "\ud83d"})
        (tool,) = connection.call("tool.list", sessionId="s")["tools"]
    assert tool["toolOutput"] == "\ufffd"
