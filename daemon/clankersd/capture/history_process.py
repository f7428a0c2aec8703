"""The process that reads the history of a harness for an import: started by history_reader.py.

To decode, redact and chunk the texts of years takes longer than to store them. In a process of its own it does not hold
the daemon's interpreter lock, which the events of running sessions need. It reads tasks from its standard input and
writes events that are ready to be stored to its standard output.
"""

import gc
import os
import resource
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import structlog

from clankers_protocol.events import CompactionEvent, MessageEvent, SessionErrorEvent, SessionEvent, ToolEvent
from clankersd import clock
from clankersd.capture.events import (
    CompactionReported,
    ErrorReported,
    FirstPrompt,
    MessageReported,
    SessionInactive,
    SessionReported,
    SessionSummary,
    ToolReported,
)
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.harnesses.base import PastSession
from clankersd.capture.prepared import PreparedEvent, prepare_event
from clankersd.capture.transcripts import Piece, Position, prepare_complete, read_pieces
from clankersd.index.chunks import ChunkedText, Chunking
from clankersd.index.index import chunk_inline
from clankersd.processes.child import limit_resources, read_messages, write_message

NICENESS = 5
"""Programs that somebody waits for go first."""

MAX_MEMORY_BYTES = 4 * 1024 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
"""Part of a transcript that is stored together: larger than while a session runs, since each commit costs time."""

EVENTS_PER_MESSAGE = 64
"""The daemon decodes as many at once, during which it does nothing else."""

GC_THRESHOLD_OBJECTS = 50_000
"""Objects between two collections: a piece has many, and few of them refer to each other."""

INACTIVE_AFTER_MS = 3_600_000
"""A session whose file has not changed for this long has ended."""


_EMPTY: dict[type, dict[str, Any]] = {
    SessionReported: {"session": SessionEvent()},
    MessageReported: {"message": MessageEvent()},
    ToolReported: {"tool": ToolEvent()},
    ErrorReported: {"error": SessionErrorEvent()},
    CompactionReported: {"compaction": CompactionEvent()},
    FirstPrompt: {"prompt": ""},
    SessionSummary: {"summary": ""},
}
"""Fields of events that hold what the row of the prepared event holds, and nothing in place of it."""


class IndexSettings(msgspec.Struct):
    """Settings of the index that preparing an event needs; a PreparingIndex."""

    chunkings: list[Chunking]
    sources: tuple[str, ...]
    max_tool_output_chars: int
    speakers: set[str] = msgspec.field(default_factory=set)

    def chunk_message(self, text: str) -> list[ChunkedText] | None:
        return chunk_inline(text, self.chunkings)

    def add_speaker(self, role: str | None) -> None:
        if role:
            self.speakers.add(role)


class Task(msgspec.Struct):
    """A past session to read, and the folders that its transcript may lie in."""

    harness: str
    id: str
    root: str
    path: str
    project: str | None
    updated_at: int
    folders: list[str]
    index: IndexSettings


class Events(msgspec.Struct, tag="events"):
    """Some of the events of a session, in order, and the senders of its messages."""

    events: list[PreparedEvent]
    speakers: set[str]


class EndOfPiece(msgspec.Struct, tag="end of piece"):
    """The events since the last end are this piece of the transcript."""

    piece: Piece


class EndOfSession(msgspec.Struct, tag="end of session"):
    """The session is read, but for so many records, and this went to the log meanwhile."""

    malformed: int
    log: list[dict[str, Any]]


class Unreadable(msgspec.Struct, tag="unreadable"):
    """The session, or the rest of it, cannot be read."""

    problem: str
    log: list[dict[str, Any]]


Message = Events | EndOfPiece | EndOfSession | Unreadable


def main() -> None:
    """Read sessions until the daemon closes the pipe."""
    with suppress(OSError):
        os.nice(NICENESS)
    limit_resources({resource.RLIMIT_AS: MAX_MEMORY_BYTES})
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
    logged = collect_log()
    decoder = msgspec.msgpack.Decoder(Task)
    encoder = msgspec.msgpack.Encoder()
    with suppress(BrokenPipeError, KeyboardInterrupt):
        for data in read_messages(sys.stdin.buffer):
            for message in read_session(decoder.decode(data), logged):
                write_message(sys.stdout.buffer, encoder.encode(message))
            logged.clear()


def read_session(task: Task, logged: list[dict[str, Any]]) -> Iterator[Message]:
    """Yield the events of a session, and its end."""
    past = PastSession(task.id, Path(task.root), Path(task.path), task.project, task.updated_at, "")
    is_inactive = clock.now() - past.updated_at > INACTIVE_AFTER_MS
    last = [prepare_event(task.index, SessionInactive(past.session_id))] if is_inactive else []
    harness = HARNESSES[task.harness]
    malformed = 0
    try:
        if harness.read_history:
            history = harness.read_history(past)
            malformed = history.malformed
            yield from _messages(task, [*prepare_complete(task.index, history.events), *last])
        else:
            position, folders = Position(task.path, task.harness, past.session_id), [*map(Path, task.folders)]
            for piece in read_pieces(task.index, position, folders, PIECE_BYTES):
                yield from _messages(task, [*piece.events, *last] if piece.is_last else piece.events)
                yield EndOfPiece(replace(piece, events=[]))
    except Exception as error:  # the other sessions are imported all the same
        yield Unreadable(repr(error), logged)
    else:
        yield EndOfSession(malformed, logged)


def _messages(task: Task, events: list[PreparedEvent]) -> Iterator[Events]:
    for start in range(0, len(events), EVENTS_PER_MESSAGE):
        speakers, task.index.speakers = task.index.speakers, set()
        yield Events([_without_copies(event) for event in events[start : start + EVENTS_PER_MESSAGE]], speakers)


def _without_copies(event: PreparedEvent) -> PreparedEvent:
    """Leave out what `row` has as well: the daemon would spend more time on the copies than on the texts."""
    reported, chunks = event.event, event.chunks
    if empty := _EMPTY.get(type(reported)):
        reported = msgspec.structs.replace(reported, **empty)
    if chunks:
        chunks = [_without_text(chunked) if chunked.is_selectable else chunked for chunked in chunks]
    return msgspec.structs.replace(event, event=reported, chunks=chunks)


def _without_text(chunked: ChunkedText) -> ChunkedText:
    return msgspec.structs.replace(chunked, chunks=[msgspec.structs.replace(each, text="") for each in chunked.chunks])


def collect_log() -> list[dict[str, Any]]:
    """Keep what is logged in a list, for the daemon to write it into its own log."""
    logged: list[dict[str, Any]] = []

    def keep(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        if event["level"] != "debug":
            logged.append({name: str(value) for name, value in event.items()})
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.add_log_level, keep])
    return logged


if __name__ == "__main__":
    main()
