"""Chunks of documents: nearest in meaning, by words, or by their ids."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clankers_protocol.documents import (
    ChunkGet,
    ChunkList,
    ChunkPage,
    ChunkSearch,
    ChunkSearchKeyword,
    ChunksFound,
    DocumentChunk,
    ScoredChunk,
)
from clankers_protocol.errors import InvalidParams, NotFound
from clankers_protocol.search import Filter
from clankersd.db import Db, Store
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.documents.store import SELECT_CHUNK
from clankersd.search.filters import NO_MEMORIES, Criteria, resolve_projects
from clankersd.search.limiter import takes_search_slot
from clankersd.search.plan import Page, SearchOutcome, SearchPlan
from clankersd.search.rows import ChunkRow, RowQuery
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_NOT_OF_DOCUMENTS = ("source", "role", "session", "path")
_GET = f"{SELECT_CHUNK} WHERE id IN (SELECT value FROM json_each(:ids))"
_LIST = f"{SELECT_CHUNK} WHERE document_id = :document AND chunk_index > :after ORDER BY chunk_index LIMIT :limit"


@dataclass(slots=True)
class DocumentChunkRow(ChunkRow):
    """A chunk of the index with the document chunk to show for it: the parent of a child, else the chunk itself."""

    shown_id: str
    shown_parent_id: str | None
    document_id: str
    chunk_index: int
    content: str
    start_offset: int
    end_offset: int
    document_start_line: int | None
    document_end_line: int | None
    metadata: str | None
    title: str
    document_source: str


_ROWS = RowQuery(
    DocumentChunkRow,
    columns="""
        shown.id AS shown_id, shown.parent_id AS shown_parent_id, shown.document_id, shown.chunk_index, shown.content,
        shown.start_offset, shown.end_offset, shown.start_line AS document_start_line,
        shown.end_line AS document_end_line, shown.metadata, documents.title, documents.source AS document_source
    """,
    joins="""
        CROSS JOIN document_chunks AS own ON own.id = chunks.document_chunk_id
        CROSS JOIN document_chunks AS shown ON shown.id = coalesce(own.parent_id, own.id)
        CROSS JOIN documents ON documents.id = own.document_id
    """,
)


@handles(ChunkSearch)
@takes_search_slot
async def search_chunks(daemon: "Daemon", request: ChunkSearch) -> ChunksFound:
    engine = daemon.search_engine
    plan = SearchPlan(
        query=request.query,
        embedding=request.embedding,
        filter=engine.build_filter(await _criteria(daemon.store, request.filters), NO_MEMORIES),
        rows=_ROWS,
        page=Page(request.limit),
        use_cosine=True,
        group_of=lambda row: row.shown_id,
    )
    outcome = await engine.run(plan)
    return ChunksFound(_scored(outcome), "vector", outcome.pending, outcome.degraded)


@handles(ChunkSearchKeyword)
@takes_search_slot
async def search_chunks_by_words(daemon: "Daemon", request: ChunkSearchKeyword) -> ChunksFound:
    engine = daemon.search_engine
    plan = SearchPlan(
        query=request.query,
        filter=engine.build_filter(await _criteria(daemon.store, request.filters), NO_MEMORIES),
        rows=_ROWS,
        page=Page(request.limit),
        mode="keyword",
        group_of=lambda row: row.shown_id,
    )
    outcome = await engine.run(plan)
    return ChunksFound(_scored(outcome), "keyword", 0, outcome.degraded)


@handles(ChunkGet)
async def get_chunks(daemon: "Daemon", request: ChunkGet) -> list[DocumentChunk]:
    def get(db: Db) -> list[DocumentChunk]:
        found = _by_ids(db, request.ids)
        for given in set(request.ids) - found.keys():
            with suppress(NotFound):
                found[given] = _by_ids(db, [resolve_id(db, given, "document_chunks", "chunk")]).popitem()[1]
        return [found[chunk] for chunk in dict.fromkeys(request.ids) if chunk in found]

    return await daemon.store.read(get)


def _by_ids(db: Db, ids: list[str]) -> dict[str, DocumentChunk]:
    return {row["id"]: _chunk_from_row(row) for row in db.fetch(_GET, {"ids": json.dumps(ids)})}


@handles(ChunkList)
async def list_chunks(daemon: "Daemon", request: ChunkList) -> ChunkPage:
    after = decode_cursor(request.cursor, int)[0] if request.cursor else -1
    params = {"document": request.document_id, "after": after, "limit": request.limit + 1}

    def page(db: Db) -> ChunkPage:
        if not db.value("SELECT 1 FROM documents WHERE id = :document", params):
            raise NotFound(f"document not found: {request.document_id}")
        rows = [_chunk_from_row(row) for row in db.fetch(_LIST, params)]
        shown = rows[: request.limit]
        return ChunkPage(shown, encode_cursor(shown[-1].index) if len(rows) > len(shown) else None)

    return await daemon.store.read(page)


async def _criteria(store: Store, filters: list[Filter] | None) -> Criteria:
    for one in filters or ():
        if one.field in _NOT_OF_DOCUMENTS:
            raise InvalidParams(f"invalid params: document chunks cannot be filtered by {one.field!r}")
    criteria = Criteria(sources=["documents"], filters=filters or ())
    return await store.read(lambda db: resolve_projects(db, criteria)) if filters else criteria


def _scored(outcome: SearchOutcome[DocumentChunkRow]) -> list[ScoredChunk]:
    scored = []
    for candidate in outcome.candidates:
        row = candidate.row
        chunk = DocumentChunk(
            id=row.shown_id,
            document_id=row.document_id,
            parent_id=row.shown_parent_id,
            index=row.chunk_index,
            content=row.content,
            start_offset=row.start_offset,
            end_offset=row.end_offset,
            start_line=row.document_start_line,
            end_line=row.document_end_line,
            metadata=json.loads(row.metadata or "{}"),
        )
        matched = str(row.document_chunk_id)
        scored.append(ScoredChunk(chunk, row.title, row.document_source, candidate.wire_score, matched))
    return scored


def _chunk_from_row(row: dict[str, Any]) -> DocumentChunk:
    return DocumentChunk(**row | {"metadata": json.loads(row["metadata"] or "{}")})
