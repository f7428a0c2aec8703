"""clankers-hook HARNESS [EVENT] [--recall] [--start] [--with=FIELDS]

Send one event of a coding agent to the clankers daemon. The event is JSON, given as an argument or on standard input.
The exit code is always 0. Errors go to hook.log in the daemon's log folder.

If the daemon does not acknowledge the event in time, the hook writes it to the spool folder, and the daemon reads it
from there later. Events of projects with a file .clankers-ignore, and text in <private> tags, are not written there.

  --recall  Also ask the daemon for related memories, and print its answer in the harness's format.
  --start   Send nothing; start the daemon if the settings allow it.
  --with    Add fields to the event, given as a JSON object: what the harness itself does not say in it.
"""

# The harness waits for this process. So it imports as little as possible, does not parse the event (the daemon does),
# stays within a time budget, and prints nothing except the answer to --recall.

import _socket
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Mapping
else:
    import _signal  # `signal` itself imports enum, which takes as long as everything else together

BUDGET_SECONDS = 0.2
RECALL_SECONDS = 1.0
MAX_RECALL_SECONDS = 60.0  # as the daemon's setting
READ_SECONDS = 5  # a harness may never close our stdin
MAX_SEND_BYTES = 31 * 1024 * 1024  # the daemon accepts 32 MiB; larger events reach it through the spool
MAX_EVENT_BYTES = 192 * 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
MAX_CONFIG_BYTES = 1024 * 1024


class ForeignSocket(Exception):
    """The process at the other end of the socket belongs to another user."""


class Interrupted(Exception):
    """A signal of the harness, or our own alarm, ended a wait."""


def main() -> None:
    """Run the hook: send one event or write it to the spool."""
    try:
        arguments = sys.argv[1:]
        event_argument = None  # the `notify` setting of Codex passes the event as an argument
        harness = ""
        for argument in arguments:
            if argument.startswith("{"):
                event_argument = event_argument or argument
            elif not argument.startswith("-"):
                harness = harness or argument
        if "--help" in arguments:
            os.write(1, str(__doc__).encode())
        elif "--start" in arguments:
            _start_daemon()
        else:
            event = os.fsencode(event_argument) if event_argument else _read_stdin()
            for argument in arguments:
                if argument.startswith("--with={"):
                    event = _with_fields(event.strip(), os.fsencode(argument.removeprefix("--with=")))
            _deliver(harness or "generic", event, recall="--recall" in arguments)
    except BaseException as error:  # the harness must not see any error of ours
        report_loss(f"{type(error).__name__}: {error}")
    os._exit(0)  # skips the cleanup of the interpreter


def _with_fields(event: bytes, fields: bytes) -> bytes:
    """Return an event with further fields, without parsing it: both are JSON objects, the fields not an empty one."""
    inner = event[1:].lstrip() if event.startswith(b"{") else b""
    if not inner:
        return event
    return fields.rstrip()[:-1] + (b"}" if inner == b"}" else b"," + inner)


def data_folder(environ: "Mapping[str, str]" = os.environ) -> str:
    """Return the daemon's data folder, as `clankers_protocol.paths` does, but without importing it."""
    root = environ.get("CLANKERS_DATA_PATH") or environ.get("XDG_DATA_HOME", "").strip()
    if not root:
        home = environ.get("HOME") or os.path.expanduser("~")
        root = f"{home}/Library/Application Support" if sys.platform == "darwin" else f"{home}/.local/share"
    return f"{os.path.expanduser(root)}/clankers"


def socket_path(environ: "Mapping[str, str]" = os.environ) -> str:
    """Return the path of the daemon's socket."""
    path = environ.get("CLANKERS_SOCKET_PATH")
    return os.path.expanduser(path) if path else f"{data_folder(environ)}/dxta-clankers.sock"


def config_path(environ: "Mapping[str, str]" = os.environ) -> str:
    """Return the path of the settings file."""
    if path := environ.get("CLANKERS_CONFIG_PATH"):
        return os.path.expanduser(path)
    home = environ.get("HOME") or os.path.expanduser("~")
    default = f"{home}/Library/Application Support" if sys.platform == "darwin" else f"{home}/.config"
    return f"{environ.get('XDG_CONFIG_HOME', '').strip() or default}/clankers/clankers.toml"


def read_setting(name: str, environ: "Mapping[str, str]" = os.environ) -> str:
    """Return a setting from the environment, else from the settings file, else an empty string.

    The file is a flat list of `key = value`, so this subset of TOML suffices and needs no import.
    """
    if value := environ.get(f"CLANKERS_{name.upper()}"):
        return value
    try:  # the environment may name a pipe or a device
        descriptor = os.open(config_path(environ), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            is_regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without importing stat
            if not is_regular or status.st_size > MAX_CONFIG_BYTES:
                return ""
            text = os.read(descriptor, MAX_CONFIG_BYTES).decode()
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return ""
    for line in text.split("\n"):
        key, _, value = line.partition("=")
        if key.strip() == name:
            return value.partition("#")[0].strip(" \t\n'\"")
    return ""


def _read_stdin() -> bytes:
    """Read the event; after READ_SECONDS or a signal, return what has arrived."""
    _on_signals(_interrupt)
    _signal.alarm(READ_SECONDS)
    pieces: list[bytes] = []
    length = 0
    try:
        while length <= MAX_EVENT_BYTES and (piece := os.read(0, 1024 * 1024)):
            pieces.append(piece)
            length += len(piece)
    except Interrupted:
        write_log("interrupted while reading the event")
    _signal.alarm(0)
    _on_signals(_signal.SIG_IGN)  # outside of waits, signals must not stop the event from being stored
    return b"".join(pieces)


def _on_signals(action: "Callable[[int, object], None] | int") -> None:
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGALRM):
        _signal.signal(number, action)


def reset_signals() -> None:
    """Restore the default signal handlers, for a program that this process is going to execute."""
    _on_signals(_signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> None:
    """End the current wait and ignore further signals, so that the event can be spooled."""
    _on_signals(_signal.SIG_IGN)
    raise Interrupted


def _deliver(harness: str, event: bytes, *, recall: bool) -> None:
    """Send the event to the daemon; if it is not acknowledged, write it to the spool."""
    event = event.strip()
    if not event:
        return
    if len(event) > MAX_EVENT_BYTES:
        report_loss(f"larger than {MAX_EVENT_BYTES} bytes")
        return
    name = "".join(letter for letter in harness if letter.isalnum() or letter in "-_").encode()
    params = b'{"harness":"%b","at":%d,"event":%b}' % (name, time.time_ns() // 1_000_000, event)
    recall_params = b'{"harness":"%b","event":%b}' % (name, event) if recall else b""
    daemon_runs = True
    try:
        if len(params) + len(recall_params) < MAX_SEND_BYTES and _send(params, recall_params):
            return
    except (FileNotFoundError, ConnectionRefusedError):
        daemon_runs = False
    except (OSError, Interrupted):
        pass  # the daemon is busy, or the harness does not wait any longer
    except ForeignSocket as error:
        write_log(f"not sent: {error}")
    except Exception as error:
        write_log(f"invalid reply: {type(error).__name__}: {error}")
    if _is_paused(event):
        return
    from clankers.spool import is_opted_out, spool_event, without_private  # rarely needed

    if harness == "generic" or not is_opted_out(_project()):
        spool_event(f"{data_folder()}/spool", without_private(params))
    if not daemon_runs:
        _start_daemon()


def _is_paused(event: bytes) -> bool:
    """Did the owner pause capture? The daemon would not store the event then, so it must not be spooled either."""
    path = f"{data_folder()}/capture-pauses.json"
    if not os.path.exists(path):
        return False
    try:
        from clankers.pauses import is_paused  # rarely needed

        return is_paused(path, event, time.time_ns() // 1_000_000)
    except Exception as error:  # rather store too much than nothing
        write_log(f"cannot read the pauses of capture: {type(error).__name__}: {error}")
        return False


def _project() -> str:
    """Return the folder of the session, in which harnesses run their hooks; empty if it is gone."""
    try:
        return os.environ.get("CLAUDE_PROJECT_DIR") or os.getcwd()
    except OSError:
        return ""


def _start_daemon() -> None:
    try:
        from clankers.autostart import start_daemon  # rarely needed

        start_daemon()
    except Exception as error:  # the event itself is in the spool
        write_log(f"cannot start the daemon: {type(error).__name__}: {error}")


def _send(params: bytes, recall_params: bytes) -> bool:
    """Send the event and print the answer to a recall request; return whether the daemon acknowledged the event."""
    frames, timeout_seconds = _frame(1, b"hook.event", params), BUDGET_SECONDS
    if recall_params:
        frames += _frame(2, b"recall.hook", recall_params)
        timeout_seconds = max(timeout_seconds, recall_seconds())
    replies = _exchange(frames, 2 if recall_params else 1, timeout_seconds)
    for reply in replies:
        if _is_reply_to(2, reply) and b"null" not in reply[:48]:
            _print_output(reply)
    return any(_is_reply_to(1, reply) and b'"result"' in reply[:48] for reply in replies)


def _is_reply_to(number: int, reply: bytes) -> bool:
    """Return whether the reply has this id, by its first and last member: importing json would take too long."""
    first, last = reply[:48].replace(b" ", b""), reply[-16:].replace(b" ", b"")
    return last.endswith(b'"id":%d}' % number) or b'"id":%d,' % number in first


def recall_seconds() -> float:
    """Return how long to wait for recalled text: a hostile environment must not make a prompt wait for ever."""
    try:
        seconds = float(read_setting("recall_seconds"))
    except ValueError:
        return RECALL_SECONDS
    return min(seconds, MAX_RECALL_SECONDS) if seconds > 0 else RECALL_SECONDS  # not for "nan" either


def _frame(number: int, method: bytes, params: bytes) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (number, method, params)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _exchange(frames: bytes, expected_replies: int, timeout_seconds: float) -> list[bytes]:
    """Send the frames, and return the replies that arrive in time, in any order; raises OSError if sending fails."""
    start = time.monotonic()
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        _on_signals(_interrupt)
        connection.settimeout(BUDGET_SECONDS)
        connection.connect(socket_path())
        refuse_foreign_socket(connection, socket_path())
        connection.settimeout(max(start + BUDGET_SECONDS - time.monotonic(), 0.01))
        connection.sendall(frames)
        return _receive_replies(connection, expected_replies, start + timeout_seconds)
    finally:
        _on_signals(_signal.SIG_IGN)
        connection.close()


def refuse_foreign_socket(connection: _socket.socket, path: str) -> None:
    """Raise ForeignSocket if the peer runs as another user: a hostile environment may point the path anywhere."""
    uid = peer_uid(connection)
    if uid not in (None, os.geteuid()) and not (uid == 0 and sys.platform == "darwin"):  # launchd listens as root
        raise ForeignSocket(f"{path} is served by another user (uid {uid}); check CLANKERS_SOCKET_PATH")


def peer_uid(connection: _socket.socket) -> int | None:
    """Return the user id of the peer process; None on platforms that do not provide it."""
    if sys.platform == "linux":
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    elif sys.platform == "darwin":
        credentials = connection.getsockopt(0, 1, 76)  # LOCAL_PEERCRED at level SOL_LOCAL; Python has no names for them
    else:
        return None
    return int.from_bytes(credentials[4:8], sys.byteorder)


def _receive_replies(connection: _socket.socket, expected: int, deadline: float) -> list[bytes]:
    replies: list[bytes] = []
    received = b""
    try:
        while len(replies) < expected:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = connection.recv(65536)
            if not piece:
                break
            received = _split_replies(received + piece, replies)
    except (OSError, Interrupted):
        pass  # use the replies that have arrived
    return replies


def _split_replies(received: bytes, replies: list[bytes]) -> bytes:
    """Append the complete replies to the list; return the bytes after them."""
    while True:
        header, separator, rest = received.partition(b"\r\n\r\n")
        length = int(header.rpartition(b":")[2]) if separator else 0
        if not separator or len(rest) < length:
            return received
        replies.append(rest[:length])
        received = rest[length:]


def _print_output(reply: bytes) -> None:
    """Print the output in a reply. It is cut out of the bytes, as importing json takes longer than everything else."""
    start, end = b'{"jsonrpc":"2.0","result":{"output":', b'},"id":2}'
    if reply.startswith(start + b"{") and reply.endswith(b"}" + end):
        os.write(1, reply[len(start) : -len(end)])
        return
    import json  # the reply of another version

    if output := json.loads(reply)["result"]["output"]:
        os.write(1, json.dumps(output).encode())


def report_loss(reason: str) -> None:
    """Count a lost event and write it to the log; each may succeed where the other fails."""
    try:
        from clankers.lost_events import count_loss

        reason = f"{reason} (lost event {count_loss(f'{data_folder()}/lost-events', reason)})"
    except OSError as error:
        reason = f"{reason} (not counted: {error})"
    write_log(f"event lost: {reason}")


def write_log(text: str) -> None:
    """Append a line to hook.log; nothing may be printed."""
    try:
        descriptor = open_log()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.write(descriptor, f"{stamp} {text}\n".encode(errors="replace"))
        os.close(descriptor)
    except OSError:
        pass


def open_log() -> int:
    """Open hook.log for appending, and truncate it if it is larger than MAX_LOG_BYTES."""
    from clankers.spool import give_to_owner, make_folder  # rarely needed

    folder = os.environ.get("CLANKERS_LOG_PATH") or f"{data_folder()}/logs"
    make_folder(folder)
    path = f"{folder}/hook.log"
    too_large = os.path.exists(path) and os.path.getsize(path) > MAX_LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW  # others may own the folder
    descriptor = os.open(path, flags | (os.O_TRUNC if too_large else 0), 0o600)
    give_to_owner(descriptor, folder)
    return descriptor
