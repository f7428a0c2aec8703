"""The backlog: texts that are stored elsewhere and still have to be chunked for the index."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import structlog

from clankersd.db import Db
from clankersd.index.chunks import (
    ChunkedText,
    Chunking,
    Owner,
    append_chunks,
    chunk_text,
    count_chunks,
    replace_chunks,
)
from clankersd.index.index import Index

TEXTS_PER_READ = 50
POLL_SECONDS = 1.0
MAX_CHUNKS_PER_COMMIT = 500
"""A long text becomes searchable in several commits, so that events can be stored in between."""

_ADD = "INSERT INTO index_backlog (kind, owner) VALUES (:kind, :owner) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM index_backlog WHERE kind = :kind AND owner = :owner"

log = structlog.get_logger(component="index")


@dataclass(frozen=True)
class TextKind:
    """One kind of indexed text.

    `select` returns the row of `:id` with its `text`, or no row when it is not searchable. `select_ids` returns the
    next ids after `:after`, at most `:limit`; a kind without it is not rechunked by a reindex, but by the backlog.
    `source` names the source in the settings that the kind belongs to, if any. `chunk` chunks the row's text. A text
    that `is_redundant` is searchable already, and not stored again.
    """

    select: str
    owner: Callable[[dict[str, Any]], Owner]
    select_ids: str | None = None
    chunk: Callable[[dict[str, Any], Chunking], ChunkedText] = lambda row, chunking: chunk_text(row["text"], chunking)
    is_redundant: Callable[[Db, dict[str, Any], ChunkedText], bool] | None = None
    source: str | None = None


TEXT_KINDS: dict[str, TextKind] = {}
"""Kinds by their name in the backlog; each feature registers its own when it is imported."""


def add_to_backlog(db: Db, kind: str, owner: str) -> None:
    """Have a text chunked soon after the transaction that stores it."""
    db.execute(_ADD, {"kind": kind, "owner": owner})


async def process_backlog(index: Index) -> None:
    """Chunk the texts in the backlog for as long as the daemon runs."""
    while True:
        try:
            while await process_some(index):
                index.wake()
        except Exception:
            log.exception("backlog processing failed")
        await anyio.sleep(POLL_SECONDS)


async def process_some(index: Index) -> int:
    """Chunk the oldest texts in the backlog; return how many there were."""
    if index.live is None or index.store.problem:
        return 0
    rows = await index.store.read(
        lambda db: db.fetch(f"SELECT kind, owner FROM index_backlog ORDER BY position LIMIT {TEXTS_PER_READ}")
    )
    for row in rows:
        await rechunk(index, row["kind"], row["owner"])
    return len(rows)


async def rechunk(index: Index, kind: str, owner: str) -> None:
    """Chunk one text, as it is stored now, for the live index and the one being built."""
    text_kind = TEXT_KINDS[kind]
    stored = await index.store.read(lambda db: db.fetch_one(text_kind.select, {"id": owner}))
    chunked: list[ChunkedText] = []
    if stored and stored["text"]:
        chunk = text_kind.chunk
        chunked = [
            await anyio.to_thread.run_sync(chunk, stored, chunking) for chunking in index.chunkings(text_kind.source)
        ]

    def store(start: int, db: Db) -> int | None:
        """Store some chunks; return the position to continue from, or None after the last."""
        current = db.fetch_one(text_kind.select, {"id": owner})
        if current and (stored is None or current["text"] != stored["text"]):
            return None  # the text has changed since it was read, and stays in the backlog
        if current and chunked and text_kind.is_redundant:
            kept = [text for text in chunked if not text_kind.is_redundant(db, current, text)]
        else:
            kept = chunked
        if current and kept:
            continue_from = _store_some(db, text_kind.owner(current), kept, start)
            if continue_from is not None:
                return continue_from
        db.execute(_REMOVE, {"kind": kind, "owner": owner})
        return None

    start: int | None = 0
    while start is not None:
        start = await index.store.write(partial(store, start), bulk=True)


def _store_some(db: Db, owner: Owner, chunked: list[ChunkedText], start: int) -> int | None:
    """Append or replace at most MAX_CHUNKS_PER_COMMIT chunks; return where to continue, or None when all are stored."""
    end = start + MAX_CHUNKS_PER_COMMIT
    if all(count_chunks(db, owner, text.chunking) == min(start, len(text.chunks)) for text in chunked):
        for text in chunked:
            append_chunks(db, owner, text, start, MAX_CHUNKS_PER_COMMIT)
        return end if any(len(text.chunks) > end for text in chunked) else None
    complete = all(replace_chunks(db, owner, text, MAX_CHUNKS_PER_COMMIT) for text in chunked)
    return None if complete else 0
