"""Writing files without being led elsewhere by a planted link.

A link on the way to a file is followed if it belongs to the user or to root, if nobody else can change the folder it
lies in, and if it does not lie in a repository's working tree, where whoever wrote to the repository can have put it.
So links of dotfiles work (`~/.claude`, or `~/.claude/settings.json`, into a repository of one's own): the file they
lead to is edited. Links in a cloned project are refused.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_LINKS = 40
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LinkRefused(OSError):
    """A link that may not be followed lies on the way to a file."""

    def __init__(self, link: Path, why: str) -> None:
        super().__init__(errno.ELOOP, f"it is a link, and {why}: remove it, or name the file itself", str(link))


def write_file(path: Path, content: bytes, *, mode: int = 0o644, inside: Path | None = None) -> None:
    """Replace a file as a whole, making its folders; an existing file keeps its mode.

    Raises LinkRefused for a link that may not be followed, and for any link below the folder `inside`.
    """
    target = writable_path(path, inside)
    with _opened_folder(target.parent) as folder:
        known = _lstat(target.name, folder)
        if known and not stat.S_ISREG(known.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(target))
        unfinished = f".{target.name[:100]}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, mode, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if known:
                    os.fchmod(descriptor, stat.S_IMODE(known.st_mode))
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.rename(unfinished, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(unfinished, dir_fd=folder)
            raise


def writable_path(path: Path, inside: Path | None = None) -> Path:
    """Return the path, free of links, of the file that writing to `path` changes; raises LinkRefused."""
    if inside is None:
        return _resolve(path)
    folder = _resolve(inside)
    below = Path(os.path.abspath(path)).relative_to(os.path.abspath(inside))  # noqa: PTH100
    for depth in range(1, len(below.parts) + 1):
        place = folder.joinpath(*below.parts[:depth])
        if place.is_symlink():
            raise LinkRefused(place, f"no link below {inside} is followed")
    return folder / below


def _resolve(path: Path) -> Path:
    """Follow the links on the way to a file, after judging each."""
    place = Path("/")
    waiting = list(reversed(Path(os.path.abspath(path)).parts[1:]))  # noqa: PTH100
    links = 0
    while waiting:
        place = place / waiting.pop()
        if not place.is_symlink():
            continue
        links += 1
        if links > MAX_LINKS:
            raise LinkRefused(place, "it leads in a circle")
        _judge(place)
        target = Path(os.path.abspath(place.parent / place.readlink()))  # noqa: PTH100
        waiting += reversed(target.parts[1:])
        place = Path("/")
    return place


def _judge(link: Path) -> None:
    """Raise LinkRefused unless only the user or root can have made the link."""
    trusted = (os.geteuid(), 0)
    if link.lstat().st_uid not in trusted:
        raise LinkRefused(link, "it belongs to another user")
    folder = link.parent.stat()
    shared = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX
    if folder.st_uid not in trusted or shared:
        raise LinkRefused(link, "others can change the folder it lies in")
    if repository := _repository_of(link.parent):
        raise LinkRefused(link, f"it lies in the repository {repository}")


def _repository_of(folder: Path) -> Path | None:
    """Find the working tree that a folder is in; a home folder under version control is its owner's own."""
    home = Path.home()
    for parent in (folder, *folder.parents):
        if parent == home:
            return None
        if (parent / ".git").exists():
            return parent
    return None


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    """Open a folder, making what is missing, component by component: what became a link meanwhile is not followed."""
    folder = os.open("/", _FOLDER)
    place = Path("/")
    try:
        for name in path.parts[1:]:
            place = place / name
            if _lstat(name, folder) is None:
                os.mkdir(name, dir_fd=folder)
            try:
                opened = os.open(name, _FOLDER, dir_fd=folder)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(place)) from error
            os.close(folder)
            folder = opened
        yield folder
    finally:
        os.close(folder)


def _lstat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
