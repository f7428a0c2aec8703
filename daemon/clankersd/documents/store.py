"""Documents and their chunks in the database: stored in place of what was there, and searched like everything else."""

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
from clankersd.index import generations, vectors
from clankersd.index.backlog import KINDS, Kind
from clankersd.index.chunker import Chunk
from clankersd.index.chunks import Chunking, Owner, Prepared, hash_of, replace
from clankersd.index.generations import Generation
from clankersd.index.tokenize import count_words, other_forms

SOURCE = "documents"
AT_ONCE = 500
"""Chunks that are removed in one transaction, where there are many."""

LARGE = 1000
"""Chunks. A document that has more is stored and removed in several transactions, so that others get in between."""

GOING = -1
"""The revision of a document that is being removed: nobody sees it any more."""

DOCUMENT = """
    SELECT documents.id, source, title, kind, strategy, projects.path AS project_path, bytes, characters,
           chunk_count AS chunks, checksum IS NOT NULL AS complete, metadata, documents.created_at,
           documents.updated_at
    FROM documents LEFT JOIN projects ON projects.id = documents.project_id
"""
CHUNK = """
    SELECT id, document_id, parent_id, chunk_index AS "index", content, start_offset, end_offset, start_line,
           end_line, metadata
    FROM document_chunks
"""
_BEGIN = """
    INSERT INTO documents (id, source, project_id, title, kind, strategy, bytes, characters, metadata, revision,
                           created_at, updated_at)
    VALUES (:id, :source, :project_id, :title, :kind, :strategy, :bytes, :characters, :metadata, 1, :created_at, :now)
    ON CONFLICT (id) DO UPDATE SET
        source = excluded.source, project_id = coalesce(excluded.project_id, project_id), title = excluded.title,
        kind = excluded.kind, strategy = excluded.strategy, bytes = excluded.bytes, characters = excluded.characters,
        metadata = coalesce(excluded.metadata, metadata), checksum = NULL, revision = revision + 1,
        created_at = coalesce(:given_created_at, created_at), updated_at = excluded.updated_at
    RETURNING revision, created_at
"""
_CHUNK = """
    INSERT INTO document_chunks (id, document_id, parent_id, chunk_index, revision, searchable, start_offset,
                                 end_offset, start_line, end_line, metadata, hash, content)
    VALUES (:id, :document_id, :parent_id, :chunk_index, :revision, :searchable, :start, :end, :start_line, :end_line,
            :metadata, :hash, :content)
    ON CONFLICT (id) DO UPDATE SET
        parent_id = excluded.parent_id, chunk_index = excluded.chunk_index, revision = excluded.revision,
        searchable = excluded.searchable, start_offset = excluded.start_offset, end_offset = excluded.end_offset,
        start_line = excluded.start_line, end_line = excluded.end_line, metadata = excluded.metadata,
        hash = excluded.hash, content = excluded.content
    WHERE document_id = excluded.document_id
    RETURNING id
"""
_GONE = "DELETE FROM document_chunks WHERE document_id = :id AND revision <> :revision"
_SOME_GONE = f"""
    DELETE FROM document_chunks WHERE id IN (
        SELECT id FROM document_chunks WHERE document_id = :id AND revision <> :revision LIMIT {AT_ONCE}
    )
    RETURNING 1
"""
_FINISH = """
    UPDATE documents SET checksum = :checksum, chunk_count =
        (SELECT count(*) FROM document_chunks WHERE document_id = :id AND searchable = 1)
    WHERE id = :id
"""
_OWN = "SELECT id FROM document_chunks WHERE document_id = :id"
_UNLINK = f"DELETE FROM chunk_edges WHERE made_at_ingest = 1 AND source_id IN ({_OWN})"
_LINK = """
    INSERT INTO chunk_edges (source_id, target_id, relation, weight, made_at_ingest, created_at)
    SELECT source_id, target_id, 'sequence', 1.0, 1, :now FROM (
        SELECT id AS source_id, lead(id) OVER (PARTITION BY parent_id ORDER BY chunk_index) AS target_id
        FROM document_chunks WHERE document_id = :id
    )
    WHERE target_id IS NOT NULL
    ON CONFLICT DO UPDATE SET weight = 1.0
"""


@dataclass
class Header:
    """What is known of a document beside its chunks; `id` None until it is known whether it is a new one."""

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
    linked: bool = True


@dataclass
class Storing:
    """A document while its chunks come in, maybe in several transactions."""

    header: Header
    id: str
    revision: int
    created_at: int
    number: int = 0
    ids: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


def begin(db: Db, header: Header) -> Storing:
    """Put down the document; what it had stays until `finish`."""
    existing = db.value("SELECT id FROM documents WHERE source = :source", {"source": header.source})
    if existing is not None and header.id not in (None, existing):
        raise Conflict(f"the source {header.source!r} belongs to another document: {existing}")
    own = header.id or existing or clock.new_id()
    if db.value("SELECT 1 FROM documents WHERE id = :id AND revision < 0", {"id": own}):
        raise Conflict(f"the document {own!r} is being removed: try again in a moment")
    now = clock.now()
    row = {
        "id": own, "source": header.source, "project_id": header.project_id, "title": header.title,
        "kind": header.kind, "strategy": header.strategy, "bytes": header.bytes, "characters": header.characters,
        "metadata": _json(header.metadata), "now": now, "created_at": header.created_at or now,
        "given_created_at": header.created_at,
    }  # fmt: skip
    stored = db.fetch_one(_BEGIN, row)
    assert stored
    db.execute("DELETE FROM document_parts WHERE document_id = :id", {"id": own})
    return Storing(header, own, stored["revision"], stored["created_at"])


def add(
    db: Db, storing: Storing, records: Sequence[Record], chunkings: list[Chunking], given: Sequence[str | None] = ()
) -> Storing:
    """Store more chunks, and make them searchable by their words; `given` are ids their sender chose.

    Returns how far it is then: what it was given stays as it was, since the transaction may be run again.
    """
    after = Storing(
        storing.header, storing.id, storing.revision, storing.created_at, storing.number, [*storing.ids],
        Counter(storing.seen),
    )  # fmt: skip
    still = "SELECT 1 FROM documents WHERE id = :id AND revision = :revision"
    if not db.value(still, {"id": storing.id, "revision": storing.revision}):
        raise Conflict("the document was deleted or stored again meanwhile")
    for place, record in enumerate(records):
        chunk_id = (given[place] if given else None) or _id_of(after, record)
        after.ids.append(chunk_id)
        _add_chunk(db, after, chunk_id, record, chunkings)
        after.number += 1
    return after


def add_part(db: Db, document_id: str, offset: int, text: str) -> None:
    """Store a stretch of the document's text."""
    row = {"id": document_id, "offset": offset, "text": text}
    db.execute("INSERT INTO document_parts (document_id, start_offset, text) VALUES (:id, :offset, :text)", row)


def finish(db: Db, storing: Storing) -> None:
    """Everything is there: what was there before and is no more goes, and consecutive chunks are linked."""
    own = {"id": storing.id, "revision": storing.revision}
    db.execute(_GONE, own)
    db.execute(_UNLINK, own)
    if storing.header.linked:
        db.execute(_LINK, {"id": storing.id, "now": clock.now()})
    db.execute(_FINISH, {"id": storing.id, "checksum": storing.header.checksum})


async def clear(store: Store, document_id: str, revision: int) -> None:
    """Remove the chunks of other revisions, some at a time."""
    own = {"id": document_id, "revision": revision}
    while await store.write(lambda db: len(db.tuples(_SOME_GONE, own)), bulk=True) == AT_ONCE:
        pass


def hide(db: Db, document_id: str) -> None:
    """Hide a document that is about to be removed."""
    sql = "UPDATE documents SET revision = :going, checksum = NULL, source = 'removed:' || id WHERE id = :id"
    db.execute(sql, {"id": document_id, "going": GOING})


async def remove(store: Store, document_id: str) -> None:
    """Remove a document with many chunks: hidden at once, then gone piece by piece."""
    await store.write(lambda db: hide(db, document_id))
    await clear(store, document_id, GOING)
    await store.write(lambda db: db.execute("DELETE FROM documents WHERE id = :id", {"id": document_id}))


async def finish_removing(store: Store) -> None:
    """Remove what an earlier daemon began to."""
    for row in await store.read(lambda db: db.fetch("SELECT id FROM documents WHERE revision < 0")):
        await remove(store, row["id"])


def keep_vectors(db: Db, live: Generation, embedded: dict[str, bytes]) -> list[tuple[int, bytes]]:
    """Store vectors their sender made, by the chunks' ids; returns them by the numbers of the index.

    When another index has taken the place of the one they were checked against, the queue makes vectors instead."""
    now_live = generations.in_state(db, "live")
    if now_live is None or now_live.id != live.id:
        return []
    sql = "SELECT id FROM chunks WHERE document_chunk_id = :chunk AND chunking = :chunking"
    rows = []
    for chunk_id, vector in embedded.items():
        number = db.value(sql, {"chunk": chunk_id, "chunking": live.chunking.number})
        if number is not None:
            rows.append((number, vector))
            db.execute("DELETE FROM index_queue WHERE generation = :g AND chunk = :c", {"g": live.id, "c": number})
    vectors.insert(db, live, rows)
    return rows


def title_changed(db: Db, document_id: str, title: str) -> None:
    """Let the chunks be found by the document's new name."""
    source = db.value("SELECT source FROM documents WHERE id = :id", {"id": document_id})
    params = {"id": document_id, "header": _header(title, source)}
    db.execute(f"UPDATE chunks SET header = :header WHERE document_chunk_id IN ({_OWN})", params)


def document(db: Db, document_id: str) -> Document:
    """A stored document; raises NotFound."""
    row = db.fetch_one(f"{DOCUMENT} WHERE documents.id = :id AND revision > 0", {"id": document_id})
    if row is None:
        raise NotFound(f"document not found: {document_id}")
    return document_from(row)


def document_from(row: dict[str, Any]) -> Document:
    row["metadata"] = json.loads(row["metadata"] or "{}")
    row["complete"] = bool(row["complete"])
    return Document(**row)


def record_of(content: str, metadata: dict[str, Any], start: int | None, end: int | None) -> Record:
    """A chunk as its sender cut it."""
    return Record(
        content, start, end, None, None, metadata, hash_of(content), other_forms(content), count_words(content)
    )


def _add_chunk(db: Db, storing: Storing, chunk_id: str, record: Record, chunkings: list[Chunking]) -> None:
    row = {
        "id": chunk_id, "document_id": storing.id, "revision": storing.revision, "chunk_index": storing.number,
        "parent_id": None if record.parent is None else storing.ids[record.parent], "searchable": record.searchable,
        "start": record.start, "end": record.end, "start_line": record.start_line, "end_line": record.end_line,
        "metadata": _json(record.metadata), "hash": record.hash, "content": record.content,
    }  # fmt: skip
    if not db.value(_CHUNK, row):
        raise Conflict(f"the chunk {chunk_id!r} belongs to another document")
    if not record.searchable:
        db.execute("DELETE FROM chunks WHERE document_chunk_id = :id", {"id": chunk_id})
        return
    owner = _owner(
        row | {"title": storing.header.title, "source": storing.header.source, "created_at": storing.created_at}
    )
    piece = Chunk(
        record.content,
        record.start_line or 1,
        record.end_line or 1,
        record.start or 0,
        record.end or len(record.content),
    )
    for chunking in chunkings:
        replace(db, owner, Prepared(chunking, [piece], [record.hash], [record.extra], [record.tokens]))


def _id_of(storing: Storing, record: Record) -> str:
    """The same for the same text in the same document, so that what refers to a chunk outlives a change elsewhere."""
    kind = "" if record.searchable else "parent:"
    storing.seen[kind + record.hash] += 1
    return hash_of(f"{storing.id}:{kind}{record.hash}:{storing.seen[kind + record.hash]}")[:32]


def _owner(row: dict[str, Any]) -> Owner:
    header = _header(row["title"], row["source"])
    return Owner("document_chunk_id", row["id"], SOURCE, f"documents/{row['id']}", row["created_at"], header=header)


def _header(title: str, source: str) -> str:
    """What a document's chunks are also found by: its title, and the name of its file."""
    name = PurePath(source).name
    return " ".join(dict.fromkeys(part for part in (title, name, other_forms(name)) if part))[:500]


def _whole(row: dict[str, Any], chunking: Chunking) -> Prepared:
    """A document's chunk is never cut again: it is what it was cut into."""
    text = row["text"]
    piece = Chunk(
        text, row["start_line"] or 1, row["end_line"] or 1, row["start_offset"] or 0, row["end_offset"] or len(text)
    )
    return Prepared(chunking, [piece], [hash_of(text)], [other_forms(text)], [count_words(text)])


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


KINDS["document chunk"] = Kind(
    """
    SELECT document_chunks.id, content AS text, start_line, end_line, start_offset, end_offset, title, source,
           documents.created_at
    FROM document_chunks JOIN documents ON documents.id = document_id
    WHERE document_chunks.id = :id AND searchable = 1
    """,
    _owner,
    "SELECT id FROM document_chunks WHERE id > :after AND searchable = 1 ORDER BY id LIMIT :limit",
    _whole,
)
