"""Projects of two machines: those with a common repository are one, and so are folders without one at the same path.

Of several projects that are one, both machines keep the same: one that the others were merged into, else the oldest.
The ids of the others still lead to it (`project:ID` in `project_repositories`).
"""

import json
from dataclasses import dataclass, field
from typing import Literal

from clankers_protocol.transfer import ProjectRecord
from clankersd.db import Db
from clankersd.projects.store import Merge, merge_projects
from clankersd.transfer.tables import TABLE_OF, combine

ALIAS = "project:"
"""Prefix of the repository that leads from the id of a merged project to the one that it is part of."""

_BY_REPOSITORY = """
    SELECT project_id FROM project_repositories WHERE repository IN (SELECT value FROM json_each(:repositories))
"""
_BY_PATH = """
    SELECT project_id FROM project_folders WHERE path = :path UNION SELECT id FROM projects WHERE path = :path
"""
_STORE_FOLDER = """
    INSERT INTO project_folders (path, project_id, repository, seen_at)
    VALUES (:path, :project, :repository, :seen_at)
    ON CONFLICT (path) DO UPDATE SET project_id = :project, repository = coalesce(:repository, repository),
        seen_at = :seen_at
    WHERE (:seen_at, :project, coalesce(:repository, '')) > (seen_at, project_id, coalesce(repository, ''))
"""
_FOLD = """
    UPDATE projects SET created_at = min(created_at, :created_at), name = iif(:named > named, :name, name),
                        named = max(named, :named)
    WHERE id = :kept AND (created_at > :created_at OR named < :named)
"""


@dataclass(frozen=True)
class Stored:
    """Result of storing a record; `merges` are projects that became one by it."""

    result: Literal["new", "updated", "unchanged"]
    merges: list[Merge] = field(default_factory=list)


@dataclass(frozen=True)
class _Candidate:
    """A project that may be the same as the imported one."""

    created_at: int
    id: str
    repositories: frozenset[str]

    @property
    def has_repository(self) -> bool:
        return any(not name.startswith(ALIAS) for name in self.repositories)


def current_project(db: Db, project_id: str | None) -> str | None:
    """Return the id that a project has here; None if it is not stored."""
    if project_id is None or db.value("SELECT 1 FROM projects WHERE id = :id", {"id": project_id}):
        return project_id
    sql = "SELECT project_id FROM project_repositories WHERE repository = :alias"
    found = db.value(sql, {"alias": f"{ALIAS}{project_id}"})
    return None if found is None else str(found)


def store_project(db: Db, record: ProjectRecord) -> Stored:
    """Store a project, and merge the projects here that turn out to be the same."""
    given = _Candidate(record.created_at, record.id, frozenset(record.repositories))
    same = _find_same(db, record, given)
    changes_before = db.total_changes()
    kept = _choose(same if any(one.id == given.id for one in same) else [*same, given])
    path = _store_row(db, record, kept)
    merges = [merge_projects(db, one.id, kept) for one in same if one.id != kept]
    if path is not None:
        _show_at(db, kept, path)
    aliases = {f"{ALIAS}{one.id}" for one in (*same, given)}
    for repository in sorted((given.repositories | aliases) - {f"{ALIAS}{kept}"}):
        sql = "INSERT INTO project_repositories (repository, project_id) VALUES (:name, :kept) ON CONFLICT DO NOTHING"
        db.execute(sql, {"name": repository, "kept": kept})
    for folder in record.folders:
        params = {"path": folder.path, "repository": folder.repository, "seen_at": folder.seen_at}
        db.execute(_STORE_FOLDER, params | {"project": kept})
    if not same:
        return Stored("new")
    return Stored("updated" if db.total_changes() != changes_before else "unchanged", merges)


def _find_same(db: Db, record: ProjectRecord, given: _Candidate) -> list[_Candidate]:
    """Find the stored projects that are the same as the imported one."""
    names = json.dumps([*record.repositories, f"{ALIAS}{record.id}"])
    absorbed = [name.removeprefix(ALIAS) for name in record.repositories if name.startswith(ALIAS)]
    ids = {row[0] for row in db.tuples(_BY_REPOSITORY, {"repositories": names})}
    ids.update(one for one in (record.id, *absorbed) if db.value("SELECT 1 FROM projects WHERE id = :id", {"id": one}))
    for path in {record.path, *(folder.path for folder in record.folders)}:
        for (project_id,) in db.tuples(_BY_PATH, {"path": path}):
            if not (given.has_repository and _candidate(db, project_id).has_repository):
                ids.add(project_id)
    return [_candidate(db, project_id) for project_id in sorted(ids)]


def _candidate(db: Db, project_id: str) -> _Candidate:
    params = {"id": project_id}
    created_at = db.value("SELECT created_at FROM projects WHERE id = :id", params)
    rows = db.tuples("SELECT repository FROM project_repositories WHERE project_id = :id", params)
    return _Candidate(created_at, project_id, frozenset(row[0] for row in rows))


def _choose(candidates: list[_Candidate]) -> str:
    """Return the id of the project that stays: one that no other has absorbed, and of several the oldest."""
    absorbed = {name.removeprefix(ALIAS) for one in candidates for name in one.repositories if name.startswith(ALIAS)}
    remaining = [one for one in candidates if one.id not in absorbed] or candidates
    return min((one.created_at, one.id) for one in remaining)[1]


def _store_row(db: Db, record: ProjectRecord, kept: str) -> str | None:
    """Insert the project, combine the two rows of its id, or fold it into the project that stays.

    Return the path at which the project that stays is to be shown; None if that does not change.
    """
    table = TABLE_OF[ProjectRecord]
    row = table.to_row(record)
    stored = db.fetch_one(table.by_key, row)
    if stored is not None:
        combined = combine(table, stored, row)
        path = combined["path"]
        combined |= {"path": stored["path"], "created_at": min(stored["created_at"], row["created_at"])}
        if combined != stored:
            db.execute(table.update, combined)
        return path if record.id == kept else None
    if record.id != kept:
        db.execute(_FOLD, {"kept": kept} | {name: row[name] for name in ("created_at", "name", "named")})
        return None
    db.execute(table.insert, row | {"path": f"{ALIAS}{record.id}"})
    # Its id leads to another project no longer.
    db.execute("DELETE FROM project_repositories WHERE repository = :alias", {"alias": f"{ALIAS}{kept}"})
    return record.path


def _show_at(db: Db, project_id: str, path: str) -> None:
    """Show a project at a path, unless an older project is shown there."""
    other = db.fetch_one("SELECT id, created_at FROM projects WHERE path = :path AND id <> :id", {
        "path": path, "id": project_id,
    })  # fmt: skip
    if other is not None:
        created_at = db.value("SELECT created_at FROM projects WHERE id = :id", {"id": project_id})
        elder_is_other = (other["created_at"], other["id"]) < (created_at, project_id)
        _set_path(db, project_id if elder_is_other else other["id"], None)
        if elder_is_other:
            return
    _set_path(db, project_id, path)


def _set_path(db: Db, project_id: str, path: str | None) -> None:
    """Show a project at a path, or at none."""
    params = {"id": project_id, "path": path or f"{ALIAS}{project_id}"}
    db.execute("UPDATE projects SET path = :path WHERE id = :id AND path <> :path", params)
