"""The daemon's side of the extraction process: start it when needed, end it when idle or stuck."""

import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from clankersd.documents.extractor.records import Done, Failed, Message, Task, Window
from clankersd.documents.files import ExtractionError

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
        while head := self._spool.read(4):
            window = _decoder.decode(self._spool.read(struct.unpack(">I", head)[0]))
            assert isinstance(window, Window)
            yield window


class Worker:
    """One extraction process, which handles one document at a time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._process: anyio.abc.Process | None = None
        self._output: BufferedByteReceiveStream | None = None
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
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _extract(self, task: Task, body: bytes, spool: IO[bytes]) -> Done:
        try:
            with anyio.fail_after(task.seconds):
                done = await self._exchange(task, body, spool)
        except TimeoutError:
            await self._end()
            raise ExtractionError(f"it took longer than {task.seconds} seconds: see document_seconds") from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._end()
            raise ExtractionError("extracting it ended the process: the file may be broken or hostile") from None
        except BaseException:  # the reply is only partly read, so the process cannot be used again
            with anyio.CancelScope(shield=True):
                await self._end()
            raise
        self._last_used = anyio.current_time()
        if isinstance(done, Failed):
            raise ExtractionError(done.reason)
        return done

    async def _exchange(self, task: Task, body: bytes, spool: IO[bytes]) -> Done | Failed:
        if self._tasks >= MAX_TASKS_PER_PROCESS:
            await self._end()
        self._tasks += 1
        process, output = await self._ensure_started()
        assert process.stdin
        encoded = msgspec.msgpack.encode(task)
        await process.stdin.send(struct.pack(">I", len(encoded)) + encoded + body)
        while True:
            head = await output.receive_exactly(4)
            size = struct.unpack(">I", head)[0]
            if size > MAX_MESSAGE_BYTES:
                raise anyio.EndOfStream
            data = await output.receive_exactly(size)
            message = _decoder.decode(data)
            if not isinstance(message, Window):
                return message
            spool.write(head + data)

    async def _ensure_started(self) -> tuple[anyio.abc.Process, BufferedByteReceiveStream]:
        if self._process is None or self._process.returncode is not None or self._output is None:
            self._process = await anyio.open_process(
                [sys.executable, "-m", "clankersd.documents.extractor.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the daemon's terminal is for the daemon
            )
            assert self._process.stdout
            self._output = BufferedByteReceiveStream(self._process.stdout)
            self._tasks = 0
        return self._process, self._output

    async def _end(self) -> None:
        process, self._process, self._output = self._process, None, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()
