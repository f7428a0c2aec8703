"""clankers-mcp

MCP server on standard input and output, for any agent that speaks the Model Context Protocol. It relays each message to
the clankers daemon, which answers it. Without a daemon it lists the tools itself, and starts the daemon if the settings
allow it. It ends when its standard input is closed.

"This project" is the folder that it is started in, or CLAUDE_PROJECT_DIR. Set CLANKERS_SOCKET_PATH if the socket of the
daemon is not at its default path.
"""

# Every session of a harness starts this process and keeps it. So it imports as little as possible, and reads messages
# only when the daemon cannot: the names of methods and ids stay in the bytes that pass through.

import _socket
import os
import select
import sys
import time

from clankers.hook import ForeignSocket, refuse_foreign_socket, socket_path, write_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal

CONNECTION_LOST = "clankersd closed the connection before replying: the request may or may not have been executed."
HOW_TO_START = "Start it with `clankersd`, or install it as a service: `clankers-ctl service install`."
CONNECT_SECONDS = 0.5
SEND_SECONDS = 5.0
REPLY_SECONDS = 60.0
START_SECONDS = 10.0
"""Time that a daemon has to start while a tool call waits for it."""

RECONNECT_SECONDS = 0.05
RESTART_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""A connection that is not used for so long is closed: an open one keeps the daemon from stopping when it is idle."""

MAX_MESSAGE_BYTES = 31 * 1024 * 1024
"""The daemon accepts frames of 32 MiB."""

_RESULT = b'{"jsonrpc":"2.0","result":'
FIRST_MESSAGE = "--first-message"
FIRST_MESSAGE_DESCRIPTOR = 3
OFFLINE_ANSWERS = "mcp_offline.json"
"""What the daemon answers to `initialize` and `tools/list`; a test checks that it is current."""


def main() -> None:
    """Relay messages until standard input is closed."""
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        os.write(1, str(__doc__).encode())
        return
    first = b""
    if arguments == [FIRST_MESSAGE]:
        first = _read_first_message()
    elif arguments:
        os.write(2, f"clankers-mcp: unknown argument {arguments[0]}. See clankers-mcp --help.\n".encode())
        sys.exit(2)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    try:
        Relay(os.environ.get("CLAUDE_PROJECT_DIR") or os.getcwd()).run(first)
    except BrokenPipeError:
        pass  # the harness is gone
    os._exit(0)  # skips the cleanup of the interpreter


class Message:
    """A message for the daemon, and the time until which it waits for the connection or for the reply."""

    def __init__(self, line: bytes, deadline: float) -> None:
        self.line = line
        self.deadline = deadline


class Relay:
    """Lines of standard input to frames of the daemon's socket, and back."""

    def __init__(self, project: str) -> None:
        self._project = _encode_string(project)
        self._connection: _socket.socket | None = None
        self._received = b""
        self._problem = ""
        self._number = 0
        self._in_flight: dict[int, Message] = {}
        self._waiting: list[Message] = []  # until there is a connection
        self._started_at = 0.0
        self._is_starting = False

    def run(self, first: bytes = b"") -> None:
        """Relay until standard input is closed and every request has its answer; first a message that was read
        already."""
        line, is_open = b"", True
        if first:
            self._take(first)
        while is_open or self._in_flight or self._waiting:
            readable = self._wait(is_open)
            if 0 in readable:
                data = os.read(0, 1024 * 1024)
                is_open = bool(data)
                *lines, line = (line + data).split(b"\n")
                for each in lines if is_open else [line]:
                    if each.strip():
                        self._take(each.strip())
            if self._connection and self._connection.fileno() in readable:
                self._receive()
            self._expire()
            if self._waiting and self._connect():
                waiting, self._waiting = self._waiting, []
                for message in waiting:
                    self._send(message)

    def _wait(self, is_open: bool) -> set[int]:
        """Wait for data; return the descriptors that have some."""
        poll = select.poll()
        if is_open:
            poll.register(0, select.POLLIN)
        if self._connection:
            poll.register(self._connection.fileno(), select.POLLIN)
        seconds = IDLE_SECONDS if self._connection else None
        if self._waiting:
            seconds = RECONNECT_SECONDS
        elif self._in_flight:
            seconds = max(min(each.deadline for each in self._in_flight.values()) - time.monotonic(), 0)
        ready = {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000 + 1)}
        if not ready and self._connection and not self._in_flight:
            self._disconnect("")
        return ready

    def _take(self, line: bytes) -> None:
        """Send a message to the daemon; without one, answer it or let it wait."""
        if len(line) > MAX_MESSAGE_BYTES:
            _answer_error(line, f"a message may have {MAX_MESSAGE_BYTES} bytes, this one has {len(line)}")
        elif self._connect():
            self._send(Message(line, time.monotonic() + REPLY_SECONDS))
        elif not _answer_offline(line):
            now = time.monotonic()
            self._waiting.append(Message(line, now + START_SECONDS if self._is_starting else now))

    # -- the connection

    def _connect(self) -> bool:
        """Return True if there is a connection, or one can be made; if nobody listens, start the daemon."""
        if self._connection:
            return True
        path = socket_path()
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(path)
            refuse_foreign_socket(connection, path)
            connection.settimeout(SEND_SECONDS)
        except (OSError, ForeignSocket) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or error
            self._problem = f"clankersd does not answer on {path} ({reason}). {HOW_TO_START}"
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                self._start_daemon()
            return False
        self._connection, self._received = connection, b""
        return True

    def _start_daemon(self) -> None:
        """Start the daemon, by a child process that ends at once: a harness may end the children of its servers."""
        if self._started_at and time.monotonic() - self._started_at < RESTART_SECONDS:
            return
        self._started_at = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                from clankers.autostart import STARTED_RECENTLY, start_daemon

                started = start_daemon()
                code = 0 if isinstance(started, int) or started == STARTED_RECENTLY else 1
            except Exception as error:
                write_log(f"cannot start the daemon: {type(error).__name__}: {error}")
            finally:
                os._exit(code)
        self._is_starting = os.waitpid(child, 0)[1] == 0

    def _disconnect(self, problem: str) -> None:
        """Close the connection. A tool call in flight may have been executed, so it fails; the rest is repeated."""
        if self._connection:
            self._connection.close()
        self._connection = None
        in_flight, self._in_flight = self._in_flight, {}
        for message in in_flight.values():
            if b'"tools/call"' in message.line:
                _answer_error(message.line, problem)
            else:
                self._take(message.line)

    # -- messages

    def _send(self, message: Message) -> None:
        assert self._connection
        self._number += 1
        body = b'{"jsonrpc":"2.0","id":%d,"method":"mcp.message","params":{"project":%b,"message":%b}}' % (
            self._number,
            self._project,
            message.line,
        )
        try:
            self._connection.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        except OSError as error:  # the daemon has not received all of it, so it can be sent again
            self._waiting.append(Message(message.line, time.monotonic() + START_SECONDS))
            self._disconnect(f"the connection to clankersd was lost ({error.strerror or error})")
            return
        message.deadline = time.monotonic() + REPLY_SECONDS
        self._in_flight[self._number] = message

    def _receive(self) -> None:
        """Read from the connection, and answer the requests whose replies are complete."""
        assert self._connection
        try:
            data = self._connection.recv(256 * 1024)
        except OSError:
            data = b""
        if not data:
            self._disconnect(self._problem or CONNECTION_LOST)
            return
        self._received += data
        while True:
            header, separator, rest = self._received.partition(b"\r\n\r\n")
            length = int(header.rpartition(b":")[2]) if separator else 0
            if not separator or len(rest) < length:
                return
            self._received = rest[length:]
            self._settle(rest[:length])

    def _settle(self, reply: bytes) -> None:
        """Pass on the result of a reply, which is the response; null if there is none."""
        head, _, number = reply.rpartition(b',"id":')
        if number == b"null}":
            self._refuse(reply)
            return
        message = self._in_flight.pop(int(number[:-1]), None)
        if message is None:
            return  # too late
        if not head.startswith(_RESULT):
            _answer_error(message.line, _error_text(reply))
        elif head != _RESULT + b"null":
            _write(head[len(_RESULT) :])

    def _refuse(self, reply: bytes) -> None:
        """Handle an error without an id: of a message that is no JSON, or of the connection, which ends with it."""
        import json

        self._problem = _error_text(reply)
        for number, message in list(self._in_flight.items()):
            try:
                json.loads(message.line)
            except ValueError:
                del self._in_flight[number]
                self._problem = ""
                _write(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}')

    def _expire(self) -> None:
        """Fail the requests that have waited too long."""
        now = time.monotonic()
        for message in [each for each in self._waiting if each.deadline <= now]:
            self._waiting.remove(message)
            _answer_error(message.line, self._problem)
        for number, message in list(self._in_flight.items()):
            if message.deadline <= now:
                del self._in_flight[number]
                _answer_error(message.line, f"clankersd did not answer within {REPLY_SECONDS:g} s")


def _read_first_message() -> bytes:
    """Read the message with which `mcp_start.sh` started us: it has taken it from standard input."""
    pieces = []
    while piece := os.read(FIRST_MESSAGE_DESCRIPTOR, 1024 * 1024):
        pieces.append(piece)
    os.close(FIRST_MESSAGE_DESCRIPTOR)
    return b"".join(pieces).strip()


def _encode_string(text: str) -> bytes:
    """Encode a string as JSON."""
    try:
        from _json import encode_basestring_ascii
    except ImportError:  # not CPython
        from json.encoder import encode_basestring_ascii
    return str(encode_basestring_ascii(text)).encode()


def _write(line: bytes) -> None:
    view = memoryview(line + b"\n")
    while view:
        view = view[os.write(1, view) :]


# -- without the daemon


def _answer_offline(line: bytes) -> bool:
    """Answer a message that needs no data; return False if only the daemon can."""
    import json

    try:
        message: Any = json.loads(line)
    except ValueError:
        _write(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}')
        return True
    if not isinstance(message, dict):
        return False  # a batch, or an error that the daemon explains
    method = message.get("method")
    if "id" not in message or method is None:
        return True  # a notification or a response
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "ping":
        reply["result"] = {}
    elif method in ("initialize", "tools/list"):
        with open(f"{os.path.dirname(os.path.abspath(__file__))}/{OFFLINE_ANSWERS}", encoding="utf-8") as file:
            answers = json.load(file)
        reply["result"] = answers[method]
        asked = (message.get("params") or {}).get("protocolVersion")
        if asked in answers["protocolVersions"] and method == "initialize":
            reply["result"]["protocolVersion"] = asked
    elif method == "tools/call":
        return False
    else:
        reply["error"] = {"code": -32601, "message": "Method not found", "data": method}
    _write(json.dumps(reply).encode())
    return True


def _answer_error(line: bytes, problem: str) -> None:
    """Answer a request that cannot be executed; for a tool call, the error is the text of its result."""
    import json

    try:
        message: Any = json.loads(line)
    except ValueError:
        message = {"id": None}
    for each in message if isinstance(message, list) else [message]:
        if not isinstance(each, dict) or "id" not in each:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": each["id"]}
        if each.get("method") == "tools/call":
            name = (each.get("params") or {}).get("name")
            consequence = "" if "may or may not" in problem else f", so {name} did nothing"
            text = f"The memory cannot be reached{consequence}: {problem}"
            reply["result"] = {"content": [{"type": "text", "text": text}], "isError": True}
        else:
            reply["error"] = {"code": -32603, "message": problem}
        _write(json.dumps(reply).encode())


def _error_text(reply: bytes) -> str:
    import json

    return str((json.loads(reply).get("error") or {}).get("message"))


if __name__ == "__main__":
    main()
