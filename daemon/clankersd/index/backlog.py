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

    read_text = stored["text"] if stored else None
    columns = ", ".join(name for name in stored or () if name != "text") or "NULL"
    # SQLite compares the texts: to load one of megabytes with every commit would hold the interpreter lock.
    select_again = f"SELECT {columns}, text IS :text AS is_unchanged FROM ({text_kind.select})"

    def store(start: int, db: Db) -> int | None:
        """Store some chunks; return the position to continue from, or None after the last."""
        current = db.fetch_one(select_again, {"id": owner, "text": read_text})
        if current and (stored is None or not current["is_unchanged"]):
            return None  # the text has changed since it was read, and stays in the backlog
        if current and chunked and text_kind.is_redundant:
            kept = [text for text in chunked if not text_kind.is_redundant(db, current, text)]
        else:
            kept = chunked
        if current and kept:
            chunk_owner = text_kind.owner(current)
            end = start + MAX_CHUNKS_PER_COMMIT
            if all(count_chunks(db, chunk_owner, text.chunking) == min(start, len(text.chunks)) for text in kept):
                for text in kept:
                    append_chunks(db, chunk_owner, text, start, MAX_CHUNKS_PER_COMMIT)
                if any(len(text.chunks) > end for text in kept):
                    return end
            elif not all(replace_chunks(db, chunk_owner, text, MAX_CHUNKS_PER_COMMIT) for text in kept):
                return 0
        db.execute(_REMOVE, {"kind": kind, "owner": owner})
        return None

    start: int | None = 0
    while start is not None:
        start = await index.store.write(partial(store, start), bulk=True)
