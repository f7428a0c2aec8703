"""Processes that run `query`: started on demand, reused, ended when idle, killed at the deadline."""

import anyio
import msgspec

from clankers_protocol.errors import DeadlineExceeded, Overloaded, QueryRefused
from clankers_protocol.framing import MAX_FRAME
from clankersd.admin.query_process import Answer, Refused, Result, Task, TimedOut
from clankersd.db.errors import read_unavailable
from clankersd.processes.parent import ChildProcess, ProcessEnded
from clankersd.wire.fair_limiter import FairLimiter

MAX_PROCESSES = 2
MAX_WAITING = 64
KILL_DELAY_SECONDS = 0.5
"""Time after the deadline before a process that did not interrupt its own statement is killed."""

START_TIMEOUT_SECONDS = 20.0
IDLE_SECONDS = 60.0

_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class _Process:
    """One child process that answers tasks."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.used_at = anyio.current_time()

    @classmethod
    async def start(cls) -> "_Process":
        """Start a process and wait until it is ready; raises Overloaded if it does not become ready."""
        child = await ChildProcess.start("clankersd.admin.query_process", MAX_FRAME)
        try:
            with anyio.fail_after(START_TIMEOUT_SECONDS):
                await child.receive()  # an empty message
        except (TimeoutError, ProcessEnded) as error:
            await child.kill()
            raise Overloaded("overloaded: the process that runs queries cannot be started") from error
        except BaseException:
            await child.kill()
            raise
        return cls(child)

    async def ask(self, task: Task) -> Answer:
        """Send a task and return its answer."""
        await self.child.send(msgspec.msgpack.encode(task))
        answer = await self.child.receive()
        self.used_at = anyio.current_time()
        return _decoder.decode(answer)


class QueryPool:
    """Runs statements, a few at a time, in processes of their own."""

    def __init__(self) -> None:
        self._slots = FairLimiter("queries", MAX_PROCESSES, MAX_WAITING)
        self._idle: list[_Process] = []

    async def query(self, task: Task, connection: object) -> msgspec.Raw:
        """Return the rows of a statement as JSON.

        Callers wait for a free process in turns by `connection`; raises Overloaded when too many wait.
        """
        async with self._slots.slot(connection):
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
                    await process.child.kill()
        finally:
            idle, self._idle = self._idle, []
            for process in idle:
                await process.child.kill()

    async def _ask(self, task: Task) -> Answer:
        process = await self._ready_process()
        try:
            with anyio.fail_after(task.seconds + KILL_DELAY_SECONDS):
                answer = await process.ask(task)
        except TimeoutError:
            await process.child.kill()
            raise _too_slow(task) from None
        except ProcessEnded as error:
            await process.child.kill()
            raise QueryRefused("the statement ended the process that ran it: ask for less") from error
        except BaseException:  # its answer is only partly read
            await process.child.kill()
            raise
        self._idle.append(process)
        return answer

    async def _ready_process(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.child.is_alive:
                return process
            await process.child.kill()
        return await _Process.start()


def _too_slow(task: Task) -> DeadlineExceeded:
    return DeadlineExceeded(f"the answer took longer than {task.seconds:g} s: ask for less")
