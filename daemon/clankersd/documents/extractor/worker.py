"""The process that takes documents apart, as the daemon sees it: begun when needed, ended when idle or stuck."""

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
MOST_TASKS = 1000
"""After so many documents a new process takes over: the libraries behind it may leak."""

LARGEST_MESSAGE = 64 * 1024 * 1024
IN_MEMORY = 4 * 1024 * 1024

_message: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Extracted:
    """A document that was taken apart without fault. A large one lies on the disk meanwhile."""

    def __init__(self, spool: IO[bytes], done: Done) -> None:
        self._spool = spool
        self.done = done

    def windows(self) -> Iterator[Window]:
        """Its text and chunks, from the beginning; to be read in a thread."""
        self._spool.seek(0)
        while head := self._spool.read(4):
            window = _message.decode(self._spool.read(struct.unpack(">I", head)[0]))
            assert isinstance(window, Window)
            yield window


class Worker:
    """One process, one document at a time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._process: anyio.abc.Process | None = None
        self._output: BufferedByteReceiveStream | None = None
        self._tasks = 0
        self._used = 0.0

    @asynccontextmanager
    async def extracted(self, task: Task, body: bytes, folder: Path) -> AsyncIterator[Extracted]:
        """The document taken apart, as long as the block lasts, in a file in `folder` if it is large; raises
        ExtractionError."""
        with tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder)) as spool:
            async with self._lock:
                done = await self._take_apart(task, body, spool)
            yield Extracted(spool, done)

    async def run(self) -> None:
        """End the process when nobody has needed it for a while, and with the daemon."""
        try:
            while True:
                await anyio.sleep(IDLE_SECONDS / 4)
                if self._process and not self._lock.locked() and anyio.current_time() > self._used + IDLE_SECONDS:
                    async with self._lock:
                        await self._end()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _take_apart(self, task: Task, body: bytes, spool: IO[bytes]) -> Done:
        try:
            with anyio.fail_after(task.seconds):
                done = await self._ask(task, body, spool)
        except TimeoutError:
            await self._end()
            raise ExtractionError(f"it took longer than {task.seconds} seconds: see document_seconds") from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._end()
            raise ExtractionError(
                "taking it apart ended the process that did: the file may be broken or hostile"
            ) from None
        except BaseException:  # its answer is only half read: nobody can go on with it
            with anyio.CancelScope(shield=True):
                await self._end()
            raise
        self._used = anyio.current_time()
        if isinstance(done, Failed):
            raise ExtractionError(done.reason)
        return done

    async def _ask(self, task: Task, body: bytes, spool: IO[bytes]) -> Done | Failed:
        if self._tasks >= MOST_TASKS:
            await self._end()
        self._tasks += 1
        process, output = await self._begun()
        assert process.stdin
        encoded = msgspec.msgpack.encode(task)
        await process.stdin.send(struct.pack(">I", len(encoded)) + encoded + body)
        while True:
            head = await output.receive_exactly(4)
            size = struct.unpack(">I", head)[0]
            if size > LARGEST_MESSAGE:
                raise anyio.EndOfStream
            data = await output.receive_exactly(size)
            message = _message.decode(data)
            if not isinstance(message, Window):
                return message
            spool.write(head + data)

    async def _begun(self) -> tuple[anyio.abc.Process, BufferedByteReceiveStream]:
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
