"""The daemon's end of a connection, played by a test that needs it silent, late, rude or gone."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clankers_protocol.framing import Decoder, frame


class Peer:
    """The daemon's end of a connection, played by a test."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._bodies: Iterator[bytes] = self._read()

    def _read(self) -> Iterator[bytes]:
        decoder = Decoder()
        while data := self._socket.recv(65536):
            yield from decoder.feed(data)

    def requests(self) -> Iterator[dict[str, Any]]:
        """Everything that arrives until the other end hangs up."""
        return map(json.loads, self._bodies)

    def receive(self) -> dict[str, Any]:
        return next(self.requests())

    def send(self, message: Any) -> None:
        self.send_bytes(frame(json.dumps(message).encode()))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self, request: dict[str, Any], result: Any) -> None:
        """Answer a request; a notification gets no answer."""
        if "id" in request:
            self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def hang_up(self) -> None:
        self._socket.close()

    def wait_for_the_end(self) -> None:
        for _ in self._bodies:
            pass


Script = Callable[[Peer], None]


@contextmanager
def played(path: Path, *scripts: Script) -> Iterator[list[int]]:
    """A server that follows one script per connection and closes it after; yields which have begun."""
    begun: list[int] = []
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for number, script in enumerate(scripts):
                connection, _ = listener.accept()
                with connection:
                    if over.is_set():
                        return
                    begun.append(number)
                    script(Peer(connection))

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield begun
        finally:
            over.set()
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))  # wakes the server, if it still waits for somebody
            server.join()


Alter = Callable[[str, Any], Any]
"""Takes a method and its result, and returns what a client gets instead."""


@contextmanager
def altered(real: Path, path: Path, alter: Alter) -> Iterator[None]:
    """A socket that leads to a real daemon and alters its results, as a daemon of another version would give them."""

    def answers(client: socket.socket, daemon: socket.socket, asked: dict[Any, str]) -> None:
        decoder = Decoder()
        while data := daemon.recv(65536):
            for body in decoder.feed(data):
                message = json.loads(body)
                if "result" in message:
                    message["result"] = alter(asked.get(message["id"], ""), message["result"])
                client.sendall(frame(json.dumps(message).encode()))
        client.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        asked: dict[Any, str] = {}
        with client, socket.socket(socket.AF_UNIX) as daemon:
            daemon.connect(str(real))
            answering = threading.Thread(target=answers, args=(client, daemon, asked), daemon=True)
            answering.start()
            for request in Peer(client).requests():
                asked[request.get("id")] = request["method"]
                daemon.sendall(frame(json.dumps(request).encode()))
            daemon.shutdown(socket.SHUT_RDWR)
            answering.join()

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
