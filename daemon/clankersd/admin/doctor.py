"""The doctor: looks at what the daemon holds and does, says what is wrong in a sentence, and repairs what is derived.

Whatever takes long is looked at on a connection aside, so that events are stored meanwhile; repairs go in steps that
let them in between.
"""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clankers_protocol.admin import Diagnosis, DoctorCheck, DoctorRepair, Finding, JobStarted
from clankers_protocol.errors import RpcError
from clankersd import clock, config
from clankersd.admin.database import faults, ownerless, table_names
from clankersd.config import ConfigError
from clankersd.db import Db, fts, migrations
from clankersd.db.connection import SQLITE_VERSION, has_wal_reset_bug
from clankersd.db.errors import RESTORE_HINT
from clankersd.db.fts import FullText
from clankersd.index import repair
from clankersd.index.generations import Generation
from clankersd.memories.maintenance import CONFIRM_HINT, describe_unusual_archiving
from clankersd.memories.store import FULL_TEXT as MEMORIES_FULL_TEXT
from clankersd.schedule import runs
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

LATE_MS = 10 * 60_000
"""What is due for so long is stuck."""

FROM_A_BACKUP = f"{RESTORE_HINT}; events stored after that backup are lost"
DERIVED = ("chunks", "index_queue")
"""Tables whose rows follow from others."""

_IN_AN_INDEX = re.compile(r"missing from index|entries in index|entry in index|not in index")


@dataclass(frozen=True)
class Check:
    """One thing that is looked at. `repair` is for what follows from something else, and says what it did."""

    name: str
    look: Callable[["Daemon"], Awaitable[Finding]]
    repair: "Callable[[Daemon], Awaitable[list[str]]] | None" = None


@handles(DoctorCheck)
async def check(daemon: "Daemon", request: DoctorCheck) -> JobStarted:
    async def work(progress: Progress) -> Diagnosis:
        return Diagnosis([await _looked(daemon, each) async for each in _in_turn(progress)], [])

    return JobStarted(await daemon.jobs.start("doctor", work))


@handles(DoctorRepair)
async def repair_all(daemon: "Daemon", request: DoctorRepair) -> JobStarted:
    async def work(progress: Progress) -> Diagnosis:
        diagnosis = Diagnosis([], [])
        async for each in _in_turn(progress):
            found = await _looked(daemon, each)
            if each.repair is not None and found.repairable:
                diagnosis.repaired += await each.repair(daemon)
                found = await _looked(daemon, each)
            diagnosis.checks.append(found)
        return diagnosis

    return JobStarted(await daemon.jobs.start("doctor", work))


async def _in_turn(progress: Progress) -> AsyncIterator[Check]:
    for number, each in enumerate(CHECKS):
        await progress(number, len(CHECKS), each.name)
        yield each
    await progress(len(CHECKS), len(CHECKS))


async def _looked(daemon: "Daemon", each: Check) -> Finding:
    try:
        return await each.look(daemon)
    except RpcError as error:
        return Finding(each.name, "problem", f"It could not be looked at: {error.message}", "clankers-ctl health")


# -- the database


async def _sqlite(daemon: "Daemon") -> Finding:
    vec = daemon.store.vec
    if has_wal_reset_bug(SQLITE_VERSION):
        text = f"SQLite {SQLITE_VERSION} may lose commits when it begins its write-ahead log anew."
        return Finding("sqlite", "problem", text, "pip install --upgrade apsw, and start the daemon again")
    if vec.version is None:
        text = f"SQLite {SQLITE_VERSION} cannot load sqlite-vec: there is no search by meaning ({vec.problem})."
        return Finding("sqlite", "warning", text, "pip install sqlite-vec, and start the daemon again")
    return Finding("sqlite", "ok", f"SQLite {SQLITE_VERSION} with sqlite-vec {vec.version}.")


async def _schema(daemon: "Daemon") -> Finding:
    missing = await daemon.store.snapshot_read(migrations.missing_objects)
    if not missing:
        return Finding("schema", "ok", f"The schema is at version {daemon.store.schema_version}, and whole.")
    named = _several([f"{kind} {name}" for kind, name in missing])
    if any(kind == "table" for kind, _ in missing):
        return Finding("schema", "problem", f"The database lacks {named}.", FROM_A_BACKUP)
    return Finding("schema", "problem", f"The database lacks {named}.", "clankers-ctl doctor --repair", repairable=True)


async def _make_missing(daemon: "Daemon") -> list[str]:
    missing = await daemon.store.snapshot_read(migrations.missing_objects)
    for sql in missing.values():
        await daemon.store.write(partial(Db.execute, sql=sql))
    return [f"made the {kind} {name} anew" for kind, name in missing]


async def _database(daemon: "Daemon") -> Finding:
    found = await daemon.store.snapshot_read(_damaged)
    if not found:
        return Finding("database", "ok", "The database is sound.")
    texts = [text for some in found.values() for text in some]
    told = f"The database is damaged: {texts[0]}{_more(texts)}."
    if all(map(_IN_AN_INDEX.search, texts)):
        return Finding("database", "problem", told, "clankers-ctl doctor --repair", repairable=True)
    return Finding("database", "problem", told, FROM_A_BACKUP)


def _damaged(db: Db) -> dict[str, list[str]]:
    """What SQLite finds wrong, by table; full text has a check of its own."""
    words = [table.name for table in FULL_TEXTS]
    found = {name: faults(db, name) for name in table_names(db) if name not in words}
    return {name: texts for name, texts in found.items() if texts}


async def _reindex(daemon: "Daemon") -> list[str]:
    damaged = await daemon.store.snapshot_read(_damaged)
    for table in damaged:
        await daemon.store.write(partial(Db.execute, sql=f'REINDEX "{table}"'))
    return [f"made the indexes of {table} anew" for table in damaged]


async def _owners(daemon: "Daemon") -> Finding:
    captured = await daemon.store.snapshot_read(_captured_without_owner)
    if captured:
        told = f"Rows refer to what is not there: {captured[0]}{_more(captured)}."
        return Finding(
            "owners",
            "problem",
            told,
            f"another program deleted their owners; if a backup still has them, {RESTORE_HINT}",
        )
    found = await daemon.store.snapshot_read(repair.find_orphans)
    count = len(found.chunks) + found.waiting
    if not count:
        return Finding("owners", "ok", "Everything belongs to something.")
    told = f"{_number(count, 'row')} of the index {_is(count)} left of what was deleted, and can still be found."
    return Finding("owners", "problem", told, "clankers-ctl doctor --repair", repairable=True)


def _captured_without_owner(db: Db) -> list[str]:
    return [row for name in table_names(db) if name not in DERIVED for row in ownerless(db, name)]


async def _remove_strays(daemon: "Daemon") -> list[str]:
    found = await daemon.store.snapshot_read(repair.find_orphans)
    await repair.remove_orphans(daemon.index, found)
    return [f"removed {_number(len(found.chunks) + found.waiting, 'row')} of the index that belonged to nothing"]


# -- the index


async def _full_text(daemon: "Daemon") -> Finding:
    found = {table.name: await daemon.store.snapshot_read(partial(fts.find_fault, table=table)) for table in FULL_TEXTS}
    wrong = [f"{name}: {fault}" for name, fault in found.items() if fault]
    if not wrong:
        return Finding("full text", "ok", "The search by words finds what is stored.")
    told = f"The search by words does not find what is stored ({'; '.join(wrong)})."
    return Finding("full text", "problem", told, "clankers-ctl doctor --repair", repairable=True)


async def _index_words(daemon: "Daemon") -> list[str]:
    done = []
    for table, make in FULL_TEXTS.items():
        if await daemon.store.snapshot_read(partial(fts.find_fault, table=table)):
            await make(daemon)
            done.append(f"made {table.name} anew")
    return done


async def _index_chunk_words(daemon: "Daemon") -> None:
    await repair.rebuild_full_text(daemon.index)


async def _index_memory_words(daemon: "Daemon") -> None:
    await daemon.store.write(partial(fts.rebuild, name=MEMORIES_FULL_TEXT.name))


async def _texts(daemon: "Daemon") -> Finding:
    found = await daemon.store.snapshot_read(repair.find_unchunked)
    if found.count:
        told = f"{_number(found.count, 'text')} {_is(found.count)} stored and cannot be found."
        return Finding("texts", "problem", told, "clankers-ctl doctor --repair", repairable=True)
    if found.waiting:
        return Finding("texts", "ok", f"Every text is cut into chunks but {found.waiting:,}, which are on their way.")
    return Finding("texts", "ok", "Every text is cut into chunks.")


async def _cut(daemon: "Daemon") -> list[str]:
    found = await daemon.store.snapshot_read(repair.find_unchunked)
    await repair.chunk_missing(daemon.index, daemon.files, found)
    return [f"cut {_number(found.count, 'text')} that could not be found"]


async def _vectors(daemon: "Daemon") -> Finding:
    live = daemon.index.live
    assert live
    found = await daemon.store.snapshot_read(partial(repair.find_vector_mismatches, generation=live))
    if found.chunks or found.vectors:
        chunks, vectors = _number(len(found.chunks), "chunk"), _number(len(found.vectors), "vector")
        told = f"{chunks} without a vector, {vectors} of no chunk."
        return Finding("vectors", "problem", told, "clankers-ctl doctor --repair", repairable=True)
    if found.failed:
        told = f"{_number(found.failed, 'chunk')} got no vector: {found.error}"
        return Finding("vectors", "warning", told, "clankers-ctl reindex tries again")
    return Finding("vectors", "ok", await _counted(daemon, live))


async def _counted(daemon: "Daemon", live: Generation) -> str:
    if live.identity.provider == "none":
        return "There are none, as configured."
    pending = await daemon.queue.count_pending(live)
    return f"Every chunk has its vector but {pending:,}, which wait." if pending else "Every chunk has its vector."


async def _match(daemon: "Daemon") -> list[str]:
    live = daemon.index.live
    assert live
    found = await daemon.store.snapshot_read(partial(repair.find_vector_mismatches, generation=live))
    await repair.repair_vectors(daemon.index, live, found)
    chunks, vectors = _number(len(found.chunks), "chunk"), _number(len(found.vectors), "vector")
    return [
        *([f"put {chunks} without a vector into the queue"] if found.chunks else []),
        *([f"removed {vectors} of no chunk"] if found.vectors else []),
    ]


async def _embedder(daemon: "Daemon") -> Finding:
    index = daemon.index
    if daemon.config.embedder == "none":
        return Finding("embedder", "ok", "There is none, as configured: searches are by words alone.")
    if index.vector_problem:
        said, _, advice = index.vector_problem.partition(": run ")
        told = f"Searches are by words alone: {said}."
        return Finding("embedder", "warning", told, advice or "clankers-ctl index status; clankers-ctl model list")
    if index.last_error:
        return Finding("embedder", "warning", f"Its last error: {index.last_error}", "clankers-ctl index status")
    assert index.live
    return Finding("embedder", "ok", f"{index.live.identity.provider} {index.live.identity.model} makes vectors.")


async def _files(daemon: "Daemon") -> Finding:
    if daemon.files.problem:
        return Finding("files", "warning", f"Watched files: {daemon.files.problem}.", "clankers-ctl index sync")
    if not daemon.files.watched:
        return Finding("files", "ok", "No paths are watched.")
    watched = _number(len(daemon.files.watched), "path")
    return Finding("files", "ok", f"The index follows the markdown files of {watched} ({daemon.files.mode}).")


# -- the daemon


async def _settings(daemon: "Daemon") -> Finding:
    try:
        found = config.load(daemon.paths.config, daemon.flags, hook_start=daemon.loaded.hook_start)
    except ConfigError as error:
        told = f"The settings are wrong, and the daemon would not start again: {error}"
        return Finding("settings", "problem", told, f"correct {daemon.paths.config}")
    if found.config != daemon.config:
        told = "The settings were changed and not read since."
        return Finding("settings", "warning", told, f"kill -HUP {os.getpid()} has them read")
    if warnings := found.warnings():
        told, _, advice = warnings[0].rpartition(": ")
        return Finding("settings", "warning", f"The daemon {told}.", advice)
    return Finding("settings", "ok", "The settings are valid, and in force.")


async def _schedule(daemon: "Daemon") -> Finding:
    stuck = await daemon.store.read(lambda db: runs.find_stuck_actions(db, clock.now() - LATE_MS))
    if stuck.overdue:
        told = f"{_several(stuck.overdue)} should have run long ago."
        return Finding("schedule", "problem", told, "clankers-ctl logs --level error; then start the daemon again")
    if stuck.failed:
        told = f"{_several([f'{name} ({error})' for name, error in stuck.failed.items()])} failed the last time."
        return Finding("schedule", "warning", told, "clankers-ctl schedule history --state failed")
    if stuck.unclaimed:
        told = f"Nobody takes what is due: {_several(stuck.unclaimed)}."
        return Finding("schedule", "warning", told, "start who does it, or clankers-ctl schedule disable ID")
    return Finding("schedule", "ok", "Nothing is stuck.")


async def _memories(daemon: "Daemon") -> Finding:
    if unusual := await describe_unusual_archiving(daemon):
        told = f"{unusual[0].upper()}{unusual[1:]}. It waits until you say so."
        return Finding("memories", "warning", told, CONFIRM_HINT)
    return Finding("memories", "ok", "No unusual number of memories is about to be archived.")


FULL_TEXTS: dict[FullText, Callable[["Daemon"], Awaitable[None]]] = {
    repair.FULL_TEXT: _index_chunk_words,
    MEMORIES_FULL_TEXT: _index_memory_words,
}
"""Each with what makes it anew."""

CHECKS = (
    Check("sqlite", _sqlite),
    Check("schema", _schema, _make_missing),
    Check("database", _database, _reindex),
    Check("owners", _owners, _remove_strays),
    Check("texts", _texts, _cut),
    Check("full text", _full_text, _index_words),
    Check("vectors", _vectors, _match),
    Check("embedder", _embedder),
    Check("files", _files),
    Check("settings", _settings),
    Check("schedule", _schedule),
    Check("memories", _memories),
)
"""In an order in which what is repaired first need not be repaired again."""


def _several(things: list[str]) -> str:
    return ", ".join(things[:3]) + (f" and {len(things) - 3:,} more" if len(things) > 3 else "")


def _more(things: list[str]) -> str:
    return f" (and {len(things) - 1:,} more)" if len(things) > 1 else ""


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
