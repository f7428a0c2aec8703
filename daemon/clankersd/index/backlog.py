"""The backlog: texts that are stored elsewhere and still have to be chunked for the index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import structlog

from clankersd.db import Db
from clankersd.db.commit_priority import yield_to_commits
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
MAX_READ_CHARACTERS = 256 * 1024
"""Characters from which on no further text is read together with others."""

POLL_SECONDS = 1.0
YIELD_FACTOR = 4
"""While other writes wait, chunking pauses for this many times as long as it worked: an import goes first."""

MAX_YIELD_SECONDS = 0.5
MAX_CHUNKS_PER_COMMIT = 500
"""A long text becomes searchable in several commits, so that events can be stored in between."""

MAX_COUNTED_TEXTS = 1_000
"""Texts in the backlog that are counted for a search: after an import there may be millions."""

_SOURCES = {
    "message": "sessions",
    "tool": "sessions",
    "session title": "sessions",
    "memory": "memories",
    "skill": "skills",
    "document chunk": "documents",
}
"""Sources of the chunks of each kind of text."""

_COUNT = f"""
    SELECT kind, count(*) FROM (SELECT kind FROM index_backlog LIMIT {MAX_COUNTED_TEXTS}) AS waiting GROUP BY kind
"""
_ADD = "INSERT INTO index_backlog (kind, owner) VALUES (:kind, :owner) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM index_backlog WHERE kind = :kind AND owner = :owner"

log = structlog.get_logger(component="index")


@dataclass(frozen=True)
class TextKind:
    """One kind of indexed text.

    `select` returns the row of `:id` with its `text`, or no row when it is not searchable. `select_ids` returns the
    next ids after `:after`, at most `:limit`; a kind without it is not rechunked by a reindex, but by the backlog.
    `source` names the source in the settings that the kind belongs to, if any. `chunk` chunks the row's text. A text
    that `is_redundant` is searchable by another owner's chunk, and has none of its own.
    """

    select: str
    owner: Callable[[dict[str, Any]], Owner]
    select_ids: str | None = None
    chunk: Callable[[dict[str, Any], Chunking], ChunkedText] = lambda row, chunking: chunk_text(row["text"], chunking)
    is_redundant: Callable[[Db, dict[str, Any], ChunkedText], bool] | None = None
    source: str | None = None


@dataclass(frozen=True)
class _Text:
    """A text as it was read; `stored` is None if it is gone or not searchable."""

    kind: str
    owner: str
    stored: dict[str, Any] | None
    chunked: list[ChunkedText] = field(default_factory=list)


TEXT_KINDS: dict[str, TextKind] = {}
"""Kinds by their name in the backlog; each feature registers its own when it is imported."""


def add_to_backlog(db: Db, kind: str, owner: str) -> None:
    """Have a text chunked soon after the transaction that stores it."""
    db.execute(_ADD, {"kind": kind, "owner": owner})


def describe_backlog(db: Db, includes_source: Callable[[str], bool]) -> str | None:
    """Return a note on stored texts of these sources that a search cannot find yet.

    None if there are no more than are chunked at once: while an agent works, there are nearly always some.
    """
    count = sum(number for kind, number in db.tuples(_COUNT) if includes_source(_SOURCES[kind]))
    if count <= TEXTS_PER_READ:
        return None
    number = f"at least {count:,}" if count >= MAX_COUNTED_TEXTS else f"{count:,}"
    return f"{number} stored texts, such as tool calls and titles, wait to be indexed"


async def process_backlog(index: Index) -> None:
    """Chunk the texts in the backlog for as long as the daemon runs."""
    while True:
        try:
            started = anyio.current_time()
            while await process_some(index):
                index.wake()
                if index.store.queue.size:
                    await anyio.sleep(min(YIELD_FACTOR * (anyio.current_time() - started), MAX_YIELD_SECONDS))
                started = anyio.current_time()
        except Exception:
            log.exception("backlog processing failed")
        await anyio.sleep(POLL_SECONDS)


async def process_some(index: Index) -> int:
    """Chunk the oldest texts in the backlog; return how many there were."""
    if index.live is None or index.store.problem:
        return 0
    texts = await index.store.read(
        lambda db: db.tuples(f"SELECT kind, owner FROM index_backlog ORDER BY position LIMIT {TEXTS_PER_READ}")
    )
    await rechunk(index, texts)
    return len(texts)


async def rechunk(index: Index, texts: Sequence[tuple[str, str]]) -> None:
    """Chunk texts, given by kind and owner, as they are stored now, for the live index and the one being built.

    Several are read, chunked and stored together: for most texts, what a commit and a thread cost is all they cost.
    """
    done = 0
    while done < len(texts):
        read = await index.store.read(partial(_read_some, texts=texts[done:]))
        done += len(read)
        chunked = await anyio.to_thread.run_sync(_chunk_all, index, read)
        results = await index.store.write_all(partial(_store_chunks, text=text, start=0) for text in chunked)
        for text, result in zip(chunked, results, strict=True):
            if result.error is not None:
                raise result.error
            start = result.value
            while start is not None:
                start = await index.store.write(partial(_store_chunks, text=text, start=start), bulk=True)


def _read_some(db: Db, texts: Sequence[tuple[str, str]]) -> list[_Text]:
    """Read the first of the texts, and further ones while they are short."""
    read: list[_Text] = []
    characters = 0
    for kind, owner in texts:
        stored = db.fetch_one(TEXT_KINDS[kind].select, {"id": owner})
        read.append(_Text(kind, owner, stored))
        characters += len((stored and stored["text"]) or "")
        if characters > MAX_READ_CHARACTERS:
            break
    return read


def _chunk_all(index: Index, texts: list[_Text]) -> list[_Text]:
    chunked = []
    for text in texts:
        yield_to_commits()
        kind, stored = TEXT_KINDS[text.kind], text.stored
        if stored and stored["text"]:
            chunks = [kind.chunk(stored, chunking) for chunking in index.chunkings(kind.source)]
            chunked.append(replace(text, chunked=chunks))
        else:
            chunked.append(text)
    return chunked


def _store_chunks(db: Db, text: _Text, start: int) -> int | None:
    """Store some chunks of a text; return the position to continue from, or None after the last."""
    kind, stored = TEXT_KINDS[text.kind], text.stored
    columns = ", ".join(name for name in stored or () if name != "text") or "NULL"
    # SQLite compares the texts: to load one of megabytes with every commit would hold the interpreter lock.
    select_again = f"SELECT {columns}, text IS :text AS is_unchanged FROM ({kind.select})"
    current = db.fetch_one(select_again, {"id": text.owner, "text": stored["text"] if stored else None})
    if current and (stored is None or not current["is_unchanged"]):
        return None  # the text has changed since it was read, and stays in the backlog
    if current:
        chunk_owner = kind.owner(current)
        wanted = text.chunked
        if kind.is_redundant:
            wanted = [chunk_text("", one.chunking) if kind.is_redundant(db, current, one) else one for one in wanted]
        end = start + MAX_CHUNKS_PER_COMMIT
        if all(count_chunks(db, chunk_owner, one.chunking) == min(start, len(one.chunks)) for one in wanted):
            for one in wanted:
                append_chunks(db, chunk_owner, one, start, MAX_CHUNKS_PER_COMMIT)
            if any(len(one.chunks) > end for one in wanted):
                return end
        elif not all(replace_chunks(db, chunk_owner, one, MAX_CHUNKS_PER_COMMIT) for one in wanted):
            return 0
    db.execute(_REMOVE, {"kind": text.kind, "owner": text.owner})
    return None
