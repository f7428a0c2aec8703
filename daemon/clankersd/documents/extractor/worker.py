"""The daemon's side of the extraction process: start it when needed, end it when idle or stuck."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import msgspec

from clankersd.documents.extractor.records import Done, Failed, Message, Task, Window
from clankersd.documents.files import ExtractionError
from clankersd.processes.child import read_messages, write_message
from clankersd.processes.parent import ChildProcess, ProcessEnded

IDLE_SECONDS = 60.0
MAX_TASKS_PER_PROCESS = 1000
"""A new process is started after this many documents, because the parsing libraries may leak memory."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_SPOOL_MEMORY_BYTES = 4 * 1024 * 1024

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Extracted:
    """The windows of an extracted document, spooled in memory, or on disk if there are many."""

    def __init__(self, spool: IO[bytes], done: Done) -> None:
        self._spool = spool
        self.done = done

    def windows(self) -> Iterator[Window]:
        """Yield text and chunks from the beginning; blocks, so call it in a thread."""
        self._spool.seek(0)
        for data in read_messages(self._spool):
            window = _decoder.decode(data)
            assert isinstance(window, Window)
            yield window


class Worker:
    """One extraction process, which handles one document at a time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._process: ChildProcess | None = None
        self._tasks = 0
        self._last_used = 0.0

    @asynccontextmanager
    async def extracted(self, task: Task, body: bytes, folder: Path) -> AsyncIterator[Extracted]:
        """Extract a document; the result exists for the duration of the block, in `folder` if it is large.

        Raises ExtractionError.
        """
        with tempfile.SpooledTemporaryFile(MAX_SPOOL_MEMORY_BYTES, dir=str(folder)) as spool:
            async with self._lock:
                done = await self._extract(task, body, spool)
            yield Extracted(spool, done)

    async def run(self) -> None:
        """End the process when it has been idle for IDLE_SECONDS, and with the daemon."""
        try:
            while True:
                await anyio.sleep(IDLE_SECONDS / 4)
                if self._process and not self._lock.locked() and anyio.current_time() > self._last_used + IDLE_SECONDS:
                    async with self._lock:
                        await self._end()
        finally:
            await self._end()

    async def _extract(self, task: Task, body: bytes, spool: IO[bytes]) -> Done:
        try:
            with anyio.fail_after(task.seconds):
                done = await self._exchange(task, body, spool)
        except TimeoutError:
            await self._end()
            raise ExtractionError(f"it took longer than {task.seconds} seconds: see document_seconds") from None
        except ProcessEnded:
            await self._end()
            raise ExtractionError("extracting it ended the process: the file may be broken or hostile") from None
        except BaseException:  # the reply is only partly read, so the process cannot be used again
            await self._end()
            raise
        self._last_used = anyio.current_time()
        if isinstance(done, Failed):
            raise ExtractionError(done.reason)
        return done

    async def _exchange(self, task: Task, body: bytes, spool: IO[bytes]) -> Done | Failed:
        if self._tasks >= MAX_TASKS_PER_PROCESS:
            await self._end()
        if self._process is None or not self._process.is_alive:
            self._process = await ChildProcess.start("clankersd.documents.extractor.process", MAX_MESSAGE_BYTES)
            self._tasks = 0
        self._tasks += 1
        await self._process.send(msgspec.msgpack.encode(task), then=body)
        while True:
            data = await self._process.receive()
            message = _decoder.decode(data)
            if not isinstance(message, Window):
                return message
            write_message(spool, data)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.kill()
