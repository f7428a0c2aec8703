"""Processes that run `query`: started on demand, reused, ended when idle, killed at the deadline."""

import struct
import subprocess
import sys

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from clankers_protocol.errors import DeadlineExceeded, Overloaded, QueryRefused
from clankers_protocol.framing import MAX_FRAME
from clankersd.admin.query_process import READY, Answer, Refused, Result, Task, TimedOut
from clankersd.db.errors import read_unavailable
from clankersd.wire.fair_limiter import FairLimiter

MAX_PROCESSES = 2
MAX_WAITING = 64
KILL_DELAY_SECONDS = 0.5
"""Time after the deadline before a process that did not interrupt its own statement is killed."""

START_TIMEOUT_SECONDS = 20.0
IDLE_SECONDS = 60.0
_PROCESS_ENDED = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError)

_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class _Process:
    """One child process and the pipes to it."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout
        self.used_at = anyio.current_time()
        self._process = process
        self._output = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls) -> "_Process":
        """Start a process and wait until it is ready; raises Overloaded if it does not become ready."""
        process = cls(
            await anyio.open_process(
                [sys.executable, "-m", "clankersd.admin.query_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the daemon's terminal is for the daemon
            )
        )
        try:
            with anyio.fail_after(START_TIMEOUT_SECONDS):
                await process._output.receive_exactly(len(READY))
        except (TimeoutError, *_PROCESS_ENDED) as error:
            await process.kill()
            raise Overloaded("overloaded: the process that runs queries cannot be started") from error
        except BaseException:
            await process.kill()
            raise
        return process

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, task: Task) -> Answer:
        """Send a task and return its answer."""
        assert self._process.stdin
        encoded = msgspec.msgpack.encode(task)
        await self._process.stdin.send(struct.pack(">I", len(encoded)) + encoded)
        size = struct.unpack(">I", await self._output.receive_exactly(4))[0]
        if size > MAX_FRAME:
            raise anyio.EndOfStream
        self.used_at = anyio.current_time()
        return _decoder.decode(await self._output.receive_exactly(size))

    async def kill(self) -> None:
        """End the process and wait for its end, also while the daemon stops."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            await self._process.aclose()


class QueryPool:
    """Runs statements, a few at a time, in processes of their own."""

    def __init__(self) -> None:
        self._turns = FairLimiter("queries", MAX_PROCESSES, MAX_WAITING)
        self._idle: list[_Process] = []

    async def query(self, task: Task, connection: object) -> msgspec.Raw:
        """Return the rows of a statement as JSON.

        Callers wait for a free process in turns by `connection`; raises Overloaded when too many wait.
        """
        async with self._turns.turn(connection):
            answer = await self._ask(task)
        if isinstance(answer, Result):
            return msgspec.Raw(answer.json)
        if isinstance(answer, Refused):
            raise QueryRefused(answer.message, answer.suggestions and {"suggestions": answer.suggestions})
        if isinstance(answer, TimedOut):
            raise _too_slow(task)
        raise read_unavailable(answer.problem)

    async def run(self) -> None:
        """End processes that were idle for a while, and all of them when the daemon stops."""
        try:
            while True:
                await anyio.sleep(IDLE_SECONDS / 4)
                expired = [one for one in self._idle if anyio.current_time() > one.used_at + IDLE_SECONDS]
                self._idle = [one for one in self._idle if one not in expired]
                for process in expired:
                    await process.kill()
        finally:
            idle, self._idle = self._idle, []
            for process in idle:
                await process.kill()

    async def _ask(self, task: Task) -> Answer:
        process = await self._ready_process()
        try:
            with anyio.fail_after(task.seconds + KILL_DELAY_SECONDS):
                answer = await process.ask(task)
        except TimeoutError:
            await process.kill()
            raise _too_slow(task) from None
        except _PROCESS_ENDED as error:
            await process.kill()
            raise QueryRefused("the statement ended the process that ran it: ask for less") from error
        except BaseException:  # its answer is only partly read
            await process.kill()
            raise
        self._idle.append(process)
        return answer

    async def _ready_process(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            await process.kill()
        return await _Process.start()


def _too_slow(task: Task) -> DeadlineExceeded:
    return DeadlineExceeded(f"the answer took longer than {task.seconds:g} s: ask for less")
