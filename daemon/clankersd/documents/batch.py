"""Ingest many documents as a job. They are stored in `ingest_items` first, so that a crash loses none."""

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.documents import DocumentIngestMany, Ingest
from clankers_protocol.errors import Conflict, RpcError, StorageUnavailable
from clankersd import clock
from clankersd.db import Db, Store
from clankersd.documents.ingest import NOT_REDACTED, ingest
from clankersd.documents.store import resume_deletions
from clankersd.redaction.engine import without_secrets
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

JOB = "document ingest"
MAX_CONCURRENT_DOCUMENTS = 4
"""Documents ingested at the same time: while one is stored, the text of the next is extracted."""

RETRY_SECONDS = 5.0

_INSERT_ITEM = "INSERT INTO ingest_items (batch, position, request) VALUES (:batch, :position, :request)"
# In the order of acceptance. Ids also contain the time, but the clock may have been set back since.
_SELECT_BATCHES = "SELECT batch FROM ingest_items GROUP BY batch ORDER BY min(rowid)"
_SELECT_WAITING = """
    SELECT position, request FROM ingest_items
    WHERE batch = :batch AND outcome IS NULL AND position > :after ORDER BY position LIMIT 100
"""
_COUNT_ITEMS = "SELECT count(*) AS total, count(outcome) AS done FROM ingest_items WHERE batch = :batch"
_STORE_OUTCOME = """
    UPDATE ingest_items SET outcome = :outcome, error = :error, request = :source
    WHERE batch = :batch AND position = :position
"""
_SELECT_OUTCOMES = """
    SELECT position, outcome, error, request AS source FROM ingest_items WHERE batch = :batch ORDER BY position
"""

log = structlog.get_logger(component="documents")


@handles(DocumentIngestMany)
async def ingest_many(daemon: "Daemon", request: DocumentIngestMany) -> JobStarted:
    daemon.jobs.ensure_not_running(JOB)  # before any item is stored
    batch = clock.new_id()
    daemon.documents.own_batches.add(batch)

    def encode_items() -> list[dict[str, Any]]:
        rows = []
        for position, document in enumerate(request.documents):
            redacted, _ = without_secrets(document, *NOT_REDACTED)
            rows.append({"batch": batch, "position": position, "request": msgspec.json.encode(redacted).decode()})
        return rows

    rows = await anyio.to_thread.run_sync(encode_items)

    def store_items(db: Db) -> None:
        for row in rows:
            db.execute(_INSERT_ITEM, row)

    await daemon.store.write(store_items)
    try:
        return JobStarted(await daemon.jobs.start(JOB, partial(_ingest_batches, daemon, [batch])))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _delete_batch(daemon.store, batch)
        raise


async def resume(daemon: "Daemon") -> None:
    """Resume the deletions and batches that an earlier daemon accepted and did not finish."""
    await daemon.jobs.ready.wait()
    while True:
        try:
            await resume_deletions(daemon.store)
            stored = [row["batch"] for row in await daemon.store.read(lambda db: db.fetch(_SELECT_BATCHES))]
            unfinished = [batch for batch in stored if batch not in daemon.documents.own_batches]
            if unfinished:
                log.info("document ingest resumed", batches=len(unfinished))
                await daemon.jobs.start(JOB, partial(_ingest_batches, daemon, unfinished))
        except (StorageUnavailable, Conflict):
            await anyio.sleep(RETRY_SECONDS)
        else:
            return


async def _ingest_batches(daemon: "Daemon", batches: list[str], progress: Progress) -> dict[str, Any]:
    """Ingest every waiting document; return counts by outcome and the list of failures."""
    result: dict[str, Any] = {"stored": 0, "updated": 0, "unchanged": 0, "failed": []}
    for batch in batches:
        try:
            await _ingest_batch(daemon, batch, progress)
        except anyio.get_cancelled_exc_class():
            if not daemon.stopping.is_set():  # a client cancelled the job, so it must not be resumed
                with anyio.CancelScope(shield=True):
                    await _delete_batch(daemon.store, batch)
            raise
        for row in await daemon.store.read(methodcaller("fetch", sql=_SELECT_OUTCOMES, params={"batch": batch})):
            if row["outcome"] == "failed":
                result["failed"].append({name: row[name] for name in ("position", "source", "error")})
            else:
                result[row["outcome"]] += 1
        await _delete_batch(daemon.store, batch)
    return result


async def _ingest_batch(daemon: "Daemon", batch: str, progress: Progress) -> None:
    counts = await daemon.store.read(lambda db: db.fetch_one(_COUNT_ITEMS, {"batch": batch}))
    assert counts
    done, total = counts["done"], counts["total"]
    limiter = anyio.Semaphore(MAX_CONCURRENT_DOCUMENTS)

    async def ingest_one(position: int, request: str) -> None:
        nonlocal done
        async with limiter:
            await _ingest_item(daemon, batch, position, request)
        done += 1
        await progress(done, total, "ingesting")

    def fetch_waiting(db: Db) -> list[dict[str, Any]]:
        return db.fetch(_SELECT_WAITING, {"batch": batch, "after": last_position})

    last_position = -1
    while rows := await daemon.store.read(fetch_waiting):
        async with anyio.create_task_group() as tasks:
            for row in rows:
                tasks.start_soon(ingest_one, row["position"], row["request"])
        last_position = rows[-1]["position"]


async def _ingest_item(daemon: "Daemon", batch: str, position: int, encoded: str) -> None:
    request = msgspec.json.decode(encoded, type=Ingest)
    row: dict[str, Any] = {"batch": batch, "position": position, "source": request.source or request.path or ""}
    while True:
        try:
            row["outcome"], row["error"] = await _try_ingest(daemon, request)
            await daemon.store.write(lambda db: db.execute(_STORE_OUTCOME, row))
        except StorageUnavailable:
            await anyio.sleep(RETRY_SECONDS)  # retry without limit, until storage is available again
        else:
            return


async def _try_ingest(daemon: "Daemon", request: Ingest) -> tuple[str, str | None]:
    """Ingest a document; return the outcome, and the error message if it failed. Raises StorageUnavailable."""
    try:
        return (await ingest(daemon, request)).outcome, None
    except StorageUnavailable:
        raise
    except RpcError as error:
        return "failed", error.message.removeprefix("invalid params: ").partition(" - at `$")[0]
    except Exception:
        log.exception("document ingest failed", source=request.source or request.path)
        return "failed", "internal error: see the daemon's log"


async def _delete_batch(store: Store, batch: str) -> None:
    await store.write(lambda db: db.execute("DELETE FROM ingest_items WHERE batch = :batch", {"batch": batch}))
