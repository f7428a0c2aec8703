"""Projects: a project is its repository, wherever it lies on the disk, else its folder."""

from clankersd.projects.repositories import Folder, find_folder
from clankersd.projects.store import (
    PROJECT_LABEL,
    ensure_project,
    find_project_id,
    match_folder,
    require_project_id,
    resolve_project,
    resolve_scope,
)

IN_PROJECT = "project_id = :project_id"
"""SQL condition on sessions, memories, documents and files; `find_project_id` finds its parameter."""

PROJECT_NUMBERS = "(SELECT number FROM projects WHERE id = :project_id)"
"""SQL for the number of that project in `chunks.project`."""

__all__ = [
    "IN_PROJECT",
    "PROJECT_LABEL",
    "PROJECT_NUMBERS",
    "Folder",
    "ensure_project",
    "find_folder",
    "find_project_id",
    "match_folder",
    "require_project_id",
    "resolve_project",
    "resolve_scope",
]
