"""Preparation of memories: hash, chunk and embed a text outside the transaction, then insert and index it."""

import json
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from clankersd.db import Db
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, Vector
from clankersd.index.backlog import TEXT_KINDS, TextKind
from clankersd.index.chunks import ChunkedText, Owner, chunk_text, replace_chunks
from clankersd.index.index import Index
from clankersd.memories.classify import find_concepts
from clankersd.memories.dedup import HashedText
from clankersd.memories.entities import link_mentions
from clankersd.memories.similarity import content_hash, quarters, simhash
from clankersd.memories.store import Columns, MemoryRow, insert_row, to_json

EMBED_TIMEOUT_SECONDS = 1.0
"""Longest wait of an addition for its vector. Without one, near-duplicates are detected by their words alone."""


@dataclass(frozen=True)
class PreparedMemory:
    """A text prepared outside the transaction: hashed, chunked for each index, and embedded if it is to be compared."""

    text: HashedText
    chunks: list[ChunkedText]
    vector: Vector | None
    note: str | None


async def prepare_memory(index: Index, content: str, compare: bool) -> PreparedMemory:
    """Hash and chunk a text in a thread; with `compare`, embed it too, to find memories that mean the same."""

    def hash_and_chunk() -> tuple[HashedText, list[ChunkedText]]:
        text = HashedText(content, content_hash(content), simhash(content))
        return text, [chunk_text(content, chunking) for chunking in index.chunkings()]

    text, chunks = await anyio.to_thread.run_sync(hash_and_chunk)
    vector, problem = await _embed(index, content, chunks) if compare else (None, None)
    return PreparedMemory(text, chunks, vector, problem)


async def _embed(index: Index, content: str, chunks: list[ChunkedText]) -> tuple[Vector | None, str | None]:
    """Return the vector of a text that is one chunk, and the reason if it should have one but has none."""
    if index.vector_problem or index.embedder is None:
        return None, f"compared by words only: {index.vector_problem}"
    if not chunks or len(chunks[0].chunks) != 1:
        return None, None  # a long text is compared by its words
    try:
        with anyio.fail_after(EMBED_TIMEOUT_SECONDS):
            [outcome] = await index.embedder.embed([content])
    except (EmbedderUnavailable, TimeoutError) as error:
        return None, f"compared by words only: {str(error) or 'the embedder takes too long'}"
    if isinstance(outcome, ItemFailed):
        return None, None
    return outcome, None


def text_columns(text: HashedText) -> Columns:
    """Return the columns that are derived from the content."""
    if text.simhash is None:
        hashes: Columns = dict.fromkeys(("simhash", "simhash_0", "simhash_1", "simhash_2", "simhash_3"))
    else:
        hashes = {f"simhash_{number}": part for number, part in enumerate(quarters(text.simhash))}
        hashes["simhash"] = f"{text.simhash:016x}"
    return {"content": text.content, "content_hash": text.hash, **hashes}


def list_columns(content: str, tags: list[str], concepts: list[str] | None, files: list[str]) -> Columns:
    """Return the columns for tags, concepts and files; concepts default to those found in the text."""
    if concepts is None:
        concepts = find_concepts(content)
    return {"tags_json": to_json(tags), "concepts_json": to_json(concepts), "files_json": to_json(files)}


def insert_memory(db: Db, row: MemoryRow, chunks: list[ChunkedText]) -> None:
    """Insert a memory, index it and link it with entities, in the caller's transaction."""
    insert_row(db, row)
    index_memory(db, row, chunks)
    link_entities(db, row)


def link_entities(db: Db, row: MemoryRow) -> None:
    """Link a memory with the entities that its text, files and concepts name."""
    link_mentions(
        db, row.id, row.content, json.loads(row.files_json), json.loads(row.concepts_json), row.updated_at
    )  # fmt: skip


def index_memory(db: Db, row: MemoryRow, chunks: list[ChunkedText]) -> None:
    """Store the chunks of a memory for searches; a deleted memory has none."""
    if row.is_deleted:
        return
    owner = _chunk_owner(msgspec.structs.asdict(row))
    for prepared in chunks:
        replace_chunks(db, owner, prepared)


def _chunk_owner(row: dict[str, Any]) -> Owner:
    words = [row["summary"] or "", *json.loads(row["tags_json"]), *json.loads(row["concepts_json"])]
    header = " ".join(word for word in words if word)
    path = f"memories/{row['id']}"
    return Owner("memory_id", row["id"], "memories", path, row["created_at"], header=header, scope=row["scope"])


TEXT_KINDS["memory"] = TextKind(
    """
    SELECT id, content AS text, summary, tags_json, concepts_json, created_at, scope
    FROM memories WHERE id = :id AND is_deleted = 0
    """,
    _chunk_owner,
    "SELECT id FROM memories WHERE id > :after AND is_deleted = 0 ORDER BY id LIMIT :limit",
)
