"""Projects: a path belongs to the git repository around it; a worktree belongs to its main repository."""

import os
import stat
from pathlib import Path
from typing import Any

from clankersd import clock
from clankersd.db import Db
from clankersd.safe_files import UnsafeFile, open_regular
from clankersd.ttl_cache import TtlCache

ROOT_CACHE_SECONDS = 60.0
MAX_CACHED_ROOTS = 10_000
MAX_GIT_FILE_BYTES = 4096

_UPSERT = """
    INSERT INTO projects (id, path, name, created_at, updated_at)
    VALUES (:id, :path, :name, :now, :now)
    ON CONFLICT (path) DO UPDATE SET name = :name, updated_at = :now WHERE :name <> COALESCE(name, '')
"""

PROJECT_IDS = "(SELECT id FROM projects WHERE id = :project OR path IN (:project, :project_root))"
"""SQL for the ids of the project that `project_params` describes."""

IN_PROJECT = f"(project_path = :project OR project_id IN {PROJECT_IDS})"
"""SQL condition on sessions that belong to that project."""

PROJECT_NUMBERS = """(
    SELECT number FROM projects WHERE id = :project OR path IN (:project, :project_root)
    UNION SELECT projects.number FROM sessions JOIN projects ON projects.id = sessions.project_id
    WHERE sessions.project_path = :project
)"""
"""SQL for the numbers of that project in `chunks.project`, also given the folder of one of its sessions."""

_roots: TtlCache[str, str] = TtlCache(ROOT_CACHE_SECONDS, MAX_CACHED_ROOTS)


def find_project_root(path: str) -> str:
    """Return the root of the repository that contains `path`, or the path itself if there is none.

    Of a client's path, only the folders above it are inspected, and only a file called .git is read.
    """
    path = path.rstrip("/") or "/"
    return _roots.get(path) or _roots.put(path, _find_root(path))


def project_params(project: str | None) -> dict[str, str | None]:
    """Return the parameters of PROJECT_IDS for an id, or for a path in the project."""
    path = project and (project.rstrip("/") or "/")
    return {"project": path, "project_root": find_project_root(path) if path and path.startswith("/") else path}


def project_row(path: str, name: str | None = None) -> dict[str, Any]:
    """Return the row of a path's project, for `ensure_project`."""
    root = find_project_root(path)
    return {"id": clock.new_id(), "path": root, "name": name or root.rpartition("/")[2] or root, "now": clock.now()}


def ensure_project(db: Db, project: dict[str, Any]) -> None:
    """Insert the project, or update its name."""
    db.execute(_UPSERT, project)


def find_project_id(db: Db, project: str) -> str | None:
    """Return the id of a project, given its id or a path in it; None if it is not stored."""
    path = find_project_root(project) if project.startswith("/") else project
    sql = "SELECT id FROM projects WHERE path = :path OR id = :project"
    return db.value(sql, {"path": path, "project": project})  # type: ignore[no-any-return]


def _find_root(path: str) -> str:
    if not path.startswith("/"):
        return path
    for folder in (Path(path), *Path(path).parents):
        try:
            status = os.lstat(folder / ".git")
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            return str(folder)
        if stat.S_ISREG(status.st_mode):
            return str(_main_repository(folder) or folder)
    return path


def _main_repository(folder: Path) -> Path | None:
    """Return the repository that a worktree belongs to; None for a submodule, which is a project of its own."""
    link = _read(folder / ".git")
    if not link.startswith("gitdir:"):
        return None
    own = (folder / link.removeprefix("gitdir:").strip()).resolve()
    if own.parent.name != "worktrees":
        return None
    shared = (own / (_read(own / "commondir").strip() or "../..")).resolve()
    return shared.parent if shared.name == ".git" else shared


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(MAX_GIT_FILE_BYTES).decode(errors="replace")
    except (OSError, UnsafeFile):
        return ""
