"""What is to be indexed: the markdown files of workspaces and of further paths, as they lie on the disk now."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

MEMORY_FILES = ("MEMORY.md", "memory.md")
AGENT_FILES = ("CLAUDE.md", "AGENTS.md")
MEMORY_FOLDER = "memory"
IGNORED = frozenset((".git", "node_modules", ".pnpm-store", ".venv", "venv", ".tox", "__pycache__"))

Identity = tuple[int, int]


@dataclass(frozen=True)
class WatchSettings:
    """Which workspaces and further paths are indexed, and how changes to them are noticed."""

    roots: tuple[Path, ...] = ()
    extra: tuple[Path, ...] = ()
    agent_files: bool = False
    debounce_ms: int = 1500
    poll: bool = False
    sync_minutes: float = 0


@dataclass(frozen=True)
class WatchedFile:
    """A file to index. `name` is its path below what was asked for, `project` the workspace it belongs to."""

    path: str
    real: str
    name: str
    project: str | None
    mtime: int
    size: int


@dataclass
class Scan:
    """What there is. `folders` are those where changes matter: of the names given, or (None) of all markdown files
    and folders. `tops` are the places asked for, with the identity of what lies there."""

    files: dict[str, WatchedFile] = field(default_factory=dict)
    folders: dict[str, frozenset[str] | None] = field(default_factory=dict)
    tops: dict[str, Identity | None] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seen: set[Identity] = field(default_factory=set)

    def might_hold(self, path: str) -> bool:
        """Whether `path` may be there although it was not found: it or its folder could not be looked at."""
        return any(path == closed or path.startswith(f"{closed}/") for closed in self.closed)

    def close(self, path: str, error: OSError) -> None:
        self.closed.append(path)
        self.fail(path, error.strerror or str(error))

    def fail(self, path: str, reason: str) -> None:
        self.failed.append(f"{printable(path)}: {reason}")

    def watch(self, folder: str, names: frozenset[str] | None) -> None:
        """Changes in this folder matter, beside those that matter already."""
        real = os.path.realpath(folder)
        known = self.folders.get(real, frozenset())
        self.folders[real] = None if known is None or names is None else known | names


def scan(settings: WatchSettings, added: list[str]) -> Scan:
    """Look for all files there are; `added` are paths beside those of the settings. What two paths share is
    found by the first."""
    found = Scan()
    for root in settings.roots:
        if place := _place(found, root):
            _look_into_root(found, place, settings.agent_files)
    for path in (*settings.extra, *map(Path, added)):
        if place := _place(found, path):
            _look_at_extra(found, place)
    return found


def identity_of(path: str) -> Identity | None:
    """Which file or folder lies at `path`; None when nothing does that could be looked at."""
    try:
        status = os.stat(path)  # noqa: PTH116  # called for every watched path, every other second
    except OSError:
        return None
    return status.st_dev, status.st_ino


def printable(path: str) -> str:
    """A path that can be shown and stored, also when its name is not UTF-8."""
    return path.encode("utf-8", "replace").decode()


def _place(found: Scan, path: Path) -> str | None:
    """The path asked for, if something is there."""
    whole = path.expanduser()
    if not whole.is_absolute():
        found.fail(str(path), "the path must begin with / or ~")
        return None
    place = os.path.normpath(whole)
    return place if _is_there(found, place) else None


def _is_there(found: Scan, place: str) -> bool:
    found.tops[place] = identity_of(place)
    if found.tops[place] is not None:
        return True
    try:
        Path(place).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # it may come yet
    except OSError as error:
        found.close(place, error)
    return False


def _look_into_root(found: Scan, root: str, agent_files: bool) -> None:
    if not Path(root).is_dir():
        found.fail(root, "a workspace must be a folder")
        return
    names = (*MEMORY_FILES, *AGENT_FILES) if agent_files else MEMORY_FILES
    found.watch(root, frozenset((*names, MEMORY_FOLDER)))
    for name in names:
        _take(found, f"{root}/{name}", root, root)
    memory = f"{root}/{MEMORY_FOLDER}"
    if _is_there(found, memory) and not Path(memory).is_symlink() and Path(memory).is_dir():
        _walk(found, memory, root, root)


def _look_at_extra(found: Scan, path: str) -> None:
    real = os.path.realpath(path)  # a link that was asked for by name is followed
    folder, name = os.path.split(real)
    if Path(real).is_dir():
        _walk(found, path, path, None)
    elif name.endswith(".md"):
        found.watch(folder, frozenset((name,)))
        _take(found, real, folder, None)
    else:
        found.fail(path, "neither a folder nor a markdown file")


def _walk(found: Scan, folder: str, top: str, project: str | None) -> None:
    """Take every markdown file below `folder`. A folder behind a link is not entered."""
    ahead = [folder]
    while ahead:
        here = ahead.pop()
        found.watch(here, None)
        for entry in _entries(found, here):
            if entry.is_dir(follow_symlinks=False):
                ahead += [entry.path] * (entry.name not in IGNORED)
            elif entry.name.endswith(".md"):
                _take(found, entry.path, top, project)


def _entries(found: Scan, folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        found.close(folder, error)
        return []


def _take(found: Scan, path: str, top: str, project: str | None) -> None:
    """Take a regular file once, also when it has two names."""
    try:
        status = os.lstat(path)
        real = _followed(found, path, top) if stat.S_ISLNK(status.st_mode) else path
        status = status if real == path else os.lstat(real)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        found.close(path, error)
        return
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in found.seen:
        return
    if printable(path) != path:
        found.fail(path, "its name is not UTF-8")
        return
    found.seen.add((status.st_dev, status.st_ino))
    name = path.removeprefix(f"{top}/")
    found.files[path] = WatchedFile(path, real, name, project, status.st_mtime_ns // 1_000_000, status.st_size)


def _followed(found: Scan, link: str, top: str) -> str:
    """Where a link leads, if that is below `top`; else the link, which is no file to take."""
    real = os.path.realpath(link)
    if not real.startswith(f"{os.path.realpath(top)}/"):
        return link
    folder, name = os.path.split(real)
    found.watch(folder, frozenset((name,)))
    return real
