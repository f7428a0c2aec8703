"""Admission of connections: a limit for all, a limit for one process, and places reserved for new processes."""

import socket
import struct
import sys
from collections import Counter

from clankers_protocol.errors import Overloaded

UNKNOWN_PID = 0
"""Clients whose process the platform does not report, or which live in another process namespace, count as one."""


class Admission:
    """Counts the connections that each process holds."""

    def __init__(self) -> None:
        self._held: Counter[int] = Counter()

    def admit(self, pid: int, max_connections: int) -> Overloaded | None:
        """Count a connection of this process, or return the reason for its refusal.

        One process may hold half of the places. The last eighth is for processes that hold none yet, so that
        hooks and clankers-ctl, which connect once, get in when long-lived clients hold the rest.
        """
        total, held = self._held.total(), self._held[pid]
        if total >= max_connections:
            return Overloaded(f"overloaded: {max_connections} connections are open already")
        if held >= max(1, max_connections // 2):
            return Overloaded(f"overloaded: process {pid} has {held} connections open already")
        if held and total >= max_connections - max_connections // 8:
            return Overloaded(f"overloaded: {total} connections are open; the rest is for other processes")
        self._held[pid] += 1
        return None

    def leave(self, pid: int) -> None:
        """Count a connection of this process as closed."""
        self._held[pid] -= 1
        if not self._held[pid]:
            del self._held[pid]


def peer_pid(raw: socket.socket) -> int:
    """Return the id of the process that connected."""
    if sys.platform == "linux":
        credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])
    if sys.platform == "darwin":
        sol_local, local_peerpid = 0, 2
        return int(struct.unpack("i", raw.getsockopt(sol_local, local_peerpid, struct.calcsize("i")))[0])
    return UNKNOWN_PID


def peer_uid(raw: socket.socket) -> int | None:
    """Return the user id of the process that connected; None where the platform does not report it."""
    if sys.platform == "linux":
        credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    if sys.platform == "darwin":
        sol_local, local_peercred = 0, 1
        credentials = raw.getsockopt(sol_local, local_peercred, 76)
        return int(struct.unpack_from("II", credentials)[1])
    return None
