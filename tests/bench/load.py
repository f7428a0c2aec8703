"""A process that loads a server through its socket and prints what it saw as one line of JSON.

It is a process of its own so that its work is not counted as the server's; it waits with a selector and
keeps its frames ready, since on two cores a slow generator would be what is measured.
"""

import argparse
import gc
import json
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.events import batch_frame, upsert_frame

from clankers_protocol.framing import Decoder

BATCH = 500
READY_FRAMES = 12_000


@dataclass
class Caller:
    """One connection with one request under way."""

    socket: socket.socket
    decoder: Decoder = field(default_factory=Decoder)
    sent_at: float = 0.0

    def send(self, frame: bytes) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(frame)

    def replies(self) -> list[bytes]:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server hung up")
        return list(self.decoder.feed(data))


@dataclass
class Seen:
    """Seconds that each request took, and all of them together."""

    seconds: float
    latencies: list[float]
    failures: int = 0

    def as_json(self) -> str:
        ordered = sorted(self.latencies)
        count = len(ordered)
        return json.dumps(
            {
                "requests": count,
                "seconds": self.seconds,
                "p50": ordered[count // 2],
                "p99": ordered[min(count - 1, count * 99 // 100)],
                "failures": self.failures,
            }
        )


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def persistent(path: Path, connections: int, frames: Iterator[bytes], seconds: float) -> Seen:
    """Every connection sends its next request as soon as it has the reply to the last."""
    selector = selectors.DefaultSelector()
    callers = [Caller(connected(path)) for _ in range(connections)]
    for caller in callers:
        selector.register(caller.socket, selectors.EVENT_READ, caller)
    latencies: list[float] = []
    failures = 0
    began = time.perf_counter()
    for caller in callers:
        caller.send(next(frames))
    under_way = connections
    while under_way:
        for key, _ in selector.select():
            caller = key.data
            for reply in caller.replies():
                now = time.perf_counter()
                latencies.append(now - caller.sent_at)
                failures += b'"error":{' in reply[:200]
                frame = next(frames, None) if now - began < seconds else None
                if frame is None:
                    under_way -= 1
                else:
                    caller.send(frame)
    return Seen(time.perf_counter() - began, latencies, failures)


def per_call(path: Path, frames: Iterator[bytes], seconds: float) -> Seen:
    """One connection for each request."""
    latencies: list[float] = []
    failures = 0
    began = time.perf_counter()
    while (frame := next(frames, None)) and time.perf_counter() - began < seconds:
        start = time.perf_counter()
        caller = Caller(connected(path))
        caller.send(frame)
        while not (replies := caller.replies()):
            pass
        caller.socket.close()
        latencies.append(time.perf_counter() - start)
        failures += b'"error":{' in replies[0][:200]
    return Seen(time.perf_counter() - began, latencies, failures)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["persistent", "per-call", "batch"])
    parser.add_argument("socket", type=Path)
    parser.add_argument("prefix")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument(
        "--frames", type=int, default=READY_FRAMES, help="requests to prepare; it ends when none is left"
    )
    given = parser.parse_args()
    if given.mode == "batch":
        ready = [batch_frame(given.prefix, number * BATCH, BATCH) for number in range(40)]
    else:
        ready = [upsert_frame(given.prefix, number) for number in range(given.frames)]
    gc.freeze()
    gc.disable()  # a pause of the generator would count as the server's
    frames = iter(ready)
    if given.mode == "per-call":
        seen = per_call(given.socket, frames, given.seconds)
    else:
        seen = persistent(given.socket, given.connections, frames, given.seconds)
    print(seen.as_json())


if __name__ == "__main__":
    main()
