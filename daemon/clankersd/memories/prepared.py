"""A memory on its way into the database: looked through and cut off the event loop, then stored and searchable."""

import json
from dataclasses import dataclass

import anyio

from clankersd.db import Db
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, Vector
from clankersd.index.backlog import TEXT_KINDS, TextKind
from clankersd.index.chunks import ChunkedText, Owner, chunk_text, replace_chunks
from clankersd.index.index import Index
from clankersd.memories.classify import find_concepts
from clankersd.memories.dedup import Text
from clankersd.memories.entities import link_mentions
from clankersd.memories.similarity import content_hash, quarters, simhash
from clankersd.memories.store import Row, as_json

EMBED_SECONDS = 1.0
"""For how long an addition waits for its vector: without it, only words tell whether it is known."""

_COLUMNS = (
    "id", "project_id", "content", "summary", "content_hash", "sector", "tier", "category", "scope", "importance",
    "confidence", "simhash", "simhash_0", "simhash_1", "simhash_2", "simhash_3", "salience", "salience_at",
    "access_count", "last_accessed", "pinned", "created_at", "updated_at", "valid_from", "valid_until",
    "expires_at", "archived_at", "is_deleted", "deleted_at", "source_session_id", "source_message_id", "tags_json",
    "concepts_json", "files_json", "metadata",
)  # fmt: skip
_INSERT = f"INSERT INTO memories ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"


@dataclass(frozen=True)
class PreparedMemory:
    """A text looked through before the transaction, off the event loop."""

    text: Text
    chunks: list[ChunkedText]
    vector: Vector | None
    note: str | None


async def prepare_memory(index: Index, content: str, compare: bool) -> PreparedMemory:
    """Look a text through; with `compare` for whether it is known as well."""
    text, prepared = await anyio.to_thread.run_sync(_look_through, index, content)
    vector, problem = await _embed(index, content, prepared) if compare else (None, None)
    return PreparedMemory(text, prepared, vector, problem)


def _look_through(index: Index, content: str) -> tuple[Text, list[ChunkedText]]:
    text = Text(content, content_hash(content), simhash(content))
    return text, [chunk_text(content, chunking) for chunking in index.chunkings()]


async def _embed(index: Index, content: str, prepared: list[ChunkedText]) -> tuple[Vector | None, str | None]:
    if index.vector_problem or index.embedder is None:
        return None, f"compared by words only: {index.vector_problem}"
    if not prepared or len(prepared[0].chunks) != 1:
        return None, None  # a long text is compared by its words
    try:
        with anyio.fail_after(EMBED_SECONDS):
            [outcome] = await index.embedder.embed([content])
    except (EmbedderUnavailable, TimeoutError) as error:
        return None, f"compared by words only: {str(error) or 'the embedder takes too long'}"
    return (None, None) if isinstance(outcome, ItemFailed) else (outcome, None)


def text_columns(text: Text) -> Row:
    """The columns that follow from what a memory says."""
    parts = quarters(text.simhash) if text.simhash is not None else (None,) * 4
    return {
        "content": text.content,
        "content_hash": text.hash,
        "simhash": None if text.simhash is None else f"{text.simhash:016x}",
        **{f"simhash_{number}": part for number, part in enumerate(parts)},
    }


def list_columns(content: str, tags: list[str], given_concepts: list[str] | None, files: list[str]) -> Row:
    """Tags, concepts (found in the text when none are given) and files, as they are stored."""
    found = find_concepts(content) if given_concepts is None else given_concepts
    return {"tags_json": as_json(tags), "concepts_json": as_json(found), "files_json": as_json(files)}


def insert_memory(db: Db, row: Row, prepared: list[ChunkedText]) -> None:
    """Store a memory, searchable in the same transaction."""
    db.execute(_INSERT, row)
    index_memory(db, row, prepared)
    mention(db, row)


def mention(db: Db, row: Row) -> None:
    """Link a memory with the entities it speaks of."""
    files, names = json.loads(row["files_json"]), json.loads(row["concepts_json"])
    link_mentions(db, row["id"], row["content"], files, names, row["updated_at"])


def index_memory(db: Db, row: Row, prepared: list[ChunkedText]) -> None:
    """Make what a memory says searchable; what is forgotten is not."""
    for one in prepared if not row["is_deleted"] else ():
        replace_chunks(db, _owner(row), one)


def _owner(row: Row) -> Owner:
    words = [row["summary"] or "", *json.loads(row["tags_json"]), *json.loads(row["concepts_json"])]
    header = " ".join(word for word in words if word)
    path = f"memories/{row['id']}"
    return Owner("memory_id", row["id"], "memories", path, row["created_at"], header=header, scope=row["scope"])


TEXT_KINDS["memory"] = TextKind(
    """
    SELECT id, content AS text, summary, tags_json, concepts_json, created_at, scope
    FROM memories WHERE id = :id AND is_deleted = 0
    """,
    _owner,
    "SELECT id FROM memories WHERE id > :after AND is_deleted = 0 ORDER BY id LIMIT :limit",
)
