"""Documents and their chunks in the database.

Storing a document again replaces it: chunks of the new revision are added, then chunks of older revisions are deleted.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import msgspec

from clankers_protocol.documents import Document
from clankers_protocol.errors import Conflict, NotFound
from clankersd import clock
from clankersd.db import Db, Store
from clankersd.documents.extractor.records import Record
from clankersd.index import generations, vector_store
from clankersd.index.backlog import TEXT_KINDS, TextKind
from clankersd.index.chunker import Chunk
from clankersd.index.chunks import ChunkedText, Chunking, Owner, hash_of, replace_chunks
from clankersd.index.generations import Generation
from clankersd.index.tokenize import count_words, other_forms
from clankersd.index.vector_store import LabelledVector

INDEX_SOURCE = "documents"
"""Value of `chunks.source` for document chunks."""

CHUNKS_PER_DELETE = 500
"""Chunks deleted per transaction when a large document is deleted or replaced."""

LARGE_DOCUMENT_CHUNKS = 1000
"""A document with more chunks is stored and deleted in several transactions, so that other writes are not delayed."""

TEXT_PART_CHARACTERS = 64 * 1024
"""The text of a document is stored in rows of at most this length."""

DELETING_REVISION = -1
"""Revision of a document whose deletion has begun; reads ignore it."""

SELECT_CHUNK = """
    SELECT id, document_id, parent_id, chunk_index AS "index", content, start_offset, end_offset, start_line,
           end_line, metadata
    FROM document_chunks
"""
SELECT_DOCUMENT = """
    SELECT documents.id, source, title, kind, strategy, projects.path AS project_path, bytes, characters,
           chunk_count AS chunks, checksum IS NOT NULL AS complete, metadata, documents.created_at,
           documents.updated_at
    FROM documents LEFT JOIN projects ON projects.id = documents.project_id
"""
_UPSERT_DOCUMENT = """
    INSERT INTO documents (id, source, project_id, title, kind, strategy, bytes, characters, metadata, revision,
                           created_at, updated_at)
    VALUES (:id, :source, :project_id, :title, :kind, :strategy, :bytes, :characters, :metadata, 1, :created_at, :now)
    ON CONFLICT (id) DO UPDATE SET
        source = excluded.source, project_id = coalesce(excluded.project_id, documents.project_id),
        title = excluded.title,
        kind = excluded.kind, strategy = excluded.strategy, bytes = excluded.bytes, characters = excluded.characters,
        metadata = coalesce(excluded.metadata, documents.metadata), checksum = NULL, revision = documents.revision + 1,
        created_at = coalesce(:given_created_at, documents.created_at), updated_at = excluded.updated_at
    RETURNING revision, created_at
"""
_UPSERT_CHUNK = """
    INSERT INTO document_chunks (id, document_id, parent_id, chunk_index, revision, searchable, start_offset,
                                 end_offset, start_line, end_line, metadata, hash, content)
    VALUES (:id, :document_id, :parent_id, :chunk_index, :revision, :searchable, :start, :end, :start_line, :end_line,
            :metadata, :hash, :content)
    ON CONFLICT (id) DO UPDATE SET
        parent_id = excluded.parent_id, chunk_index = excluded.chunk_index, revision = excluded.revision,
        searchable = excluded.searchable, start_offset = excluded.start_offset, end_offset = excluded.end_offset,
        start_line = excluded.start_line, end_line = excluded.end_line, metadata = excluded.metadata,
        hash = excluded.hash, content = excluded.content
    WHERE document_chunks.document_id = excluded.document_id
    RETURNING id
"""
_DELETE_STALE_CHUNKS = "DELETE FROM document_chunks WHERE document_id = :id AND revision <> :revision"
_DELETE_SOME_STALE_CHUNKS = f"""
    DELETE FROM document_chunks WHERE id IN (
        SELECT id FROM document_chunks WHERE document_id = :id AND revision <> :revision LIMIT {CHUNKS_PER_DELETE}
    )
    RETURNING 1
"""
_COMPLETE_DOCUMENT = """
    UPDATE documents SET checksum = :checksum, chunk_count =
        (SELECT count(*) FROM document_chunks WHERE document_id = :id AND searchable = 1)
    WHERE id = :id
"""
_CHUNK_IDS = "SELECT id FROM document_chunks WHERE document_id = :id"
_DELETE_SEQUENCE_EDGES = f"DELETE FROM chunk_edges WHERE made_at_ingest = 1 AND source_id IN ({_CHUNK_IDS})"
_INSERT_SEQUENCE_EDGES = """
    INSERT INTO chunk_edges (source_id, target_id, relation, weight, made_at_ingest, created_at)
    SELECT source_id, target_id, 'sequence', 1.0, 1, :now FROM (
        SELECT id AS source_id, lead(id) OVER (PARTITION BY parent_id ORDER BY chunk_index) AS target_id
        FROM document_chunks WHERE document_id = :id
    )
    WHERE target_id IS NOT NULL
    ON CONFLICT (source_id, target_id, relation) DO UPDATE SET weight = 1.0
"""


@dataclass
class DocumentHeader:
    """A document without its chunks. Without an `id`, the document with this source is updated, or a new one made."""

    source: str
    title: str
    kind: str
    strategy: str
    checksum: str
    bytes: int
    characters: int
    project_id: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: int | None = None
    id: str | None = None
    sequence_edges: bool = True


@dataclass
class DocumentWrite:
    """Progress of storing a document, which may take several transactions."""

    header: DocumentHeader
    id: str
    revision: int
    created_at: int
    next_index: int = 0
    chunk_ids: list[str] = field(default_factory=list)
    hash_counts: Counter[str] = field(default_factory=Counter)


def begin_document(db: Db, header: DocumentHeader) -> DocumentWrite:
    """Insert or update the document's row; existing chunks stay until `finish_document`."""
    existing_id = db.value("SELECT id FROM documents WHERE source = :source", {"source": header.source})
    if existing_id is not None and header.id not in (None, existing_id):
        raise Conflict(f"the source {header.source!r} belongs to another document: {existing_id}")
    document_id = header.id or existing_id or clock.new_id()
    if db.value("SELECT 1 FROM documents WHERE id = :id AND revision < 0", {"id": document_id}):
        raise Conflict(f"the document {document_id!r} is being removed: try again in a moment")
    now = clock.now()
    row = {
        "id": document_id, "source": header.source, "project_id": header.project_id, "title": header.title,
        "kind": header.kind, "strategy": header.strategy, "bytes": header.bytes, "characters": header.characters,
        "metadata": _encode_metadata(header.metadata), "now": now, "created_at": header.created_at or now,
        "given_created_at": header.created_at,
    }  # fmt: skip
    stored = db.fetch_one(_UPSERT_DOCUMENT, row)
    assert stored
    db.execute("DELETE FROM document_parts WHERE document_id = :id", {"id": document_id})
    return DocumentWrite(header, document_id, stored["revision"], stored["created_at"])


def add_chunks(
    db: Db,
    write: DocumentWrite,
    records: Sequence[Record],
    chunkings: list[Chunking],
    client_ids: Sequence[str | None] = (),
) -> DocumentWrite:
    """Store more chunks and index their text for keyword search; `client_ids` are ids chosen by the client.

    Returns the new progress and leaves `write` unchanged, because the transaction may be run again.
    """
    after = DocumentWrite(
        write.header, write.id, write.revision, write.created_at, write.next_index, [*write.chunk_ids],
        Counter(write.hash_counts),
    )  # fmt: skip
    is_current = "SELECT 1 FROM documents WHERE id = :id AND revision = :revision"
    if not db.value(is_current, {"id": write.id, "revision": write.revision}):
        raise Conflict("the document was deleted or stored again in the meantime")
    for position, record in enumerate(records):
        chunk_id = client_ids[position] if client_ids else None
        if not chunk_id:  # derived from the text, so that references to it survive changes elsewhere in the document
            key = record.hash if record.searchable else f"parent:{record.hash}"
            after.hash_counts[key] += 1
            chunk_id = hash_of(f"{after.id}:{key}:{after.hash_counts[key]}")[:32]
        after.chunk_ids.append(chunk_id)
        _add_chunk(db, after, chunk_id, record, chunkings)
        after.next_index += 1
    return after


def add_text(db: Db, document_id: str, text: str, offset: int) -> None:
    """Store a section of the document's text, which begins at `offset`."""
    sql = "INSERT INTO document_parts (document_id, start_offset, text) VALUES (:id, :offset, :text)"
    for start in range(0, len(text), TEXT_PART_CHARACTERS):
        part = text[start : start + TEXT_PART_CHARACTERS]
        db.execute(sql, {"id": document_id, "offset": offset + start, "text": part})


def finish_document(db: Db, write: DocumentWrite) -> None:
    """Delete chunks of older revisions, link consecutive chunks and mark the document as complete."""
    params = {"id": write.id, "revision": write.revision}
    db.execute(_DELETE_STALE_CHUNKS, params)
    db.execute(_DELETE_SEQUENCE_EDGES, params)
    if write.header.sequence_edges:
        db.execute(_INSERT_SEQUENCE_EDGES, {"id": write.id, "now": clock.now()})
    db.execute(_COMPLETE_DOCUMENT, {"id": write.id, "checksum": write.header.checksum})


async def delete_stale_chunks(store: Store, document_id: str, revision: int) -> None:
    """Delete the chunks of all revisions but this one, in several transactions."""
    params = {"id": document_id, "revision": revision}
    deleted = CHUNKS_PER_DELETE
    while deleted == CHUNKS_PER_DELETE:
        deleted = await store.write(lambda db: len(db.tuples(_DELETE_SOME_STALE_CHUNKS, params)), bulk=True)


def hide_document(db: Db, document_id: str) -> None:
    """Hide a document that is about to be deleted."""
    hide = "UPDATE documents SET revision = :revision, checksum = NULL, source = 'removed:' || id WHERE id = :id"
    db.execute(hide, {"id": document_id, "revision": DELETING_REVISION})


async def delete_large_document(store: Store, document_id: str) -> None:
    """Hide a document with many chunks, then delete it in several transactions."""
    await store.write(lambda db: hide_document(db, document_id))
    await delete_stale_chunks(store, document_id, DELETING_REVISION)
    await store.write(lambda db: db.execute("DELETE FROM documents WHERE id = :id", {"id": document_id}))


async def resume_deletions(store: Store) -> None:
    """Finish deletions that an earlier daemon began."""
    for row in await store.read(lambda db: db.fetch("SELECT id FROM documents WHERE revision < 0")):
        await delete_large_document(store, row["id"])


def store_vectors(db: Db, live: Generation, embeddings: dict[str, bytes]) -> list[LabelledVector]:
    """Store vectors given by the client, keyed by chunk id; return those stored, with their labels in the index.

    Stores none if the live generation has changed since they were checked: the queue computes vectors then.
    """
    now_live = generations.find(db, "live")
    if now_live is None or now_live.id != live.id:
        return []
    sql = f"""
        SELECT id, {vector_store.PROJECT} AS project FROM chunks
        WHERE document_chunk_id = :chunk AND chunking = :chunking
    """
    stored: list[LabelledVector] = []
    db.engine.queue_new_chunks(db)  # so that those with a vector can be removed from the queue
    for chunk_id, vector in embeddings.items():
        row = db.fetch_one(sql, {"chunk": chunk_id, "chunking": live.chunking.number})
        if row is not None:
            stored.append((row["id"], vector, INDEX_SOURCE, row["project"]))
            db.execute("DELETE FROM index_queue WHERE generation = :g AND chunk = :c", {"g": live.id, "c": row["id"]})
    vector_store.insert(db, live, [(chunk, vector) for chunk, vector, _, _ in stored])
    return stored


def index_title(db: Db, document_id: str, title: str) -> None:
    """Make the document's chunks searchable by its new title."""
    source = db.value("SELECT source FROM documents WHERE id = :id", {"id": document_id})
    params = {"id": document_id, "header": _search_header(title, source)}
    db.execute(f"UPDATE chunks SET header = :header WHERE document_chunk_id IN ({_CHUNK_IDS})", params)
    db.engine.log_changed_words(db)


def fetch_document(db: Db, document_id: str) -> Document:
    """Return a stored document; raises NotFound."""
    row = db.fetch_one(f"{SELECT_DOCUMENT} WHERE documents.id = :id AND revision > 0", {"id": document_id})
    if row is None:
        raise NotFound(f"document not found: {document_id}")
    return document_from_row(row)


def document_from_row(row: dict[str, Any]) -> Document:
    """Convert a row of SELECT_DOCUMENT."""
    row["metadata"] = json.loads(row["metadata"] or "{}")
    row["complete"] = bool(row["complete"])
    return Document(**row)


def _add_chunk(db: Db, write: DocumentWrite, chunk_id: str, record: Record, chunkings: list[Chunking]) -> None:
    row = {
        "id": chunk_id, "document_id": write.id, "revision": write.revision, "chunk_index": write.next_index,
        "parent_id": None if record.parent is None else write.chunk_ids[record.parent],
        "searchable": record.searchable, "start": record.start, "end": record.end, "start_line": record.start_line,
        "end_line": record.end_line, "metadata": _encode_metadata(record.metadata), "hash": record.hash,
        "content": record.content,
    }  # fmt: skip
    if not db.value(_UPSERT_CHUNK, row):
        raise Conflict(f"the chunk {chunk_id!r} belongs to another document")
    if not record.searchable:
        db.execute("DELETE FROM chunks WHERE document_chunk_id = :id", {"id": chunk_id})
        return
    owner = _chunk_owner(chunk_id, write.header.title, write.header.source, write.created_at)
    chunk = Chunk(
        record.content,
        record.start_line or 1,
        record.end_line or 1,
        record.start or 0,
        record.end or len(record.content),
    )
    for chunking in chunkings:
        replace_chunks(db, owner, ChunkedText(chunking, [chunk], [record.hash], [record.extra], [record.tokens]))


def _chunk_owner(chunk_id: str, title: str, source: str, created_at: int) -> Owner:
    header = _search_header(title, source)
    return Owner("document_chunk_id", chunk_id, INDEX_SOURCE, f"documents/{chunk_id}", created_at, header=header)


def _search_header(title: str, source: str) -> str:
    """Join the texts that every chunk of a document is also found by: its title and file name."""
    name = PurePath(source).name
    return " ".join(dict.fromkeys(part for part in (title, name, other_forms(name)) if part))[:500]


def _encode_metadata(metadata: dict[str, Any] | None) -> str | None:
    return None if metadata is None else msgspec.json.encode(metadata).decode()


# Indexing stored chunks again, as a reindex does


def _prepare_stored_chunk(row: dict[str, Any], chunking: Chunking) -> ChunkedText:
    """Prepare a stored chunk for an index as it is: document chunks are never split again."""
    text = row["text"]
    chunk = Chunk(
        text, row["start_line"] or 1, row["end_line"] or 1, row["start_offset"] or 0, row["end_offset"] or len(text)
    )
    return ChunkedText(chunking, [chunk], [hash_of(text)], [other_forms(text)], [count_words(text)])


TEXT_KINDS["document chunk"] = TextKind(
    """
    SELECT document_chunks.id, content AS text, start_line, end_line, start_offset, end_offset, title, source,
           documents.created_at
    FROM document_chunks JOIN documents ON documents.id = document_id
    WHERE document_chunks.id = :id AND searchable = 1
    """,
    lambda row: _chunk_owner(row["id"], row["title"], row["source"], row["created_at"]),
    "SELECT id FROM document_chunks WHERE id > :after AND searchable = 1 ORDER BY id LIMIT :limit",
    _prepare_stored_chunk,
)
