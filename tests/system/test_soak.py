"""Mixed load with kills and faults loses nothing; many events leave memory, log and descriptors where they were."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import KEPT_BY_SQLITE, DaemonProcess, RawConnection
from helpers.store import message, request
from helpers.waiting import eventually
from tests.soak.__main__ import soak

from clankers_protocol.framing import frame

EVENTS = 200_000
BATCH = 1000
PIPELINED = 50
WAL_LIMIT = 160_000_000  # a checkpoint is due at 16 MiB and a commit may add to that
TEXT = "what was said " * 6


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def steady_descriptors(pid: int) -> int:
    """The number of descriptors once the daemon's services have begun, each with its own."""
    before, now = -1, descriptors(pid)
    while now != before:
        time.sleep(1)
        before, now = now, descriptors(pid)
    return now


@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.soak
def test_memory_log_and_descriptors_stay_bounded_over_200000_events(fresh_daemon: DaemonProcess) -> None:
    assert fresh_daemon.process
    pid = fresh_daemon.process.pid
    descriptors_before = steady_descriptors(pid)
    memory: list[int] = []
    largest_wal = 0
    sent = 0
    connections = [fresh_daemon.connect(60) for _ in range(3)]
    while sent < EVENTS:
        sent += store_round(connections, sent)
        memory.append(resident(pid))
        largest_wal = max(largest_wal, Path(f"{fresh_daemon.database}-wal").stat().st_size)
    status = connections[0].call("daemon.status")
    for connection in connections:
        connection.socket.close()

    assert status["counts"]["messages"] == sent
    first_quarter = max(memory[: len(memory) // 4])
    second_half = max(memory[len(memory) // 2 :])
    assert second_half < first_quarter * 1.3 + 10e6, memory
    assert largest_wal < WAL_LIMIT
    eventually(lambda: descriptors(pid) <= descriptors_before + KEPT_BY_SQLITE, "all descriptors are given back")


def store_round(connections: list[RawConnection], first: int) -> int:
    """Store one batch and, beside it, pipelined upserts on two more connections; how many events."""
    names = iter(f"m{number}" for number in range(first, first + BATCH + PIPELINED * 2))
    batch, *pipelined = connections
    batch.send(request(0, "events.batch", events=[{"message": one(next(names))} for _ in range(BATCH)]))
    for connection in pipelined:
        upserts = [request(n, "upsertMessage", message=one(next(names))) for n in range(PIPELINED)]
        connection.socket.sendall(b"".join(frame(json.dumps(upsert).encode()) for upsert in upserts))
    assert batch.receive()["result"]["ok"]
    for connection in pipelined:
        for _ in range(PIPELINED):
            assert connection.receive()["result"] == {"ok": True}
    return BATCH + PIPELINED * 2


def one(name: str) -> dict[str, Any]:
    return message(name, session=f"s{name[:-3]}", text=TEXT)


@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.soak
def test_soak_with_kills_and_faults_loses_nothing(home: Path) -> None:
    run, _ = soak(seconds=40, seed=20, folder=home)
    assert run.differences == []
    assert run.counters.unexpected == []
    assert run.faults["kill -9"]
    assert run.counters.acknowledged > 100


def test_descriptors_are_given_back_after_a_thousand_connections(fresh_daemon: DaemonProcess) -> None:
    assert fresh_daemon.process
    pid = fresh_daemon.process.pid
    with fresh_daemon.connect() as connection:
        connection.call("health")
    before = descriptors(pid)
    for number in range(1000):
        with fresh_daemon.connect() as connection:
            if number % 2:
                connection.call("health")
            else:
                connection.socket.sendall(b"Content-Length: 100\r\n\r\n{")
    eventually(lambda: descriptors(pid) <= before + KEPT_BY_SQLITE, "all descriptors are given back")
