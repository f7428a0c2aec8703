"""Ingesting many documents: put down first and then worked off, so that a crash loses none."""

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.documents import DocumentIngestMany, Ingest
from clankers_protocol.errors import Conflict, RpcError, StorageUnavailable
from clankersd import clock
from clankersd.capture.redaction import without_secrets
from clankersd.db import Db
from clankersd.documents.ingest import NOT_REDACTED, ingest
from clankersd.documents.store import finish_removing
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

JOB = "document ingest"
AT_ONCE = 4
"""Documents under way at the same time: while one is stored the next is taken apart."""

RETRY_SECONDS = 5.0

_PUT_DOWN = "INSERT INTO ingest_items (batch, position, request) VALUES (:batch, :position, :request)"
# In the order they were accepted in. Their ids tell the time, and the clock may have been set back since.
_ACCEPTED = "SELECT batch FROM ingest_items GROUP BY batch ORDER BY min(rowid)"
_WAITING = """
    SELECT position, request FROM ingest_items
    WHERE batch = :batch AND outcome IS NULL AND position > :after ORDER BY position LIMIT 100
"""
_OUTCOME = """
    UPDATE ingest_items SET outcome = :outcome, error = :error, request = :source
    WHERE batch = :batch AND position = :position
"""

log = structlog.get_logger(component="documents")


@handles(DocumentIngestMany)
async def ingest_many(daemon: "Daemon", request: DocumentIngestMany) -> JobStarted:
    daemon.jobs.ensure_not_running(JOB)  # before anything is put down for it
    batch = clock.new_id()
    daemon.documents.own_batches.add(batch)
    rows = await anyio.to_thread.run_sync(_rows, batch, request.documents)

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


def _rows(batch: str, documents: list[Ingest]) -> list[dict[str, Any]]:
    """Encode the requests as they wait in the database: already without secrets."""
    return [
        {
            "batch": batch,
            "position": position,
            "request": msgspec.json.encode(without_secrets(one, *NOT_REDACTED)[0]).decode(),
        }
        for position, one in enumerate(documents)
    ]


async def resume(daemon: "Daemon") -> None:
    """Go on with what an earlier daemon accepted and did not finish."""
    await daemon.jobs.ready.wait()
    while True:
        try:
            await finish_removing(daemon.store)
            accepted = [row["batch"] for row in await daemon.store.read(lambda db: db.fetch(_ACCEPTED))]
            left = [batch for batch in accepted if batch not in daemon.documents.own_batches]
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
