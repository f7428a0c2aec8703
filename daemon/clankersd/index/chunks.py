"""The chunks table: an owner's chunks change in the owner's transaction, and only those whose text changed."""

import hashlib
import json
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, get_args

from clankersd.db import Db
from clankersd.index.chunker import Chunk, chunk
from clankersd.index.tokenize import count_words, other_forms

OwnerColumn = Literal["message_id", "tool_id", "file_id", "memory_id", "document_chunk_id", "skill_id"]
OWNERS: tuple[OwnerColumn, ...] = get_args(OwnerColumn)
Row = dict[str, Any]
Moved = tuple[Row, Row]
"""A chunk as it is stored, and as it shall be."""

_INSERT_OF = """
    INSERT INTO chunks (chunk_id, chunking, source, {owner}, session_id, turn, role, position,
                        start_line, end_line, start_offset, end_offset, hash, text, header, extra, tokens, created_at,
                        scope)
    VALUES (:chunk_id, :chunking, :source, :owner, :session_id, :turn, :role, :position,
            :start_line, :end_line, :start_offset, :end_offset, :hash, :text, :header, :extra, :tokens, :created_at,
            :scope)
"""
_INSERT = {owner: _INSERT_OF.format(owner=owner) for owner in OWNERS}
_INDEX_WORDS = """
    INSERT INTO chunks_fts (rowid, text, header, extra)
    SELECT id, text, header, extra FROM chunks
    WHERE id > (SELECT coalesce(max(id), 0) FROM chunks_fts_docsize) ORDER BY id
"""
QUARTER_MS = 15 * 60 * 1000
"""In every time zone a day begins with a quarter of an hour."""

_PLACE = "chunk_id, role, position, start_line, end_line, start_offset, end_offset, created_at, scope"
"""What may change of a chunk while its text stays."""

_MOVE = f"UPDATE chunks SET {', '.join(f'{name} = :{name}' for name in _PLACE.split(', '))} WHERE id = :id"
_THESE = "id IN (SELECT value FROM json_each(:ids))"
_NEXT_TURN = "SELECT coalesce(max(turn), 0) + 1 FROM chunks WHERE session_id = :session_id"


@dataclass(frozen=True)
class Chunking:
    """One way of cutting; chunks of two ways are never mixed in one search."""

    number: int
    tokens: int
    overlap: int


@dataclass(frozen=True)
class ChunkedText:
    """A text cut and looked through, ready to be stored; made outside the database's thread."""

    chunking: Chunking
    chunks: list[Chunk]
    hashes: list[str]
    extras: list[str]
    tokens: list[int]


@dataclass(frozen=True)
class Owner:
    """Whose text it is, and what its chunks tell about it."""

    column: OwnerColumn
    value: str | int
    source: str
    path: str
    created_at: int
    session_id: str | None = None
    role: str | None = None
    header: str = field(default="")
    scope: str | None = None


def chunk_text(text: str, chunking: Chunking) -> ChunkedText:
    """Cut `text`, and find the other forms of its words."""
    chunks = chunk(text, chunking.tokens, chunking.overlap)
    return ChunkedText(
        chunking,
        chunks,
        [hash_of(piece.text) for piece in chunks],
        [other_forms(piece.text) for piece in chunks],
        [count_words(piece.text) for piece in chunks],
    )


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def message_header(created_at: int) -> str:
    """What a message is also found by: its day, in words."""
    return _day_of_quarter(created_at // QUARTER_MS)


@lru_cache(maxsize=256)
def _day_of_quarter(quarter: int) -> str:
    try:
        moment = datetime.fromtimestamp(quarter * QUARTER_MS / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return ""  # beyond the year 9999: a mistake of the sender's, and no reason to lose the message
    return f"{moment.day} {moment:%B %Y}"


def add_tools_to_backlog(db: Db) -> None:
    """Put every stored tool call into the backlog."""
    db.execute(
        "INSERT INTO index_backlog (kind, owner) SELECT 'tool', id FROM tools WHERE true ORDER BY created_at "
        "ON CONFLICT DO NOTHING"
    )


def replace_chunks(db: Db, owner: Owner, prepared: ChunkedText, limit: int | None = None) -> bool:
    """Make `prepared` the owner's chunks. A chunk whose text is still there stays, and its vector with it.

    With `limit` at most so many new ones are stored. Returns whether all are.
    """
    own = {"owner": owner.value, "chunking": prepared.chunking.number}
    here = f"FROM chunks WHERE {owner.column} = :owner AND chunking = :chunking"
    # Nearly always nothing is stored yet, and asking only that is much cheaper.
    known = db.value(f"SELECT 1 {here} LIMIT 1", own)
    stored = db.fetch(f"SELECT id, turn, hash, header, {_PLACE} {here} ORDER BY position", own) if known else []
    turn = stored[0]["turn"] if stored else _next_turn(db, owner)
    rows = [_row(owner, prepared, position, turn) for position in range(len(prepared.chunks))]
    gone, moved, new = _compare(stored, rows)
    if gone:
        db.execute(f"DELETE FROM chunks WHERE {_THESE}", {"ids": json.dumps(gone)})
    if moved:
        _move(db, moved)
    for row in new[:limit]:
        db.execute(_INSERT[owner.column], row)
    if new:
        db.before_commit(index_words)
    return limit is None or len(new) <= limit


def count_chunks(db: Db, owner: Owner, chunking: Chunking) -> int:
    """How many chunks of the owner are stored."""
    sql = f"SELECT count(*) FROM chunks WHERE {owner.column} = :owner AND chunking = :chunking"
    return int(db.value(sql, {"owner": owner.value, "chunking": chunking.number}))


def append_chunks(db: Db, owner: Owner, prepared: ChunkedText, start: int, count: int) -> None:
    """Store `count` chunks from position `start` on, none of which is stored yet."""
    turn = _next_turn(db, owner)
    for position in range(start, min(start + count, len(prepared.chunks))):
        db.execute(_INSERT[owner.column], _row(owner, prepared, position, turn))
    db.before_commit(index_words)


def index_words(db: Db) -> None:
    """Make the words of chunks that came in this transaction searchable, all at once."""
    db.execute(_INDEX_WORDS)


def _compare(stored: list[Row], rows: list[Row]) -> tuple[list[int], list[Moved], list[Row]]:
    """The ids of stored chunks whose text is gone, those that stay but not as they are, and what is new."""
    by_hash: dict[str, deque[Row]] = {}
    for old in stored:
        by_hash.setdefault(old["hash"], deque()).append(old)
    moved, new = [], []
    for row in rows:
        if not by_hash.get(row["hash"]):
            new.append(row)
            continue
        old = by_hash[row["hash"]].popleft()
        if any(row[key] != value for key, value in old.items() if key != "id"):
            moved.append((old, row))
    return [old["id"] for left in by_hash.values() for old in left], moved, new


def _move(db: Db, moved: list[Moved]) -> None:
    # First out of each other's way: one may get the chunk_id that another still has.
    ids = json.dumps([old["id"] for old, _ in moved])
    db.execute(f"UPDATE chunks SET chunk_id = 'moving ' || id WHERE {_THESE}", {"ids": ids})
    for old, row in moved:
        db.execute(_MOVE, row | {"id": old["id"]})
        if old["header"] != row["header"]:  # apart, since it is searched: the words are indexed anew
            db.execute("UPDATE chunks SET header = :header WHERE id = :id", {"header": row["header"], "id": old["id"]})


def _next_turn(db: Db, owner: Owner) -> int | None:
    """A message's place in its conversation; nothing else takes a turn."""
    if owner.column != "message_id":
        return None
    known = db.value("SELECT turn FROM chunks WHERE message_id = :owner LIMIT 1", {"owner": owner.value})
    if known is not None:
        return int(known)  # the same in every way of cutting
    return int(db.value(_NEXT_TURN, {"session_id": owner.session_id}))


def _row(owner: Owner, prepared: ChunkedText, position: int, turn: int | None) -> Row:
    piece, digest = prepared.chunks[position], prepared.hashes[position]
    lines = f"{piece.start_line}:{piece.end_line}"
    name = f"{owner.source}:{owner.path}:{lines}:{digest}:{prepared.chunking.number}:{position}"
    return {
        "chunk_id": hash_of(name),
        "chunking": prepared.chunking.number,
        "source": owner.source,
        "owner": owner.value,
        "session_id": owner.session_id,
        "turn": turn,
        "role": owner.role,
        "position": position,
        "start_line": piece.start_line,
        "end_line": piece.end_line,
        "start_offset": piece.start_offset,
        "end_offset": piece.end_offset,
        "hash": digest,
        "text": piece.text,
        "header": owner.header,
        "tokens": prepared.tokens[position],
        "extra": prepared.extras[position],
        "created_at": owner.created_at,
        "scope": owner.scope,
    }
