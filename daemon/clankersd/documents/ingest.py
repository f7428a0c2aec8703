"""Ingest documents: extract the text in a separate process, split it into chunks and store it.

A long document is stored in several transactions. The last one sets its checksum; if ingestion is interrupted before,
ingesting the document again completes it.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from clankers_protocol.documents import SUFFIXES, DocumentIngest, Ingest, Ingested
from clankers_protocol.errors import Conflict, InvalidParams, StorageUnavailable
from clankersd import clock
from clankersd.config import Config
from clankersd.db import Db, Store
from clankersd.documents.chunkers import chunk_semantic
from clankersd.documents.extractor.records import Task, Window, build_records
from clankersd.documents.extractor.worker import Extracted, Worker
from clankersd.documents.files import ExtractionError, open_regular, sha256_of
from clankersd.documents.metadata import (
    MetadataChanges,
    announce,
    apply_changes,
    check_metadata,
    find_or_create_project,
)
from clankersd.documents.store import (
    LARGE_DOCUMENT_CHUNKS,
    DocumentHeader,
    DocumentWrite,
    add_chunks,
    add_text,
    begin_document,
    delete_large_document,
    delete_stale_chunks,
    fetch_document,
    finish_document,
)
from clankersd.embedders.base import Embedder, EmbedderUnavailable, ItemFailed
from clankersd.index.chunks import hash_of
from clankersd.index.index import Index
from clankersd.redaction.engine import count_redactions, without_secrets
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

CHUNKS_PER_COMMIT = 500

CHILD_TOKENS, CHILD_OVERLAP_TOKENS, PARENT_TOKENS = 256, 32, 1024
"""Chunk sizes of the strategy parentChild, where the client gives none."""

NOT_REDACTED = ("data", "path", "project")
"""Parameters that are not text, or that name a file or project as it is on disk."""

_MAY_BE_LARGE = "SELECT 1 FROM documents WHERE source = :source AND (chunk_count > :large OR checksum IS NULL)"
_UNFINISHED_NEW = "SELECT id FROM documents WHERE source = :source AND revision = 1 AND checksum IS NULL"


class Documents:
    """State shared by all ingestions: the extraction process, and a lock per source."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.own_batches: set[str] = set()
        """Batches that this daemon accepted; others in the database are left from an earlier one."""
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def lock_source(self, source: str) -> AsyncIterator[None]:
        """Hold the only right to change the document of this source."""
        lock = self._locks.setdefault(source, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(source, None)


@dataclass(frozen=True)
class _Content:
    """The content of a request, and the parameter it came in. `body` is empty for a path."""

    field: str
    body: bytes
    sha256: str


@handles(DocumentIngest)
async def ingest_document(daemon: "Daemon", request: DocumentIngest) -> Ingested:
    return await ingest(daemon, request)


async def ingest(daemon: "Daemon", request: Ingest) -> Ingested:
    """Ingest one document; an unchanged document is not stored again."""
    check_metadata(request.metadata)  # before it is redacted, which takes time
    content = await anyio.to_thread.run_sync(_decode_content, request)
    request, secrets = without_secrets(request, *NOT_REDACTED, "text")  # the text is redacted where it is extracted
    if request.strategy == "semantic" and daemon.index.embedder is None:
        raise Conflict("the strategy semantic needs an embedder: choose another strategy, or configure an embedder")
    path = None if request.path is None else _normalize_path(request.path)
    source = request.source or path or f"sha256:{content.sha256}"
    task = _build_task(daemon.config, request, path, source, len(content.body))
    try:
        async with daemon.documents.lock_source(source):
            ingested = await _ingest_locked(daemon, request, task, source, content)
            if secrets and ingested.outcome != "unchanged":
                await daemon.store.write(lambda db: count_redactions(db, secrets, clock.now()))
            return ingested
    except ExtractionError as error:
        raise InvalidParams(f"invalid params: {error} - at `$.{content.field}`") from error


async def _ingest_locked(daemon: "Daemon", request: Ingest, task: Task, source: str, content: _Content) -> Ingested:
    """Extract and store the document unless its content and chunking options are those stored."""
    digest = content.sha256
    if task.path is not None:
        digest = await anyio.to_thread.run_sync(_file_digest, task.path, task.max_bytes)
    project_id = await find_or_create_project(daemon.store, request.project)
    changes = MetadataChanges(request.title, request.metadata, project_id)
    identity = {"source": source, "checksum": _checksum(digest, request, task)}

    def update_unchanged(db: Db) -> Ingested | None:
        document_id = db.value("SELECT id FROM documents WHERE source = :source AND checksum = :checksum", identity)
        if document_id is None:
            return None
        changed = apply_changes(db, document_id, changes)
        return announce(db, Ingested(fetch_document(db, document_id), "updated" if changed else "unchanged"))

    if unchanged := await daemon.store.write(update_unchanged):
        return unchanged
    async with daemon.documents.worker.extracted(task, content.body, daemon.paths.data) as extracted:
        done = extracted.done
        # If the file changed between hashing and extraction, store a checksum that matches neither version, so that
        # the next ingestion extracts it again.
        digest = digest if done.sha256 == digest else f"{digest} {done.sha256}"
        title = request.title or done.title
        if not title:
            title = f"Untitled {done.kind}" if source.startswith("sha256:") else PurePath(source).name or source
        header = DocumentHeader(
            source=source,
            title=title,
            kind=done.kind,
            strategy=done.strategy,
            checksum=_checksum(digest, request, task),
            bytes=done.bytes,
            characters=done.characters,
            project_id=project_id,
            metadata=request.metadata,
            created_at=clock.to_ms(request.created_at),
        )
        async with _remove_new_on_failure(daemon, source):
            return await _store(daemon.store, daemon.index, header, extracted, task.tokens)


async def _store(store: Store, index: Index, header: DocumentHeader, extracted: Extracted, tokens: int) -> Ingested:
    write: DocumentWrite | None = None
    waiting: list[Window] = []
    async for window in _chunked_windows(index.embedder, extracted, tokens):
        if sum(len(earlier.records) for earlier in waiting) >= CHUNKS_PER_COMMIT:
            write = await store.write(partial(_store_windows, index, header, write, waiting), bulk=True)
            index.wake()
            waiting = []
        waiting.append(window)

    replaced = {"source": header.source, "large": LARGE_DOCUMENT_CHUNKS}
    if write is not None or await store.read(lambda db: db.value(_MAY_BE_LARGE, replaced)):
        write = await store.write(partial(_store_windows, index, header, write, waiting), bulk=True)
        await delete_stale_chunks(store, write.id, write.revision)
        waiting = []

    def finish(db: Db) -> Ingested:
        finished = _store_windows(index, header, write, waiting, db)
        finish_document(db, finished)
        count_redactions(db, extracted.done.redacted, clock.now())
        document = fetch_document(db, finished.id)
        return announce(db, Ingested(document, "updated" if finished.revision > 1 else "stored"))

    ingested = await store.write(finish)
    index.wake()
    return ingested


@asynccontextmanager
async def _remove_new_on_failure(daemon: "Daemon", source: str) -> AsyncIterator[None]:
    """Delete a new document if storing it fails. A document that existed before stays, incomplete.

    If the daemon stops or storage is unavailable, nothing is deleted: ingesting the document again completes it.
    """
    try:
        yield
    except StorageUnavailable:
        raise
    except BaseException:
        if not daemon.stopping.is_set():
            with anyio.CancelScope(shield=True), suppress(StorageUnavailable):
                document_id = await daemon.store.read(lambda db: db.value(_UNFINISHED_NEW, {"source": source}))
                if document_id is not None:
                    await delete_large_document(daemon.store, document_id)
        raise


def _store_windows(
    index: Index, header: DocumentHeader, write: DocumentWrite | None, windows: list[Window], db: Db
) -> DocumentWrite:
    write = write or begin_document(db, header)
    for window in windows:
        write = add_chunks(db, write, window.records, index.chunkings())
        add_text(db, write.id, window.text, window.offset)
    return write


async def _chunked_windows(embedder: Embedder | None, extracted: Extracted, tokens: int) -> AsyncIterator[Window]:
    """Yield the extracted windows; chunk those whose sentences must be embedded first (strategy semantic)."""
    windows = extracted.windows()
    while (window := await anyio.to_thread.run_sync(next, windows, None)) is not None:
        if window.sentences:
            sentences = [window.text[start:end] for start, end, _ in window.sentences]
            similarities = await _neighbor_similarities(embedder, sentences)
            spans = await anyio.to_thread.run_sync(chunk_semantic, window.text, window.pieces(), similarities, tokens)
            window.records = await anyio.to_thread.run_sync(build_records, window, spans, 0)
        yield window


async def _neighbor_similarities(embedder: Embedder | None, sentences: list[str]) -> list[float]:
    """Compute the cosine similarity of each sentence to the next; 1.0, which never splits, where one has no vector."""
    try:
        if embedder is None:
            raise EmbedderUnavailable("the embedder is set to none")
        vectors = await embedder.embed(sentences)
    except EmbedderUnavailable as error:
        raise Conflict(f"the strategy semantic needs the embedder: {error.reason}") from error
    similarities = []
    for vector, following in pairwise(vectors):
        if isinstance(vector, ItemFailed) or isinstance(following, ItemFailed):
            similarities.append(1.0)
        else:
            similarities.append(float(vector @ following))
    return similarities


def _decode_content(request: Ingest) -> _Content:
    """Return the bytes of text or data; those of a file are read by the extraction process."""
    fields = [name for name in ("text", "data", "path") if getattr(request, name) is not None]
    if len(fields) != 1:
        raise InvalidParams("invalid params: give exactly one of text, data and path - at `$`")
    body = b""
    if request.text is not None:
        body = request.text.encode()
    elif request.data is not None:
        try:
            body = base64.b64decode(request.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidParams(f"invalid params: not base64: {error} - at `$.data`") from error
    return _Content(fields[0], body, hashlib.sha256(body).hexdigest())


def _normalize_path(path: str) -> str:
    if not path.startswith("/") or "\x00" in path:
        raise InvalidParams("invalid params: a path must begin with / - at `$.path`")
    return os.path.normpath(path)


def _build_task(config: Config, request: Ingest, path: str | None, source: str, size: int) -> Task:
    nested = request.strategy == "parentChild"
    tokens = request.chunk_tokens or (CHILD_TOKENS if nested else config.chunk_tokens)
    overlap = CHILD_OVERLAP_TOKENS if nested else config.chunk_overlap
    if request.parent_tokens is not None and (not nested or request.parent_tokens < tokens):
        raise InvalidParams("invalid params: only parentChild has parents, larger than chunks - at `$.parentTokens`")
    kind = request.kind
    suffix = PurePath(request.source or "").suffix.lower().removeprefix(".")
    if kind is None and request.text is not None and SUFFIXES.get(suffix) in ("pdf", "docx"):
        kind = "text"  # text that names a PDF as its source is extracted already
    return Task(
        name=path or source,
        path=path,
        size=size,
        kind=kind,
        strategy=request.strategy,
        tokens=tokens,
        overlap=overlap if request.overlap is None else request.overlap,
        parent_tokens=max(request.parent_tokens or PARENT_TOKENS, tokens),
        max_bytes=config.document_megabytes * 1024 * 1024,
        seconds=config.document_seconds,
    )


def _file_digest(path: str, max_bytes: int) -> str:
    try:
        with open_regular(path, max_bytes) as file:
            return sha256_of(file)
    except OSError as error:
        raise ExtractionError(error.strerror or str(error)) from error


def _checksum(digest: str, request: Ingest, task: Task) -> str:
    """Hash the content together with the options that determine its chunks."""
    options = (request.kind, request.strategy, task.tokens, task.overlap, task.parent_tokens)
    return hash_of(f"{digest}:{options}")
