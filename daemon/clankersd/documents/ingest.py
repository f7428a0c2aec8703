"""Ingesting: a document taken apart in a process of its own, cut, and stored whole or not at all.

A long document is stored in several transactions; until the last one its checksum is missing, and handing it over
again goes on where it ended. Many documents are put down first and then worked off, so that a crash loses none.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.documents import SUFFIXES, DocumentIngest, DocumentIngestMany, Ingest, Ingested
from clankers_protocol.errors import Conflict, InvalidParams, RpcError, StorageUnavailable
from clankersd import clock
from clankersd.db import Db
from clankersd.documents.cutting import by_meaning
from clankersd.documents.known import Changes, change, checked_metadata, project_of
from clankersd.documents.reading import Refused, digest_of, open_regular
from clankersd.documents.records import Task, Window, records_of
from clankersd.documents.storing import (
    LARGE,
    Header,
    Storing,
    add,
    add_part,
    begin,
    clear,
    document,
    finish,
    finish_removing,
)
from clankersd.documents.worker import Extracted, Unreadable, Worker
from clankersd.index.chunks import hash_of
from clankersd.index.embedders.base import EmbedderUnavailable, ItemFailed
from clankersd.jobs import Progress
from clankersd.redaction import count_redactions
from clankersd.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

JOB = "document ingest"
SLICE = 500
"""Chunks that are stored in one transaction."""

PART = 64 * 1024
AT_ONCE = 4
"""Documents under way at the same time: while one is stored the next is taken apart."""

CHILD_TOKENS, CHILD_OVERLAP, PARENT_TOKENS = 256, 32, 1024
RETRY_SECONDS = 5.0

_PUT_DOWN = "INSERT INTO ingest_items (batch, position, request) VALUES (:batch, :position, :request)"
_WAITING = """
    SELECT position, request FROM ingest_items
    WHERE batch = :batch AND outcome IS NULL AND position > :after ORDER BY position LIMIT 100
"""
_OUTCOME = """
    UPDATE ingest_items SET outcome = :outcome, error = :error, request = :source
    WHERE batch = :batch AND position = :position
"""

log = structlog.get_logger(component="documents")


class Documents:
    """What ingesting shares: the process that takes documents apart, and who is at work on which source."""

    def __init__(self) -> None:
        self.worker = Worker()
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
    checked_metadata(request.metadata)
    if request.strategy == "semantic" and daemon.index.embedder is None:
        raise Conflict("to cut by meaning needs an embedder: choose another strategy, or an embedder")
    path = _absolute(request.path) if request.path is not None else None
    source = request.source or path or f"sha256:{digest}"
    task = _task(daemon, request, path, source, len(body))
    try:
        async with daemon.documents.alone_with(source):
            return await _take_in(daemon, request, task, source, body)
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
        return Ingested(document(db, found), "updated" if changed else "unchanged")

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
        return await _store(daemon, header, extracted, task.tokens)


async def _store(daemon: "Daemon", header: Header, extracted: Extracted, tokens: int) -> Ingested:
    storing: Storing | None = None
    waiting: list[Window] = []
    async for window in _cut_windows(daemon, extracted, tokens):
        if sum(len(one.records) for one in waiting) >= SLICE:
            storing = await daemon.store.write(partial(_put, daemon, header, storing, waiting))
            daemon.index.wake()
            waiting = []
        waiting.append(window)

    if storing is not None or await _is_large(daemon, header.source):
        storing = await daemon.store.write(partial(_put, daemon, header, storing, waiting))
        await clear(daemon.store, storing.id, storing.revision)
        waiting = []

    def end(db: Db) -> Ingested:
        stored = _put(daemon, header, storing, waiting, db)
        finish(db, stored)
        count_redactions(db, extracted.done.redacted, clock.now())
        return Ingested(document(db, stored.id), "updated" if stored.revision > 1 else "stored")

    ingested = await daemon.store.write(end)
    daemon.index.wake()
    return ingested


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


# -- many


@handles(DocumentIngestMany)
async def ingest_many(daemon: "Daemon", request: DocumentIngestMany) -> JobStarted:
    daemon.jobs.refuse_second(JOB)  # before anything is put down for it
    batch = clock.new_id()
    rows = [
        {"batch": batch, "position": position, "request": msgspec.json.encode(one).decode()}
        for position, one in enumerate(request.documents)
    ]

    def put_down(db: Db) -> None:
        for row in rows:
            db.execute(_PUT_DOWN, row)

    await daemon.store.write(put_down)
    try:
        return JobStarted(await daemon.jobs.start(JOB, partial(_work_off, daemon, [batch])))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _forget(daemon, batch)
        raise


async def resume(daemon: "Daemon") -> None:
    """Go on with what an earlier daemon accepted and did not finish."""
    began = {"began": clock.new_id()}  # what this daemon accepts has later ids, and jobs of its own
    sql = "SELECT DISTINCT batch FROM ingest_items WHERE batch < :began ORDER BY batch"
    await daemon.jobs.ready.wait()
    while True:
        try:
            await finish_removing(daemon.store)
            left = [row["batch"] for row in await daemon.store.read(lambda db: db.fetch(sql, began))]
            if left:
                log.info("ingesting goes on", batches=len(left))
                await daemon.jobs.start(JOB, partial(_work_off, daemon, left))
        except (StorageUnavailable, Conflict):
            await anyio.sleep(RETRY_SECONDS)
        else:
            return


async def _work_off(daemon: "Daemon", batches: list[str], progress: Progress) -> dict[str, Any]:
    result: dict[str, Any] = {"stored": 0, "updated": 0, "unchanged": 0, "failed": []}
    for batch in batches:
        try:
            await _work_off_one(daemon, batch, progress)
        except anyio.get_cancelled_exc_class():
            if not daemon.stopping.is_set():  # somebody cancelled the job, and means it
                with anyio.CancelScope(shield=True):
                    await _forget(daemon, batch)
            raise
        await _account(daemon, batch, result)
        await _forget(daemon, batch)
    return result


async def _work_off_one(daemon: "Daemon", batch: str, progress: Progress) -> None:
    counts = "SELECT count(*) AS total, count(outcome) AS done FROM ingest_items WHERE batch = :batch"
    known = await daemon.store.read(lambda db: db.fetch_one(counts, {"batch": batch}))
    assert known
    done, after = known["done"], -1

    async def one(position: int, request: str) -> None:
        nonlocal done
        async with room:
            await _ingest_item(daemon, batch, position, request)
        done += 1
        await progress(done, known["total"], "ingesting")

    while rows := await _waiting(daemon, batch, after):
        room = anyio.Semaphore(AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for row in rows:
                tasks.start_soon(one, row["position"], row["request"])
        after = rows[-1]["position"]


async def _waiting(daemon: "Daemon", batch: str, after: int) -> list[dict[str, Any]]:
    return await daemon.store.read(lambda db: db.fetch(_WAITING, {"batch": batch, "after": after}))


async def _ingest_item(daemon: "Daemon", batch: str, position: int, encoded: str) -> None:
    request = msgspec.json.decode(encoded, type=Ingest)
    row: dict[str, Any] = {"batch": batch, "position": position, "source": request.source or request.path or ""}
    while True:
        try:
            row["outcome"], row["error"] = await _outcome(daemon, request)
            await daemon.store.write(lambda db: db.execute(_OUTCOME, row))
        except StorageUnavailable:
            await anyio.sleep(RETRY_SECONDS)  # until it can be stored, however long that is
        else:
            return


async def _outcome(daemon: "Daemon", request: Ingest) -> tuple[str, str | None]:
    try:
        return (await ingest(daemon, request)).outcome, None
    except StorageUnavailable:
        raise
    except RpcError as error:
        return "failed", error.message.removeprefix("invalid params: ").partition(" - at `$")[0]
    except Exception:
        log.exception("document stumbled", source=request.source or request.path)
        return "failed", "internal error: see the daemon's log"


async def _account(daemon: "Daemon", batch: str, result: dict[str, Any]) -> None:
    sql = "SELECT position, outcome, error, request AS source FROM ingest_items WHERE batch = :batch ORDER BY position"
    for row in await daemon.store.read(lambda db: db.fetch(sql, {"batch": batch})):
        if row["outcome"] == "failed":
            result["failed"].append({name: row[name] for name in ("position", "source", "error")})
        else:
            result[row["outcome"]] += 1


async def _forget(daemon: "Daemon", batch: str) -> None:
    await daemon.store.write(lambda db: db.execute("DELETE FROM ingest_items WHERE batch = :batch", {"batch": batch}))
