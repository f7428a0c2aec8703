"""Scan of the disk for the files to index: the markdown files of workspaces and of additional paths."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clankersd.projects import Folder, find_folder

MEMORY_FILES = ("MEMORY.md", "memory.md")
AGENT_FILES = ("CLAUDE.md", "AGENTS.md")
MEMORY_FOLDER = "memory"
IGNORED_NAMES = frozenset((".git", "node_modules", ".pnpm-store", ".venv", "venv", ".tox", "__pycache__"))

FileId = tuple[int, int]
"""Device and inode number."""


@dataclass(frozen=True)
class WatchSettings:
    """The workspaces (`roots`) and additional paths (`extra`) to index, and how changes to them are detected.

    With `projects`, the folders in which sessions run are workspaces, too.
    """

    roots: tuple[Path, ...] = ()
    extra: tuple[Path, ...] = ()
    projects: bool = False
    agent_files: bool = False
    debounce_ms: int = 1500
    poll: bool = False
    sync_minutes: float = 0


@dataclass(frozen=True)
class WatchedFile:
    """A file to index. `name` is its path below the watched path, `project` the folder of its workspace's project.

    `real` is the path to read, which differs for a link; `mtime` is in milliseconds.
    """

    path: str
    real: str
    name: str
    workspace: str | None
    project: Folder | None
    mtime: int
    size: int


@dataclass
class Scan:
    """The result of a scan.

    `folders` are the folders to watch, with the names that matter in them, or None for all markdown files and folders.
    `tops` are the watched paths with the file or folder found there. `unreadable` are paths that could not be scanned.
    """

    files: dict[str, WatchedFile] = field(default_factory=dict)
    folders: dict[str, frozenset[str] | None] = field(default_factory=dict)
    tops: dict[str, FileId | None] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    file_ids: set[FileId] = field(default_factory=set)

    def might_hold(self, path: str) -> bool:
        """Tell whether `path` may exist although the scan did not find it: it or its folder could not be read."""
        return any(path == unreadable or path.startswith(f"{unreadable}/") for unreadable in self.unreadable)

    def add_unreadable(self, path: str, error: OSError) -> None:
        self.unreadable.append(path)
        self.add_failure(path, error.strerror or str(error))

    def add_failure(self, path: str, reason: str) -> None:
        self.failed.append(f"{printable(path)}: {reason}")

    def watch(self, folder: str, names: frozenset[str] | None) -> None:
        """Watch these names in a folder, in addition to those watched already."""
        real = os.path.realpath(folder)
        watched = self.folders.get(real, frozenset())
        self.folders[real] = None if watched is None or names is None else watched | names


def scan(settings: WatchSettings, added: list[str]) -> Scan:
    """Find all files to index; `added` are paths added at run time. A file below two paths belongs to the first."""
    result = Scan()
    names = (*MEMORY_FILES, *AGENT_FILES) if settings.agent_files else MEMORY_FILES
    for root in settings.roots:
        top = _resolve_top(result, root)
        if top is None:
            continue
        if not Path(top).is_dir():
            result.add_failure(top, "a workspace must be a folder")
            continue
        result.watch(top, frozenset((*names, MEMORY_FOLDER)))
        for name in names:
            _add_file(result, f"{top}/{name}", top, top)
        memory = f"{top}/{MEMORY_FOLDER}"
        if _add_top(result, memory) and not Path(memory).is_symlink() and Path(memory).is_dir():
            _scan_folder(result, memory, top, top)
    for path in (*settings.extra, *map(Path, added)):
        top = _resolve_top(result, path)
        if top is None:
            continue
        real = os.path.realpath(top)  # a link that is itself a watched path is followed
        folder, name = os.path.split(real)
        if Path(real).is_dir():
            _scan_folder(result, top, top, None)
        elif name.endswith(".md"):
            result.watch(folder, frozenset((name,)))
            _add_file(result, real, folder, None)
        else:
            result.add_failure(top, "neither a folder nor a markdown file")
    return result


def project_workspaces(paths: list[str], is_excluded: Callable[[str], bool]) -> tuple[Path, ...]:
    """Return the folders of sessions and the roots of their repositories that exist and are not excluded."""
    folders = dict.fromkeys(folder for path in paths for folder in (find_folder(path).path, path))
    return tuple(Path(folder) for folder in folders if folder != "/" and _is_folder(folder) and not is_excluded(folder))


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116  # Path.is_dir raises for a name that is too long
    except (OSError, ValueError):
        return False


def file_id_of(path: str) -> FileId | None:
    """Identify the file or folder at `path`; None when there is none or it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116  # called for every watched path, every other second
    except OSError:
        return None
    return status.st_dev, status.st_ino


def printable(path: str) -> str:
    """Return a path that can be shown and stored, even if its name is not UTF-8."""
    return path.encode("utf-8", "replace").decode()


def _resolve_top(result: Scan, path: Path) -> str | None:
    """Return the watched path as an absolute path if it exists."""
    expanded = path.expanduser()
    if not expanded.is_absolute():
        result.add_failure(str(path), "the path must begin with / or ~")
        return None
    top = os.path.normpath(expanded)
    return top if _add_top(result, top) else None


def _add_top(result: Scan, top: str) -> bool:
    """Record the file or folder at a watched path, to notice when another one replaces it; tell whether it exists."""
    result.tops[top] = file_id_of(top)
    if result.tops[top] is not None:
        return True
    try:
        Path(top).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # it may be created later
    except OSError as error:
        result.add_unreadable(top, error)
    return False


def _scan_folder(result: Scan, folder: str, top: str, workspace: str | None) -> None:
    """Add every markdown file below `folder`. Linked folders are not entered."""
    pending = [folder]
    while pending:
        current = pending.pop()
        result.watch(current, None)
        try:
            with os.scandir(current) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            result.add_unreadable(current, error)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in IGNORED_NAMES:
                    pending.append(entry.path)
            elif entry.name.endswith(".md"):
                _add_file(result, entry.path, top, workspace)


def _add_file(result: Scan, path: str, top: str, workspace: str | None) -> None:
    """Add a regular file, only once if it has two names."""
    try:
        status = os.lstat(path)
        real = _follow_link(result, path, top) if stat.S_ISLNK(status.st_mode) else path
        status = status if real == path else os.lstat(real)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        result.add_unreadable(path, error)
        return
    file_id = (status.st_dev, status.st_ino)
    if not stat.S_ISREG(status.st_mode) or file_id in result.file_ids:
        return
    if printable(path) != path:
        result.add_failure(path, "its name is not UTF-8")
        return
    result.file_ids.add(file_id)
    result.files[path] = WatchedFile(
        path=path,
        real=real,
        name=path.removeprefix(f"{top}/"),
        workspace=workspace,
        project=find_folder(workspace) if workspace else None,
        mtime=status.st_mtime_ns // 1_000_000,
        size=status.st_size,
    )


def _follow_link(result: Scan, link: str, top: str) -> str:
    """Return the link's target if it is below `top`; else the link itself, which is no regular file."""
    real = os.path.realpath(link)
    if not real.startswith(f"{os.path.realpath(top)}/"):
        return link
    folder, name = os.path.split(real)
    result.watch(folder, frozenset((name,)))
    return real
