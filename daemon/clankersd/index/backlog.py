"""Texts that are stored elsewhere and searched here: how each kind is found again, to be cut anew or later."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import structlog

from clankersd.db import Db
from clankersd.index.chunks import ChunkedText, Chunking, Owner, append_chunks, chunk_text, count_chunks, replace_chunks
from clankersd.index.index import Index

AT_ONCE = 50
MAX_CHUNKS_PER_COMMIT = 500
"""A long text becomes searchable in several commits, so that events of others get in between."""

_LATER = "INSERT INTO index_backlog (kind, owner) VALUES (:kind, :owner) ON CONFLICT DO NOTHING"
_DONE = "DELETE FROM index_backlog WHERE kind = :kind AND owner = :owner"

log = structlog.get_logger(component="index")


@dataclass(frozen=True)
class TextKind:
    """One kind of text. `select` gives the row of `:id` with its `text`, or none when it is not to be searched;
    `all_after` the next ids after `:after`, at most `:limit`; without it a reindex leaves the kind to the backlog.
    `prepare` cuts the row's text, when that is not done as usual."""

    select: str
    owner: Callable[[dict[str, Any]], Owner]
    all_after: str | None = None
    prepare: Callable[[dict[str, Any], Chunking], ChunkedText] = lambda row, chunking: chunk_text(row["text"], chunking)


TEXT_KINDS: dict[str, TextKind] = {}
"""By the name they have in the backlog; each feature adds its own when it is imported."""


def add_to_backlog(db: Db, kind: str, owner: str) -> None:
    """Have a text cut soon after the transaction that stores it."""
    db.execute(_LATER, {"kind": kind, "owner": owner})


async def process_backlog(index: Index) -> None:
    """Cut what is stored but not cut, for as long as the daemon lives."""
    while True:
        try:
            while await process_some(index):
                index.wake()
        except Exception:
            log.exception("backlog stumbled")
        await anyio.sleep(1.0)


async def process_some(index: Index) -> int:
    """Cut some of the backlog, in threads; tells how many there were."""
    if index.live is None or index.store.problem:
        return 0
    rows = await index.store.read(
        lambda db: db.fetch(f"SELECT kind, owner FROM index_backlog ORDER BY position LIMIT {AT_ONCE}")
    )
    for row in rows:
        await rechunk(index, row["kind"], row["owner"])
    return len(rows)


async def rechunk(index: Index, kind: str, owner: str) -> None:
    """Cut one text anew for every index, from what is stored now."""
    select, owner_of = TEXT_KINDS[kind].select, TEXT_KINDS[kind].owner
    stored = await index.store.read(lambda db: db.fetch_one(select, {"id": owner}))
    prepared: list[ChunkedText] = []
    if stored and stored["text"]:
        cut = TEXT_KINDS[kind].prepare
        prepared = [await anyio.to_thread.run_sync(cut, stored, chunking) for chunking in index.chunkings()]

    def store(start: int, db: Db) -> int | None:
        """Store some chunks; returns where to go on, or None after the last."""
        current = db.fetch_one(select, {"id": owner})
        if current and (stored is None or current["text"] != stored["text"]):
            return None  # the text has changed since it was read, and stays in the backlog
        if current and prepared:
            own = owner_of(current)
            end = start + MAX_CHUNKS_PER_COMMIT
            if all(count_chunks(db, own, one.chunking) == min(start, len(one.chunks)) for one in prepared):
                for one in prepared:
                    append_chunks(db, own, one, start, MAX_CHUNKS_PER_COMMIT)
                if any(len(one.chunks) > end for one in prepared):
                    return end
            elif not all(replace_chunks(db, own, one, MAX_CHUNKS_PER_COMMIT) for one in prepared):
                return 0
        db.execute(_DONE, {"kind": kind, "owner": owner})
        return None

    start: int | None = 0
    while start is not None:
        start = await index.store.write(partial(store, start), bulk=True)
