"""Ping `health` on one connection until standard input ends, and print when each was sent and how long it took."""

import select
import socket
import sys
import time

BODY = b'{"jsonrpc":"2.0","id":1,"method":"health"}'


def main() -> None:
    path, pause = sys.argv[1], float(sys.argv[2])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    ping = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], pause)[0]:
        sent = time.monotonic()
        connection.sendall(ping)
        if not _reply(connection):
            break
        print(sent, time.monotonic() - sent, flush=True)


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
