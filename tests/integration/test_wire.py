"""The wire over a real socket: pipelining, batches, notifications, limits, peers that misbehave."""

import json
import socket
import time

import pytest
from helpers.daemon import DaemonProcess, RawConnection

from clankers_protocol.framing import MAX_FRAME, frame

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test


def test_requests_on_one_connection_are_answered_each_by_its_id(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        for number in range(200):
            connection.send({"jsonrpc": "2.0", "id": f"req-{number}", "method": "health"})
        answered = {connection.receive()["id"] for _ in range(200)}
    assert answered == {f"req-{number}" for number in range(200)}


def test_write_sent_after_another_wins_however_they_are_packed(shared_daemon: DaemonProcess) -> None:
    def titled(title: str) -> dict[str, object]:
        return {"jsonrpc": "2.0", "id": title, "method": "upsertSession",
                "params": {"session": {"id": "s", "title": title}}}  # fmt: skip

    def batched(title: str) -> dict[str, object]:
        return {"jsonrpc": "2.0", "id": title, "method": "events.batch",
                "params": {"events": [{"session": {"id": "s", "title": title}}]}}  # fmt: skip

    with shared_daemon.connect() as connection:
        for round_ in range(30):
            parts = [
                titled(f"{round_}a"),
                [titled(f"{round_}b"), titled(f"{round_}c")],
                batched(f"{round_}d"),
            ]
            parts += [
                [batched(f"{round_}e"), {"jsonrpc": "2.0", "id": 0, "method": "health"}],
                titled(f"{round_}z"),
            ]
            connection.socket.sendall(b"".join(frame(json.dumps(part).encode()) for part in parts))
            for _ in parts:
                connection.receive()
            assert connection_title(shared_daemon) == f"{round_}z"


def connection_title(daemon: DaemonProcess) -> str:
    with daemon.connect() as connection:
        return str(connection.call("session.get", id="s")["title"])


def test_batch_is_answered_as_one_array_without_its_notifications(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        connection.send(
            [
                {"jsonrpc": "2.0", "id": 1, "method": "health"},
                {"jsonrpc": "2.0", "method": "upsertSession", "params": {"session": {"id": "noted"}}},
                {"jsonrpc": "2.0", "id": 2, "method": "nope"},
                17,
            ]
        )
        replies = connection.receive()
        assert sorted(reply["id"] or 0 for reply in replies) == [0, 1, 2]
        assert [reply["error"]["code"] for reply in replies if reply["id"] is None] == [-32600]
        assert connection.call("session.get", id="noted")["id"] == "noted"


@pytest.mark.parametrize("batch", [[], [{"jsonrpc": "2.0", "id": 1, "method": "health"}] * 1001])
def test_empty_or_enormous_batch_is_refused_whole(shared_daemon: DaemonProcess, batch: list[object]) -> None:
    with shared_daemon.connect() as connection:
        connection.send(batch)
        assert connection.receive()["error"]["code"] == -32600
        assert connection.call("health")["ok"]


def test_notification_gets_no_reply_and_its_failure_is_logged(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        connection.send({"jsonrpc": "2.0", "method": "upsertSession", "params": {"session": {}}})
        assert connection.request("health")["result"]["ok"]
    logged = "".join(path.read_text() for path in shared_daemon.logs.glob("*.jsonl"))
    assert "notification failed" in logged
    assert "invalid session payload" in logged


@pytest.mark.parametrize(
    "request_",
    [
        {"id": 1, "method": "health"},
        {"jsonrpc": "1.0", "id": 1, "method": "health"},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": 5},
        {"jsonrpc": "2.0", "id": 1, "method": ["health"]},
        {"jsonrpc": "2.0", "id": {"a": 1}, "method": "health"},
        {"jsonrpc": "2.0", "id": 1, "method": "health", "params": "x"},
        "health",
    ],
)
def test_what_is_no_request_is_told_so(shared_daemon: DaemonProcess, request_: object) -> None:
    with shared_daemon.connect() as connection:
        connection.send(request_)
        assert connection.receive()["error"]["code"] == -32600


def test_client_that_half_closes_still_gets_its_replies(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        for number in range(20):
            connection.send({"jsonrpc": "2.0", "id": number, "method": "upsertMessage",
                             "params": {"message": {"id": f"m{number}", "sessionId": "s"}}})  # fmt: skip
        connection.socket.shutdown(socket.SHUT_WR)
        assert {connection.receive()["id"] for _ in range(20)} == set(range(20))
        assert connection.receive() is None


def test_client_that_dies_before_its_reply_harms_nobody_and_its_event_is_stored(
    shared_daemon: DaemonProcess,
) -> None:
    with shared_daemon.connect() as witness:
        for number in range(20):
            with shared_daemon.connect() as connection:
                connection.send({"jsonrpc": "2.0", "id": 1, "method": "upsertSession",
                                 "params": {"session": {"id": f"left-{number}"}}})  # fmt: skip
        stored: list[dict[str, object]] = []
        for _ in range(200):  # the last ones may still be on their way in
            stored = witness.call("session.list", limit=100)["sessions"]
            if len(stored) == 20:
                break
            time.sleep(0.05)
        assert len(stored) == 20


def test_client_that_never_reads_is_only_slow_for_itself(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as deaf:
        deaf.call("upsertMessage", message={"id": "long", "sessionId": "s", "textContent": "x" * 300_000})
        deaf.socket.settimeout(0.5)
        asking = b'{"jsonrpc":"2.0","id":1,"method":"message.list","params":{"sessionId":"s"}}'
        with pytest.raises(TimeoutError):
            deaf_and_sending(deaf, frame(asking.ljust(50_000)))
        with shared_daemon.connect() as other:
            assert other.call("health")["ok"]


def deaf_and_sending(connection: RawConnection, request: bytes) -> None:
    """Fill every buffer between here and the daemon, until it takes no more."""
    for _ in range(100_000):
        connection.socket.sendall(request)


def test_frame_beyond_the_limit_ends_that_connection_with_a_reason(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        connection.socket.sendall(b"Content-Length: %d\r\n\r\n" % (MAX_FRAME + 1))
        error = connection.receive()["error"]
        assert error["code"] == -32700
        assert str(MAX_FRAME) in error["message"]
        assert connection.receive() is None
    with shared_daemon.connect() as other:
        assert other.call("health")["ok"]


def test_requests_before_a_broken_frame_are_answered(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        good = frame(b'{"jsonrpc":"2.0","id":1,"method":"health"}')
        connection.socket.sendall(good + b"\xff\xfe\r\n\r\n")
        codes = [connection.receive(), connection.receive()]
        assert {reply.get("id") for reply in codes} == {1, None}
        assert connection.receive() is None


def test_body_that_is_not_json_is_told_so_and_the_connection_goes_on(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        connection.socket.sendall(frame(b"\x80"))
        assert connection.receive()["error"]["code"] == -32700
        assert connection.call("health")["ok"]


def test_large_frame_is_taken(shared_daemon: DaemonProcess) -> None:
    text = "x" * (8 * 1024 * 1024)
    with shared_daemon.connect() as connection:
        connection.call("upsertMessage", message={"id": "big", "sessionId": "s", "textContent": text})
        (message,) = connection.call("message.list", sessionId="s")["messages"]
        assert message["textContent"] == text


def test_discovery_is_served(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        document = connection.call("rpc.discover")
    assert "upsertSession" in {method["name"] for method in document["methods"]}


def test_unknown_parameter_of_a_new_method_is_named(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        error = connection.request("session.list", {"projct": "/x"})["error"]
    assert error["code"] == -32602
    assert "projct" in error["message"]


def test_envelope_is_accepted_everywhere(shared_daemon: DaemonProcess) -> None:
    with shared_daemon.connect() as connection:
        page = connection.call("session.list", schemaVersion="v1", client={"name": "x", "version": "1"})
    assert page["sessions"] == []
