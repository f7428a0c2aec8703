"""The spool: events on disk that the daemon has not acknowledged yet. Imports only the standard library, and little of
it.

Each event is a file. Its name starts with the time, so that the order of the names is the order of the events, and ends
with its size, so that listing the folder measures the spool. A file is complete or absent: it is written under a
temporary name, synced and renamed. The daemon stores the events and removes the files. When the spool is full, new
events are refused and the old ones stay, because they belong to sessions that began earlier.
"""

import os
import time

MAX_SPOOL_BYTES = 256 * 1024 * 1024
OPT_OUT_MARKER = ".clankers-ignore"
PRIVATE_REPLACEMENT = b"[redacted:private]"  # as the daemon's redaction writes it


class SpoolFull(Exception):
    """The event does not fit into the spool any more."""


def spool_event(folder: str, event: bytes) -> str:
    """Write `event` to the spool; return its path after it has been synced to disk."""
    make_folder(folder)
    names = os.listdir(folder)
    if sum(map(_size_in_name, names)) + len(event) > MAX_SPOOL_BYTES:
        raise SpoolFull(f"the spool has reached its limit of {MAX_SPOOL_BYTES} bytes: start the daemon to empty it")
    name = f"{_next_timestamp(names):020}-{os.getpid()}-{len(event)}"
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
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return path


def is_opted_out(project: str) -> bool:
    """Return whether this folder, or one above it, contains the file that opts out of capture.

    A link counts as the folder that it leads to, and a worktree as a part of its repository, as for the daemon.
    """
    try:
        folders = [project, os.path.realpath(project)]
    except OSError:  # the current folder is gone, and the project is relative to it
        folders = [project]
    for folder in folders:
        while True:
            if os.path.lexists(f"{folder}/{OPT_OUT_MARKER}"):
                return True
            if len(folders) <= 2 and (repository := _repository_of_worktree(folder)):
                folders.append(repository)
            parent = os.path.dirname(folder)
            if parent == folder:
                break
            folder = parent
    return False


def _repository_of_worktree(folder: str) -> str:
    """Return the folder of the repository whose worktree this folder is; empty if it is none."""
    try:
        descriptor = os.open(f"{folder}/.git", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            link = os.fsdecode(os.read(descriptor, 4096))
        finally:
            os.close(descriptor)
    except OSError:  # none, or a directory, as in most repositories
        return ""
    git_folder, is_worktree, _ = link.removeprefix("gitdir:").strip().partition("/.git/worktrees/")
    return os.path.join(folder, git_folder) if is_worktree else ""


def without_private(event: bytes) -> bytes:
    """Replace text between <private> and </private> in the strings of an event, without parsing it.

    A tag that is not closed reaches to the end of its string, and tags may be nested, as in the daemon's redaction.
    """
    lowered = event.lower()
    start, tag_end = _find_tag(lowered, b"<private", 0, len(lowered))
    if start < 0:
        return event
    pieces: list[bytes] = []
    copied = string_end = 0
    closing_tag = b"</private"
    while start >= 0:
        if start >= string_end:
            string_end = _end_of_string(lowered, start)
            is_escaped = lowered.find(b"<\\/private", start, string_end) >= 0  # some programs escape slashes
            closing_tag = b"<\\/private" if is_escaped else b"</private"
        end = _end_of_private(lowered, tag_end, string_end, closing_tag)
        pieces += (event[copied:start], PRIVATE_REPLACEMENT)
        copied = end
        start, tag_end = _find_tag(lowered, b"<private", end, len(lowered))
    return b"".join([*pieces, event[copied:]])


def _find_tag(lowered: bytes, beginning: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the span of the next tag that begins so, with or without attributes; -1 and -1 if there is none."""
    while (start := lowered.find(beginning, start, end)) >= 0:
        name_end = start + len(beginning)
        closed = lowered.find(b">", name_end, min(end, name_end + 250))
        if closed >= 0 and _are_attributes(lowered[name_end:closed]):
            return start, closed + 1
        start = name_end
    return -1, -1


def _are_attributes(rest: bytes) -> bool:
    """Tell whether a tag may go on so after its name: `<private key>` is a placeholder and no tag."""
    for space in (b"\\n", b"\\r", b"\\t"):
        rest = rest.replace(space, b" ")
    name, sign, value = rest.lstrip(b" ").partition(b"=")
    is_named = bool(sign) and name.replace(b"-", b"").replace(b"_", b"").isalpha() and not value.endswith(b"/")
    return not rest or (rest[:1] == b" " and b"<" not in rest and (not name or is_named))


def _end_of_string(data: bytes, start: int) -> int:
    """Return the position of the quotation mark that ends the JSON string in which `start` is."""
    end = start
    while (end := data.find(b'"', end + 1)) >= 0:
        unescaped = end
        while data[unescaped - 1] == 0x5C:
            unescaped -= 1
        if (end - unescaped) % 2 == 0:  # after an odd number of backslashes, a quotation mark belongs to the text
            return end
    return len(data)


def _end_of_private(lowered: bytes, start: int, string_end: int, closing_tag: bytes) -> int:
    """Return where the block whose text begins at `start` ends: after its closing tag, or with the string."""
    depth, position = 1, start
    while depth:
        closed, closed_end = _find_tag(lowered, closing_tag, position, string_end)
        if closed < 0:
            return string_end
        opened, opened_end = _find_tag(lowered, b"<private", position, closed)
        depth, position = (depth + 1, opened_end) if opened >= 0 else (depth - 1, closed_end)
    return position


def make_folder(folder: str) -> None:
    """Create a folder, and its parents, that only the user can read."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # another hook was faster
            return
    if os.geteuid() == 0:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        give_to_owner(descriptor, os.path.dirname(folder))
        os.close(descriptor)


def give_to_owner(descriptor: int, folder: str) -> None:
    """Give a file that root has just created to the owner of its folder, so that a hook run by sudo does not lock the
    owner out."""
    if os.geteuid() == 0:
        owner, status = os.stat(folder), os.fstat(descriptor)
        is_folder = status.st_mode & 0o170000 == 0o040000  # S_ISDIR, without importing stat
        is_hard_link = not is_folder and status.st_nlink > 1  # possibly planted, to another file of root
        if owner.st_uid != 0 and status.st_uid == 0 and not is_hard_link:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _next_timestamp(names: "list[str]") -> int:
    """Return the time in nanoseconds, but always more than that of the newest event: the clock may have been set
    back."""
    timestamps = (int(name[:20]) for name in names if name[:20].isdecimal() and name[20:21] == "-")
    return max(time.time_ns(), max(timestamps, default=0) + 1)


def _size_in_name(name: str) -> int:
    """Return the size of an event, in bytes, from the name of its file."""
    number = name.rpartition("-")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0
