"""Store documents in chunks made by the client; get, list, update and delete documents."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from clankers_protocol.documents import (
    ChunkInput,
    Document,
    DocumentDelete,
    DocumentDeleted,
    DocumentGet,
    DocumentList,
    DocumentPage,
    DocumentStore,
    DocumentText,
    DocumentUpdate,
    Ingested,
)
from clankers_protocol.errors import InvalidParams, NotFound
from clankersd import clock
from clankersd.db import Db, Notification, Store
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.documents.extractor.records import Record
from clankersd.documents.metadata import (
    MetadataChanges,
    announce,
    apply_changes,
    check_metadata,
    find_or_create_project,
)
from clankersd.documents.store import (
    LARGE_DOCUMENT_CHUNKS,
    SELECT_DOCUMENT,
    TEXT_PART_CHARACTERS,
    DocumentHeader,
    add_chunks,
    add_text,
    begin_document,
    delete_large_document,
    document_from_row,
    fetch_document,
    finish_document,
    hide_document,
    store_vectors,
)
from clankersd.index.chunks import hash_of
from clankersd.index.index import Index
from clankersd.index.tokenize import count_words, other_forms
from clankersd.index.vector_store import LabelledVector
from clankersd.projects import find_project_id
from clankersd.redaction.engine import count_redactions, redact, without_secrets
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_SELECT_UNCHANGED = """
    SELECT id FROM documents WHERE source = :source AND checksum = :checksum AND id = coalesce(:id, id)
"""
_SELECT_PARTS = """
    SELECT start_offset, text FROM document_parts
    WHERE document_id = :id AND start_offset > :offset - :part AND start_offset < :offset + :length
    ORDER BY start_offset
"""
_COUNTS = """
    SELECT (SELECT count(*) FROM document_chunks WHERE document_id = :id) AS chunks,
           (SELECT count(*) FROM chunk_edges
            WHERE source_id IN (SELECT id FROM document_chunks WHERE document_id = :id)
               OR target_id IN (SELECT id FROM document_chunks WHERE document_id = :id)) AS edges
"""


@dataclass(frozen=True)
class _ClientDocument:
    """A document chunked by the client, validated and ready to store."""

    records: list[Record]
    client_ids: list[str | None]
    vectors: list[bytes | None]
    content: str
    checksum: str
    redacted: dict[str, int]


@handles(DocumentStore)
async def store_document(daemon: "Daemon", request: DocumentStore) -> Ingested:
    check_metadata(request.metadata)
    request, secrets = await anyio.to_thread.run_sync(without_secrets, request, "project")
    prepared = await anyio.to_thread.run_sync(_prepare, daemon, request, secrets)
    content = prepared.content
    source = request.source or request.id or f"sha256:{hash_of(content)}"
    first_line = next(iter(content.strip().splitlines()), source)
    header = DocumentHeader(
        source=source,
        title=request.title or first_line[:200],
        kind=request.kind,
        strategy="given",
        checksum=prepared.checksum,
        bytes=len(content.encode()),
        characters=len(content),
        project_id=await find_or_create_project(daemon.store, request.project),
        metadata=request.metadata,
        created_at=clock.to_ms(request.created_at),
        id=request.id,
        sequence_edges=request.sequence,
    )
    changes = MetadataChanges(request.title, request.metadata, header.project_id)
    async with daemon.documents.lock_source(source):
        return await _store(daemon.store, daemon.index, header, prepared, changes, request.source is not None)


async def _store(
    store: Store,
    index: Index,
    header: DocumentHeader,
    prepared: _ClientDocument,
    changes: MetadataChanges,
    has_source: bool,
) -> Ingested:
    live = index.live

    def write_all(db: Db) -> tuple[Ingested, list[LabelledVector]]:
        named = header
        if not has_source:
            stored_source = db.value("SELECT source FROM documents WHERE id = :id", {"id": header.id})
            named = replace(header, source=stored_source or header.source)
        identity = {"source": named.source, "checksum": named.checksum, "id": named.id}
        unchanged_id = db.value(_SELECT_UNCHANGED, identity)
        if unchanged_id is not None:
            changed = apply_changes(db, unchanged_id, changes)
            return announce(db, Ingested(fetch_document(db, unchanged_id), "updated" if changed else "unchanged")), []
        write = begin_document(db, named)
        write = add_chunks(db, write, prepared.records, index.chunkings(), prepared.client_ids)
        add_text(db, write.id, prepared.content, 0)
        finish_document(db, write)
        count_redactions(db, prepared.redacted, clock.now())
        pairs = zip(write.chunk_ids, prepared.vectors, strict=True)
        embeddings = {chunk_id: vector for chunk_id, vector in pairs if vector is not None}
        stored_vectors = store_vectors(db, live, embeddings) if live and embeddings else []
        outcome = Ingested(fetch_document(db, write.id), "updated" if write.revision > 1 else "stored")
        return announce(db, outcome), stored_vectors

    ingested, stored_vectors = await store.write(write_all)
    if stored_vectors and live:
        index.vectors_added(live, stored_vectors)
    index.wake()
    return ingested


def _prepare(daemon: "Daemon", request: DocumentStore, secrets: dict[str, int]) -> _ClientDocument:
    """Validate and encode the chunks before the transaction; runs in a thread."""
    chunks = request.chunks
    vectors: list[bytes | None] = []
    for position, chunk in enumerate(chunks):
        vector = None
        if chunk.embedding is not None:
            checked = daemon.search_engine.vectors.parse_embedding(chunk.embedding, f"$.chunks[{position}].embedding")
            vector = bytes(checked.astype("<f4").tobytes())
        vectors.append(vector)
    content = request.content
    if content is None:
        content = "\n\n".join(chunk.content for chunk in chunks if chunk.parent_id is None)
    checksum = hash_of("\0".join([content, *(repr(chunk) for chunk in chunks), str(request.sequence)]))
    client_ids = [chunk.id for chunk in chunks]
    return _ClientDocument(_records(chunks), client_ids, vectors, content, checksum, secrets)


def _records(chunks: list[ChunkInput]) -> list[Record]:
    """Convert the client's chunks; raises InvalidParams for ids and parents that do not fit together."""
    positions: dict[str, int] = {}
    for position, chunk in enumerate(chunks):
        if chunk.id is not None and positions.setdefault(chunk.id, position) != position:
            raise _invalid_chunk(position, "id", f"{chunk.id!r} is used twice")
    parent_ids = {chunk.parent_id for chunk in chunks if chunk.parent_id is not None}
    records = []
    for position, chunk in enumerate(chunks):
        check_metadata(chunk.metadata, f"$.chunks[{position}].metadata")
        if not chunk.content.strip():
            raise _invalid_chunk(position, "content", "there is no text in it")
        start, end = chunk.start_offset, chunk.end_offset
        if (start is None) != (end is None) or (start or 0) > (end or 0):
            raise _invalid_chunk(position, "endOffset", "startOffset and endOffset go together, in this order")
        is_parent = chunk.id is not None and chunk.id in parent_ids
        if is_parent and chunk.embedding is not None:
            raise _invalid_chunk(position, "embedding", "a parent is not searched itself")
        parent = None
        if chunk.parent_id is not None:
            parent = positions.get(chunk.parent_id)
            if parent is None or parent >= position:
                raise _invalid_chunk(position, "parentId", f"no chunk before it has the id {chunk.parent_id!r}")
            if chunks[parent].parent_id is not None:
                raise _invalid_chunk(position, "parentId", "a parent cannot have a parent itself")
        record = Record(
            content=chunk.content,
            start=start,
            end=end,
            start_line=None,
            end_line=None,
            metadata=chunk.metadata or {},
            hash=hash_of(chunk.content),
            extra=other_forms(chunk.content),
            tokens=count_words(chunk.content),
            searchable=not is_parent,
            parent=parent,
        )
        records.append(record)
    return records


def _invalid_chunk(position: int, field: str, problem: str) -> InvalidParams:
    return InvalidParams(f"invalid params: {problem} - at `$.chunks[{position}].{field}`")


@handles(DocumentGet)
async def get_document(daemon: "Daemon", request: DocumentGet) -> DocumentText:
    if (request.id is None) == (request.source is None):
        raise InvalidParams("invalid params: give exactly one of id and source - at `$`")

    def get(db: Db) -> DocumentText:
        if request.id is not None:
            document_id = resolve_id(db, request.id, "documents", "document", "revision > 0")
        else:
            source = redact(request.source or "")[0]  # sources are stored redacted
            document_id = db.value("SELECT id FROM documents WHERE source = :source", {"source": source})
            if document_id is None:
                raise NotFound(f"document not found: {request.source}")
        document = fetch_document(db, document_id)
        params = {
            "id": document.id, "offset": request.offset, "length": request.length, "part": TEXT_PART_CHARACTERS,
        }  # fmt: skip
        parts = db.fetch(_SELECT_PARTS, params)
        first_offset = parts[0]["start_offset"] if parts else request.offset
        begin = request.offset - first_offset
        text = "".join(part["text"] for part in parts)[begin : begin + request.length]
        end = request.offset + len(text)
        return DocumentText(document, text, request.offset, end if end < document.characters else None)

    return await daemon.store.read(get)


@handles(DocumentList)
async def list_documents(daemon: "Daemon", request: DocumentList) -> DocumentPage:
    conditions, params = ["revision > 0"], dict[str, Any]()
    if request.project is not None:
        conditions.append("documents.project_id = :project_id")
    if request.source is not None:
        conditions.append("substr(source, 1, length(:source)) = :source")
        params["source"] = redact(request.source)[0]
    if request.kind is not None:
        conditions.append("kind = :kind")
        params["kind"] = request.kind
    if request.cursor:
        conditions.append("(documents.created_at, documents.id) < (:at, :before)")
        params["at"], params["before"] = decode_cursor(request.cursor, int, str)
    order = "ORDER BY documents.created_at DESC, documents.id DESC LIMIT :limit"
    sql = f"{SELECT_DOCUMENT} WHERE {' AND '.join(conditions)} {order}"

    def page(db: Db) -> DocumentPage:
        project_id = request.project and find_project_id(db, request.project)
        rows = db.fetch(sql, params | {"limit": request.limit + 1, "project_id": project_id})
        shown = [document_from_row(row) for row in rows[: request.limit]]
        more = len(rows) > len(shown)
        return DocumentPage(shown, encode_cursor(shown[-1].created_at, shown[-1].id) if more else None)

    return await daemon.store.read(page)


@handles(DocumentUpdate)
async def update_document(daemon: "Daemon", request: DocumentUpdate) -> Document:
    check_metadata(request.metadata)  # before it is redacted, which takes time
    request, secrets = await prepare(partial(without_secrets, request, "project"))
    project_id = await find_or_create_project(daemon.store, request.project)
    changes = MetadataChanges(request.title, request.metadata, project_id)

    def update(db: Db) -> Ingested:
        fetch_document(db, request.id)  # raises NotFound
        count_redactions(db, secrets, clock.now())
        changed = apply_changes(db, request.id, changes)
        return announce(db, Ingested(fetch_document(db, request.id), "updated" if changed else "unchanged"))

    return (await daemon.store.write(update)).document


@handles(DocumentDelete)
async def delete_document(daemon: "Daemon", request: DocumentDelete) -> DocumentDeleted:
    def delete(db: Db) -> DocumentDeleted:
        found = fetch_document(db, request.id)
        facts = {"source": found.source, "title": found.title, "kind": found.kind, "projectPath": found.project_path}
        facts["projectId"] = db.value("SELECT project_id FROM documents WHERE id = :id", {"id": request.id})
        counts = db.fetch_one(_COUNTS, {"id": request.id})
        assert counts
        if not request.dry_run:
            if counts["chunks"] <= LARGE_DOCUMENT_CHUNKS:
                db.execute("DELETE FROM documents WHERE id = :id", {"id": request.id})
            else:
                hide_document(db, request.id)
            db.after_commit(Notification("document", "deleted", request.id, facts))
        return DocumentDeleted(request.id, counts["chunks"], counts["edges"], request.dry_run)

    deleted = await (daemon.store.read(delete) if request.dry_run else daemon.store.write(delete))
    if not request.dry_run and deleted.chunks > LARGE_DOCUMENT_CHUNKS:
        with anyio.CancelScope(shield=True):  # finish the deletion even if the client disconnects
            await delete_large_document(daemon.store, request.id)
    return deleted
