"""A real daemon process on a real socket and a real database file, for tests and benchmarks."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clankers_protocol.framing import Decoder, frame
from helpers.engines import database_environment

READY_WITHIN = 30

KEPT_BY_SQLITE = 2
"""Descriptors of closed connections, one to read and one to write, which SQLite keeps for the next: while another
connection of the process is open, closing a file would drop that one's locks. The first daily backup leaves one."""


class RawConnection:
    """A socket with framing and nothing else, to send what a client never would."""

    def __init__(self, path: Path, timeout: float = 30) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.notifications: list[dict[str, Any]] = []
        self._decoder = Decoder()
        self._bodies: list[bytes] = []
        self._next_id = 0

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Any) -> None:
        """Send anything as JSON in a frame."""
        self.socket.sendall(frame(json.dumps(message).encode()))

    def receive(self) -> Any:
        """The next message, or None at the end of the connection."""
        while not self._bodies:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._bodies.extend(self._decoder.feed(data))
        return json.loads(self._bodies.pop(0))

    def request(self, method: str, params: Any = ...) -> dict[str, Any]:
        """The whole reply to one request; params left out when not given."""
        self._next_id += 1
        message = {"jsonrpc": "2.0", "id": self._next_id, "method": method}
        self.send(message if params is ... else message | {"params": params})
        while (reply := self.receive()) is not None and "id" not in reply:
            self.notifications.append(reply)
        assert reply is not None, f"the daemon hung up on {method}"
        assert reply["id"] == self._next_id
        return dict(reply)

    def call(self, method: str, **params: Any) -> Any:
        """The result of one request; an error reply fails the test."""
        reply = self.request(method, params)
        assert "error" not in reply, reply["error"]
        return reply["result"]


class DaemonProcess:
    """One `clankersd` in a folder of its own."""

    program: tuple[str, ...] = ("-m", "clankersd")

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        self.data = home / "clankers"
        self.socket_path = self.data / "dxta-clankers.sock"
        self.database = self.data / "clankers.db"
        self.logs = self.data / "logs"
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CLANKERS_")},
            "CLANKERS_DATA_PATH": str(home),
            "CLANKERS_CONFIG_PATH": str(home / "clankers.toml"),
            "PYTHONFAULTHANDLER": "1",  # see `wait`
            "CLANKERS_HOOK_AUTOSTART": "false",  # a daemon that a test did not start would outlive it
            **database_environment(home),
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str, wait: bool = True) -> "DaemonProcess":
        self.process = subprocess.Popen(
            [sys.executable, *self.program, *flags],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        assert self.process
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"clankersd exited with {self.process.returncode}: {self.errors()}")
            try:
                with self.connect() as connection:
                    connection.request("health")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError("clankersd did not become ready")

    def connect(self, timeout: float = 30) -> RawConnection:
        return RawConnection(self.socket_path, timeout)

    def errors(self) -> str:
        assert self.process
        assert self.process.stderr
        return self.process.stderr.read().decode()

    def signal(self, number: int) -> None:
        assert self.process
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """The exit code; of a daemon that does not end, the test's failure tells what it was doing."""
        assert self.process
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)
            raise AssertionError(f"clankersd did not end within {timeout:g} s:\n{self.errors()}") from None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()


@contextmanager
def running_daemon(home: Path, *flags: str, **environ: str) -> Iterator[DaemonProcess]:
    """A daemon that is ready inside the block and gone after it."""
    daemon = DaemonProcess(home, **environ)
    try:
        yield daemon.start(*flags)
    finally:
        daemon.close()
