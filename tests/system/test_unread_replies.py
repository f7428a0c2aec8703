"""Clients that do not read their replies, or send more than the daemon can hold, cost bounded memory."""

import json
import select
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually

from clankers_protocol.errors import QueryRefused
from clankers_protocol.framing import MAX_FRAME, frame

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the resident set size from /proc")

MIB = 1024 * 1024
REPLY_BYTES = 4 * MIB
CLIENTS = 40
IDLE_BYTES: dict[int, int] = {}
"""Resident set size of each daemon when it was new, by process id."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with one message of 4 MiB, so that a small request gets a large reply."""
    with running_daemon(tmp_path_factory.mktemp("d"), CLANKERS_EMBEDDER="none") as process:
        with process.connect() as connection:
            store(connection, "long", "word " * (REPLY_BYTES // 5))
        assert process.process
        IDLE_BYTES[process.process.pid] = resident(process)
        yield process


def store(connection: RawConnection, session: str, text: str) -> None:
    connection.call("upsertMessage", message={"id": session, "sessionId": session, "textContent": text})


def listing(number: int, session: str = "long") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "message.list", "params": {"sessionId": session}}


def resident(daemon: DaemonProcess, name: str = "VmRSS") -> int:
    """Resident set size in bytes; VmHWM is its peak since `measured` began."""
    assert daemon.process
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name}")


class Growth:
    """Bytes by which the peak resident set size exceeds that of the idle daemon."""

    peak = 0


@contextmanager
def measured(daemon: DaemonProcess) -> Iterator[Growth]:
    """Measure the block against the daemon's size before any of these tests."""
    assert daemon.process
    Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")  # resets VmHWM
    growth = Growth()
    yield growth
    growth.peak = resident(daemon, "VmHWM") - IDLE_BYTES[daemon.process.pid]


def send_without_reading(connection: RawConnection, data: bytes, seconds: float) -> int:
    """Send as much of `data` as the daemon takes before it stops taking anything for `seconds`."""
    sent = 0
    connection.socket.setblocking(False)
    while sent < len(data) and select.select([], [connection.socket], [], seconds)[1]:
        try:
            sent += connection.socket.send(data[sent : sent + MIB])
        except OSError:  # the daemon has hung up
            break
    connection.socket.settimeout(30)
    return sent


def frames(messages: list[Any]) -> bytes:
    return b"".join(frame(json.dumps(one).encode()) for one in messages)


def settle(daemon: DaemonProcess) -> None:
    """Wait until the daemon does no more work: its processor time stands still."""
    assert daemon.process
    stat = Path(f"/proc/{daemon.process.pid}/stat")
    before = -1
    for _ in range(100):
        now = sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
        if now - before <= 1:
            return
        before = now
        time.sleep(0.3)


def test_one_client_that_does_not_read_costs_bounded_memory(filled: DaemonProcess) -> None:
    with measured(filled) as growth, filled.connect() as deaf:
        send_without_reading(deaf, frames([listing(number) for number in range(500)]), 1)
        settle(filled)
    assert growth.peak < 200 * MIB


def test_many_clients_that_do_not_read_cost_bounded_memory_together(filled: DaemonProcess) -> None:
    with measured(filled) as growth, ExitStack() as stack:
        for _ in range(CLIENTS):
            deaf = stack.enter_context(filled.connect())
            send_without_reading(deaf, frames([listing(number) for number in range(100)]), 0.1)
        settle(filled)
        with filled.connect() as other:
            assert other.call("health")["ok"]
            eventually(lambda: "result" in other.request("message.list", {"sessionId": "long"}), "there is room again")
    assert growth.peak < 400 * MIB


def test_batches_that_are_not_read_cost_bounded_memory(filled: DaemonProcess) -> None:
    with measured(filled) as growth, ExitStack() as stack:
        for _ in range(6):
            deaf = stack.enter_context(filled.connect())
            send_without_reading(deaf, frames([[listing(number) for number in range(30)]]), 0.1)
        settle(filled)
    assert growth.peak < 400 * MIB


def test_largest_frames_of_many_clients_cost_bounded_memory(filled: DaemonProcess) -> None:
    """Each sends all but the last byte of the largest frame that is allowed."""
    largest = b"Content-Length: %d\r\n\r\n" % MAX_FRAME + b" " * (MAX_FRAME - 1)
    with measured(filled) as growth, ExitStack() as stack:
        for _ in range(64):
            send_without_reading(stack.enter_context(filled.connect()), largest, 0.05)
        with filled.connect() as other:
            assert other.call("health")["ok"]
    assert growth.peak < 400 * MIB


def test_requests_of_a_client_that_does_not_read_are_not_executed(filled: DaemonProcess) -> None:
    with filled.connect() as deaf, filled.connect() as other:
        deaf.send(listing(1))
        deaf.socket.recv(1)  # its reply has begun to arrive, and does not fit into the socket
        late = {"id": "late", "sessionId": "late", "textContent": "x"}
        deaf.send({"jsonrpc": "2.0", "id": 2, "method": "upsertMessage", "params": {"message": late}})
        for _ in range(20):
            other.call("health")
        assert other.request("message.list", {"sessionId": "late"})["error"]["code"] == 4004
        while b'"id":2' not in deaf.socket.recv(MIB)[-100:]:
            pass
        assert other.call("message.list", sessionId="late")["messages"]


def test_client_that_reads_gets_every_one_of_many_large_replies(filled: DaemonProcess) -> None:
    with filled.connect() as connection:
        connection.socket.sendall(frames([listing(number) for number in range(40)]))
        replies = [connection.receive() for _ in range(40)]
    assert {reply["id"] for reply in replies} == set(range(40))
    assert all(len(reply["result"]["messages"][0]["textContent"]) > REPLY_BYTES - 10 for reply in replies)


def test_replies_of_a_batch_beyond_a_frame_are_errors_and_the_rest_arrives(filled: DaemonProcess) -> None:
    with filled.connect() as connection:
        health = {"jsonrpc": "2.0", "id": "after", "method": "health"}
        connection.send([*(listing(number) for number in range(12)), health])
        replies = {reply["id"]: reply for reply in connection.receive()}
        assert connection.call("health")["ok"]
    assert replies.keys() == {*range(12), "after"}
    refused = [reply["error"] for reply in replies.values() if "error" in reply]
    assert len(refused) == 12 - MAX_FRAME // REPLY_BYTES + 1
    assert {error["code"] for error in refused} == {5002}
    assert "batch" in refused[0]["message"]
    assert replies["after"]["result"]["ok"]


def test_query_with_a_reply_beyond_a_frame_is_refused(filled: DaemonProcess) -> None:
    with filled.connect() as connection:
        error = connection.request("query", {"sql": f"SELECT hex(zeroblob({MAX_FRAME // 2}))"})["error"]
        assert error["code"] == QueryRefused.code
        assert connection.call("health")["ok"]


def test_large_frames_wait_for_room_and_are_all_served(filled: DaemonProcess) -> None:
    """Eight times 24 MiB are more than may be received at once."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "health", "params": {}}).encode()
    large = frame(body.ljust(24 * MIB))
    with measured(filled) as growth, ExitStack() as stack:
        waiting = {stack.enter_context(filled.connect()): 0 for _ in range(8)}
        while unsent := {one.socket: one for one, sent in waiting.items() if sent < len(large)}:
            ready = select.select([], list(unsent), [], 30)[1]
            assert ready, "no connection can go on"
            for raw in ready:
                raw.setblocking(False)
                waiting[unsent[raw]] += raw.send(memoryview(large)[waiting[unsent[raw]] :][:MIB])
                raw.settimeout(30)
        for connection in waiting:
            assert connection.receive()["result"]["ok"]
    assert growth.peak < 400 * MIB


def test_client_that_announces_a_large_frame_and_leaves_gives_its_room_back(filled: DaemonProcess) -> None:
    for _ in range(3):
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(filled.connect()).socket.sendall(b"Content-Length: %d\r\n\r\n{" % MAX_FRAME)
    with filled.connect() as connection:
        connection.socket.sendall(frame(b'{"jsonrpc":"2.0","id":1,"method":"health"}'.ljust(MAX_FRAME)))
        assert connection.receive()["result"]["ok"]


def test_notifications_to_many_clients_that_do_not_read_cost_bounded_memory(filled: DaemonProcess) -> None:
    """Each of 100 subscribers is sent 3 MB: one may leave so much unread, all of them together may not."""
    with measured(filled) as growth, ExitStack() as stack:
        for _ in range(100):
            subscriber = stack.enter_context(filled.connect())
            for _ in range(4):
                subscriber.call("subscribe", kinds=["session"])
        with filled.connect() as writer:
            for number in range(200):
                path = f"/p{number % 7}/{'x' * 3900}"
                writer.call("upsertSession", session={"id": f"s{number}", "projectPath": path})
        settle(filled)
    assert growth.peak < 400 * MIB


def test_frame_of_very_many_json_values_is_refused(filled: DaemonProcess) -> None:
    bomb = b'{"jsonrpc":"2.0","id":1,"method":"health","params":{"x":[' + b"[]," * (10 * MIB) + b"[]]}}"
    with measured(filled) as growth, filled.connect() as connection:
        connection.socket.sendall(frame(bomb))
        assert connection.receive()["error"]["code"] == -32700
        assert connection.call("health")["ok"]
    assert growth.peak < 400 * MIB


def test_long_request_in_a_large_frame_does_not_hold_up_small_ones(filled: DaemonProcess) -> None:
    slow = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    asked = {"jsonrpc": "2.0", "id": "slow", "method": "query", "params": {"sql": slow}}
    with filled.connect() as connection:
        connection.socket.sendall(frame(json.dumps(asked).encode().ljust(2 * MIB)))
        connection.socket.sendall(frame(json.dumps({"jsonrpc": "2.0", "id": "quick", "method": "health"}).encode()))
        assert [connection.receive()["id"] for _ in range(2)] == ["quick", "slow"]


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1])
def test_room_of_finished_frames_is_given_back(filled: DaemonProcess, size: int) -> None:
    """More of them one after another than fit at once."""
    commas = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "health", "params": {"x": ""}})
    body = commas.replace('""', f'"{"," * (size - len(commas))}"').encode()
    with filled.connect() as connection:
        for _ in range(10):
            connection.socket.sendall(frame(body))
            assert "x" in connection.receive()["error"]["message"]
