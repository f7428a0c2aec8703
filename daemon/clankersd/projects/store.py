"""The table of projects: which project a folder belongs to, and how projects are named, merged and moved.

A folder is matched by the repository that it holds, else by the folder itself: its path, or the directory under a path
that it had before. What proves that two projects are the same is found when one of their folders is seen again.
"""

import difflib
from dataclasses import dataclass
from typing import Any

from clankers_protocol.errors import Conflict, NotFound
from clankersd import clock
from clankersd.db import Db
from clankersd.projects.pending import pending
from clankersd.projects.repositories import ROOT_COMMIT, Folder, find_folder

SEEN_INTERVAL_MS = 86_400_000
"""A folder's `seen_at` is this exact, so that an event rarely writes it."""

MIN_ID_CHARACTERS = 8
MAX_CANDIDATES = 10
MAX_COMPARED = 2000
MIN_SIMILARITY = 0.5
"""Similarity, between 0 and 1, of names that are listed for one that means no project."""

PROJECT_LABEL = """iif(
    (SELECT count(*) FROM projects AS same WHERE same.name = projects.name COLLATE NOCASE) = 1,
    projects.name, projects.path
)"""
"""SQL expression: the name by which a project is shown, and by which every command finds it."""

_FOLDER = "SELECT path, project_id, repository, directory, seen_at FROM project_folders"
_SHOWN_AT = "SELECT id AS project_id, NULL AS repository, NULL AS directory FROM projects WHERE path = :path"
_STORE_FOLDER = """
    INSERT INTO project_folders AS stored (path, project_id, repository, directory, seen_at)
    VALUES (:path, :project, :repository, :directory, :now)
    ON CONFLICT (path) DO UPDATE SET
        project_id = :project, directory = coalesce(:directory, stored.directory), seen_at = :now,
        repository = iif(stored.project_id = :project, coalesce(:repository, stored.repository), :repository)
"""
_STORE_REPOSITORY = """
    INSERT INTO project_repositories (repository, project_id) VALUES (:repository, :project) ON CONFLICT DO NOTHING
"""
_INSERT = """
    INSERT INTO projects (id, path, name, created_at, updated_at) VALUES (:id, :path, :name, :now, :now)
"""
_FREE_PATH = """
    UPDATE projects SET updated_at = :now, path = coalesce(
        (SELECT path FROM project_folders WHERE project_id = projects.id AND path <> :path
         ORDER BY seen_at DESC LIMIT 1),
        (SELECT repository FROM project_repositories
         WHERE project_id = projects.id AND repository NOT LIKE 'project:%' LIMIT 1),
        'project:' || id
    ) WHERE path = :path AND id <> :project
"""
_RENAME = "UPDATE projects SET name = :name, updated_at = :now WHERE id = :id AND named = 0 AND name IS NOT :name"

_REFERRING_TABLES = ("sessions", "memories", "documents", "files", "project_folders", "project_repositories")
"""Every table with a `project_id`."""

_LISTED = f"SELECT projects.id, projects.name, projects.path, {PROJECT_LABEL} AS label FROM projects"


@dataclass(frozen=True)
class Match:
    """The project of a folder. `same_as` is another project that the folder proves to be the same."""

    project_id: str | None
    same_as: str | None = None


@dataclass(frozen=True)
class Merge:
    """A project that became part of another one; `chunks` have the scope of that one now."""

    merged: str
    kept: str
    chunks: list[int]


def match_folder(db: Db, folder: Folder) -> Match:
    """Find the project of a folder."""
    by_repository: str | None = None
    if folder.repository is not None:
        sql = "SELECT project_id FROM project_repositories WHERE repository = :repository"
        by_repository = db.value(sql, {"repository": folder.repository})
    row = db.fetch_one(f"{_FOLDER} WHERE path = :path", {"path": folder.path})
    if row is None:
        row = db.fetch_one(_SHOWN_AT, {"path": folder.path})
    is_same_directory = row is None or row["directory"] in (None, folder.directory) or folder.directory is None
    if row is None and folder.directory is not None:
        sql = f"{_FOLDER} WHERE directory = :directory ORDER BY seen_at DESC LIMIT 1"
        row = db.fetch_one(sql, {"directory": folder.directory})
    if row is None:
        return Match(by_repository)
    by_folder, known = row["project_id"], row["repository"]
    if folder.repository is None or by_repository == by_folder or known == folder.repository:
        return Match(by_folder)
    is_root_commit = folder.repository.startswith(ROOT_COMMIT)
    if known is None:  # the folder's repository was not known yet, or it had none
        if by_repository is None:
            return Match(by_folder)
        return Match(by_repository, by_folder if is_same_directory else None)
    if not is_same_directory:  # another repository was put in the place of the one that was here
        return Match(by_repository)
    if by_repository is None or is_root_commit:  # its remote was renamed, added or removed
        return Match(by_folder)
    return Match(by_repository, by_folder if known.startswith(ROOT_COMMIT) else None)


def ensure_project(db: Db, folder: Folder, name: str | None = None, new_id: str | None = None) -> str:
    """Return the id of a folder's project, which is created if needed.

    A given name becomes its name if it is shown at this folder. Whatever takes git or a merge is left to the service
    that `pending` wakes.
    """
    now = clock.now()
    row = db.fetch_one(f"{_FOLDER} WHERE path = :path", {"path": folder.path})
    lacks_repository = folder.repository is None and folder.git_dir is not None
    if (
        row is not None
        and folder.repository in (None, row["repository"])
        and folder.directory in (None, row["directory"])
    ):
        project_id = row["project_id"]
        if lacks_repository and row["repository"] is None:
            pending.add(folder)
        if now - row["seen_at"] > SEEN_INTERVAL_MS:
            db.execute(
                "UPDATE project_folders SET seen_at = :now WHERE path = :path", {"now": now, "path": folder.path}
            )
    else:
        match = match_folder(db, folder)
        if match.same_as is not None or (lacks_repository and row is not None and row["directory"] != folder.directory):
            # The row says which project the folder was of, until the service has compared the two.
            pending.add(folder)
            assert match.project_id
            project_id = match.project_id
        else:
            project_id = place_folder(db, folder, match.project_id, now, new_id)
            pending.add(folder)
    if name:
        db.execute(f"{_RENAME} AND path = :path", {"id": project_id, "name": name, "path": folder.path, "now": now})
    return str(project_id)


def place_folder(db: Db, folder: Folder, project_id: str | None, now: int, new_id: str | None = None) -> str:
    """Assign a folder to a project, or to a new one, and return its id."""
    if project_id is None and new_id is not None:
        project_id = db.value("SELECT id FROM projects WHERE id = :id", {"id": new_id})
    if project_id is None:
        project_id = new_id or clock.new_id()
        db.execute(_FREE_PATH, {"path": folder.path, "project": project_id, "now": now})
        name = folder.path.rpartition("/")[2] or folder.path
        db.execute(_INSERT, {"id": project_id, "path": folder.path, "name": name, "now": now})
    db.execute(_FREE_PATH, {"path": folder.path, "project": project_id, "now": now})
    row = {"path": folder.path, "project": project_id, "repository": folder.repository, "directory": folder.directory}
    db.execute(_STORE_FOLDER, row | {"now": now})
    if folder.repository is not None:
        db.execute(_STORE_REPOSITORY, row)
    return project_id


def learn_folder(db: Db, folder: Folder) -> Merge | None:
    """Store what was read of a folder, and merge two projects that it proves to be the same.

    A folder whose project was forgotten in the meantime is left alone.
    """
    match = match_folder(db, folder)
    project_id, merge = match.project_id, None
    if project_id is None and not db.value("SELECT 1 FROM project_folders WHERE path = :path", {"path": folder.path}):
        return None
    if match.same_as is not None and project_id is not None:
        order = "SELECT id FROM projects WHERE id IN (:one, :other) ORDER BY created_at, id"
        kept, merged = (row["id"] for row in db.fetch(order, {"one": project_id, "other": match.same_as}))
        merge = merge_projects(db, merged, kept)
        project_id = kept
    place_folder(db, folder, project_id, clock.now())
    return merge


def merge_projects(db: Db, merged: str, kept: str) -> Merge:
    """Move everything of one project to another, and delete it."""
    params = {"old": merged, "new": kept, "old_scope": f"project:{merged}", "new_scope": f"project:{kept}"}
    in_scope = "memory_id IN (SELECT id FROM memories WHERE scope = :old_scope)"
    chunks = [row[0] for row in db.tuples(f"SELECT id FROM chunks WHERE {in_scope}", params)]
    db.execute(f"UPDATE chunks SET scope = :new_scope WHERE {in_scope}", params)
    db.execute(
        "UPDATE memory_log SET before_json = json_set(before_json, '$.scope', :new_scope) "
        "WHERE memory_id IN (SELECT id FROM memories WHERE project_id = :old) "
        "AND json_extract(before_json, '$.scope') = :old_scope",
        params,
    )
    db.execute("UPDATE memories SET scope = :new_scope WHERE scope = :old_scope", params)
    for table in _REFERRING_TABLES:
        db.execute(f"UPDATE {table} SET project_id = :new WHERE project_id = :old", params)
    db.execute(
        "UPDATE projects SET created_at = min(projects.created_at, old.created_at), "
        "name = iif(old.named > projects.named, old.name, projects.name), named = max(projects.named, old.named) "
        "FROM (SELECT name, named, created_at FROM projects WHERE id = :old) AS old WHERE projects.id = :new",
        params,
    )
    db.execute("DELETE FROM projects WHERE id = :old", params)
    # Its id still leads to it: whoever knows the project by that id need not notice.
    db.execute("INSERT INTO project_repositories (repository, project_id) VALUES (:old_scope, :new)", params)
    return Merge(merged, kept, chunks)


# -- names


def find_project_id(db: Db, project: str) -> str | None:
    """Return the id of the project with this folder, name, repository or id.

    Returns None for a folder in which nothing has happened yet. Raises NotFound or Conflict for any other text that
    means no project or several.
    """
    if project.startswith("/"):
        return match_folder(db, find_folder(project)).project_id
    params = {"text": project, "end": project + "\U0010ffff", "tail": f"/{project.lower()}"}
    for condition in (
        "id = :text OR path = :text",
        "name = :text COLLATE NOCASE",
        "id IN (SELECT project_id FROM project_repositories"
        " WHERE repository IN (:text, 'commit:' || :text, 'project:' || :text))",
        "id IN (SELECT project_id FROM project_repositories WHERE substr(lower(repository), -length(:tail)) = :tail)"
        " OR id IN (SELECT project_id FROM project_folders WHERE substr(lower(path), -length(:tail)) = :tail)",
        f"id >= :text AND id < :end AND length(:text) >= {MIN_ID_CHARACTERS}",
    ):
        found = db.fetch(f"{_LISTED} WHERE {condition} ORDER BY name, path LIMIT {MAX_CANDIDATES + 1}", params)
        if len(found) == 1:
            return str(found[0]["id"])
        if found:
            more = ", …" if len(found) > MAX_CANDIDATES else ""
            listed = ", ".join(f"{row['path']} ({row['id']})" for row in found[:MAX_CANDIDATES])
            raise Conflict(
                f"{project!r} means several projects: {listed}{more}: give one of these folders or ids",
                {"candidates": [{"id": row["id"], "path": row["path"]} for row in found[:MAX_CANDIDATES]]},
            )
    raise _not_found(db, project)


def _not_found(db: Db, project: str) -> NotFound:
    """Describe a name that means no project, with the names that are close to it."""
    rows = {row["id"]: row for row in db.fetch(f"{_LISTED} ORDER BY updated_at DESC LIMIT {MAX_COMPARED}")}
    by_key: dict[str, dict[str, Any]] = {}
    for row in rows.values():
        by_key.setdefault((row["name"] or "").lower(), row)
    for path, project_id in db.tuples(f"SELECT path, project_id FROM project_folders LIMIT {MAX_COMPARED}"):
        if project_id in rows:
            by_key.setdefault(path.rpartition("/")[2].lower(), rows[project_id])
    wanted = (project.rstrip("/").rpartition("/")[2] or project).lower()
    keys = difflib.get_close_matches(wanted, by_key, n=5, cutoff=MIN_SIMILARITY)
    keys += [key for key in by_key if wanted in key and key not in keys][:5]
    near = list({by_key[key]["id"]: by_key[key] for key in keys}.values())
    labels = [row["label"] if row["label"] == row["path"] else f"{row['label']} ({row['path']})" for row in near]
    hint = f"near ones are {', '.join(labels)}" if near else "`clankers-ctl project list` lists all"
    return NotFound(
        f"there is no project {project!r}; {hint}. Give a name, a folder or an id",
        {"near": [{"id": row["id"], "name": row["label"], "path": row["path"]} for row in near]},
    )


def require_project_id(db: Db, project: str) -> str:
    """Return the id of a project as `find_project_id` does; raises NotFound for a folder without one, too."""
    found = find_project_id(db, project)
    if found is None:
        raise _not_found(db, project)
    return found


def resolve_project(db: Db, project: str | None) -> str | None:
    """Return the id of the project that something new belongs to; a folder without a project gets one."""
    if project is None:
        return None
    return ensure_project(db, find_folder(project)) if project.startswith("/") else find_project_id(db, project)


def resolve_scope(db: Db, scope: str) -> str:
    """Return a scope as it is stored: that of a project has the project's id in place of its name."""
    kind, _, name = scope.partition(":")
    if kind != "project" or db.value("SELECT 1 FROM projects WHERE id = :id", {"id": name}):
        return scope
    if db.value("SELECT 1 FROM memories WHERE scope = :scope LIMIT 1", {"scope": scope}):
        return scope  # of a project that is not stored here
    return f"project:{require_project_id(db, name)}"


def show_at(db: Db, project_id: str, path: str) -> None:
    """Show a project at another of its folders; a name that was taken from the old folder follows."""
    now = clock.now()
    row = db.fetch_one("SELECT path, name FROM projects WHERE id = :id", {"id": project_id})
    if row is None or row["path"] == path:
        return
    db.execute("UPDATE projects SET path = :path, updated_at = :now WHERE id = :id", {
        "path": path, "now": now, "id": project_id,
    })  # fmt: skip
    if row["name"] == row["path"].rpartition("/")[2]:
        db.execute(_RENAME, {"id": project_id, "name": path.rpartition("/")[2] or path, "now": now})
