"""Listening sockets: handed over by systemd or launchd, or created here."""

import contextlib
import ctypes
import ctypes.util
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from clankers_protocol.paths import MAX_SOCKET_PATH_BYTES

LISTEN_FDS_START = 3
BACKLOG = 1024


class StartRefused(Exception):
    """The daemon cannot start; the message says why and what to do."""


@contextlib.contextmanager
def only_instance(database: Path) -> Iterator[None]:
    """Hold the database's lock file for the block; raises StartRefused when another daemon has it."""
    path = database.with_name(f"{database.name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise StartRefused(
                f"another clankersd (pid {owner}) has {database} open; stop it first, or use its socket"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def listening_sockets(path: Path) -> tuple[list[socket.socket], bool]:
    """Return the sockets to accept on, and True if a service manager handed them over."""
    handed_over = _from_systemd() or _from_launchd()
    if handed_over:
        return handed_over, True
    return [_create_socket(path)], False


def _from_systemd() -> list[socket.socket]:
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    sockets = [socket.socket(fileno=LISTEN_FDS_START + n) for n in range(count)]
    for handed_over in sockets:
        handed_over.setblocking(False)
        os.set_inheritable(handed_over.fileno(), False)
    return sockets


def _from_launchd() -> list[socket.socket]:
    """Return the socket named `rpc` in our launchd agent; none if launchd did not start us."""
    if sys.platform != "darwin" or os.getppid() != 1:
        return []
    system = ctypes.CDLL(ctypes.util.find_library("System"))
    descriptors, count = ctypes.POINTER(ctypes.c_int)(), ctypes.c_size_t()
    failed = system.launch_activate_socket(b"rpc", ctypes.byref(descriptors), ctypes.byref(count))
    if failed:
        return []
    sockets = [socket.socket(fileno=descriptors[n]) for n in range(count.value)]
    system.free(descriptors)
    for handed_over in sockets:
        handed_over.setblocking(False)
    return sockets


def _create_socket(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise StartRefused(f"{path} is too long for a socket; set CLANKERS_SOCKET_PATH to a shorter one")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that no process listens on; raises StartRefused for a live one and for any other file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise StartRefused(f"{path} exists and is not a socket; remove it, or choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # a process listens, but is slow
    raise StartRefused(f"another daemon listens on {path}; stop it first, or choose another path")
