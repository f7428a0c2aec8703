"""`clankers-hook HARNESS`: hand one event from stdin to the daemon, or keep it, and exit 0 whatever happens.

A harness waits for this process, so it imports next to nothing, sends the event unread (the daemon reads
it), waits no longer than its budget, and never prints.
"""

import _socket
import os
import sys
import time

from clankers.spool import keep

BUDGET_SECONDS = 0.2
LARGEST_EVENT = 31 * 1024 * 1024
LARGEST_LOG = 1024 * 1024


def main() -> None:
    """Send or spool one event."""
    try:
        _deliver(sys.argv[1] if len(sys.argv) > 1 else "generic", sys.stdin.buffer.read(LARGEST_EVENT + 1))
    except Exception as error:  # nothing of ours may reach the harness
        _note(f"event lost: {type(error).__name__}: {error}")
    os._exit(0)  # without the interpreter's farewell


def data_folder(environ: "os._Environ[str] | dict[str, str]" = os.environ) -> str:
    """Where the daemon keeps its files; clankers_protocol.paths says the same, at the price of an import."""
    root = environ.get("CLANKERS_DATA_PATH") or environ.get("XDG_DATA_HOME", "").strip()
    if not root:
        home = environ.get("HOME") or os.path.expanduser("~")
        root = f"{home}/Library/Application Support" if sys.platform == "darwin" else f"{home}/.local/share"
    return f"{os.path.expanduser(root)}/clankers"


def socket_path(environ: "os._Environ[str] | dict[str, str]" = os.environ) -> str:
    """Where the daemon listens."""
    given = environ.get("CLANKERS_SOCKET_PATH")
    return os.path.expanduser(given) if given else f"{data_folder(environ)}/dxta-clankers.sock"


def _deliver(harness: str, event: bytes) -> None:
    if not event.strip():
        return
    if len(event) > LARGEST_EVENT:
        _note(f"event lost: larger than {LARGEST_EVENT} bytes")
        return
    name = "".join(letter for letter in harness if letter.isalnum() or letter in "-_")
    params = b'{"harness":"%b","event":%b}' % (name.encode(), event.strip())
    reply = _ask(b'{"jsonrpc":"2.0","id":1,"method":"hook.event","params":%b}' % params)
    if reply is None or b'"code":5' in reply:  # not there, too slow, or not able to store just now
        keep(f"{data_folder()}/spool", params)
    elif b'"error"' in reply[:64]:
        _note(f"event refused: {reply.decode(errors='replace')[:500]}")


def _ask(body: bytes) -> bytes | None:
    """The daemon's reply, or None when there is none within the budget."""
    deadline = time.monotonic() + BUDGET_SECONDS
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(BUDGET_SECONDS)
        connection.connect(socket_path())
        connection.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return _reply(connection, deadline)
    except OSError:
        return None
    finally:
        connection.close()


def _reply(connection: _socket.socket, deadline: float) -> bytes | None:
    received = b""
    while b"}" not in received[-1:]:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = connection.recv(65536)
        if not piece:
            return None
        received += piece
    return received.partition(b"\r\n\r\n")[2]


def _note(text: str) -> None:
    """Say it in a file: nothing may be printed."""
    try:
        folder = os.environ.get("CLANKERS_LOG_PATH") or f"{data_folder()}/logs"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = f"{folder}/hook.log"
        fresh = not os.path.exists(path) or os.path.getsize(path) > LARGEST_LOG
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND)
        descriptor = os.open(path, flags, 0o600)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.write(descriptor, f"{stamp} {text}\n".encode())
        os.close(descriptor)
    except OSError:
        pass
