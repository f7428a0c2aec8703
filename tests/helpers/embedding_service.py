"""Local embedding services that answer well, badly, late or not at all."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIMS = 4


@dataclass
class Request:
    """What a service was asked."""

    number: int
    path: str
    headers: dict[str, str]
    payload: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        if "requests" in self.payload:
            return [one["content"]["parts"][0]["text"] for one in self.payload["requests"]]
        return list(self.payload["input"])


@dataclass
class Answer:
    """What it answers; `cut` promises more bytes than it sends, `drip` sends them one by one for ever."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    drip: bool = False


Behaviour = Callable[[Request], Answer]


class Service:
    """A running service: where it is, and what it was asked so far."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.requests: list[Request] = []
        self.over = threading.Event()
        self._behaviour = behaviour
        self._lock = threading.Lock()
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.service = self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        with self._lock:
            request = Request(len(self.requests), path, headers, json.loads(body))
            self.requests.append(request)
        return self._behaviour(request)


class _Server(ThreadingHTTPServer):
    service: Service

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.service.answer(self.path, headers, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.cut:
            self.send_header("Content-Length", str(len(answer.body) + 100))
        self.end_headers()
        if answer.drip:
            while not self.server.service.over.wait(0.01):
                self.wfile.write(b" ")
        self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Tests are quiet."""


@contextmanager
def served(behaviour: Behaviour) -> Iterator[Service]:
    """A service that behaves so, for the length of the block."""
    service = Service(behaviour)
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        service.over.set()
        service.server.shutdown()
        thread.join()
        service.server.server_close()


def numbers(text: str, dims: int = DIMS) -> list[float]:
    """The embedding of a text, as every service here computes it."""
    return [float(byte) + 1 for byte in hashlib.sha256(text.encode()).digest()[:dims]]


def embeddings(request: Request, vectors: list[Any] | None = None) -> Answer:
    """A good answer in the dialect of the path that was asked, with other vectors if given."""
    found = [numbers(text) for text in request.texts] if vectors is None else vectors
    return say(_dialect(request.path, found))


def say(body: Any, status: int = 200, **headers: str) -> Answer:
    """Anything as JSON; NaN and Infinity too, as Python servers do. An underscore in a header is a dash."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(body).encode(), named)


def _dialect(path: str, vectors: list[Any]) -> dict[str, Any]:
    if path.endswith("/api/embed"):
        return {"model": "tiny", "embeddings": vectors}
    if path.endswith(":batchEmbedContents"):
        return {"embeddings": [{"values": vector} for vector in vectors]}
    return {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]}


def first(bad: Answer, times: int = 1) -> Behaviour:
    """Bad at first, good after."""
    return lambda request: bad if request.number < times else embeddings(request)


def always(bad: Answer) -> Behaviour:
    """Bad whatever is asked."""
    return lambda request: bad


def refusing(text: str, bad: Answer) -> Behaviour:
    """Bad whenever this text is among those asked for."""
    return lambda request: bad if text in request.texts else embeddings(request)
