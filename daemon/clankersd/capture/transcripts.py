"""Transcripts that harnesses write, read on from where we were, to fill in what hooks missed.

Only regular files below the harness's own folders are opened, and never through a link that leads out of them.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import anyio
import msgspec
import structlog

from clankers_protocol.errors import RpcError, StorageUnavailable
from clankersd import clock
from clankersd.capture.apply import Change
from clankersd.capture.harnesses.claude_transcript import ClaudeReading
from clankersd.capture.harnesses.payload import Fact
from clankersd.db import Db
from clankersd.index.index import Index
from clankersd.safe_files import UnsafeFile, open_regular

if TYPE_CHECKING:
    from clankersd.app import Daemon

AT_ONCE = 512 * 1024
"""Bytes: what they hold is stored in one transaction, and nobody shall wait for it."""

LONGEST_LINE = 32 * 1024 * 1024
HEAD = 256
NOT_ALL = -1
"""The size of a transcript that has not been read to its end."""

EVERY_SECONDS = 1.0
LOOKS_AFTER_MS = (0, 1000, 4000, 15_000)
"""A transcript is looked at when an event tells of it, and again: what it tells of may be written a moment later."""

STALE_MS = 7 * 24 * 3_600_000
"""At the daemon's start, transcripts that were read within so long are looked at again."""

_WANT = """
    INSERT INTO transcripts (path, harness, session_id, wanted_at, looks)
    VALUES (:path, :harness, :session_id, :now, :looks)
    ON CONFLICT (path) DO UPDATE SET wanted_at = :now, looks = :looks
"""
_WANT_AGAIN = "UPDATE transcripts SET wanted_at = :now, looks = :looks WHERE session_id = :session_id"
_DUE = """
    SELECT path, harness, session_id, read_to, size, head, state, wanted_at, looks FROM transcripts
    WHERE wanted_at <= :now OR wanted_at > :latest ORDER BY wanted_at LIMIT 20
"""
_READ = """
    INSERT INTO transcripts (path, harness, session_id, read_to, size, head, lines, malformed, state, read_at)
    VALUES (:path, :harness, :session_id, :read_to, :size, :head, :lines, :malformed, :state, :now)
    ON CONFLICT (path) DO UPDATE SET read_to = :read_to, size = :size, head = :head, state = :state, read_at = :now,
        lines = CASE WHEN :again THEN :lines ELSE lines + :lines END,
        malformed = CASE WHEN :again THEN :malformed ELSE malformed + :malformed END
"""
_LOOKED = "UPDATE transcripts SET wanted_at = :next, looks = :looks WHERE path = :path AND wanted_at = :wanted_at"
_LOOK_AT_RECENT = """
    UPDATE transcripts SET wanted_at = :now, looks = 0 WHERE wanted_at IS NULL AND read_at > :since
"""

log = structlog.get_logger(component="transcripts")


class Reading(Protocol):
    """Takes in the lines of a transcript and gives what they tell."""

    facts: list[Fact]
    state: dict[str, Any]
    safe: int

    def line(self, offset: int, line: dict[str, Any]) -> None: ...

    def end(self, offset: int) -> None: ...


READINGS: dict[str, Callable[[str, dict[str, Any], int], Reading]] = {"claude-code": ClaudeReading}


@dataclass(frozen=True)
class Place:
    """A transcript, and how far it was read."""

    path: str
    harness: str
    session_id: str
    read_to: int = 0
    size: int = NOT_ALL
    head: str = ""
    state: str = "{}"


@dataclass
class Piece:
    """What reading on brought: the changes, and where to go on."""

    place: Place
    changes: list[Change] = field(default_factory=list)
    lines: int = 0
    malformed: int = 0
    again: bool = False

    @property
    def more(self) -> bool:
        """Whether the file goes on beyond it."""
        return self.place.size == NOT_ALL


def folders(harness: str, further: list[str], environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where a harness keeps its files."""
    home = Path(environ.get("HOME") or Path.home())
    if harness == "claude-code":
        given = environ.get("CLAUDE_CONFIG_DIR")
        own = [home / ".claude", *([Path(given)] if given else [])]
    else:
        own = [Path(environ.get("XDG_DATA_HOME") or home / ".local/share") / "opencode"]
    return [*own, *(Path(path).expanduser() for path in further)]


def wanted(harness: str, path: str, session_id: str) -> Change:
    """Look at a transcript soon; kept with the event that asks for it, so that a crash forgets neither."""
    if harness not in READINGS or not path.endswith(".jsonl") or len(path) > 4096:
        return Change(lambda _db: None)
    row = {"path": path, "harness": harness, "session_id": session_id, "looks": len(LOOKS_AFTER_MS) - 1}
    return Change(lambda db: db.execute(_WANT, {**row, "now": clock.now()}))


def wanted_again(session_id: str) -> Change:
    """Look at all that is known of a session, its sub-agents' too: lines may have come after the last look."""
    row = {"session_id": session_id, "looks": len(LOOKS_AFTER_MS) - 1}
    return Change(lambda db: db.execute(_WANT_AGAIN, {**row, "now": clock.now()}))


def open_transcript(path: str, roots: list[Path]) -> BinaryIO:
    """Open a regular file below one of the roots; raises UnsafeFile or OSError."""
    real = os.path.realpath(path)
    if not any(real.startswith(os.path.realpath(root).rstrip("/") + "/") for root in roots):
        raise UnsafeFile("it is outside the harness's folders")
    return open_regular(real)


def read_on(index: Index, place: Place, roots: list[Path], at_once: int = AT_ONCE) -> Piece | None:
    """The next piece of a transcript, as changes; from its beginning when it is another file by now.

    None when there is nothing new: then its last message is not told again, which its owner may have deleted.
    """
    with open_transcript(place.path, roots) as file:
        size = os.fstat(file.fileno()).st_size
        same = _is_the_same(file, place, size)
        if same and size == place.size:
            return None
        start = place.read_to if same else 0
        data = _next(file, start, size, at_once)
        head, whole = _head_of(file, start + len(data)), start + len(data) >= size
    return _parsed(index, replace(place, size=size if whole else NOT_ALL, head=head), start, data)


def _is_the_same(file: Any, place: Place, size: int) -> bool:
    length, _, known = place.head.partition(":")
    return size >= place.read_to and length.isdigit() and _head_of(file, int(length)) == f"{length}:{known}"


def _head_of(file: Any, length: int) -> str:
    length = min(length, HEAD)
    return f"{length}:{hashlib.sha256(os.pread(file.fileno(), length, 0)).hexdigest()[:32]}"


def _next(file: Any, start: int, size: int, at_once: int) -> bytes:
    """From `start` so many bytes, or one line that is longer than that."""
    data = _pread(file.fileno(), min(at_once, size - start), start)
    while b"\n" not in data and start + len(data) < size and len(data) < LONGEST_LINE:
        data += _pread(file.fileno(), min(LONGEST_LINE - len(data), size - start - len(data)), start + len(data))
    return data


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return b"".join(pieces)


def _parsed(index: Index, place: Place, start: int, data: bytes) -> Piece:
    state = msgspec.json.decode(place.state) if start else {}
    within = bool(state.pop("within", False))  # a line that is too long to be read
    reading = READINGS[place.harness](place.session_id, state, start)
    offset, lines, skipped = start, [], []
    end = data.rfind(b"\n") + 1
    for raw in data[:end].split(b"\n")[:-1]:
        line = None if within else _decoded(raw)
        if line is not None:
            reading.line(offset, line)
        elif raw.strip() or within:
            skipped.append(offset)
        lines.append(offset)
        offset, within = offset + len(raw) + 1, False
    reading.end(offset)
    safe, state = reading.safe, reading.state
    if safe == start and len(data) >= LONGEST_LINE:  # a line, or a message, that never ends
        safe, state = (offset, reading.state) if end else (start + len(data), {**state, "within": True})
    return Piece(
        replace(place, read_to=safe, state=msgspec.json.encode(state).decode()),
        [change for fact in reading.facts if (change := _change(index, fact))],
        sum(each < safe for each in lines),
        sum(each < safe for each in skipped),
        again=start == 0,
    )


def _decoded(raw: bytes) -> dict[str, Any] | None:
    try:
        line = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _change(index: Index, fact: Fact) -> Change | None:
    try:
        return fact(index)
    except RpcError as error:  # a line without what it needs
        log.debug("line skipped", problem=error.message)
        return None


def note_read(db: Db, piece: Piece) -> None:
    """Remember how far a transcript was read."""
    counts = {"lines": piece.lines, "malformed": piece.malformed, "again": piece.again}
    db.execute(_READ, {**asdict(piece.place), **counts, "now": clock.now()})


def _due_at(now: int) -> dict[str, int]:
    """Parameters of what is due. A look that lies further ahead than any is planned is from before a clock change."""
    return {"now": now, "latest": now + LOOKS_AFTER_MS[-1]}


class Transcripts:
    """Reads on in what the hooks named, for as long as the daemon lives."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._woken = anyio.Event()

    def wake(self) -> None:
        """Something may be wanted."""
        self._woken.set()

    async def run(self) -> None:
        """Look at each transcript that is wanted, when it is."""
        await self._look_at_recent()
        while True:
            try:
                while await self._look_at_due():
                    pass
            except StorageUnavailable as error:
                log.debug("transcripts wait", problem=error.message)
            with anyio.move_on_after(EVERY_SECONDS):
                await self._woken.wait()
            self._woken = anyio.Event()

    async def read(self, place: Place, keep: Callable[[Piece], Awaitable[None]]) -> None:
        """Give all that a transcript tells beyond `place` to `keep`, piece by piece; raises UnsafeFile or OSError."""
        roots, at_once = folders(place.harness, self._daemon.config.transcript_folders), AT_ONCE
        while True:
            piece = await anyio.to_thread.run_sync(read_on, self._daemon.index, place, roots, at_once)
            if piece is None:
                return
            await keep(piece)
            if not piece.more:
                return
            stuck = piece.place.read_to == place.read_to  # in a message that is longer than that
            place, at_once = piece.place, min(at_once * 4, LONGEST_LINE) if stuck else AT_ONCE

    async def _look_at_recent(self) -> None:
        """What was written while we were away."""
        row = {"now": clock.now(), "since": clock.now() - STALE_MS}
        try:
            await self._daemon.store.write(lambda db: db.execute(_LOOK_AT_RECENT, row))
        except StorageUnavailable as error:
            log.debug("transcripts wait", problem=error.message)

    async def _look_at_due(self) -> int:
        due = await self._daemon.store.read(lambda db: db.fetch(_DUE, _due_at(clock.now())))
        for row in due:
            wanted_at, looks = row.pop("wanted_at"), row.pop("looks")
            await self._look(Place(**{**row, "session_id": row["session_id"] or ""}))
            after = LOOKS_AFTER_MS[-looks] if looks else None
            looked = {"path": row["path"], "wanted_at": wanted_at, "looks": max(looks - 1, 0)}
            looked["next"] = clock.now() + after if after is not None else None
            await self._daemon.store.write(lambda db, looked=looked: db.execute(_LOOKED, looked))  # type: ignore[misc]
        return len(due)

    async def _look(self, place: Place) -> None:
        try:
            await self.read(place, self._store)
        except FileNotFoundError:
            log.debug("no transcript yet", path=place.path)
        except (OSError, UnsafeFile) as error:
            log.warning("transcript not read", path=place.path, problem=str(error))

    async def _store(self, piece: Piece) -> None:
        for stored in await self._daemon.store.write_all(piece.changes):
            if isinstance(stored.error, RpcError):
                raise stored.error
            if stored.error is not None:
                log.warning("line skipped", path=piece.place.path, problem=repr(stored.error))
        await self._daemon.store.write(lambda db: note_read(db, piece), bulk=True)
        if piece.changes:
            self._daemon.index.wake()
