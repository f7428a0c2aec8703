"""Transcripts that harnesses write, read from where reading stopped, to fill in what hooks missed.

Only regular files below the harness's own folders are opened, and never through a link that leads out of them.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
import msgspec
import structlog

from clankers_protocol.errors import RpcError, StorageUnavailable
from clankersd import clock
from clankersd.capture.apply import store_events
from clankersd.capture.events import CapturedEvent
from clankersd.capture.harnesses import HARNESSES, data_folders
from clankersd.capture.harnesses.base import TranscriptReader
from clankersd.capture.harnesses.payload import decode_object
from clankersd.capture.prepared import PreparedEvent, PreparingIndex, prepare_event
from clankersd.db import Db
from clankersd.safe_files import UnsafeFile, open_below

if TYPE_CHECKING:
    from clankersd.app import Daemon

PIECE_BYTES = 512 * 1024
"""Size of a piece that is read and stored together: small, so that single events do not wait for it."""

MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_PATH_CHARACTERS = 4096
HEAD_BYTES = 256
"""Beginning of a file that tells whether it is still the same file."""

INCOMPLETE = -1
"""Size recorded for a transcript that has not been read to its end."""

POLL_SECONDS = 1.0
READ_DELAYS_MS = (0, 1000, 4000, 15_000)
"""A transcript is read when an event names it, and again after these delays: it may be written a moment later."""

RECENT_MS = 7 * 24 * 3_600_000
"""At the daemon's start, transcripts that were read within this time are read again."""

_REQUEST = """
    INSERT INTO transcripts (path, harness, session_id, wanted_at, looks)
    VALUES (:path, :harness, :session_id, :now, :looks)
    ON CONFLICT (path) DO UPDATE SET wanted_at = :now, looks = :looks
"""
_REQUEST_SESSION = "UPDATE transcripts SET wanted_at = :now, looks = :looks WHERE session_id = :session_id"
_REQUEST_RECENT = """
    UPDATE transcripts SET wanted_at = :now, looks = 0 WHERE wanted_at IS NULL AND read_at > :since
"""

# A time further ahead than any delay is from before the clock was set back.
_DUE = """
    SELECT path, harness, session_id, read_to, size, head, state, wanted_at, looks FROM transcripts
    WHERE wanted_at <= :now OR wanted_at > :latest ORDER BY wanted_at LIMIT 20
"""
_RECORD_POSITION = """
    INSERT INTO transcripts (path, harness, session_id, read_to, size, head, lines, malformed, state, read_at)
    VALUES (:path, :harness, :session_id, :read_to, :size, :head, :lines, :malformed, :state, :now)
    ON CONFLICT (path) DO UPDATE SET read_to = :read_to, size = :size, head = :head, state = :state, read_at = :now,
        lines = CASE WHEN :from_start THEN :lines ELSE transcripts.lines + :lines END,
        malformed = CASE WHEN :from_start THEN :malformed ELSE transcripts.malformed + :malformed END
"""
_RECORD_READ = "UPDATE transcripts SET wanted_at = :next, looks = :looks WHERE path = :path AND wanted_at = :wanted_at"

log = structlog.get_logger(component="transcripts")


@dataclass(frozen=True)
class Position:
    """A transcript, and how far it was read."""

    path: str
    harness: str
    session_id: str
    read_to: int = 0
    size: int = INCOMPLETE
    head: str = ""
    state: str = "{}"


@dataclass
class Piece:
    """The next part of a transcript: its events, and the position after it."""

    position: Position
    events: list[PreparedEvent] = field(default_factory=list)
    lines: int = 0
    malformed: int = 0
    from_start: bool = False

    @property
    def is_last(self) -> bool:
        """Tell whether the file ends with this piece."""
        return self.position.size != INCOMPLETE


def request_read(db: Db, harness: str, path: str, session_id: str) -> None:
    """Have a transcript read soon. Stored with the event that names it, so that a crash forgets neither."""
    known = HARNESSES.get(harness)
    if known and known.transcript_reader and path.endswith(".jsonl") and len(path) <= MAX_PATH_CHARACTERS:
        row = {"path": path, "harness": harness, "session_id": session_id}
        db.execute(_REQUEST, {**row, "looks": len(READ_DELAYS_MS) - 1, "now": clock.now()})


def request_session(db: Db, session_id: str) -> None:
    """Have every transcript of a session read again, sub-agents' too: lines may have come since."""
    row = {"session_id": session_id, "looks": len(READ_DELAYS_MS) - 1, "now": clock.now()}
    db.execute(_REQUEST_SESSION, row)


def read_pieces(
    index: PreparingIndex, position: Position, roots: list[Path], piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Yield everything after `position`, piece by piece; raises UnsafeFile or OSError."""
    wanted_bytes = piece_bytes
    while (piece := _read_piece(index, position, roots, wanted_bytes)) is not None:
        yield piece
        if piece.is_last:
            return
        is_stuck = piece.position.read_to == position.read_to  # in a message that is longer than the piece
        wanted_bytes = min(wanted_bytes * 4, MAX_LINE_BYTES) if is_stuck else piece_bytes
        position = piece.position


def _read_piece(index: PreparingIndex, position: Position, roots: list[Path], piece_bytes: int) -> Piece | None:
    """Read the next piece of a transcript; from its beginning if it is another file by now.

    None if there is nothing new, so that a last message that was deleted here is not stored again.
    """
    with open_below(position.path, roots) as file:
        size = os.fstat(file.fileno()).st_size
        head_bytes = position.head.partition(":")[0]
        is_same = (
            size >= position.read_to and head_bytes.isdigit() and _hash_head(file, int(head_bytes)) == position.head
        )
        if is_same and size == position.size:
            return None
        start = position.read_to if is_same else 0
        data = _read_lines(file, start, size, piece_bytes)
        end = start + len(data)
        position = replace(position, size=size if end >= size else INCOMPLETE, head=_hash_head(file, end))
    return _parse(index, position, start, data)


def _hash_head(file: BinaryIO, length: int) -> str:
    length = min(length, HEAD_BYTES)
    return f"{length}:{hashlib.sha256(os.pread(file.fileno(), length, 0)).hexdigest()[:32]}"


def _read_lines(file: BinaryIO, start: int, size: int, piece_bytes: int) -> bytes:
    """Read `piece_bytes` from `start`, or one line that is longer than that."""
    data = _pread(file.fileno(), min(piece_bytes, size - start), start)
    while b"\n" not in data and start + len(data) < size and len(data) < MAX_LINE_BYTES:
        data += _pread(file.fileno(), min(MAX_LINE_BYTES - len(data), size - start - len(data)), start + len(data))
    return data


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return b"".join(pieces)


def _parse(index: PreparingIndex, position: Position, start: int, data: bytes) -> Piece:
    state = msgspec.json.decode(position.state) if start else {}
    in_long_line = bool(state.pop("within", False))  # the piece begins inside a line that is too long to be read
    make_reader = HARNESSES[position.harness].transcript_reader
    assert make_reader, position.harness
    reader = make_reader(position.session_id, state, start)
    offset, lines, malformed = start, [], []
    end = data.rfind(b"\n") + 1
    for raw in data[:end].split(b"\n")[:-1]:
        line = None if in_long_line else decode_object(raw)
        is_blank = not in_long_line and not raw.strip()
        if not is_blank and (line is None or not _read_line(reader, offset, line)):
            malformed.append(offset)
        lines.append(offset)
        offset, in_long_line = offset + len(raw) + 1, False
    reader.end(offset)
    read_to, state = reader.safe_offset, reader.state
    if read_to == start and len(data) >= MAX_LINE_BYTES:  # a line or a message that never ends
        read_to, state = (offset, reader.state) if end else (start + len(data), {**state, "within": True})
    return Piece(
        replace(position, read_to=read_to, state=msgspec.json.encode(state).decode()),
        prepare_complete(index, reader.events),
        sum(each < read_to for each in lines),
        sum(each < read_to for each in malformed),
        from_start=start == 0,
    )


def _read_line(reader: TranscriptReader, offset: int, line: dict[str, Any]) -> bool:
    """Read a line; return False if the reader fails, so that it costs one line and not the rest of the file."""
    try:
        reader.read_line(offset, line)
    except Exception as error:
        log.warning("line skipped", offset=offset, problem=repr(error))
        return False
    return True


def prepare_complete(index: PreparingIndex, events: Iterable[CapturedEvent]) -> list[PreparedEvent]:
    """Prepare the events of a file, without those that lack a field that they need."""
    prepared = []
    for event in events:
        try:
            prepared.append(prepare_event(index, event))
        except RpcError as error:
            log.debug("event skipped", problem=error.message)
    return prepared


def record_position(db: Db, piece: Piece) -> None:
    """Remember how far a transcript was read."""
    counts = {"lines": piece.lines, "malformed": piece.malformed, "from_start": piece.from_start}
    db.execute(_RECORD_POSITION, {**asdict(piece.position), **counts, "now": clock.now()})


class Transcripts:
    """Reads the transcripts that hooks name, for as long as the daemon runs."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._woken = anyio.Event()

    def wake(self) -> None:
        """Look for requests now."""
        self._woken.set()

    async def run(self) -> None:
        """Read each requested transcript when it is due."""
        await self._request_recent()
        while True:
            try:
                while await self._read_due():
                    pass
            except StorageUnavailable as error:
                log.debug("transcripts wait for storage", problem=error.message)
            with anyio.move_on_after(POLL_SECONDS):
                await self._woken.wait()
            self._woken = anyio.Event()

    async def read(self, position: Position, store: Callable[[Piece], Awaitable[None]]) -> None:
        """Pass everything after `position` to `store`, piece by piece; raises UnsafeFile or OSError."""
        roots = data_folders(HARNESSES[position.harness], self._daemon.config.transcript_folders)
        pieces = read_pieces(self._daemon.index, position, roots)
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            await store(piece)

    async def _request_recent(self) -> None:
        """Request what may have been written while the daemon was away."""
        row = {"now": clock.now(), "since": clock.now() - RECENT_MS}
        try:
            await self._daemon.store.write(lambda db: db.execute(_REQUEST_RECENT, row))
        except StorageUnavailable as error:
            log.debug("transcripts wait for storage", problem=error.message)

    async def _read_due(self) -> int:
        now = clock.now()
        params = {"now": now, "latest": now + READ_DELAYS_MS[-1]}
        due = await self._daemon.store.read(lambda db: db.fetch(_DUE, params))
        for row in due:
            requested_at, reads_left = row.pop("wanted_at"), row.pop("looks")
            await self._read_one(Position(**{**row, "session_id": row["session_id"] or ""}))
            read = {"path": row["path"], "wanted_at": requested_at, "looks": max(reads_left - 1, 0), "next": None}
            if reads_left:
                read["next"] = clock.now() + READ_DELAYS_MS[-reads_left]
            await self._daemon.store.write(lambda db, read=read: db.execute(_RECORD_READ, read))  # type: ignore[misc]
        return len(due)

    async def _read_one(self, position: Position) -> None:
        try:
            await self.read(position, self._store)
        except FileNotFoundError:
            log.debug("no transcript yet", path=position.path)
        except (OSError, UnsafeFile) as error:
            log.warning("transcript not read", path=position.path, problem=str(error))
        except StorageUnavailable:
            raise
        except Exception:  # the others are read all the same
            log.exception("transcript not read", path=position.path)

    async def _store(self, piece: Piece) -> None:
        for stored in await store_events(self._daemon.store, piece.events, self._daemon.pauses):
            if isinstance(stored.error, RpcError):
                raise stored.error
            if stored.error is not None:
                log.warning("line skipped", path=piece.position.path, problem=repr(stored.error))
        await self._daemon.store.write(lambda db: record_position(db, piece), bulk=True)
        if piece.events:
            self._daemon.index.wake()
