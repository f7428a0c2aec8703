"""The daemon's side of a child process: start it, exchange messages with it, end it."""

import subprocess
import sys

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from clankersd.processes.child import LENGTH

_ENDED = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError)


class ProcessEnded(Exception):
    """The process has ended, or sent what is no message."""


class ChildProcess:
    """A process that runs one of our modules, and the pipes to it. Every message follows its length."""

    def __init__(self, process: anyio.abc.Process, max_message_bytes: int) -> None:
        assert process.stdin
        assert process.stdout
        self._process = process
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)
        self._max_message_bytes = max_message_bytes

    @classmethod
    async def start(cls, module: str, max_message_bytes: int) -> "ChildProcess":
        process = await anyio.open_process(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the daemon's terminal is for the daemon
        )
        return cls(process, max_message_bytes)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def send(self, message: bytes, then: bytes = b"") -> None:
        """Send a message, and other bytes after it; raises ProcessEnded."""
        try:
            await self._input.send(LENGTH.pack(len(message)) + message + then)
        except _ENDED as error:
            raise ProcessEnded from error

    async def receive(self) -> bytes:
        """Return the next message; raises ProcessEnded."""
        try:
            size = LENGTH.unpack(await self._output.receive_exactly(LENGTH.size))[0]
            if size > self._max_message_bytes:
                raise ProcessEnded
            return await self._output.receive_exactly(size)
        except _ENDED as error:
            raise ProcessEnded from error

    async def kill(self) -> None:
        """End the process and wait for its end, also while the daemon stops."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            await self._process.aclose()
