"""Ingesting: a document taken apart in a process of its own, cut, and stored whole or not at all.

A long document is stored in several transactions; until the last one its checksum is missing, and handing it over
again goes on where it ended.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from clankers_protocol.documents import SUFFIXES, DocumentIngest, Ingest, Ingested
from clankers_protocol.errors import Conflict, InvalidParams, StorageUnavailable
from clankersd import clock
from clankersd.capture.redaction import count_redactions, without_secrets
from clankersd.db import Db
from clankersd.documents.chunkers import by_meaning
from clankersd.documents.extractor.records import Task, Window, records_of
from clankersd.documents.extractor.worker import Extracted, Unreadable, Worker
from clankersd.documents.files import Refused, digest_of, open_regular
from clankersd.documents.metadata import Changes, announce, change, checked_metadata, project_of
from clankersd.documents.store import LARGE, Header, Storing, add, add_part, begin, clear, document, finish, remove
from clankersd.embedders.base import EmbedderUnavailable, ItemFailed
from clankersd.index.chunks import hash_of
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

SLICE = 500
"""Chunks that are stored in one transaction."""

PART = 64 * 1024
CHILD_TOKENS, CHILD_OVERLAP, PARENT_TOKENS = 256, 32, 1024

NOT_REDACTED = ("data", "path", "project")
"""Parameters that are no text, or name a file or project as it is on disk."""

_PART_OF_NEW = "SELECT id FROM documents WHERE source = :source AND revision = 1 AND checksum IS NULL"


class Documents:
    """What ingesting shares: the process that takes documents apart, and who is at work on which source."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.own_batches: set[str] = set()
        """Batches that this daemon accepted; others in the database are left from an earlier one."""
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def alone_with(self, source: str) -> AsyncIterator[None]:
        """Nobody else changes the document of this source meanwhile."""
        lock = self._locks.setdefault(source, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(source, None)


@handles(DocumentIngest)
async def ingest_document(daemon: "Daemon", request: DocumentIngest) -> Ingested:
    return await ingest(daemon, request)


async def ingest(daemon: "Daemon", request: Ingest) -> Ingested:
    """Take in one document; unchanged it is left as it is."""
    field, body, digest = await anyio.to_thread.run_sync(_content, request)
    request, secrets = without_secrets(request, *NOT_REDACTED, "text")  # the text is redacted where it is extracted
    checked_metadata(request.metadata)
    if request.strategy == "semantic" and daemon.index.embedder is None:
        raise Conflict("to cut by meaning needs an embedder: choose another strategy, or an embedder")
    path = _absolute(request.path) if request.path is not None else None
    source = request.source or path or f"sha256:{digest}"
    task = _task(daemon, request, path, source, len(body))
    try:
        async with daemon.documents.alone_with(source):
            ingested = await _take_in(daemon, request, task, source, body)
            if secrets and ingested.outcome != "unchanged":
                await daemon.store.write(lambda db: count_redactions(db, secrets, clock.now()))
            return ingested
    except Unreadable as error:
        raise InvalidParams(f"invalid params: {error} - at `$.{field}`") from error


async def _take_in(daemon: "Daemon", request: Ingest, task: Task, source: str, body: bytes) -> Ingested:
    digest = await anyio.to_thread.run_sync(_digest, task, body)
    project = await project_of(daemon, request.project)
    changes = Changes(request.title, request.metadata, project)
    known = {"source": source, "checksum": _checksum(digest, request, task)}

    def unchanged(db: Db) -> Ingested | None:
        found = db.value("SELECT id FROM documents WHERE source = :source AND checksum = :checksum", known)
        if found is None:
            return None
        changed = change(db, found, changes)
        return announce(db, Ingested(document(db, found), "updated" if changed else "unchanged"))

    if found := await daemon.store.write(unchanged):
        return found
    async with daemon.documents.worker.extracted(task, body, daemon.paths.data) as extracted:
        done = extracted.done
        # A file that was written to meanwhile is looked at again the next time, whatever it holds then.
        settled = digest if done.hash == digest else f"{digest} {done.hash}"
        header = Header(
            source, request.title or done.title or _name_of(source, done.kind), done.kind, done.strategy,
            _checksum(settled, request, task), done.bytes, done.characters, project, request.metadata,
            clock.moment(request.created_at),
        )  # fmt: skip
        async with _or_not_at_all(daemon, source):
            return await _store(daemon, header, extracted, task.tokens)


async def _store(daemon: "Daemon", header: Header, extracted: Extracted, tokens: int) -> Ingested:
    storing: Storing | None = None
    waiting: list[Window] = []
    async for window in _cut_windows(daemon, extracted, tokens):
        if sum(len(one.records) for one in waiting) >= SLICE:
            storing = await daemon.store.write(partial(_put, daemon, header, storing, waiting), bulk=True)
            daemon.index.wake()
            waiting = []
        waiting.append(window)

    if storing is not None or await _is_large(daemon, header.source):
        storing = await daemon.store.write(partial(_put, daemon, header, storing, waiting), bulk=True)
        await clear(daemon.store, storing.id, storing.revision)
        waiting = []

    def end(db: Db) -> Ingested:
        stored = _put(daemon, header, storing, waiting, db)
        finish(db, stored)
        count_redactions(db, extracted.done.redacted, clock.now())
        return announce(db, Ingested(document(db, stored.id), "updated" if stored.revision > 1 else "stored"))

    ingested = await daemon.store.write(end)
    daemon.index.wake()
    return ingested


@asynccontextmanager
async def _or_not_at_all(daemon: "Daemon", source: str) -> AsyncIterator[None]:
    """What breaks off leaves no part of a new document behind. One that was there before stays, unfinished.

    When the daemon stops, or cannot store, what is there stays too: it is gone on with when it is handed over again.
    """
    try:
        yield
    except StorageUnavailable:
        raise
    except BaseException:
        if not daemon.stopping.is_set():
            with anyio.CancelScope(shield=True), suppress(StorageUnavailable):
                if part := await daemon.store.read(lambda db: db.value(_PART_OF_NEW, {"source": source})):
                    await remove(daemon.store, part)
        raise


async def _is_large(daemon: "Daemon", source: str) -> bool:
    """Whether what is to be replaced has many chunks."""
    sql = "SELECT 1 FROM documents WHERE source = :source AND (chunk_count > :large OR checksum IS NULL)"
    return await daemon.store.read(lambda db: db.value(sql, {"source": source, "large": LARGE})) is not None


def _put(daemon: "Daemon", header: Header, storing: Storing | None, windows: list[Window], db: Db) -> Storing:
    storing = storing or begin(db, header)
    for window in windows:
        storing = add(db, storing, window.records, daemon.index.chunkings())
        for offset, text in parts_of(window.text, window.offset):
            add_part(db, storing.id, offset, text)
    return storing


def parts_of(text: str, offset: int) -> Iterator[tuple[int, str]]:
    """A text in parts short enough for one row each, and where they begin."""
    for at in range(0, len(text), PART):
        yield offset + at, text[at : at + PART]


async def _cut_windows(daemon: "Daemon", extracted: Extracted, tokens: int) -> AsyncIterator[Window]:
    windows = extracted.windows()
    while (window := await anyio.to_thread.run_sync(next, windows, None)) is not None:
        if window.sentences:
            likeness = await _likeness(daemon, [window.text[start:end] for start, end, _ in window.sentences])
            spans = await anyio.to_thread.run_sync(by_meaning, window.text, window.pieces(), likeness, tokens)
            window.records = await anyio.to_thread.run_sync(records_of, window, spans, 0)
        yield window


async def _likeness(daemon: "Daemon", sentences: list[str]) -> list[float]:
    """How alike each sentence is to the next, by their vectors; one that has none is parted from nobody."""
    embedder = daemon.index.embedder
    try:
        if embedder is None:
            raise EmbedderUnavailable("the embedder is set to none")
        vectors = await embedder.embed(sentences)
    except EmbedderUnavailable as error:
        raise Conflict(f"to cut by meaning needs the embedder: {error.reason}") from error
    pairs = pairwise(vectors)
    return [1.0 if isinstance(a, ItemFailed) or isinstance(b, ItemFailed) else float(a @ b) for a, b in pairs]


def _content(request: Ingest) -> tuple[str, bytes, str]:
    """Which of the three is given, its bytes and their hash; those of a file are read elsewhere."""
    given = [name for name in ("text", "data", "path") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidParams("invalid params: give exactly one of text, data and path - at `$`")
    try:
        body = base64.b64decode(request.data, validate=True) if request.data is not None else b""
    except (binascii.Error, ValueError) as error:
        raise InvalidParams(f"invalid params: not base64: {error} - at `$.data`") from error
    body = request.text.encode() if request.text is not None else body
    return given[0], body, hashlib.sha256(body).hexdigest()


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\x00" in path:
        raise InvalidParams("invalid params: a path must begin with / - at `$.path`")
    return os.path.normpath(path)


def _task(daemon: "Daemon", request: Ingest, path: str | None, source: str, size: int) -> Task:
    config, nested = daemon.config, request.strategy == "parentChild"
    tokens = request.chunk_tokens or (CHILD_TOKENS if nested else config.chunk_tokens)
    overlap = CHILD_OVERLAP if nested else config.chunk_overlap
    if request.parent_tokens is not None and (not nested or request.parent_tokens < tokens):
        raise InvalidParams("invalid params: only parentChild has parents, larger than chunks - at `$.parentTokens`")
    return Task(
        name=path or source,
        path=path,
        size=size,
        kind=request.kind or _kind_of_text(request),
        strategy=request.strategy,
        tokens=tokens,
        overlap=overlap if request.overlap is None else request.overlap,
        parent_tokens=max(request.parent_tokens or PARENT_TOKENS, tokens),
        largest=config.document_megabytes * 1024 * 1024,
        seconds=config.document_seconds,
    )


def _name_of(source: str, kind: str) -> str:
    """A title for what has none."""
    return f"Untitled {kind}" if source.startswith("sha256:") else Path(source).name or source


def _kind_of_text(request: Ingest) -> str | None:
    """Text is text, also when its source is called a PDF."""
    suffix = Path(request.source or "").suffix.lower().removeprefix(".")
    return "text" if request.text is not None and SUFFIXES.get(suffix) in ("pdf", "docx") else None


def _digest(task: Task, body: bytes) -> str:
    if task.path is None:
        return hashlib.sha256(body).hexdigest()
    try:
        with open_regular(task.path, task.largest) as file:
            return digest_of(file)
    except Refused as error:
        raise Unreadable(str(error)) from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error


def _checksum(digest: str, request: Ingest, task: Task) -> str:
    """Of the content and of how it is to be cut."""
    how = (request.kind, request.strategy, task.tokens, task.overlap, task.parent_tokens)
    return hash_of(f"{digest}:{how}")
