"""The chunks table: what belongs to an owner is replaced as a whole, in the owner's transaction."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from clankersd.db import Db
from clankersd.index.chunker import Chunk, chunk
from clankersd.index.words import other_forms

OwnerColumn = Literal["message_id", "tool_id", "file_id"]

_INSERT = """
    INSERT INTO chunks (chunk_id, chunking, source, message_id, tool_id, file_id, session_id, turn, role, position,
                        start_line, end_line, start_offset, end_offset, hash, text, header, extra, created_at)
    VALUES (:chunk_id, :chunking, :source, :message_id, :tool_id, :file_id, :session_id, :turn, :role, :position,
            :start_line, :end_line, :start_offset, :end_offset, :hash, :text, :header, :extra, :created_at)
"""
_NEXT_TURN = "SELECT coalesce(max(turn), 0) + 1 FROM chunks WHERE session_id = :session_id"


@dataclass(frozen=True)
class Chunking:
    """One way of cutting; chunks of two ways are never mixed in one search."""

    number: int
    tokens: int
    overlap: int


@dataclass(frozen=True)
class Prepared:
    """A text cut and looked through, ready to be stored; made outside the database's thread."""

    chunking: Chunking
    chunks: list[Chunk]
    hashes: list[str]
    extras: list[str]


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


def prepare(text: str, chunking: Chunking) -> Prepared:
    """Cut `text`, and find the other forms of its words."""
    chunks = chunk(text, chunking.tokens, chunking.overlap)
    return Prepared(
        chunking,
        chunks,
        [hash_of(piece.text) for piece in chunks],
        [other_forms(piece.text) for piece in chunks],
    )


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def message_header(created_at: int, role: str | None) -> str:
    """What a message is also found by: who said it and when, in words."""
    moment = datetime.fromtimestamp(created_at / 1000, UTC).astimezone()
    return f"{role or ''} {moment:%A %d %B %Y %Y-%m-%d}".strip()


def replace(db: Db, owner: Owner, prepared: Prepared) -> bool:
    """Make `prepared` the owner's chunks; tells whether anything changed. The same text changes nothing."""
    own = {"owner": owner.value, "chunking": prepared.chunking.number}
    stored = db.fetch(
        f"SELECT hash, turn FROM chunks WHERE {owner.column} = :owner AND chunking = :chunking ORDER BY position",
        own,
    )
    if [row["hash"] for row in stored] == prepared.hashes:
        return False
    db.execute(f"DELETE FROM chunks WHERE {owner.column} = :owner AND chunking = :chunking", own)
    turn = stored[0]["turn"] if stored else _next_turn(db, owner)
    for position in range(len(prepared.chunks)):
        db.execute(_INSERT, _row(owner, prepared, position, turn))
    return True


def _next_turn(db: Db, owner: Owner) -> int | None:
    if owner.session_id is None:
        return None
    return int(db.value(_NEXT_TURN, {"session_id": owner.session_id}))


def _row(owner: Owner, prepared: Prepared, position: int, turn: int | None) -> dict[str, Any]:
    piece, digest = prepared.chunks[position], prepared.hashes[position]
    name = f"{owner.source}:{owner.path}:{piece.start_line}:{piece.end_line}:{digest}:{prepared.chunking.number}:{position}"
    return {
        "chunk_id": hash_of(name),
        "chunking": prepared.chunking.number,
        "source": owner.source,
        "message_id": None, "tool_id": None, "file_id": None,
        owner.column: owner.value,
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
        "extra": prepared.extras[position],
        "created_at": owner.created_at,
    }  # fmt: skip
