"""`clankers-hook HARNESS [EVENT]`: hand one event, else from stdin, to the daemon, or keep it, and exit 0 anyway.

A harness waits for this process, so it imports next to nothing, sends the event unread (the daemon reads it), waits
no longer than its budget, and prints nothing but what `--recall` brings back for the harness. An event that the
daemon has not acknowledged, for whatever reason, goes into the spool: the daemon decides what becomes of it there.
With `--start` it reads nothing, and only starts the daemon where the settings let it.
"""

import _socket
import os
import sys
import time

from clankers.spool import give_to_owner, make_folder, spool_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Mapping
else:
    import _signal  # `signal` itself loads enum, and takes as long as all the rest

BUDGET_SECONDS = 0.2
RECALL_SECONDS = 1.0
READ_SECONDS = 5  # a harness that never closes our stdin must not be kept waiting
MAX_FRAME_BYTES = 31 * 1024 * 1024  # the daemon takes 32 MiB; what is larger reaches it through the spool
MAX_EVENT_BYTES = 192 * 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
MAX_CONFIG_BYTES = 1024 * 1024


class ForeignSocket(Exception):
    """The socket is served by another user."""


class Interrupted(Exception):
    """The harness, or our own alarm, says that it is time to go."""


def main() -> None:
    """Send or spool one event."""
    try:
        words = sys.argv[1:]
        names = [word for word in words if not word.startswith(("-", "{"))] or ["generic"]
        given = next((word for word in words if word.startswith("{")), None)  # Codex's `notify` has it so
        if "--help" in words:
            os.write(1, str(__doc__).encode())
        elif "--start" in words:
            _start_daemon()
        else:
            _deliver(names[0], _read() if given is None else os.fsencode(given), recall="--recall" in words)
    except BaseException as error:  # nothing of ours may reach the harness
        report_loss(f"{type(error).__name__}: {error}")
    os._exit(0)  # without the interpreter's farewell


def data_folder(environ: "Mapping[str, str]" = os.environ) -> str:
    """Where the daemon keeps its files; clankers_protocol.paths says the same, at the price of an import."""
    root = environ.get("CLANKERS_DATA_PATH") or environ.get("XDG_DATA_HOME", "").strip()
    if not root:
        home = environ.get("HOME") or os.path.expanduser("~")
        root = f"{home}/Library/Application Support" if sys.platform == "darwin" else f"{home}/.local/share"
    return f"{os.path.expanduser(root)}/clankers"


def socket_path(environ: "Mapping[str, str]" = os.environ) -> str:
    """Where the daemon listens."""
    given = environ.get("CLANKERS_SOCKET_PATH")
    return os.path.expanduser(given) if given else f"{data_folder(environ)}/dxta-clankers.sock"


def config_path(environ: "Mapping[str, str]" = os.environ) -> str:
    """Where the settings are."""
    if given := environ.get("CLANKERS_CONFIG_PATH"):
        return os.path.expanduser(given)
    home = environ.get("HOME") or os.path.expanduser("~")
    beside = f"{home}/Library/Application Support" if sys.platform == "darwin" else f"{home}/.config"
    return f"{environ.get('XDG_CONFIG_HOME', '').strip() or beside}/clankers/clankers.toml"


def read_setting(name: str, environ: "Mapping[str, str]" = os.environ) -> str:
    """What the environment or else the file says of a setting; empty when neither does.

    The settings are a flat list of `key = value`, so that this much of TOML is enough, and costs no import.
    """
    if given := environ.get(f"CLANKERS_{name.upper()}"):
        return given
    try:  # the environment may name a pipe or a device
        descriptor = os.open(config_path(environ), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o170000 != 0o100000 or found.st_size > MAX_CONFIG_BYTES:  # S_IFREG, without its import
                return ""
            text = os.read(descriptor, MAX_CONFIG_BYTES).decode()
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return ""
    lines = [line.partition("=") for line in text.split("\n")]
    return next((value.partition("#")[0].strip(" \t\n'\"") for key, _, value in lines if key.strip() == name), "")


def _read() -> bytes:
    """The event, or as much of it as came before its time was up."""
    _on_signals(_interrupt)
    _signal.alarm(READ_SECONDS)
    pieces: list[bytes] = []
    length = 0
    try:
        while length <= MAX_EVENT_BYTES and (piece := os.read(0, 1024 * 1024)):
            pieces.append(piece)
            length += len(piece)
    except Interrupted:
        write_log("interrupted while reading")
    _signal.alarm(0)
    _on_signals(_signal.SIG_IGN)  # only waiting is worth interrupting
    return b"".join(pieces)


def _on_signals(action: "Callable[[int, object], None] | int") -> None:
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGALRM):
        _signal.signal(number, action)


def reset_signals() -> None:
    """Back to what signals do by themselves, for a program that comes after us."""
    _on_signals(_signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> None:
    """Told to go: stop waiting, keep the event, and be told no more."""
    _on_signals(_signal.SIG_IGN)
    raise Interrupted


def _deliver(harness: str, event: bytes, *, recall: bool) -> None:
    event = event.strip()
    if len(event) > MAX_EVENT_BYTES:
        report_loss(f"larger than {MAX_EVENT_BYTES} bytes")
    elif event:
        name = "".join(letter for letter in harness if letter.isalnum() or letter in "-_").encode()
        params = b'{"harness":"%b","at":%d,"event":%b}' % (name, time.time_ns() // 1_000_000, event)
        question = b'{"harness":"%b","event":%b}' % (name, event) if recall else b""
        _send_or_keep(params, question)


def _send_or_keep(params: bytes, question: bytes) -> None:
    nobody_there = False
    try:
        if len(params) + len(question) < MAX_FRAME_BYTES and _exchange(params, question):
            return
    except (FileNotFoundError, ConnectionRefusedError):
        nobody_there = True
    except (OSError, Interrupted):
        pass  # busy, or we are
    except ForeignSocket as error:
        write_log(f"not sent: {error}")
    except Exception as error:
        write_log(f"not understood: {type(error).__name__}: {error}")
    spool_event(f"{data_folder()}/spool", params)
    if nobody_there:
        _start_daemon()


def _start_daemon() -> None:
    try:
        from clankers.autostart import start_daemon  # rarely needed

        start_daemon()
    except Exception as error:  # the event itself is safe
        write_log(f"the daemon cannot be started: {type(error).__name__}: {error}")


def _exchange(params: bytes, question: bytes) -> bool:
    """Whether the daemon has acknowledged the event; what it recalls is printed."""
    frames, patience = _frame(1, b"hook.event", params), BUDGET_SECONDS
    if question:
        frames += _frame(2, b"recall.hook", question)
        patience = max(patience, _seconds(read_setting("recall_seconds")))
    replies = _converse(frames, 2 if question else 1, patience)
    for reply in replies:
        if _is_reply_to(2, reply) and b"null" not in reply[:48]:
            _print_output(reply)
    return any(_is_reply_to(1, reply) and b'"result"' in reply[:48] for reply in replies)


def _is_reply_to(number: int, reply: bytes) -> bool:
    """By its first or last member: reading all of it would take longer than everything else."""
    first, last = reply[:48].replace(b" ", b""), reply[-16:].replace(b" ", b"")
    return last.endswith(b'"id":%d}' % number) or b'"id":%d,' % number in first


def _seconds(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return RECALL_SECONDS


def _frame(number: int, method: bytes, params: bytes) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (number, method, params)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _converse(frames: bytes, wanted: int, patience: float) -> list[bytes]:
    """The replies that come in time, in any order; raises OSError when the frames cannot be sent."""
    start = time.monotonic()
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        _on_signals(_interrupt)
        connection.settimeout(BUDGET_SECONDS)
        connection.connect(socket_path())
        refuse_foreign_socket(connection, socket_path())
        connection.settimeout(max(start + BUDGET_SECONDS - time.monotonic(), 0.01))
        connection.sendall(frames)
        return _replies(connection, wanted, start + patience)
    finally:
        _on_signals(_signal.SIG_IGN)
        connection.close()


def refuse_foreign_socket(connection: _socket.socket, path: str) -> None:
    """Raise ForeignSocket unless the daemon at the other end is our own: the environment may lead elsewhere."""
    uid = peer_uid(connection)
    if uid not in (None, os.geteuid()) and not (uid == 0 and sys.platform == "darwin"):  # launchd listens as root
        raise ForeignSocket(f"{path} is served by another user (uid {uid}); check CLANKERS_SOCKET_PATH")


def peer_uid(connection: _socket.socket) -> int | None:
    """Return the user at the other end; None where the platform does not tell."""
    if sys.platform == "linux":
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    elif sys.platform == "darwin":
        credentials = connection.getsockopt(0, 1, 76)  # LOCAL_PEERCRED at level SOL_LOCAL; Python has no names for them
    else:
        return None
    return int.from_bytes(credentials[4:8], sys.byteorder)


def _replies(connection: _socket.socket, wanted: int, deadline: float) -> list[bytes]:
    replies: list[bytes] = []
    received = b""
    try:
        while len(replies) < wanted:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = connection.recv(65536)
            if not piece:
                break
            received = _take_replies(received + piece, replies)
    except (OSError, Interrupted):
        pass  # what has come so far counts
    return replies


def _take_replies(received: bytes, replies: list[bytes]) -> bytes:
    """Put whole replies into the list; returns the beginning of the next."""
    while True:
        header, separator, rest = received.partition(b"\r\n\r\n")
        length = int(header.rpartition(b":")[2]) if separator else 0
        if not separator or len(rest) < length:
            return received
        replies.append(rest[:length])
        received = rest[length:]


def _print_output(reply: bytes) -> None:
    import json  # slow to load, and only needed when there is something to say

    if output := json.loads(reply)["result"]["output"]:
        os.write(1, json.dumps(output).encode())


def report_loss(reason: str) -> None:
    """Count an event that is lost, and say so in the log; either may work when the other does not."""
    try:
        from clankers.lost_events import count_loss

        reason = f"{reason} (event {count_loss(f'{data_folder()}/lost-events', reason)} that is lost)"
    except OSError as error:
        reason = f"{reason} (not counted: {error})"
    write_log(f"event lost: {reason}")


def write_log(text: str) -> None:
    """Say it in a file: nothing may be printed."""
    try:
        descriptor = open_log()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.write(descriptor, f"{stamp} {text}\n".encode(errors="replace"))
        os.close(descriptor)
    except OSError:
        pass


def open_log() -> int:
    """The hooks' log, begun anew when it has grown too large."""
    folder = os.environ.get("CLANKERS_LOG_PATH") or f"{data_folder()}/logs"
    make_folder(folder)
    path = f"{folder}/hook.log"
    large = os.path.exists(path) and os.path.getsize(path) > MAX_LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW  # the folder may not be the owner's
    descriptor = os.open(path, flags | (os.O_TRUNC if large else 0), 0o600)
    give_to_owner(descriptor, folder)
    return descriptor
