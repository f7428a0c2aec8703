"""Ping `health` on one connection until standard input ends.

Prints a line for each ping: when it was sent, how long it took, and how long the daemon's threads ran meanwhile. A
daemon that did not run was kept from it by other work on the machine.
"""

import select
import socket
import sys
import time
from pathlib import Path

BODY = b'{"jsonrpc":"2.0","id":1,"method":"health"}'


def main() -> None:
    path, process, pause = sys.argv[1], Path("/proc", sys.argv[2]), float(sys.argv[3])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    ping = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], pause)[0]:
        ran, sent = _running_seconds(process), time.monotonic()
        connection.sendall(ping)
        if not _reply(connection):
            break
        waited = time.monotonic() - sent
        print(sent, waited, min(waited, _running_seconds(process) - ran), flush=True)


def _running_seconds(process: Path) -> float:
    """How long all threads have run so far; elsewhere than on Linux the time itself."""
    try:
        files = [thread / "schedstat" for thread in (process / "task").iterdir()]
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9
    except OSError:
        return time.monotonic()


def _reply(connection: socket.socket) -> bytes:
    """One whole reply; empty when the daemon hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2])
    while len(body) < length:
        if not (more := connection.recv(65536)):
            return b""
        body += more
    return body


if __name__ == "__main__":
    main()
