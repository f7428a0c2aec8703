"""Search document chunks by vector or keyword; get and list them."""

import json
from contextlib import suppress
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
from clankers_protocol.search import Filter, Search
from clankersd.db import Db
from clankersd.db.ids import whole_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, Vector
from clankersd.index.vectors import Found
from clankersd.search.filters import Eligible, eligible, without_memories
from clankersd.search.limiter import takes_search_turn
from clankersd.search.search import ask, find
from clankersd.search.vector import PENDING_SECONDS, given_vector, nearest_exactly
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_NEIGHBOURS = 4096
"""Limit of sqlite-vec's vec0 tables."""

_UNSUPPORTED_FILTERS = ("source", "role", "session", "path")
_CHUNK_COLUMNS = """
    shown.id, shown.document_id, shown.parent_id, shown.chunk_index AS "index", shown.content, shown.start_offset,
    shown.end_offset, shown.start_line, shown.end_line, shown.metadata
"""
_SELECT_BY_IDS = (
    f"SELECT {_CHUNK_COLUMNS} FROM document_chunks AS shown WHERE id IN (SELECT value FROM json_each(:ids))"
)
_SELECT_OF_DOCUMENT = f"""
    SELECT {_CHUNK_COLUMNS} FROM document_chunks AS shown
    WHERE document_id = :document AND chunk_index > :after ORDER BY chunk_index LIMIT :limit
"""
_SELECT_HITS = f"""
    SELECT chunks.id AS number, own.id AS matched, documents.title, documents.source, {_CHUNK_COLUMNS}
    FROM json_each(:ids) CROSS JOIN chunks ON chunks.id = json_each.value
    CROSS JOIN document_chunks AS own ON own.id = chunks.document_chunk_id
    CROSS JOIN document_chunks AS shown ON shown.id = coalesce(own.parent_id, own.id)
    CROSS JOIN documents ON documents.id = own.document_id
"""


@handles(ChunkSearch)
@takes_search_turn
async def search_chunks(daemon: "Daemon", request: ChunkSearch) -> ChunksFound:
    if (request.query is None) == (request.embedding is None):
        raise InvalidParams("invalid params: give exactly one of query and embedding - at `$`")
    allowed = _allowed(daemon, request.filters)
    if request.embedding is not None:
        vector: Vector | None = given_vector(daemon, request.embedding)
        problem = None
    else:
        vector, problem = await _vector_of(daemon, str(request.query))
    hits = [] if vector is None else await _nearest(daemon, vector, allowed, request.limit)
    return ChunksFound(hits, "vector", await daemon.queue.pending(daemon.index.live), problem)


@handles(ChunkSearchKeyword)
@takes_search_turn
async def search_chunks_by_keyword(daemon: "Daemon", request: ChunkSearchKeyword) -> ChunksFound:
    asked = ask(daemon, _search(request.query, request.filters), without_memories())
    candidates = await find(daemon, asked)
    hits = await _scored(daemon, [(one.chunk, one.score) for one in candidates])
    return ChunksFound(hits[: request.limit], "keyword", 0, asked.words.note)


@handles(ChunkGet)
async def get_chunks(daemon: "Daemon", request: ChunkGet) -> list[DocumentChunk]:
    def get(db: Db) -> list[DocumentChunk]:
        chunks = _fetch_by_ids(db, request.ids)
        for prefix in set(request.ids) - chunks.keys():
            with suppress(NotFound):
                chunk_id = whole_id(db, prefix, "document_chunks", "chunk")
                chunks[prefix] = _fetch_by_ids(db, [chunk_id])[chunk_id]
        return [chunks[given_id] for given_id in dict.fromkeys(request.ids) if given_id in chunks]

    return await daemon.store.read(get)


def _fetch_by_ids(db: Db, ids: list[str]) -> dict[str, DocumentChunk]:
    return {row["id"]: _chunk_from_row(row) for row in db.fetch(_SELECT_BY_IDS, {"ids": json.dumps(ids)})}


@handles(ChunkList)
async def list_chunks(daemon: "Daemon", request: ChunkList) -> ChunkPage:
    after = decode_cursor(request.cursor, int)[0] if request.cursor else -1
    params = {"document": request.document_id, "after": after, "limit": request.limit + 1}

    def page(db: Db) -> ChunkPage:
        if not db.value("SELECT 1 FROM documents WHERE id = :document", params):
            raise NotFound(f"document not found: {request.document_id}")
        rows = [_chunk_from_row(row) for row in db.fetch(_SELECT_OF_DOCUMENT, params)]
        shown = rows[: request.limit]
        return ChunkPage(shown, encode_cursor(shown[-1].index) if len(rows) > len(shown) else None)

    return await daemon.store.read(page)


def _search(query: str, filters: list[Filter] | None) -> Search:
    for one in filters or ():
        if one.field in _UNSUPPORTED_FILTERS:
            raise InvalidParams(f"invalid params: document chunks cannot be filtered by {one.field!r}")
    return Search(query, sources=["documents"], filters=filters, mode="keyword")


def _allowed(daemon: "Daemon", filters: list[Filter] | None) -> Eligible:
    live = daemon.index.live
    return eligible(_search("-", filters), live.chunking.number if live else 0, without_memories())


async def _vector_of(daemon: "Daemon", query: str) -> tuple[Vector | None, str | None]:
    """Embed the query; return the vector, or None and the reason."""
    index = daemon.index
    if problem := index.paused:
        return None, f"not searched by meaning: {problem}"
    await daemon.queue.finish_pending(PENDING_SECONDS)
    assert index.embedder
    try:
        return await index.embedder.embed_query(query), None
    except EmbedderUnavailable as error:
        return None, f"not searched by meaning: {error.reason}"
    except ItemFailed:
        return None, None  # nothing to embed, for example only punctuation


async def _nearest(daemon: "Daemon", vector: Vector, allowed: Eligible, limit: int) -> list[ScoredChunk]:
    """Return the nearest chunks. Children of one parent count once, so the search widens if too few remain."""
    k = limit
    while True:
        neighbours = await nearest_exactly(daemon, vector, allowed, k)
        hits = await _scored(daemon, neighbours)
        if len(hits) >= limit or len(neighbours) < k or k == MAX_NEIGHBOURS:
            return hits[:limit]
        k = min(k * 4, MAX_NEIGHBOURS)


async def _scored(daemon: "Daemon", scored: Found) -> list[ScoredChunk]:
    """Fetch the document chunks of the hits, each once, with parents in place of their children."""
    params = {"ids": json.dumps([number for number, _ in scored])}

    def fetch(db: Db) -> dict[int, dict[str, Any]]:
        return {row["number"]: row for row in db.fetch(_SELECT_HITS, params)}

    rows = await daemon.store.read(fetch)
    hits: dict[str, ScoredChunk] = {}
    for number, score in scored:
        row = rows.get(number)
        if row is not None and row["id"] not in hits:
            del row["number"]
            title, source, matched = row.pop("title"), row.pop("source"), row.pop("matched")
            hits[row["id"]] = ScoredChunk(_chunk_from_row(row), title, source, round(score, 6), matched)
    return list(hits.values())


def _chunk_from_row(row: dict[str, Any]) -> DocumentChunk:
    return DocumentChunk(**row | {"metadata": json.loads(row["metadata"] or "{}")})
