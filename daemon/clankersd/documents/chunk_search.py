"""Chunks of documents: nearest in meaning, by words, or by their ids."""

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
from clankersd.db.ids import resolve_id
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed, Vector
from clankersd.index.vectors import ScoredChunks
from clankersd.search.filters import Eligible, eligible, without_memories
from clankersd.search.limiter import takes_search_turn
from clankersd.search.search import ask, find
from clankersd.search.vector import PENDING_SECONDS, given_vector, nearest_exactly
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MOST_NEIGHBOURS = 4096
"""More are not to be had of vec0."""

_NOT_OF_DOCUMENTS = ("source", "role", "session", "path")
_CHUNK = """
    shown.id, shown.document_id, shown.parent_id, shown.chunk_index AS "index", shown.content, shown.start_offset,
    shown.end_offset, shown.start_line, shown.end_line, shown.metadata
"""
_GET = f"SELECT {_CHUNK} FROM document_chunks AS shown WHERE id IN (SELECT value FROM json_each(:ids))"
_LIST = f"""
    SELECT {_CHUNK} FROM document_chunks AS shown
    WHERE document_id = :document AND chunk_index > :after ORDER BY chunk_index LIMIT :limit
"""
_FOUND = f"""
    SELECT chunks.id AS number, own.id AS matched, documents.title, documents.source, {_CHUNK}
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
    return ChunksFound(hits, "vector", await daemon.queue.count_pending(daemon.index.live), problem)


@handles(ChunkSearchKeyword)
@takes_search_turn
async def search_chunks_by_words(daemon: "Daemon", request: ChunkSearchKeyword) -> ChunksFound:
    asked = ask(daemon, _search(request.query, request.filters), without_memories())
    candidates = await find(daemon, asked)
    hits = await _scored(daemon, [(one.chunk, one.score) for one in candidates])
    return ChunksFound(hits[: request.limit], "keyword", 0, asked.words.note)


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
    return {row["id"]: _chunk(row) for row in db.fetch(_GET, {"ids": json.dumps(ids)})}


@handles(ChunkList)
async def list_chunks(daemon: "Daemon", request: ChunkList) -> ChunkPage:
    after = decode_cursor(request.cursor, int)[0] if request.cursor else -1
    params = {"document": request.document_id, "after": after, "limit": request.limit + 1}

    def page(db: Db) -> ChunkPage:
        if not db.value("SELECT 1 FROM documents WHERE id = :document", params):
            raise NotFound(f"document not found: {request.document_id}")
        rows = [_chunk(row) for row in db.fetch(_LIST, params)]
        shown = rows[: request.limit]
        return ChunkPage(shown, encode_cursor(shown[-1].index) if len(rows) > len(shown) else None)

    return await daemon.store.read(page)


def _search(query: str, filters: list[Filter] | None) -> Search:
    for one in filters or ():
        if one.field in _NOT_OF_DOCUMENTS:
            raise InvalidParams(f"invalid params: chunks of documents have no {one.field!r} to filter by")
    return Search(query, sources=["documents"], filters=filters, mode="keyword")


def _allowed(daemon: "Daemon", filters: list[Filter] | None) -> Eligible:
    live = daemon.index.live
    return eligible(_search("-", filters), live.chunking.number if live else 0, without_memories())


async def _vector_of(daemon: "Daemon", query: str) -> tuple[Vector | None, str | None]:
    """The query's vector, or why there is none."""
    index = daemon.index
    if problem := index.vector_problem:
        return None, f"not searched by meaning: {problem}"
    await daemon.queue.finish_pending(PENDING_SECONDS)
    assert index.embedder
    try:
        return await index.embedder.embed_query(query), None
    except EmbedderUnavailable as error:
        return None, f"not searched by meaning: {error.reason}"
    except ItemFailed:
        return None, None  # a query without a meaning: punctuation, say


async def _nearest(daemon: "Daemon", vector: Vector, allowed: Eligible, limit: int) -> list[ScoredChunk]:
    """So many chunks; several children of a parent are one, so more are looked for where that leaves too few."""
    wanted = limit
    while True:
        found = await nearest_exactly(daemon, vector, allowed, wanted)
        hits = await _scored(daemon, found)
        if len(hits) >= limit or len(found) < wanted or wanted == MOST_NEIGHBOURS:
            return hits[:limit]
        wanted = min(wanted * 4, MOST_NEIGHBOURS)


async def _scored(daemon: "Daemon", found: ScoredChunks) -> list[ScoredChunk]:
    """The chunks of documents behind what was found, parents in place of their children, each once."""
    params = {"ids": json.dumps([number for number, _ in found])}

    def fetch(db: Db) -> dict[int, dict[str, Any]]:
        return {row["number"]: row for row in db.fetch(_FOUND, params)}

    rows = await daemon.store.read(fetch)
    hits: dict[str, ScoredChunk] = {}
    for number, score in found:
        row = rows.get(number)
        if row is not None and row["id"] not in hits:
            facts = {name: row.pop(name) for name in ("number", "matched", "title", "source")}
            chunk = _chunk(row)
            hits[chunk.id] = ScoredChunk(chunk, facts["title"], facts["source"], round(score, 6), facts["matched"])
    return list(hits.values())


def _chunk(row: dict[str, Any]) -> DocumentChunk:
    return DocumentChunk(**row | {"metadata": json.loads(row["metadata"] or "{}")})
