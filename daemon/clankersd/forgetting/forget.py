"""`forget.count` and `forget.start`: delete captured data for good.

A request becomes a selection: SQL conditions on each table. Counting and deleting use the same selection.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from clankers_protocol.admin import JobStarted
from clankers_protocol.database_files import delete_backup, list_backups
from clankers_protocol.documents import DocumentDelete
from clankers_protocol.errors import InvalidParams
from clankers_protocol.forgetting import ForgetCount, ForgetPlan, ForgetSelection, ForgetStart
from clankersd.backups import make_backup
from clankersd.clock import to_ms
from clankersd.db import Db, Notification
from clankersd.db.ids import resolve_id
from clankersd.documents.documents import delete_document
from clankersd.forgetting.erasing import erase_free_space, take_briefly
from clankersd.forgetting.traces import (
    CONDITIONS_ELSEWHERE,
    MAX_NEEDLES,
    TEXTS_ELSEWHERE,
    clear_copies,
    clear_files,
    clear_words,
    count_lines,
    count_words,
    list_copies,
    matches,
)
from clankersd.projects import require_project_id
from clankersd.sessions.sessions import erase_session
from clankersd.wire.jobs import Progress
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

ROWS_PER_TRANSACTION = 200
SESSIONS_PER_TRANSACTION = 10

TEXT_COLUMNS = {
    "messages": ("text_content", "metadata"),
    "tools": ("tool_name", "tool_input", "tool_output", "file_path", "error_message"),
    "session_errors": ("error_type", "error_message"),
    "compaction_events": ("summary",),
    "memories": ("content", "summary", "tags_json", "concepts_json", "files_json", "metadata"),
    "documents": ("title", "source", "metadata"),
}
"""Columns that `matching` looks into."""

SESSION_TEXTS = ("title", "summary", "user_prompt", "context_json", "metadata")
RANGE = {"since": ">=", "until": "<"}
PARTS = ("messages", "tools", "session_errors", "compaction_events")
"""Tables with parts of a session."""

log = structlog.get_logger(component="forget")


@dataclass
class Selection:
    """SQL conditions on the rows to delete, by table, with their parameters.

    `whole_sessions` deletes sessions with everything in them. Otherwise `sessions` selects those of which parts are
    deleted, and whose own texts are cleared if they match.
    """

    whole_sessions: bool
    everywhere: bool
    """Rows that belong to no session are deleted too: the words are the only criterion."""
    whole_project: bool
    """Nothing of the project stays, so it is deleted itself."""
    conditions: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)


@handles(ForgetCount)
async def count(daemon: "Daemon", request: ForgetCount) -> ForgetPlan:
    _require_criteria(request)
    await daemon.recall_log.store_pending()  # searches that would otherwise not be counted
    plan = await daemon.store.read(lambda db: _plan(db, _select(db, request), daemon.store.path))
    if request.matching is not None:
        plan.traces += await anyio.to_thread.run_sync(count_lines, daemon.paths, request.matching)
    return plan


@handles(ForgetStart)
async def start(daemon: "Daemon", request: ForgetStart) -> JobStarted:
    _require_criteria(request)
    await daemon.store.read(lambda db: _select(db, request))  # raises before the job starts
    return JobStarted(await daemon.jobs.start("forget", partial(_forget, daemon, request)))


def _require_criteria(request: ForgetSelection) -> None:
    given = (request.project, request.session, request.since, request.until, request.source, request.matching)
    if all(one is None for one in given):
        raise InvalidParams("invalid params: say what to forget: project, session, since, until, source or matching")


def _select(db: Db, request: ForgetSelection) -> Selection:
    params: dict[str, Any] = {}
    of_session, of_memory, of_document = ["true"], ["true"], ["true"]
    if request.project is not None:
        params["project_id"] = require_project_id(db, request.project)
        of_session.append("project_id = :project_id")
        of_memory.append(
            "(project_id = :project_id OR scope = 'project:' || :project_id"
            " OR source_session_id IN (SELECT id FROM sessions WHERE project_id = :project_id))"
        )
        of_document.append("project_id = :project_id")
    if request.session is not None:
        params["session_id"] = resolve_id(db, request.session, "sessions", "session")
        of_session.append("id = :session_id")
        of_memory.append("source_session_id = :session_id")
        of_document.append("0")
    if request.source is not None:
        params["source"] = request.source
        of_session.append("source = :source")
        of_memory.append("source_session_id IN (SELECT id FROM sessions WHERE source = :source)")
        of_document.append("0")
    of_part = [f"session_id IN (SELECT id FROM sessions WHERE {' AND '.join(of_session)})"]
    for name, operator in RANGE.items():
        if (at := to_ms(getattr(request, name))) is not None:
            params[name] = at
            for conditions in (of_part, of_memory, of_document):
                conditions.append(f"created_at {operator} :{name}")
    tables = dict.fromkeys(PARTS, of_part) | {"memories": of_memory, "documents": of_document}
    selected = {table: " AND ".join(conditions) for table, conditions in tables.items()}
    selected["sessions"] = " AND ".join(of_session)
    if request.matching is not None:
        escaped = request.matching.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        params["matching"] = f"%{escaped}%"
        for table, columns in TEXT_COLUMNS.items():
            selected[table] += f" AND ({matches(columns)}{_PARTS_MATCH.get(table, '')})"
        selected["sessions"] += f" AND ({matches(SESSION_TEXTS)})"
    others = (request.session, request.source, request.since, request.until)
    is_whole = request.since is None and request.until is None and request.matching is None
    everywhere = request.matching is not None and request.project is None and all(one is None for one in others)
    if everywhere:
        for table, columns in TEXTS_ELSEWHERE.items():
            selected[table] = f"{matches(columns)}{CONDITIONS_ELSEWHERE.get(table, '')}"
        selected["sessions"] = matches((*SESSION_TEXTS, "project_path", "project_name"))
    whole_project = request.project is not None and request.matching is None and all(one is None for one in others)
    if whole_project:
        selected |= {"files": "project_id = :project_id", "projects": "id = :project_id"}
    return Selection(is_whole, everywhere, whole_project, selected, params)


_PARTS_MATCH = {
    "documents": " OR id IN (SELECT document_id FROM document_parts WHERE text LIKE :matching ESCAPE '\\')"
    " OR id IN (SELECT document_id FROM document_chunks WHERE content LIKE :matching ESCAPE '\\')",
    "memories": " OR id IN (SELECT memory_id FROM memory_log"
    " WHERE before_json LIKE :matching ESCAPE '\\' OR reason LIKE :matching ESCAPE '\\')",
}
"""Further conditions of `matching`, on rows that belong to those of a table."""


def _plan(db: Db, selection: Selection, database: Path) -> ForgetPlan:
    counts = {}
    for table, condition in selection.conditions.items():
        if table == "sessions" and not selection.whole_sessions and "matching" not in selection.params:
            continue
        if number := db.value(f"SELECT count(*) FROM {table} WHERE {condition}", selection.params):
            counts[table] = number
    sessions = " UNION ".join(
        f"SELECT {'id' if table == 'sessions' else 'session_id'} FROM {table} WHERE {selection.conditions[table]}"
        for table in ("sessions", *PARTS)
        if table in counts
    )
    unreachable: list[str] = []
    if sessions:
        sql = f"SELECT path FROM transcripts WHERE session_id IN ({sessions}) ORDER BY path"
        unreachable = [path for (path,) in db.tuples(sql, selection.params)]
    if "files" in counts:
        sql = f"SELECT path FROM files WHERE {selection.conditions['files']} ORDER BY path"
        unreachable += [path for (path,) in db.tuples(sql, selection.params)]
    traces = count_words(db, selection.params) if "matching" in selection.params else 0
    copies = [str(path) for path in list_copies(database)] if counts or traces else []
    return ForgetPlan(counts, unreachable, copies, traces)


async def _forget(daemon: "Daemon", request: ForgetStart, progress: Progress) -> dict[str, Any]:
    await daemon.spool.catch_up()  # what waits there is deleted with the rest
    await daemon.recall_log.store_pending()
    selection = await daemon.store.read(lambda db: _select(db, request))
    plan = await daemon.store.read(lambda db: _plan(db, selection, daemon.store.path))
    needles = await daemon.store.read(lambda db: _find_needles(db, selection, request))
    total, done = sum(plan.counts.values()), 0
    with anyio.CancelScope(shield=True):  # a half-finished deletion is of no use
        while deleted := await daemon.store.write(partial(_delete_some, selection=selection), bulk=True):
            done += deleted
            await progress(min(done, total), total, "deleting")
        sql = f"SELECT id FROM documents WHERE {selection.conditions['documents']}"
        for (document_id,) in await daemon.store.read(lambda db: db.tuples(sql, selection.params)):
            await delete_document(daemon, DocumentDelete(document_id))
        await daemon.store.write(partial(_clear_traces, selection=selection))
        await anyio.to_thread.run_sync(clear_files, daemon.paths, needles)
        await progress(total, total, "erasing free space")
        await erase_free_space(daemon.store, progress)
        backups = await _replace_backups(daemon, progress) if request.backups_too else []
    daemon.recall_log.drop_pending()  # its queries may contain what was deleted
    daemon.spool.count_rejected()
    log.info("captured data deleted", **plan.counts, backups=len(backups))
    return {"counts": plan.counts, "backupsDeleted": backups}


def _delete_some(db: Db, selection: Selection) -> int:
    """Delete a few rows; return how many."""
    # Before the sessions: they hold the harness that a memory came from.
    deleted = 0
    sql = f"SELECT id FROM memories WHERE {selection.conditions['memories']} LIMIT {ROWS_PER_TRANSACTION}"
    for (memory_id,) in take_briefly(db.tuples(sql, selection.params)):
        _delete_memory(db, memory_id)
        deleted += 1
    if selection.whole_sessions and not deleted:
        sql = f"SELECT id FROM sessions WHERE {selection.conditions['sessions']} LIMIT {SESSIONS_PER_TRANSACTION}"
        for (session_id,) in take_briefly(db.tuples(sql, selection.params)):
            erase_session(db, session_id)
            deleted += 1
    for table in PARTS:
        if deleted:
            break
        sql = f"SELECT id FROM {table} WHERE {selection.conditions[table]} LIMIT {ROWS_PER_TRANSACTION}"
        for (row_id,) in take_briefly(db.tuples(sql, selection.params)):
            db.execute(f"DELETE FROM {table} WHERE id = :id", {"id": row_id})
            deleted += 1
    return deleted


def _delete_memory(db: Db, memory_id: str) -> None:
    """Delete a memory, and the entities that only it mentions."""
    params = {"id": memory_id}
    mentioned = [row[0] for row in db.tuples("SELECT entity_id FROM memory_entities WHERE memory_id = :id", params)]
    db.execute("DELETE FROM memories WHERE id = :id", params)
    for entity_id in mentioned:
        db.execute(
            "DELETE FROM entities WHERE id = :id AND id NOT IN (SELECT entity_id FROM memory_entities)",
            {"id": entity_id},
        )
    db.after_commit(Notification("memory", "purged", memory_id))


def _find_needles(db: Db, selection: Selection, request: ForgetSelection) -> list[str]:
    """Return texts that tell which log lines and rejected events belong to what is deleted."""
    if request.matching is not None:
        return [request.matching]
    if not selection.whole_sessions:
        return []
    sql = f"SELECT id FROM sessions WHERE {selection.conditions['sessions']} LIMIT {MAX_NEEDLES}"
    needles = [row[0] for row in db.tuples(sql, selection.params)]
    if selection.whole_project:
        paths = "SELECT path FROM project_folders WHERE project_id = :project_id"
        needles += [path for (path,) in db.tuples(paths, selection.params) if path != "/"]
    return needles


def _clear_traces(db: Db, selection: Selection) -> None:
    """Clear what holds copies of deleted texts: the texts of sessions, injected blocks, jobs and cached vectors."""
    if "matching" in selection.params:
        for column in SESSION_TEXTS:
            sql = rf"UPDATE sessions SET {column} = NULL WHERE {column} LIKE :matching ESCAPE '\'"
            db.execute(f"{sql} AND {selection.conditions['sessions']}", selection.params)
        clear_words(db, selection.params, selection.everywhere)
    else:
        if not selection.whole_sessions:
            _clear_sessions_in_range(db, selection)
        if selection.whole_project:
            db.execute("DELETE FROM files WHERE project_id = :project_id", selection.params)
            db.execute("DELETE FROM projects WHERE id = :project_id", selection.params)
        clear_copies(db)
    db.execute("DELETE FROM injections WHERE session_id NOT IN (SELECT id FROM sessions)")
    db.execute("DELETE FROM embedding_cache")


def _clear_sessions_in_range(db: Db, selection: Selection) -> None:
    """Delete sessions that began in the time range and have nothing left; clear the texts of the others."""
    began = [selection.conditions["sessions"]]
    began += [f"created_at {operator} :{name}" for name, operator in RANGE.items() if name in selection.params]
    sessions = db.tuples(f"SELECT id FROM sessions WHERE {' AND '.join(began)}", selection.params)
    for (session_id,) in sessions:
        params = {"id": session_id}
        if any(db.value(f"SELECT 1 FROM {table} WHERE session_id = :id LIMIT 1", params) for table in PARTS):
            cleared = ", ".join(f"{column} = NULL" for column in SESSION_TEXTS)
            db.execute(f"UPDATE sessions SET {cleared} WHERE id = :id", params)
            db.execute("DELETE FROM injections WHERE session_id = :id", params)
            db.execute("DELETE FROM recall_log WHERE session_id = :id", params)
            db.execute("DELETE FROM extracted_summaries WHERE session_id = :id", params)
        else:
            erase_session(db, session_id)


async def _replace_backups(daemon: "Daemon", progress: Progress) -> list[str]:
    """Make a backup of what is left, and delete all earlier ones, exports of memories and copies of the database."""
    folder = daemon.paths.backups
    old = [Path(backup.path) for backup in await anyio.to_thread.run_sync(list_backups, folder)]
    old += [*folder.glob("memory-backup-*.jsonl"), *list_copies(daemon.store.path)]
    await make_backup(daemon, progress, "after-forgetting")
    for path in old:
        delete_backup(path)
    return [path.name for path in old]
