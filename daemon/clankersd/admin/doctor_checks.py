"""The checks of the doctor and their repairs. A check describes each problem in a sentence, and what to do about it.

Slow checks run on a snapshot connection, so that they delay no event; repairs run in small steps for the same reason.
"""

import os
import re
from collections.abc import Awaitable, Callable
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING

from clankers_protocol.admin import Finding
from clankersd import clock, config
from clankersd.admin.database import find_integrity_errors, find_orphans, table_names
from clankersd.config import Config, ConfigError
from clankersd.db import Db, Store
from clankersd.db.engine import FullText
from clankersd.db.errors import RESTORE_HINT
from clankersd.index import repair
from clankersd.index.files.sync import FileSync
from clankersd.index.index import Index
from clankersd.index.queue import EmbeddingQueue
from clankersd.memories.maintenance import CONFIRM_HINT, describe_unusual_archiving
from clankersd.memories.store import FULL_TEXT as MEMORIES_FULL_TEXT
from clankersd.schedule import runs
from clankersd.search.reranking import Reranking

if TYPE_CHECKING:
    from clankersd.app import Daemon

OVERDUE_MS = 10 * 60_000
"""A scheduled action that is overdue for longer is stuck."""

RESTORE_ADVICE = f"{RESTORE_HINT}; events stored after that backup are lost"
DERIVED = ("chunks", "index_queue")
"""Tables whose rows are derived from others."""

_INDEX_ERROR = re.compile(r"missing from index|entries in index|entry in index|not in index")
FULL_TEXTS: dict[FullText, Callable[[Index], Awaitable[None]]] = {
    repair.FULL_TEXT: repair.rebuild_full_text,
    MEMORIES_FULL_TEXT: lambda index: index.store.write(lambda db: db.engine.rebuild(db, MEMORIES_FULL_TEXT)),
}
"""Full-text tables and the functions that rebuild them."""


# -- the database


async def check_schema(store: Store) -> Finding:
    """Check that no table, index or trigger is missing."""
    missing = await store.snapshot_read(lambda db: db.engine.missing_objects(db))
    if not missing:
        return Finding("schema", "ok", f"The schema is at version {store.schema_version} and complete.")
    named = _list_first([f"{kind} {name}" for kind, name in missing])
    if any(kind == "table" for kind, _ in missing):
        return Finding("schema", "problem", f"The database lacks {named}.", RESTORE_ADVICE)
    return Finding("schema", "problem", f"The database lacks {named}.", "clankers-ctl doctor --repair", repairable=True)


async def create_missing(store: Store) -> list[str]:
    """Create the indexes, triggers and views that are missing."""
    missing = await store.snapshot_read(lambda db: db.engine.missing_objects(db))
    for sql in missing.values():
        await store.write(methodcaller("execute", sql=sql))
    return [f"created the {kind} {name}" for kind, name in missing]


async def check_database(store: Store) -> Finding:
    """Check the integrity of every table and its indexes."""
    found = await store.snapshot_read(_damaged)
    if not found:
        return Finding("database", "ok", "The database is intact.")
    texts = [text for errors in found.values() for text in errors]
    text = f"The database is damaged: {texts[0]}{_more(texts)}."
    if all(map(_INDEX_ERROR.search, texts)):
        return Finding("database", "problem", text, "clankers-ctl doctor --repair", repairable=True)
    return Finding("database", "problem", text, RESTORE_ADVICE)


def _damaged(db: Db) -> dict[str, list[str]]:
    """Return the integrity errors by table; full text has a check of its own."""
    full_texts = [table.name for table in FULL_TEXTS]
    found = {name: find_integrity_errors(db, name) for name in table_names(db) if name not in full_texts}
    return {name: texts for name, texts in found.items() if texts}


async def rebuild_damaged_indexes(store: Store) -> list[str]:
    """Rebuild the indexes of the damaged tables."""
    damaged = await store.snapshot_read(_damaged)
    for table in damaged:
        await store.write(methodcaller("execute", sql=f'REINDEX "{table}"'))
    return [f"rebuilt the indexes of {table}" for table in damaged]


async def check_owners(store: Store) -> Finding:
    """Check that no row refers to one that does not exist."""

    def find_captured_orphans(db: Db) -> list[str]:
        return [row for name in table_names(db) if name not in DERIVED for row in find_orphans(db, name)]

    captured = await store.snapshot_read(find_captured_orphans)
    if captured:
        text = f"Rows refer to rows that do not exist: {captured[0]}{_more(captured)}."
        advice = f"another program deleted the referenced rows; if a backup still has them, {RESTORE_HINT}"
        return Finding("owners", "problem", text, advice)
    found = await store.snapshot_read(repair.find_orphans)
    count = len(found.chunks) + found.queue_entries
    if not count:
        return Finding("owners", "ok", "Every row has its owner.")
    text = f"{_number(count, 'row')} of the index {_is(count)} left over from deleted data and can still be found."
    return Finding("owners", "problem", text, "clankers-ctl doctor --repair", repairable=True)


async def remove_orphans(index: Index) -> list[str]:
    """Remove rows of the index that have lost their owner."""
    found = await index.store.snapshot_read(repair.find_orphans)
    await repair.remove_orphans(index, found)
    return [f"removed {_number(len(found.chunks) + found.queue_entries, 'row')} of the index without an owner"]


# -- the index


async def _find_faults(store: Store) -> dict[FullText, str]:
    """Find the full-text tables that do not agree with the texts, and how."""
    newest_chunk = int(await store.read(lambda db: db.value("SELECT max(id) FROM chunks") or 0))
    await store.index_full_text()  # of all chunks up to this one
    faults = {}
    for table in FULL_TEXTS:
        if fault := await store.snapshot_read(partial(_find_fault, table=table, newest_chunk=newest_chunk)):
            faults[table] = fault
    return faults


def _find_fault(db: Db, table: FullText, newest_chunk: int) -> str | None:
    return db.engine.find_fault(db, table, newest_chunk)


async def check_full_text(store: Store) -> Finding:
    """Check that the full-text tables agree with the texts."""
    wrong = [f"{table.name}: {fault}" for table, fault in (await _find_faults(store)).items()]
    if not wrong:
        return Finding("full text", "ok", "Keyword search finds every stored text.")
    text = f"Keyword search does not find every stored text ({'; '.join(wrong)})."
    return Finding("full text", "problem", text, "clankers-ctl doctor --repair", repairable=True)


async def rebuild_full_text(index: Index) -> list[str]:
    """Rebuild the full-text tables that are wrong."""
    repaired = []
    for table in await _find_faults(index.store):
        await FULL_TEXTS[table](index)
        repaired.append(f"rebuilt {table.name}")
    return repaired


async def check_texts(store: Store) -> Finding:
    """Check that every text is chunked."""
    found = await store.snapshot_read(repair.find_unchunked)
    if found.count:
        text = f"{_number(found.count, 'text')} {_is(found.count)} stored but not indexed."
        return Finding("texts", "problem", text, "clankers-ctl doctor --repair", repairable=True)
    if found.backlog_count:
        return Finding("texts", "ok", f"Every text is chunked, except {found.backlog_count:,} that are queued.")
    return Finding("texts", "ok", "Every text is chunked.")


async def chunk_missing(index: Index, files: FileSync) -> list[str]:
    """Chunk the texts that are not indexed."""
    found = await index.store.snapshot_read(repair.find_unchunked)
    await repair.chunk_missing(index, files, found)
    return [f"chunked {_number(found.count, 'text')} that were not indexed"]


async def check_vectors(index: Index, queue: EmbeddingQueue) -> Finding:
    """Check that every chunk has its vector, and every vector its chunk."""
    live = index.live
    assert live
    found = await index.store.snapshot_read(partial(repair.find_vector_mismatches, generation=live))
    if found.chunks or found.vectors:
        chunks, vectors = _number(len(found.chunks), "chunk"), _number(len(found.vectors), "vector")
        text = f"{chunks} without a vector, {vectors} without a chunk."
        return Finding("vectors", "problem", text, "clankers-ctl doctor --repair", repairable=True)
    if found.failed:
        text = f"{_number(found.failed, 'chunk')} could not be embedded: {found.error}"
        return Finding("vectors", "warning", text, "clankers-ctl reindex")
    if live.identity.provider == "none":
        return Finding("vectors", "ok", "Vectors are disabled in the settings.")
    if pending := await queue.count_pending(live):
        return Finding("vectors", "ok", f"Every chunk has its vector, except {pending:,} that are queued.")
    return Finding("vectors", "ok", "Every chunk has its vector.")


async def repair_vectors(index: Index) -> list[str]:
    """Queue chunks without a vector, and remove vectors without a chunk."""
    live = index.live
    assert live
    found = await index.store.snapshot_read(partial(repair.find_vector_mismatches, generation=live))
    await repair.repair_vectors(index, live, found)
    chunks, vectors = _number(len(found.chunks), "chunk"), _number(len(found.vectors), "vector")
    return [
        *([f"queued {chunks} without a vector"] if found.chunks else []),
        *([f"removed {vectors} without a chunk"] if found.vectors else []),
    ]


async def check_embedder(index: Index, settings: Config) -> Finding:
    """Check that the embedder makes vectors."""
    if settings.embedder == "none":
        return Finding("embedder", "ok", "Embeddings are disabled in the settings: search is by keyword only.")
    if index.vector_problem:
        reason, _, advice = index.vector_problem.partition(": run ")
        text = f"Search is by keyword only: {reason}."
        return Finding("embedder", "warning", text, advice or "clankers-ctl index status; clankers-ctl model list")
    if index.fallback_note:
        text = f"The embedder does not answer: {index.fallback_note}."
        return Finding("embedder", "warning", text, "clankers-ctl index status")
    if index.last_error:
        return Finding(
            "embedder", "warning", f"The last error of the embedder: {index.last_error}", "clankers-ctl index status"
        )
    assert index.live
    return Finding("embedder", "ok", f"{index.live.identity.provider} {index.live.identity.model} makes vectors.")


async def check_reranker(reranking: Reranking) -> Finding:
    """Check that the reranker answers, if there is one."""
    if not reranking.is_configured:
        return Finding("reranker", "ok", "No reranker is configured.")
    await reranking.probe()
    if reranking.problem:
        return Finding(
            "reranker", "warning", f"Hits are not reranked: {reranking.problem}.", "clankers-ctl config show"
        )
    return Finding("reranker", "ok", f"{reranking.name} judges the best hits of a search.")


async def check_files(files: FileSync) -> Finding:
    """Check that watched files are followed."""
    if files.problem:
        return Finding("files", "warning", f"Watched files: {files.problem}.", "clankers-ctl index sync")
    if not files.watched:
        return Finding("files", "ok", "No paths are watched.")
    watched = _number(len(files.watched), "path")
    return Finding("files", "ok", f"The index follows the Markdown files of {watched} ({files.mode}).")


# -- the daemon


async def check_settings(daemon: "Daemon") -> Finding:
    """Check that the settings are valid and in force."""
    try:
        found = config.load(daemon.paths.config, daemon.flags, hook_start=daemon.loaded.hook_start)
    except ConfigError as error:
        text = f"The settings are invalid, and the daemon would not start again: {error}"
        return Finding("settings", "problem", text, f"correct {daemon.paths.config}")
    if found.config != daemon.config:
        text = "The settings file was changed and not reloaded."
        return Finding("settings", "warning", text, f"kill -HUP {os.getpid()} reloads it")
    if warnings := found.warnings():
        text, _, advice = warnings[0].rpartition(": ")
        return Finding("settings", "warning", f"The daemon {text}.", advice)
    return Finding("settings", "ok", "The settings are valid and in force.")


async def check_schedule(store: Store) -> Finding:
    """Check that no scheduled action is overdue, failed or waits for a client."""
    stuck = await store.read(lambda db: runs.find_stuck_actions(db, clock.now() - OVERDUE_MS))
    if stuck.overdue:
        text = f"{_list_first(stuck.overdue)} should have run more than ten minutes ago."
        return Finding("schedule", "problem", text, "clankers-ctl logs --level error; then restart the daemon")
    if stuck.failed:
        text = f"{_list_first([f'{name} ({error})' for name, error in stuck.failed.items()])} failed in the last run."
        return Finding("schedule", "warning", text, "clankers-ctl schedule history --state failed")
    if stuck.unclaimed:
        text = f"No client runs these due actions: {_list_first(stuck.unclaimed)}."
        return Finding("schedule", "warning", text, "start such a client, or clankers-ctl schedule disable ID")
    return Finding("schedule", "ok", "No scheduled action is stuck.")


async def check_memories(daemon: "Daemon") -> Finding:
    """Check that maintenance does not wait for a confirmation."""
    if unusual := await describe_unusual_archiving(daemon):
        text = f"{unusual[0].upper()}{unusual[1:]}. Maintenance waits for your confirmation."
        return Finding("memories", "warning", text, CONFIRM_HINT)
    return Finding("memories", "ok", "No unusual number of memories is about to be archived.")


def _list_first(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3:,} more" if len(items) > 3 else "")


def _more(items: list[str]) -> str:
    return f" (and {len(items) - 1:,} more)" if len(items) > 1 else ""


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
