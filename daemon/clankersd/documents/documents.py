"""Documents as their owner handles them: stored in chunks of one's own, read, listed, changed, deleted."""

from dataclasses import dataclass, replace
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
from clankersd.capture.redaction import count_redactions, redact, without_secrets
from clankersd.db import Db, Notification
from clankersd.db.ids import whole_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.documents.extractor.records import Record
from clankersd.documents.ingest import PART, parts_of
from clankersd.documents.metadata import Changes, announce, change, checked_metadata, project_of
from clankersd.documents.store import (
    DOCUMENT,
    LARGE,
    SOURCE,
    Header,
    add,
    add_part,
    begin,
    document,
    document_from,
    finish,
    hide,
    keep_vectors,
    record_of,
    remove,
)
from clankersd.index.chunks import hash_of
from clankersd.projects import root_of
from clankersd.search.vector import given_vector
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_PARTS = """
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
class _Given:
    """What a sender cut, ready to be stored."""

    records: list[Record]
    vectors: list[bytes | None]
    content: str
    checksum: str
    redacted: dict[str, int]


@handles(DocumentStore)
async def store_document(daemon: "Daemon", request: DocumentStore) -> Ingested:
    checked_metadata(request.metadata)
    request, secrets = await anyio.to_thread.run_sync(without_secrets, request, "project")
    given = await anyio.to_thread.run_sync(_prepare, daemon, request, secrets)
    source = request.source or request.id or f"sha256:{hash_of(given.content)}"
    title = request.title or next(iter(given.content.strip().splitlines()), source)[:200]
    header = Header(
        source, title, request.kind, "given", given.checksum, len(given.content.encode()), len(given.content),
        await project_of(daemon, request.project), request.metadata, clock.moment(request.created_at), request.id,
        request.sequence,
    )  # fmt: skip
    async with daemon.documents.alone_with(source):
        return await _store(daemon, header, request, given)


async def _store(daemon: "Daemon", header: Header, request: DocumentStore, given: _Given) -> Ingested:
    live = daemon.index.live

    def store(db: Db) -> tuple[Ingested, list[tuple[int, bytes]]]:
        named = header if request.source else _with_own_source(db, header)
        if known := _unchanged(db, named):
            changed = change(db, known, Changes(request.title, request.metadata, header.project_id))
            return announce(db, Ingested(document(db, known), "updated" if changed else "unchanged")), []
        storing = begin(db, named)
        storing = add(db, storing, given.records, daemon.index.chunkings(), [one.id for one in request.chunks])
        for offset, text in parts_of(given.content, 0):
            add_part(db, storing.id, offset, text)
        finish(db, storing)
        count_redactions(db, given.redacted, clock.now())
        embedded = {
            chunk: vector for chunk, vector in zip(storing.ids, given.vectors, strict=True) if vector is not None
        }
        kept = keep_vectors(db, live, embedded) if live and embedded else []
        outcome = Ingested(document(db, storing.id), "updated" if storing.revision > 1 else "stored")
        return announce(db, outcome), kept

    ingested, kept = await daemon.store.write(store)
    if kept and live:
        daemon.index.gained(live, [(number, vector, SOURCE) for number, vector in kept])
    daemon.index.wake()
    return ingested


def _prepare(daemon: "Daemon", request: DocumentStore, secrets: dict[str, int]) -> _Given:
    """Everything that can be done before the database is reached; runs in a thread."""
    vectors = [_vector(daemon, one, place) for place, one in enumerate(request.chunks)]
    chunks = request.chunks
    content = request.content if request.content is not None else "\n\n".join(_top(chunks))
    checksum = hash_of("\0".join([content, *(repr(one) for one in chunks), str(request.sequence)]))
    return _Given(_records(chunks), vectors, content, checksum, secrets)


def _with_own_source(db: Db, header: Header) -> Header:
    """Named by its id alone, a stored document keeps its source."""
    source = db.value("SELECT source FROM documents WHERE id = :id", {"id": header.id})
    return header if source is None else replace(header, source=source)


def _unchanged(db: Db, header: Header) -> str | None:
    row = {"source": header.source, "checksum": header.checksum, "id": header.id}
    sql = "SELECT id FROM documents WHERE source = :source AND checksum = :checksum AND id = coalesce(:id, id)"
    return db.value(sql, row)  # type: ignore[no-any-return]


def _records(chunks: list[ChunkInput]) -> list[Record]:
    """The chunks ready to be stored; raises InvalidParams for ids and parents that do not fit together."""
    places = _places(chunks)
    parents = {one.parent_id for one in chunks if one.parent_id is not None}
    records = []
    for place, one in enumerate(chunks):
        checked_metadata(one.metadata, f"$.chunks[{place}].metadata")
        if not one.content.strip():
            raise _wrong(place, "content", "there is no text in it")
        if (one.start_offset is None) != (one.end_offset is None) or (one.start_offset or 0) > (one.end_offset or 0):
            raise _wrong(place, "endOffset", "startOffset and endOffset go together, in this order")
        record = record_of(one.content, one.metadata or {}, one.start_offset, one.end_offset)
        record.searchable = one.id is None or one.id not in parents
        record.parent = _parent(chunks, places, place)
        if not record.searchable and one.embedding is not None:
            raise _wrong(place, "embedding", "a parent is not searched itself")
        records.append(record)
    return records


def _places(chunks: list[ChunkInput]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, one in enumerate(chunks):
        if one.id is not None and places.setdefault(one.id, place) != place:
            raise _wrong(place, "id", f"{one.id!r} is there twice")
    return places


def _parent(chunks: list[ChunkInput], places: dict[str, int], place: int) -> int | None:
    wanted = chunks[place].parent_id
    if wanted is None:
        return None
    found = places.get(wanted)
    if found is None or found >= place:
        raise _wrong(place, "parentId", f"no chunk before it has the id {wanted!r}")
    if chunks[found].parent_id is not None:
        raise _wrong(place, "parentId", "a parent has no parent itself")
    return found


def _vector(daemon: "Daemon", one: ChunkInput, place: int) -> bytes | None:
    if one.embedding is None:
        return None
    return bytes(given_vector(daemon, one.embedding, f"$.chunks[{place}].embedding").astype("<f4").tobytes())


def _top(chunks: list[ChunkInput]) -> list[str]:
    return [one.content for one in chunks if one.parent_id is None]


def _wrong(place: int, name: str, what: str) -> InvalidParams:
    return InvalidParams(f"invalid params: {what} - at `$.chunks[{place}].{name}`")


@handles(DocumentGet)
async def get_document(daemon: "Daemon", request: DocumentGet) -> DocumentText:
    if (request.id is None) == (request.source is None):
        raise InvalidParams("invalid params: give exactly one of id and source - at `$`")

    def get(db: Db) -> DocumentText:
        found = document(db, _id_of(db, request))
        params = {"id": found.id, "offset": request.offset, "length": request.length, "part": PART}
        rows = db.fetch(_PARTS, params)
        first = rows[0]["start_offset"] if rows else request.offset
        begin_at = request.offset - first
        text = "".join(row["text"] for row in rows)[begin_at : begin_at + request.length]
        after = request.offset + len(text)
        return DocumentText(found, text, request.offset, after if after < found.characters else None)

    return await daemon.store.read(get)


def _id_of(db: Db, request: DocumentGet) -> str:
    if request.id is not None:
        return whole_id(db, request.id, "documents", "document", "revision > 0")
    source = redact(request.source or "")[0]  # as it is stored
    found = db.value("SELECT id FROM documents WHERE source = :source", {"source": source})
    if found is None:
        raise NotFound(f"document not found: {request.source}")
    return str(found)


@handles(DocumentList)
async def list_documents(daemon: "Daemon", request: DocumentList) -> DocumentPage:
    conditions, params = ["revision > 0"], dict[str, Any]()
    if request.project is not None:
        conditions.append("(projects.path = :project OR projects.id = :given)")
        params |= {"project": root_of(request.project), "given": request.project}
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
    sql = f"{DOCUMENT} WHERE {' AND '.join(conditions)} {order}"

    def page(db: Db) -> DocumentPage:
        rows = db.fetch(sql, params | {"limit": request.limit + 1})
        shown = [document_from(row) for row in rows[: request.limit]]
        more = len(rows) > len(shown)
        return DocumentPage(shown, encode_cursor(shown[-1].created_at, shown[-1].id) if more else None)

    return await daemon.store.read(page)


@handles(DocumentUpdate)
async def update_document(daemon: "Daemon", request: DocumentUpdate) -> Document:
    request, secrets = without_secrets(request, "project")
    checked_metadata(request.metadata)
    changes = Changes(request.title, request.metadata, await project_of(daemon, request.project))

    def update(db: Db) -> Ingested:
        document(db, request.id)  # or there is none
        count_redactions(db, secrets, clock.now())
        changed = change(db, request.id, changes)
        return announce(db, Ingested(document(db, request.id), "updated" if changed else "unchanged"))

    return (await daemon.store.write(update)).document


@handles(DocumentDelete)
async def delete_document(daemon: "Daemon", request: DocumentDelete) -> DocumentDeleted:
    def delete(db: Db) -> DocumentDeleted:
        found = document(db, request.id)
        facts = {"source": found.source, "title": found.title, "kind": found.kind, "projectPath": found.project_path}
        facts["projectId"] = db.value("SELECT project_id FROM documents WHERE id = :id", {"id": request.id})
        counts = db.fetch_one(_COUNTS, {"id": request.id})
        assert counts
        if not request.dry_run:
            if counts["chunks"] <= LARGE:
                db.execute("DELETE FROM documents WHERE id = :id", {"id": request.id})
            else:
                hide(db, request.id)
            db.after_commit(Notification("document", "deleted", request.id, facts))
        return DocumentDeleted(request.id, counts["chunks"], counts["edges"], request.dry_run)

    deleted = await (daemon.store.read(delete) if request.dry_run else daemon.store.write(delete))
    if not request.dry_run and deleted.chunks > LARGE:
        with anyio.CancelScope(shield=True):  # begun is done, also when the client hangs up
            await remove(daemon.store, request.id)
    return deleted
