"""Checks and repairs of the index for the doctor: found with snapshot reads, repaired in small transactions."""

import json
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller

from clankersd.db import Db
from clankersd.db.engine import CHUNK_TEXTS, FullText
from clankersd.index import generations, vector_store
from clankersd.index.backlog import TEXT_KINDS, rechunk
from clankersd.index.chunks import OWNERS
from clankersd.index.files.reconcile import MAX_FILE_BYTES, SOURCE
from clankersd.index.files.sync import FileSync
from clankersd.index.generations import Generation
from clankersd.index.index import Index
from clankersd.index.queue import MAX_ATTEMPTS
from clankersd.safe_files import UnsafeFile, read_regular

ROWS_PER_COMMIT = 500

FULL_TEXT = FullText("chunks_fts", CHUNK_TEXTS, "id", "text, header, extra")

_IDS = "SELECT value FROM json_each(:ids)"
_CHUNKS_WITHOUT_OWNER = f"SELECT id FROM chunks WHERE {' AND '.join(f'{owner} IS NULL' for owner in OWNERS)}"
_ORPHANED_QUEUE_ENTRIES = """
    FROM index_queue WHERE chunk NOT IN (SELECT id FROM chunks)
        OR generation NOT IN (SELECT id FROM index_generations)
"""
_UNCHUNKED_TEXTS = """
    SELECT id FROM ({select_ids}) AS texts
    WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE {owner} = texts.id AND chunking = :chunking)
      AND NOT EXISTS (SELECT 1 FROM index_backlog WHERE kind = :kind AND owner = texts.id)
"""
_ALL_TOOLS = "SELECT id FROM tools"
_UNCHUNKED_FILES = """
    SELECT path FROM files WHERE source = :source
        AND NOT EXISTS (SELECT 1 FROM chunks WHERE file_id = files.id AND chunking = :chunking)
"""
_CHUNKS_NOT_QUEUED = """
    SELECT id FROM chunks WHERE chunking = :chunking AND id NOT IN ({embedded})
        AND id NOT IN (SELECT chunk FROM index_queue WHERE generation = :generation)
"""
_FAILED = """
    SELECT count(*) AS failed, max(error) AS error FROM index_queue
    WHERE generation = :generation AND attempts >= :attempts
"""
_QUEUE = f"""
    INSERT INTO index_queue (generation, chunk)
    SELECT :generation, id FROM chunks WHERE id IN ({_IDS}) ON CONFLICT DO NOTHING
"""
_ABOVE_ALL_IDS = 1 << 62  # and no limit


@dataclass(frozen=True)
class Orphans:
    """Chunks without an owner, and the number of queue entries without a chunk or generation."""

    chunks: list[int]
    queue_entries: int


@dataclass(frozen=True)
class Unchunked:
    """Stored texts without chunks: ids by kind, and paths of watched files; and the number of texts in the backlog."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    backlog_count: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.texts.values())) + len(self.files)


@dataclass(frozen=True)
class VectorMismatches:
    """Chunks that have no vector and are not queued, vectors without a chunk, and chunks whose embedding failed."""

    chunks: list[int] = field(default_factory=list)
    vectors: list[int] = field(default_factory=list)
    failed: int = 0
    error: str | None = None


def find_orphans(db: Db) -> Orphans:
    """Find chunks whose owner another program deleted with foreign keys off."""
    ids = set(db.engine.orphans(db, "chunks"))
    ids |= {row["id"] for row in db.fetch(_CHUNKS_WITHOUT_OWNER)}
    return Orphans(sorted(ids), int(db.value(f"SELECT count(*) {_ORPHANED_QUEUE_ENTRIES}")))


async def remove_orphans(index: Index, orphans: Orphans) -> None:
    """Delete chunks without an owner, with their full text and vectors."""
    for ids in _batches(orphans.chunks):
        delete = methodcaller(
            "execute", sql=f"DELETE FROM chunks WHERE id IN ({_IDS})", params={"ids": json.dumps(ids)}
        )
        await index.store.write(delete, bulk=True)
    await index.store.write(methodcaller("execute", sql=f"DELETE {_ORPHANED_QUEUE_ENTRIES}"))


def find_unchunked(db: Db) -> Unchunked:
    """Find texts that should be in the live index, and are neither there nor in the backlog."""
    live = generations.find(db, "live")
    if live is None:
        return Unchunked()
    texts: dict[str, list[str]] = {}
    for kind, text_kind in TEXT_KINDS.items():
        select_ids = text_kind.select_ids
        if select_ids is None and kind == "tool" and "tools" in live.sources:
            select_ids = _ALL_TOOLS
        if select_ids is None:
            continue
        owner = f"{kind.replace(' ', '_')}_id"  # the name of its column
        params = {"after": "", "limit": _ABOVE_ALL_IDS, "kind": kind, "chunking": live.chunking.number}
        for row in db.fetch(_UNCHUNKED_TEXTS.format(select_ids=select_ids, owner=owner), params):
            text = db.fetch_one(text_kind.select, {"id": row["id"]})
            # Some roles are not searched, and blank texts have no chunks.
            if text is not None and (text["text"] or "").strip():
                texts.setdefault(kind, []).append(row["id"])
    rows = db.fetch(_UNCHUNKED_FILES, {"source": SOURCE, "chunking": live.chunking.number})
    return Unchunked(
        texts,
        [row["path"] for row in rows if _has_text(row["path"])],
        int(db.value("SELECT count(*) FROM index_backlog")),
    )


async def chunk_missing(index: Index, files: FileSync, unchunked: Unchunked) -> None:
    """Chunk the texts that have no chunks."""
    for kind, ids in unchunked.texts.items():
        await rechunk(index, [(kind, owner) for owner in ids])
    if unchunked.files:
        await files.rechunk()
    index.wake()


def find_vector_mismatches(db: Db, generation: Generation) -> VectorMismatches:
    """Compare the vectors of a generation with its chunks."""
    if generation.identity.provider == "none":
        return VectorMismatches()
    has_table = generation.identity.dims is not None
    embedded = f"SELECT rowid FROM {generation.vector_table}_rowids" if has_table else "SELECT NULL WHERE false"
    params = {"chunking": generation.chunking.number, "generation": generation.id, "attempts": MAX_ATTEMPTS}
    failed = db.fetch_one(_FAILED, params)
    assert failed
    not_queued = db.tuples(_CHUNKS_NOT_QUEUED.format(embedded=embedded), params)
    without_chunk = db.tuples(f"SELECT * FROM ({embedded}) EXCEPT SELECT id FROM chunks")
    return VectorMismatches([row[0] for row in not_queued], [row[0] for row in without_chunk], **failed)


async def repair_vectors(index: Index, generation: Generation, mismatches: VectorMismatches) -> None:
    """Queue chunks that have no vector, and delete vectors that have no chunk."""
    for ids in _batches(mismatches.chunks):
        params = {"generation": generation.id, "ids": json.dumps(ids)}
        await index.store.write(methodcaller("execute", sql=_QUEUE, params=params), bulk=True)
    for ids in _batches(mismatches.vectors):
        await index.store.write(partial(vector_store.remove, generation=generation, chunks=ids), bulk=True)
    index.vectors_removed(generation, mismatches.vectors)
    index.wake()


async def rebuild_full_text(index: Index) -> None:
    """Rebuild the full-text index of all chunks, newest first, so that chunks stored in the meantime are above it."""

    def rebuild_newest(db: Db) -> int | None:
        db.engine.clear_full_text(db)
        return _index_chunks_below(db, _ABOVE_ALL_IDS)

    below = await index.store.write(rebuild_newest)
    while below is not None:
        below = await index.store.write(partial(_index_chunks_below, below=below), bulk=True)


def _index_chunks_below(db: Db, below: int) -> int | None:
    """Index some chunks; return the id below which the next ones are, or None after the last."""
    db.engine.log_changed_words(db)
    return db.engine.index_full_text_below(db, below, ROWS_PER_COMMIT)


def _has_text(path: str) -> bool:
    try:
        return bool(read_regular(path, max_bytes=MAX_FILE_BYTES).strip())
    except (OSError, UnsafeFile):
        return False  # the file sync reports the error


def _batches(ids: list[int]) -> list[list[int]]:
    return [ids[start : start + ROWS_PER_COMMIT] for start in range(0, len(ids), ROWS_PER_COMMIT)]
