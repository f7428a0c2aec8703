"""What the process that reads a history tells the daemon, besides events."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.history_process import (
    EndOfPiece,
    EndOfSession,
    Events,
    IndexSettings,
    Task,
    Unreadable,
    collect_log,
    read_session,
)
from clankersd.index.chunks import MAX_SELECTABLE_CHARACTERS, Chunking


class FailingReader:
    """A reader with a mistake, which shows at every line."""

    def __init__(self, *_: object) -> None:
        self.safe_offset = 0
        self.state: dict[str, Any] = {}
        self.events: list[Any] = []

    def read_line(self, _offset: int, _line: dict[str, Any]) -> None:
        raise ValueError("a mistake")

    def end(self, offset: int) -> None:
        self.safe_offset = offset


def task_for(path: Path, folder: Path) -> Task:
    index = IndexSettings([], ("sessions",), 1000)
    return Task("claude-code", "s1", str(folder), str(path), None, 0, [str(folder)], index)


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "s1.jsonl"
    line = {"type": "user", "uuid": "u1", "sessionId": "s1", "message": {"content": "hello"}}
    path.write_text(json.dumps(line) + "\n")
    return path


def test_events_come_before_the_piece_that_they_are(transcript: Path) -> None:
    events, piece, end = read_session(task_for(transcript, transcript.parent), [])
    assert isinstance(events, Events)
    assert events.speakers == {"user"}
    assert [type(one.event).__name__ for one in events.events][-1] == "SessionInactive"
    assert isinstance(piece, EndOfPiece)
    assert piece.piece.lines == 1
    assert end == EndOfSession(0, [])


def test_a_text_is_sent_once(transcript: Path) -> None:
    """The row of an event has its text; copies of it would be encoded and decoded for nothing."""
    text = "the writer is closed before its buffer is flushed"
    transcript.write_text(transcript.read_text().replace("hello", text))
    task = task_for(transcript, transcript.parent)
    task.index.chunkings = [Chunking(1, 400, 80)]
    events = next(iter(read_session(task, [])))
    assert isinstance(events, Events)
    [message, first_prompt] = [one for one in events.events if text in str(one.row)]
    for one in (message, first_prompt):
        assert msgspec.msgpack.encode(one).count(text.encode()) == (1 if one is message else 2)  # a prompt is a title
    assert message.chunks
    [chunk] = message.chunks[0].chunks
    assert (chunk.start_offset, chunk.end_offset) == (0, len(text))


def test_a_text_too_long_to_be_selected_is_sent_with_its_chunks(transcript: Path) -> None:
    transcript.write_text(transcript.read_text().replace("hello", "word " * (MAX_SELECTABLE_CHARACTERS // 4)))
    task = task_for(transcript, transcript.parent)
    task.index.chunkings = [Chunking(1, 400, 80)]
    events = next(iter(read_session(task, [])))
    assert isinstance(events, Events)
    [chunked] = [one.chunks[0] for one in events.events if one.chunks]
    assert all(chunk.text for chunk in chunked.chunks)


def test_a_file_that_cannot_be_opened_is_unreadable(tmp_path: Path) -> None:
    (end,) = read_session(task_for(tmp_path / "gone.jsonl", tmp_path), [])
    assert isinstance(end, Unreadable)
    assert "No such file" in end.problem


def test_what_readers_log_is_kept_for_the_daemon(transcript: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing: Any = FailingReader
    monkeypatch.setitem(HARNESSES, "claude-code", replace(HARNESSES["claude-code"], transcript_reader=failing))
    logged = collect_log()
    try:
        end = list(read_session(task_for(transcript, transcript.parent), logged))[-1]
    finally:
        structlog.reset_defaults()
    assert isinstance(end, EndOfSession)
    assert [(entry["event"], entry["level"]) for entry in end.log] == [("line skipped", "warning")]
