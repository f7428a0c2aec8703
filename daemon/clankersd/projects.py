"""Projects: a path belongs to the git repository around it, whatever the folder is called; worktrees to their own."""

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
LONGEST_GIT_FILE = 4096

_PROJECT = """
    INSERT INTO projects (id, path, name, created_at, updated_at)
    VALUES (:id, :path, :name, :now, :now)
    ON CONFLICT (path) DO UPDATE SET name = :name, updated_at = :now WHERE :name <> COALESCE(name, '')
"""

PROJECT_IDS = "(SELECT id FROM projects WHERE id = :project OR path IN (:project, :project_root))"
"""The ids of the project that `project_params` gives the parameters of."""

IN_PROJECT = f"(project_path = :project OR project_id IN {PROJECT_IDS})"
"""A condition on sessions."""

_roots: TtlCache[str, str] = TtlCache(ROOT_CACHE_SECONDS, MAX_CACHED_ROOTS)


def find_project_root(path: str) -> str:
    """The path that names the project: the repository's, or the path itself when it is in none.

    Only the folders above are looked at, and a file called .git is read: nothing else of a client's path is opened.
    """
    path = path.rstrip("/") or "/"
    return _roots.get(path) or _roots.put(path, _find_root(path))


def project_params(given: str | None) -> dict[str, str | None]:
    """The parameters of PROJECT_IDS: an id, or a path in the project."""
    path = given and (given.rstrip("/") or "/")
    return {"project": path, "project_root": find_project_root(path) if path and path.startswith("/") else path}


def project_row(path: str, name: str | None = None) -> dict[str, Any]:
    """The project of a path, ready for `ensure_project`."""
    root = find_project_root(path)
    return {"id": clock.new_id(), "path": root, "name": name or _last_part(root), "now": clock.now()}


def ensure_project(db: Db, project: dict[str, Any]) -> None:
    """Make sure the project is there."""
    db.execute(_PROJECT, project)


def find_project_id(db: Db, given: str) -> str | None:
    """The id of a project, from its id or a path in it."""
    path = find_project_root(given) if given.startswith("/") else given
    sql = "SELECT id FROM projects WHERE path = :path OR id = :given"
    return db.value(sql, {"path": path, "given": given})  # type: ignore[no-any-return]


def _find_root(path: str) -> str:
    if not path.startswith("/"):
        return path
    for folder in (Path(path), *Path(path).parents):
        try:
            found = os.lstat(folder / ".git")
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode):
            return str(folder)
        if stat.S_ISREG(found.st_mode):
            return str(_of_worktree(folder) or folder)
    return path


def _of_worktree(folder: Path) -> Path | None:
    """The repository that a worktree belongs to; None for a submodule, which is a project of its own."""
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
            return file.read(LONGEST_GIT_FILE).decode(errors="replace")
    except (OSError, UnsafeFile):
        return ""


def _last_part(path: str) -> str:
    return path.rpartition("/")[2] or path
