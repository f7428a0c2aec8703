"""Projects: the repositories and folders in which sessions ran.

Wherever a method takes a `project`, it is a folder in the project, its name, its repository or its id.
"""

from typing import Annotated, ClassVar

from msgspec import Meta

from clankers_protocol.wire import Limit, Method, Wire

ProjectReference = Annotated[str, Meta(min_length=1, max_length=4096)]
"""A folder in a project, or its name, its repository (`github.com/ada/shop`) or its id."""

ProjectName = Annotated[str, Meta(min_length=1, max_length=100)]


class Project(Wire):
    """A project. `name` is the name that every method and command finds it by: its own, or its folder if several
    projects have that name. `repository` is the address of its remote, or `commit:` with its root commit."""

    id: str
    path: str
    name: str
    repository: str | None
    sessions: int
    memories: int
    documents: int
    files: int
    created_at: int
    last_session_at: int | None


class ProjectFolder(Wire):
    """A folder in which the project was seen: a clone, or a place that it was moved from. `exists` is null if it could
    not be checked in time."""

    path: str
    repository: str | None
    seen_at: int
    exists: bool | None


class ProjectDetails(Project):
    """A project with all its folders, the last seen first, and all repositories that lead to it."""

    folders: list[ProjectFolder]
    repositories: list[str]
    messages: int
    tools: int


class ProjectList(Method[list[Project]]):
    """List projects, the most recently used first."""

    method: ClassVar[str] = "project.list"
    limit: Limit = 1000


class ProjectShow(Method[ProjectDetails]):
    """Return a project. A name that means no project is an error that lists those with similar names."""

    method: ClassVar[str] = "project.show"
    project: ProjectReference


class ProjectRename(Method[Project]):
    """Give a project a name, which harnesses and moves no longer change. No other project may have it."""

    method: ClassVar[str] = "project.rename"
    project: ProjectReference
    name: ProjectName


class ProjectCounts(Wire):
    """Rows of a project."""

    sessions: int
    messages: int
    tools: int
    memories: int
    documents: int
    files: int


class ProjectMerged(Wire):
    """Result of a merge: the project that is left, and what was moved to it."""

    project: Project
    merged_id: str
    moved: ProjectCounts
    dry_run: bool


class ProjectMerge(Method[ProjectMerged]):
    """Move everything of a project into another one, with its folders and repositories; this cannot be undone. With
    `dryRun`, only count what would be moved."""

    method: ClassVar[str] = "project.merge"
    project: ProjectReference
    into: ProjectReference
    dry_run: bool = False


class ProjectMove(Method[Project]):
    """Say that a project lies in another folder now. Nothing on the disk is changed."""

    method: ClassVar[str] = "project.move"
    project: ProjectReference
    folder: Annotated[str, Meta(max_length=4096, pattern="^/")]


class ProjectForgotten(Wire):
    """Result of forgetting a project: what was deleted for good."""

    id: str
    deleted: ProjectCounts
    dry_run: bool


class ProjectForget(Method[ProjectForgotten]):
    """Delete a project for good, with its sessions, memories, documents and indexed files. Files on the disk are not
    touched. With `dryRun`, only count what would be deleted."""

    method: ClassVar[str] = "project.forget"
    project: ProjectReference
    dry_run: bool = False
