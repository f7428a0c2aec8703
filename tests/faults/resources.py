"""Faults around the daemon: clock, embedder, descriptors, memory, clients, and a process that is stopped."""

import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.daemon import DaemonProcess
from helpers.embedding_service import Answer, Request, Service, embeddings, say
from helpers.store import message
from helpers.waiting import eventually
from tests.faults.harness import NOTHING, Run, encoded_request, fault

from clankers_protocol.framing import MAX_FRAME

FAULT_SECONDS = 1.0
FRAME_SECONDS = 15.0
"""How long a client waits for its turn to send a large frame, and for the reply."""

CONNECTIONS = 10_000
LARGEST_FRAME_CLIENTS = 64
MAX_GROWTH_BYTES = 1_500 * 1024 * 1024
"""Growth that 64 clients with the largest frames may cause: the budgets of decision 14, and what decoding takes."""


@fault("clock jumps 10 days ahead and back", "the daemon's clock set while it runs", make_daemon=ClockedDaemon)
def move_clock(run: Run) -> frozenset[str]:
    assert isinstance(run.daemon, ClockedDaemon)
    for days in (10, -10, 0):
        run.daemon.set_clock(days * DAY_SECONDS)
        run.begin_writing()
    return NOTHING


class UnreliableService:
    """An embedding service whose behaviour the fault changes."""

    mode = "good"

    def __call__(self, request: Request) -> Answer:
        if self.mode == "slow":
            time.sleep(2)
        if self.mode == "lying":
            return say({"data": [{"index": 0, "embedding": ["x", None]}]})
        if self.mode == "failing":
            return Answer(500, b"no")
        return embeddings(request)


class EmbeddingDaemon(DaemonProcess):
    """A daemon with a remote embedder that the fault controls."""

    def __init__(self, home: Path) -> None:
        self.behaviour = UnreliableService()
        self.service = Service(self.behaviour)
        self._thread = threading.Thread(target=self.service.server.serve_forever, daemon=True)
        self._thread.start()
        super().__init__(
            home,
            CLANKERS_EMBEDDER="openai",
            CLANKERS_EMBEDDER_URL=self.service.url,
            CLANKERS_EMBEDDER_MODEL="m",
            CLANKERS_BACKUP_HOURS="0",
        )

    def hang_up(self) -> None:
        self.service.over.set()
        self.service.server.shutdown()
        self.service.server.server_close()


@fault("embedder slow, lying, failing, then down", "a remote embedder, 1 s each", make_daemon=EmbeddingDaemon)
def break_embedder(run: Run) -> frozenset[str]:
    assert isinstance(run.daemon, EmbeddingDaemon)
    for mode in ("slow", "lying", "failing"):
        run.daemon.behaviour.mode = mode
        time.sleep(FAULT_SECONDS)
    run.daemon.hang_up()
    run.begin_writing()
    with run.daemon.connect() as connection:
        found = connection.call("search", query="word")
        assert found["degraded"], "the search does not say that vectors are missing"
    return NOTHING


@contextmanager
def limited(run: Run, kind: int, value: int) -> Iterator[None]:
    assert run.daemon.process
    pid = run.daemon.process.pid
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (value, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


@fault("out of descriptors", "RLIMIT_NOFILE at what is open, while 50 clients connect, for 1 s")
def exhaust_descriptors(run: Run) -> frozenset[str]:
    assert run.daemon.process
    open_now = len(list(Path(f"/proc/{run.daemon.process.pid}/fd").iterdir()))
    with limited(run, resource.RLIMIT_NOFILE, open_now), ExitStack() as stack:
        for _ in range(50):
            with suppress(OSError):
                stack.enter_context(run.daemon.connect(timeout=0.1))
        time.sleep(FAULT_SECONDS)
    return NOTHING


@fault("out of memory", "RLIMIT_AS at 32 MB more than it has, while 8 clients send 8 MB each")
def exhaust_memory(run: Run) -> frozenset[str]:
    assert run.daemon.process
    pages = int(Path(f"/proc/{run.daemon.process.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 32 * 1024 * 1024
    with limited(run, resource.RLIMIT_AS, limit):
        send_large_frames(run, clients=8, size_bytes=8 * 1024 * 1024)
    return NOTHING


@fault("64 clients send the largest frames", "32 MiB each at once, one in eight an event; clients leave after 15 s")
def send_largest_frames(run: Run) -> frozenset[str]:
    before = run.resident_bytes()
    send_large_frames(run, LARGEST_FRAME_CLIENTS, MAX_FRAME - 4096)
    growth = run.resident_bytes("VmHWM") - before
    run.notes.append(f"the daemon's memory grew by at most {growth / 1e6:.0f} MB")
    assert growth < MAX_GROWTH_BYTES, run.notes
    return NOTHING


def send_large_frames(run: Run, clients: int, size_bytes: int) -> None:
    """Send one large frame from each of several connections, and read the replies."""
    text = "x" * (size_bytes - 300)
    event = encoded_request("upsertMessage", message=message("large", "large", text))
    refused = encoded_request("memory.add", content=text)

    def send(body: bytes) -> None:
        with suppress(OSError), run.daemon.connect(FRAME_SECONDS) as connection:  # or leave
            connection.socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            connection.receive()

    threads = [threading.Thread(target=send, args=(refused if n % 8 else event,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@fault("10,000 connections opened and dropped", "half of them in the middle of a frame")
def open_and_drop(run: Run) -> frozenset[str]:
    for number in range(CONNECTIONS):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(run.daemon.socket_path))
                if number % 2:
                    connection.sendall(b"Content-Length: 100\r\n\r\n{")
            except OSError:
                time.sleep(0.001)  # the backlog is full
    eventually(lambda: can_connect(run), "the daemon accepts connections")
    return NOTHING


def can_connect(run: Run) -> bool:
    try:
        run.daemon.connect().socket.close()
    except OSError:
        return False
    return True


@fault("clients that send one byte a second", "40 connections for 3 s")
def drip(run: Run) -> frozenset[str]:
    with ExitStack() as stack:
        slow = [stack.enter_context(run.daemon.connect()) for _ in range(40)]
        for byte in b"Con":
            for connection in slow:
                connection.socket.sendall(bytes([byte]))
            time.sleep(1)
        run.begin_writing()
    return NOTHING


@fault("SIGSTOP and SIGCONT", "stopped for 1 s")
def stop_and_continue(run: Run) -> frozenset[str]:
    run.daemon.signal(signal.SIGSTOP)
    time.sleep(FAULT_SECONDS)
    run.daemon.signal(signal.SIGCONT)
    return NOTHING
