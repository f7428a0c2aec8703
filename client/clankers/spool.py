"""Events kept on disk while the daemon is away. Standard library only, and as little of it as possible.

One file an event, named by the time it was kept, so that their order is the order of their names; the name also
tells its size, so that the spool can be measured by listing it. A file is complete or absent: it is written under
another name, synced, and renamed. The daemon replays and removes them. When the folder is full the oldest events
are kept and new ones are refused: what is there already belongs to sessions that began first.
"""

import os
import time

MAX_SPOOL_BYTES = 256 * 1024 * 1024


class SpoolFull(Exception):
    """The spool holds as much as it may."""


def spool_event(folder: str, event: bytes) -> str:
    """Put `event` into the spool; returns its path once it is safe on the disk."""
    make_folder(folder)
    names = os.listdir(folder)
    if sum(map(_said, names)) + len(event) > MAX_SPOOL_BYTES:
        raise SpoolFull(f"the spool holds {MAX_SPOOL_BYTES} bytes: start the daemon to empty it")
    name = f"{_stamp(names):020}-{os.getpid()}-{len(event)}"
    path, unfinished = f"{folder}/{name}.json", f"{folder}/{name}.unfinished"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        give_to_owner(descriptor, folder)
        view = memoryview(event)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        os.unlink(unfinished)
        raise
    finally:
        os.close(descriptor)
    os.rename(unfinished, path)
    _sync(folder)
    return path


def make_folder(folder: str) -> None:
    """Make a folder and those it is in, for nobody else to look into."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folder(os.path.dirname(folder))
        os.mkdir(folder, 0o700)
    if os.geteuid() == 0:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        give_to_owner(descriptor, os.path.dirname(folder))
        os.close(descriptor)


def give_to_owner(descriptor: int, folder: str) -> None:
    """Give what root has just made to the owner of the folder: a hook under sudo must not lock the owner out."""
    if os.geteuid() == 0:
        owner, found = os.stat(folder), os.fstat(descriptor)
        planted = found.st_mode & 0o170000 != 0o040000 and found.st_nlink > 1  # a hard link to a file of root's
        if owner.st_uid != 0 and found.st_uid == 0 and not planted:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _stamp(names: "list[str]") -> int:
    """The time, or one more than that of the newest event: a clock that was set back does not change their order."""
    stamps = (int(name[:20]) for name in names if name[:20].isdecimal() and name[20:21] == "-")
    return max(time.time_ns(), max(stamps, default=0) + 1)


def _said(name: str) -> int:
    """How many bytes an event has, as its name tells."""
    number = name.rpartition("-")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
