"""Connections beyond the limits are refused with an error that they can read, and leave nothing behind."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.ctl import ctl
from helpers.daemon import KEPT_BY_SQLITE, DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually

from clankers_protocol.framing import MAX_FRAME, frame

LIMIT = 16
PER_PROCESS = LIMIT // 2
HOLD = """
import socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for one in held:
    one.connect(sys.argv[1])
    one.sendall(b'Content-Length: 42\\r\\n\\r\\n{"jsonrpc":"2.0","id":1,"method":"health"}')
answers = [one.recv(1000) for one in held]
print(sum(b'"result"' in answer for answer in answers), flush=True)
sys.stdin.read()
"""
"""Holds connections until its standard input ends, and prints how many were admitted."""


@pytest.fixture(scope="module")
def limited_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that admits few connections, for all tests of this file."""
    limit = {"CLANKERS_MAX_CONNECTIONS": str(LIMIT)}
    with running_daemon(tmp_path_factory.mktemp("d"), CLANKERS_EMBEDDER="none", **limit) as process:
        yield process


@pytest.fixture(autouse=True)
def _nobody_else_is_connected(limited_daemon: DaemonProcess) -> Iterator[None]:
    yield
    eventually(lambda: connections(limited_daemon) == 1, "all other connections are closed")


def connections(daemon: DaemonProcess) -> int:
    with connect_in_turn(daemon) as connection:
        reply = connection.request("daemon.status", {})
    return int(reply["result"]["connections"]) if "result" in reply else -1


def connect_in_turn(daemon: DaemonProcess) -> RawConnection:
    """Connect, however many others are waiting to be accepted."""
    while True:
        try:
            return daemon.connect()
        except BlockingIOError:
            time.sleep(0.001)


def admitted(stack: ExitStack, daemon: DaemonProcess, count: int) -> list[RawConnection]:
    held = [stack.enter_context(daemon.connect()) for _ in range(count)]
    for connection in held:
        assert connection.call("health")["ok"]
    return held


def hold_elsewhere(stack: ExitStack, daemon: DaemonProcess, count: int) -> int:
    """Have another process open connections until the stack is closed; returns how many were admitted."""
    holder = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(daemon.socket_path), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    assert holder.stdin
    assert holder.stdout
    stack.callback(holder.stdin.close)
    return int(holder.stdout.readline())


def test_one_process_cannot_hold_all_connections(limited_daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        held = admitted(stack, limited_daemon, PER_PROCESS)
        with limited_daemon.connect() as extra:
            error = extra.receive()["error"]
            assert error["code"] == 5002
            assert f"process {os.getpid()}" in error["message"]
            assert extra.receive() is None
        assert hold_elsewhere(stack, limited_daemon, 1) == 1
        held.pop().socket.close()
        eventually(lambda: connections(limited_daemon) > 0, "a place is free")


def test_newcomer_gets_in_when_others_hold_all_they_may(limited_daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        assert hold_elsewhere(stack, limited_daemon, LIMIT) == PER_PROCESS
        assert hold_elsewhere(stack, limited_daemon, LIMIT) == LIMIT - PER_PROCESS - LIMIT // 8
        assert ctl(limited_daemon, "health").code == 0
        (connection,) = admitted(stack, limited_daemon, 1)
        with limited_daemon.connect() as second:
            assert second.receive()["error"]["code"] == 5002
        assert connection.call("health")["ok"]


def test_refused_client_reads_why_even_after_it_has_written(limited_daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        admitted(stack, limited_daemon, PER_PROCESS)
        for size in (100, 300_000, MAX_FRAME):
            with limited_daemon.connect() as extra:
                extra.socket.sendall(frame(b'{"jsonrpc":"2.0","id":1,"method":"health"}'.ljust(size)))
                assert extra.receive()["error"]["code"] == 5002
                assert extra.receive() is None


def test_client_that_sends_too_much_reads_why_even_after_it_has_written(limited_daemon: DaemonProcess) -> None:
    with limited_daemon.connect() as connection:
        connection.socket.sendall(b"Content-Length: %d\r\n\r\n" % (MAX_FRAME + 1) + b"x" * MAX_FRAME)
        assert connection.receive()["error"]["code"] == -32700
        assert connection.receive() is None


def test_many_refused_clients_that_stay_do_not_keep_descriptors(limited_daemon: DaemonProcess) -> None:
    with ExitStack() as stack:
        admitted(stack, limited_daemon, PER_PROCESS)
        before = descriptors(limited_daemon)
        for _ in range(300):
            stack.enter_context(connect_in_turn(limited_daemon))
        eventually(lambda: descriptors(limited_daemon) <= before + KEPT_BY_SQLITE, "refused connections are closed")


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_ten_thousand_connections_leave_nothing_behind(limited_daemon: DaemonProcess) -> None:
    def churn(count: int) -> None:
        for number in range(count):
            with connect_in_turn(limited_daemon) as connection:
                if number % 3 == 0:
                    connection.socket.sendall(b"Content-Length: 5000000\r\n\r\n{")
                elif number % 3 == 1:
                    connection.send({"jsonrpc": "2.0", "id": 1, "method": "health"})
        eventually(lambda: connections(limited_daemon) == 1, "all connections are closed")

    churn(2_000)
    descriptors_before, resident_before = descriptors(limited_daemon), resident(limited_daemon)
    churn(10_000)
    # The daemon may still be closing the connection that asked for the count.
    eventually(
        lambda: descriptors(limited_daemon) <= descriptors_before + KEPT_BY_SQLITE, "their descriptors are closed"
    )
    assert resident(limited_daemon) < resident_before + 16 * 1024 * 1024


def descriptors(daemon: DaemonProcess) -> int:
    assert daemon.process
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def resident(daemon: DaemonProcess) -> int:
    assert daemon.process
    return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
