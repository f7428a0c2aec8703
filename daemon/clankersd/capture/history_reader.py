"""Past sessions of a harness, read by a process of its own, a little ahead of what is stored."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
import structlog

from clankersd.capture.harnesses.base import PastSession
from clankersd.capture.history_process import (
    EndOfPiece,
    EndOfSession,
    Events,
    IndexSettings,
    Message,
    Task,
    Unreadable,
)
from clankersd.capture.prepared import PreparedEvent
from clankersd.capture.transcripts import Piece
from clankersd.index.chunks import Chunking
from clankersd.index.index import Index
from clankersd.log import LEVELS
from clankersd.processes.parent import ChildProcess, ProcessEnded

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
MAX_EVENTS_AHEAD = 2_000
"""Events that are read before they can be stored; they are stored together, since each commit costs time."""

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


@dataclass
class SessionPart:
    """A part of a past session: events, and the piece of the transcript that they are, if they are one.

    `chunkings` are those that its messages were chunked for. The last part of a session has a `problem` if the session,
    or the rest of it, could not be read.
    """

    session: PastSession
    chunkings: list[Chunking] = field(default_factory=list)
    events: list[PreparedEvent] = field(default_factory=list)
    piece: Piece | None = None
    is_last: bool = False
    malformed: int = 0
    problem: str | None = None


class _PartsAhead:
    """Parts that were read and wait to be stored: a few large ones, or those of many small sessions."""

    def __init__(self) -> None:
        self._parts: list[SessionPart] = []
        self._is_complete = False
        self._changed = anyio.Condition()

    async def add(self, part: SessionPart) -> None:
        """Add a part, once there is room for it."""
        async with self._changed:
            while sum(len(each.events) for each in self._parts) >= MAX_EVENTS_AHEAD:
                await self._changed.wait()
            self._parts.append(part)
            self._changed.notify_all()

    async def complete(self) -> None:
        async with self._changed:
            self._is_complete = True
            self._changed.notify_all()

    async def batches(self) -> AsyncIterator[list[SessionPart]]:
        """Yield all parts that were read since the last time, until there are no more."""
        while True:
            async with self._changed:
                while not self._parts and not self._is_complete:
                    await self._changed.wait()
                parts, self._parts = self._parts, []
                self._changed.notify_all()
            if not parts:
                return
            yield parts


class HistoryReader:
    """Reads past sessions one after the other."""

    def __init__(self, index: Index, harness: str, folders: list[str]) -> None:
        self._index, self._harness, self._folders = index, harness, folders
        self._process: ChildProcess | None = None

    @asynccontextmanager
    async def batches(self, sessions: list[PastSession]) -> AsyncIterator[AsyncIterator[list[SessionPart]]]:
        """Provide the parts of all sessions, in order; they are read while earlier ones are stored."""
        ahead = _PartsAhead()
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_all, sessions, ahead)
                try:
                    yield ahead.batches()
                except Exception as error:  # a task group would raise it as one of several
                    failure = error
                tasks.cancel_scope.cancel()
        finally:
            await self._end_process()
        if failure is not None:
            raise failure

    async def _read_all(self, sessions: list[PastSession], ahead: _PartsAhead) -> None:
        for session in sessions:
            try:
                async for part in self._read(session):
                    await ahead.add(part)
            except (ProcessEnded, OSError, UnicodeError) as error:
                await self._end_process()
                problem = "reading it ended the process" if isinstance(error, ProcessEnded) else repr(error)
                await ahead.add(SessionPart(session, is_last=True, problem=problem))
        await ahead.complete()

    async def _read(self, session: PastSession) -> AsyncIterator[SessionPart]:
        if self._process is None:
            self._process = await ChildProcess.start("clankersd.capture.history_process", MAX_MESSAGE_BYTES)
        task = self._make_task(session)
        await self._process.send(msgspec.msgpack.encode(task))
        part = SessionPart(session, task.index.chunkings)
        while not part.is_last:
            match _decoder.decode(await self._process.receive()):
                case Events(events, speakers):
                    part.events += events
                    for role in speakers:
                        self._index.add_speaker(role)
                case EndOfPiece(piece):
                    part.piece, part.malformed = piece, piece.malformed
                    yield part
                    part = SessionPart(session, task.index.chunkings)
                case EndOfSession(malformed, logged):
                    part.is_last, part.malformed = True, malformed
                case Unreadable(problem, logged):
                    part.is_last, part.problem = True, problem
        for entry in logged:
            structlog.get_logger().log(LEVELS[entry.pop("level")], entry.pop("event"), **entry)
        yield part

    def _make_task(self, session: PastSession) -> Task:
        index = self._index
        return Task(
            self._harness,
            session.id,
            str(session.root),
            str(session.path),
            session.project,
            session.updated_at,
            self._folders,
            IndexSettings(index.chunkings("sessions"), index.sources, index.max_tool_output_chars),
        )

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.kill()
