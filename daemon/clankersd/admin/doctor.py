"""The doctor: runs every check of the daemon and its database, and the repairs of derived data that they ask for."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clankers_protocol.admin import Diagnosis, DoctorCheck, DoctorRepair, Finding, JobStarted
from clankers_protocol.errors import RpcError
from clankersd.admin import doctor_checks as checks
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


@dataclass(frozen=True)
class Check:
    """One check. `repair`, for derived data only, fixes what it found and describes what it did."""

    name: str
    run: Callable[["Daemon"], Awaitable[Finding]]
    repair: "Callable[[Daemon], Awaitable[list[str]]] | None" = None


CHECKS = (
    Check(
        "schema", lambda daemon: checks.check_schema(daemon.store), lambda daemon: checks.create_missing(daemon.store)
    ),
    Check(
        "database",
        lambda daemon: checks.check_database(daemon.store),
        lambda daemon: checks.rebuild_damaged_indexes(daemon.store),
    ),
    Check(
        "owners", lambda daemon: checks.check_owners(daemon.store), lambda daemon: checks.remove_orphans(daemon.index)
    ),
    Check(
        "texts",
        lambda daemon: checks.check_texts(daemon.store),
        lambda daemon: checks.chunk_missing(daemon.index, daemon.files),
    ),
    Check(
        "full text",
        lambda daemon: checks.check_full_text(daemon.store),
        lambda daemon: checks.rebuild_full_text(daemon.index),
    ),
    Check(
        "vectors",
        lambda daemon: checks.check_vectors(daemon.index, daemon.queue),
        lambda daemon: checks.repair_vectors(daemon.index),
    ),
    Check("embedder", lambda daemon: checks.check_embedder(daemon.index, daemon.config)),
    Check("reranker", lambda daemon: checks.check_reranker(daemon.search_engine.reranking)),
    Check("files", lambda daemon: checks.check_files(daemon.files)),
    Check("settings", checks.check_settings),
    Check("schedule", lambda daemon: checks.check_schedule(daemon.store)),
    Check("memories", checks.check_memories),
)
"""Ordered so that a repair does not undo an earlier one."""


@handles(DoctorCheck)
async def check(daemon: "Daemon", request: DoctorCheck) -> JobStarted:
    async def work(progress: Progress) -> Diagnosis:
        findings = await _check_engine(daemon)
        return Diagnosis(findings + [await _run_check(daemon, each) async for each in _each_check(progress)], [])

    return JobStarted(await daemon.jobs.start("doctor", work))


@handles(DoctorRepair)
async def repair_all(daemon: "Daemon", request: DoctorRepair) -> JobStarted:
    async def work(progress: Progress) -> Diagnosis:
        diagnosis = Diagnosis(await _check_engine(daemon), [])
        async for each in _each_check(progress):
            finding = await _run_check(daemon, each)
            if each.repair is not None and finding.repairable:
                diagnosis.repaired += await each.repair(daemon)
                finding = await _run_check(daemon, each)
            diagnosis.checks.append(finding)
        return diagnosis

    return JobStarted(await daemon.jobs.start("doctor", work))


async def _check_engine(daemon: "Daemon") -> list[Finding]:
    store = daemon.store
    try:
        return await store.snapshot_read(partial(store.engine.findings, vec=store.vec))
    except RpcError as error:
        return [Finding("engine", "problem", f"The check failed: {error.message}", "clankers-ctl health")]


async def _each_check(progress: Progress) -> AsyncIterator[Check]:
    for number, each in enumerate(CHECKS):
        await progress(number, len(CHECKS), each.name)
        yield each
    await progress(len(CHECKS), len(CHECKS))


async def _run_check(daemon: "Daemon", check: Check) -> Finding:
    try:
        return await check.run(daemon)
    except RpcError as error:
        return Finding(check.name, "problem", f"The check failed: {error.message}", "clankers-ctl health")
