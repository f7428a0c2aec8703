"""The chunks table: an owner's chunks change in the owner's transaction, and only those whose text changed."""

import hashlib
import json
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec

from clankersd.db import Db
from clankersd.db.engine import MAX_CHUNKS_INDEXED_AT_ONCE, MAX_UNINDEXED_CHUNKS
from clankersd.index.chunker import Chunk, chunk
from clankersd.index.tokenize import count_words, other_forms

OwnerColumn = Literal[
    "message_id", "tool_id", "file_id", "memory_id", "document_chunk_id", "skill_id", "session_title_id"
]
OWNERS: tuple[OwnerColumn, ...] = get_args(OwnerColumn)
Row = dict[str, Any]
"""A row of the chunks table: all columns when it is to be inserted, the compared ones when it was read."""

_INSERT_TEMPLATE = """
    INSERT INTO chunks (chunk_id, chunking, source, {owner}, session_id, turn, role, position,
                        start_line, end_line, start_offset, end_offset, hash, text, header, extra, tokens, created_at,
                        scope, project)
    VALUES (:chunk_id, :chunking, :source, :owner, :session_id, {turn}, :role, :position,
            :start_line, :end_line, :start_offset, :end_offset, :hash, :text, :header, :extra, :tokens, :created_at,
            :scope, (SELECT number FROM projects WHERE id = {project}))
"""
_PROJECT_OF_SESSION = "(SELECT project_id FROM sessions WHERE id = :session_id)"
_PROJECT_OF: dict[OwnerColumn, str] = {
    "message_id": _PROJECT_OF_SESSION,
    "tool_id": _PROJECT_OF_SESSION,
    "session_title_id": _PROJECT_OF_SESSION,
    "file_id": "(SELECT project_id FROM files WHERE id = :owner)",
    "memory_id": "(SELECT project_id FROM memories WHERE id = :owner)",
    "document_chunk_id": "(SELECT project_id FROM documents WHERE id = "
    "(SELECT document_id FROM document_chunks WHERE id = :owner))",
    "skill_id": "NULL",
}
# A message has one position in its conversation, the same for all its chunks; other owners have none.
_TURN = """coalesce(
    :turn, (SELECT turn FROM chunks WHERE message_id = :owner LIMIT 1),
    (SELECT coalesce(max(turn), 0) + 1 FROM chunks WHERE session_id = :session_id)
)"""
_INSERT = {
    owner: _INSERT_TEMPLATE.format(
        owner=owner, project=_PROJECT_OF[owner], turn=_TURN if owner == "message_id" else "NULL"
    )
    for owner in OWNERS
}
ROLES_WITHOUT_NAME = ("user", "assistant", "tool")
HAS_SPEAKER = f"chunks.role NOT IN {ROLES_WITHOUT_NAME}"
"""Condition of the index on roles: the role is the name of a speaker. SQLite uses the index where it is written so."""

MAX_SELECTABLE_CHARACTERS = 16_000
"""Chunks of a longer message are stored with their text: to find one in it, all before it must be read."""

QUARTER_HOUR_MS = 15 * 60 * 1000
"""In every time zone a day begins at a quarter of an hour of UTC."""

_PLACE_COLUMNS = "chunk_id, role, position, start_line, end_line, start_offset, end_offset, created_at, scope"
"""Columns that may change while a chunk's text stays the same."""

_UPDATE_PLACE = (
    f"UPDATE chunks SET {', '.join(f'{name} = :{name}' for name in _PLACE_COLUMNS.split(', '))} WHERE id = :id"
)
_IN_IDS = "id IN (SELECT value FROM json_each(:ids))"


@dataclass(frozen=True)
class Chunking:
    """One set of chunking parameters; chunks of two chunkings are never mixed in one search."""

    number: int
    tokens: int
    overlap: int


class ChunkedText(msgspec.Struct, frozen=True):
    """A text split into chunks, ready to be stored; made outside the database's thread.

    `is_selectable` tells that SQL can quickly find the chunks in the text by their offsets.
    """

    chunking: Chunking
    chunks: list[Chunk]
    hashes: list[str]
    extras: list[str]
    tokens: list[int]
    is_selectable: bool = False


class Owner(msgspec.Struct, frozen=True):
    """The row that a text belongs to, with the columns that its chunks copy from it."""

    column: OwnerColumn
    value: str | int
    source: str
    path: str
    created_at: int
    session_id: str | None = None
    role: str | None = None
    header: str = ""
    scope: str | None = None


@dataclass(frozen=True)
class _Changes:
    """The difference between an owner's stored chunks and its new ones: ids, pairs of (stored, new), and new rows."""

    removed: list[int]
    moved: list[tuple[Row, Row]]
    added: list[Row]


def chunk_text(text: str, chunking: Chunking) -> ChunkedText:
    """Split `text` into chunks and compute what is stored with each."""
    chunks = chunk(text, chunking.tokens, chunking.overlap)
    return ChunkedText(
        chunking,
        chunks,
        [hash_of(piece.text) for piece in chunks],
        [other_forms(piece.text) for piece in chunks],
        [count_words(piece.text) for piece in chunks],
        is_selectable=len(text) <= MAX_SELECTABLE_CHARACTERS and "\0" not in text,  # where SQLite stops counting
    )


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def message_header(created_at: int) -> str:
    """Return the message's day in words, which a search also matches."""
    return _day_of_quarter_hour(created_at // QUARTER_HOUR_MS)


@lru_cache(maxsize=256)
def _day_of_quarter_hour(quarter_hour: int) -> str:
    try:
        moment = datetime.fromtimestamp(quarter_hour * QUARTER_HOUR_MS / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return ""  # after the year 9999: a mistake of the sender's, and no reason to lose the message
    return f"{moment.day} {moment:%B %Y}"


def add_tools_to_backlog(db: Db) -> None:
    """Have every stored tool call chunked: all of it, or only its file name, command and error."""
    db.execute(
        "INSERT INTO index_backlog (kind, owner) SELECT 'tool', id FROM tools WHERE true ORDER BY created_at "
        "ON CONFLICT DO NOTHING"
    )


def replace_chunks(db: Db, owner: Owner, chunked: ChunkedText, limit: int | None = None) -> bool:
    """Make `chunked` the owner's chunks. A chunk whose text is unchanged stays, and its vector with it.

    At most `limit` new chunks are stored. Return whether all of them are.
    """
    params = {"owner": owner.value, "chunking": chunked.chunking.number}
    from_owner = f"FROM chunks WHERE {owner.column} = :owner AND chunking = :chunking"
    # Nearly always nothing is stored yet, and this query is much cheaper.
    if limit is None and not db.value(f"SELECT 1 {from_owner} LIMIT 1", params):
        if chunked.chunks:
            append_chunks(db, owner, chunked, 0, len(chunked.chunks))
        return True
    stored = db.fetch(f"SELECT id, turn, hash, header, {_PLACE_COLUMNS} {from_owner} ORDER BY position", params)
    turn = stored[0]["turn"] if stored else None
    changes = _compare(stored, [_row(owner, chunked, position, turn) for position in range(len(chunked.chunks))])
    if changes.removed:
        db.execute(f"DELETE FROM chunks WHERE {_IN_IDS}", {"ids": json.dumps(changes.removed)})
    if changes.moved:
        # First free all chunk_ids: a chunk may get the one that another still has.
        ids = json.dumps([old["id"] for old, _ in changes.moved])
        db.execute(f"UPDATE chunks SET chunk_id = 'moving ' || id WHERE {_IN_IDS}", {"ids": ids})
    for old, row in changes.moved:
        db.execute(_UPDATE_PLACE, row | {"id": old["id"]})
        if old["header"] != row["header"]:  # only then, because it updates the full-text index
            db.execute("UPDATE chunks SET header = :header WHERE id = :id", {"header": row["header"], "id": old["id"]})
            db.before_commit(db.engine.log_changed_words)
    for row in changes.added[:limit]:
        _insert(db, owner, row)
    if changes.added:
        db.before_commit(index_full_text_if_due)
    return limit is None or len(changes.added) <= limit


def count_chunks(db: Db, owner: Owner, chunking: Chunking) -> int:
    sql = f"SELECT count(*) FROM chunks WHERE {owner.column} = :owner AND chunking = :chunking"
    return int(db.value(sql, {"owner": owner.value, "chunking": chunking.number}))


def append_chunks(db: Db, owner: Owner, chunked: ChunkedText, start: int, count: int) -> None:
    """Store `count` chunks from position `start` on, where none are stored yet."""
    for position in range(start, min(start + count, len(chunked.chunks))):
        _insert(db, owner, _row(owner, chunked, position))
    db.before_commit(index_full_text_if_due)


def _insert(db: Db, owner: Owner, row: Row) -> None:
    db.execute(_INSERT[owner.column], row)
    db.engine.note_new_chunk(db)
    db.unindexed_chunks += 1


def index_full_text_if_due(db: Db) -> None:
    """Index the words of new chunks. Those of a few are left to a later commit, those of very many to the next."""
    if MAX_UNINDEXED_CHUNKS <= db.unindexed_chunks <= MAX_CHUNKS_INDEXED_AT_ONCE:
        db.index_full_text()


def _compare(stored: list[Row], rows: list[Row]) -> _Changes:
    by_hash: dict[str, deque[Row]] = {}
    for old in stored:
        by_hash.setdefault(old["hash"], deque()).append(old)
    moved, added = [], []
    for row in rows:
        same_text = by_hash.get(row["hash"])
        if not same_text:
            added.append(row)
            continue
        old = same_text.popleft()
        if any(row[column] != value for column, value in old.items() if column != "id"):
            moved.append((old, row))
    removed = [old["id"] for unmatched in by_hash.values() for old in unmatched]
    return _Changes(removed, moved, added)


def _row(owner: Owner, chunked: ChunkedText, position: int, turn: int | None = None) -> Row:
    piece, digest = chunked.chunks[position], chunked.hashes[position]
    lines = f"{piece.start_line}:{piece.end_line}"
    name = f"{owner.source}:{owner.path}:{lines}:{digest}:{chunked.chunking.number}:{position}"
    return {
        "chunk_id": hash_of(name),
        "chunking": chunked.chunking.number,
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
        "text": "" if owner.column == "message_id" and chunked.is_selectable else piece.text,
        "header": owner.header,
        "tokens": chunked.tokens[position],
        "extra": chunked.extras[position],
        "created_at": owner.created_at,
        "scope": owner.scope,
    }
