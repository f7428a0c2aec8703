"""Projects as their owner sees them: list, show, rename, merge, move and forget."""

import os
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from clankers_protocol.documents import DocumentDelete
from clankers_protocol.errors import Conflict, InvalidParams
from clankers_protocol.projects import (
    Project,
    ProjectCounts,
    ProjectDetails,
    ProjectFolder,
    ProjectForget,
    ProjectForgotten,
    ProjectList,
    ProjectMerge,
    ProjectMerged,
    ProjectMove,
    ProjectRename,
    ProjectShow,
)
from clankersd import clock
from clankersd.db import Db, Notification
from clankersd.documents.documents import delete_document
from clankersd.index.vector_store import label_of
from clankersd.projects import PROJECT_LABEL, find_folder, require_project_id
from clankersd.projects.store import Merge, match_folder, merge_projects, place_folder, show_at
from clankersd.redaction.engine import redact
from clankersd.sessions.sessions import erase_session
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

DISK_SECONDS = 2.0
"""Deadline for checking which folders of a project exist."""

SESSIONS_PER_TRANSACTION = 10
MEMORIES_PER_TRANSACTION = 200

_REPOSITORIES = """
    FROM project_repositories WHERE project_id = projects.id AND repository NOT LIKE 'project:%'
    ORDER BY repository LIKE 'commit:%', repository
"""
_IS_OF_PROJECT = "(project_id = projects.id OR scope = 'project:' || projects.id)"
_SELECT = f"""
    SELECT projects.id, path, {PROJECT_LABEL} AS name, (SELECT repository {_REPOSITORIES} LIMIT 1) AS repository,
           (SELECT count(*) FROM sessions WHERE project_id = projects.id) AS sessions,
           (SELECT count(*) FROM memories WHERE {_IS_OF_PROJECT}) AS memories,
           (SELECT count(*) FROM documents WHERE project_id = projects.id AND revision > 0) AS documents,
           (SELECT count(*) FROM files WHERE project_id = projects.id) AS files,
           created_at, (SELECT max(updated_at) FROM sessions WHERE project_id = projects.id) AS last_session_at
    FROM projects
"""
_LIST = f"{_SELECT} ORDER BY last_session_at DESC NULLS LAST, path LIMIT :limit"
_FOLDERS = """
    SELECT path, repository, seen_at, NULL AS "exists" FROM project_folders WHERE project_id = :id
    ORDER BY seen_at DESC, path
"""
_COUNT_MESSAGES = """
    SELECT (SELECT count(*) FROM messages JOIN sessions ON sessions.id = session_id WHERE project_id = :id) AS messages,
           (SELECT count(*) FROM tools JOIN sessions ON sessions.id = session_id WHERE project_id = :id) AS tools
"""


@handles(ProjectList)
async def list_projects(daemon: "Daemon", request: ProjectList) -> list[Project]:
    return await daemon.store.read(lambda db: [Project(**row) for row in db.fetch(_LIST, {"limit": request.limit})])


@handles(ProjectShow)
async def show_project(daemon: "Daemon", request: ProjectShow) -> ProjectDetails:
    def fetch(db: Db) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        params = {"id": require_project_id(db, request.project)}
        row = db.fetch_one(f"{_SELECT} WHERE projects.id = :id", params)
        assert row
        repositories = db.tuples(f"SELECT repository {_REPOSITORIES}".replace("projects.id", ":id"), params)
        row |= {"repositories": [repository for (repository,) in repositories]}
        return row | (db.fetch_one(_COUNT_MESSAGES, params) or {}), db.fetch(_FOLDERS, params)

    row, folders = await daemon.store.read(fetch)

    def look() -> None:
        for folder in folders:
            folder["exists"] = os.path.isdir(folder["path"])  # noqa: PTH112

    with anyio.move_on_after(DISK_SECONDS):
        await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
    return ProjectDetails(**row, folders=[ProjectFolder(**folder) for folder in folders])


@handles(ProjectRename)
async def rename_project(daemon: "Daemon", request: ProjectRename) -> Project:
    name = redact(request.name)[0].strip()
    if not name or not name.isprintable() or name.startswith("/"):
        raise InvalidParams("invalid params: a name is printable text that does not begin with / - at `$.name`")

    def rename(db: Db) -> Project:
        project_id = require_project_id(db, request.project)
        params = {"id": project_id, "name": name, "now": clock.now()}
        taken = "SELECT path FROM projects WHERE id <> :id AND (name = :name COLLATE NOCASE OR id = :name)"
        if path := db.value(taken, params):
            raise Conflict(f"the project at {path} has the name {name!r}: rename that one first, or choose another")
        db.execute("UPDATE projects SET name = :name, named = 1, updated_at = :now WHERE id = :id", params)
        return _fetch(db, project_id)

    return await daemon.store.write(rename)


@handles(ProjectMerge)
async def merge(daemon: "Daemon", request: ProjectMerge) -> ProjectMerged:
    def move_all(db: Db) -> tuple[ProjectMerged, Merge | None]:
        merged, kept = require_project_id(db, request.project), require_project_id(db, request.into)
        if merged == kept:
            raise Conflict(f"{request.project} and {request.into} are the same project: {merged}")
        counts = _count(db, merged)
        done = None if request.dry_run else merge_projects(db, merged, kept)
        return ProjectMerged(_fetch(db, kept), merged, counts, request.dry_run), done

    if request.dry_run:
        return (await daemon.store.read(move_all))[0]
    result, done = await daemon.store.write(move_all)
    if done is not None:
        follow_merge(daemon, done)
    return result


def follow_merge(daemon: "Daemon", merge: Merge) -> None:
    """Let what is in memory follow a merge: the scopes of vectors, and subscriptions."""
    if daemon.index.mirror is not None:
        daemon.index.mirror.relabel(merge.chunks, label_of("memories", f"project:{merge.kept}"))
    daemon.hub.follow_merge(merge.merged, merge.kept)


@handles(ProjectMove)
async def move_project(daemon: "Daemon", request: ProjectMove) -> Project:
    folder = await anyio.to_thread.run_sync(find_folder, request.folder)

    def move(db: Db) -> Project:
        project_id = require_project_id(db, request.project)
        other = match_folder(db, folder).project_id
        if other not in (None, project_id):
            label = db.value(f"SELECT {PROJECT_LABEL} FROM projects WHERE id = :id", {"id": other})
            raise Conflict(
                f"{folder.path} belongs to the project {label} ({other}); to make them one, merge them: "
                f"clankers-ctl project merge {other} {project_id}"
            )
        place_folder(db, folder, project_id, clock.now())
        show_at(db, project_id, folder.path)
        return _fetch(db, project_id)

    return await daemon.store.write(move)


@handles(ProjectForget)
async def forget_project(daemon: "Daemon", request: ProjectForget) -> ProjectForgotten:
    def count(db: Db) -> ProjectForgotten:
        project_id = require_project_id(db, request.project)
        return ProjectForgotten(project_id, _count(db, project_id), request.dry_run)

    forgotten = await daemon.store.read(count)
    if request.dry_run:
        return forgotten
    params = {"id": forgotten.id}

    def forget_some(db: Db) -> bool:
        """Delete a few sessions and memories; returns True if there may be more."""
        sql = f"SELECT id FROM sessions WHERE project_id = :id LIMIT {SESSIONS_PER_TRANSACTION}"
        sessions = [row[0] for row in db.tuples(sql, params)]
        for session_id in sessions:
            erase_session(db, session_id)
        sql = f"SELECT memories.id FROM memories, projects WHERE projects.id = :id AND {_IS_OF_PROJECT}"
        memories = [row[0] for row in db.tuples(f"{sql} LIMIT {MEMORIES_PER_TRANSACTION}", params)]
        for memory_id in memories:
            db.execute("DELETE FROM memories WHERE id = :memory", {"memory": memory_id})
            db.after_commit(Notification("memory", "purged", memory_id))
        return bool(sessions or memories)

    def forget_rest(db: Db) -> None:
        while forget_some(db):  # what came in the meantime
            pass
        db.execute("DELETE FROM files WHERE project_id = :id", params)
        db.execute("DELETE FROM projects WHERE id = :id", params)

    with anyio.CancelScope(shield=True):  # a project that is half forgotten is of no use, even if the client is gone
        while await daemon.store.write(forget_some, bulk=True):
            pass
        sql = "SELECT id FROM documents WHERE project_id = :id AND revision > 0"
        for (document_id,) in await daemon.store.read(lambda db: db.tuples(sql, params)):
            await delete_document(daemon, DocumentDelete(document_id))
        await daemon.store.write(forget_rest)
    return forgotten


def _fetch(db: Db, project_id: str) -> Project:
    row = db.fetch_one(f"{_SELECT} WHERE projects.id = :id", {"id": project_id})
    assert row
    return Project(**row)


def _count(db: Db, project_id: str) -> ProjectCounts:
    project = _fetch(db, project_id)
    row = db.fetch_one(_COUNT_MESSAGES, {"id": project_id})
    assert row
    return ProjectCounts(
        sessions=project.sessions,
        memories=project.memories,
        documents=project.documents,
        files=project.files,
        **row,
    )
