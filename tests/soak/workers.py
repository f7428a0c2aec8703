"""Clients of the soak: each changes things of its own, at random, and tells the model what was acknowledged."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from helpers.daemon import DaemonProcess, RawConnection
from tests.soak.model import ABSENT, Model

RETRY_SECONDS = 0.05
TIMEOUT_SECONDS = 60.0
REFUSALS = {5001, 5002, 5003}
"""Codes that a daemon in trouble may answer with: storage unavailable, overloaded, too late."""

BATCH_EVENTS = 20
MAX_SESSIONS = 8
MAX_MEMORIES = 40
MAX_DOCUMENTS = 10
WORDS = ("anchor", "basil", "copper", "delta", "ember", "falcon", "granite", "harbor", "indigo", "juniper", "kettle")


class NotAcknowledged(Exception):
    """The daemon refused, or the connection ended before its answer."""


@dataclass
class Counters:
    """What all workers did together."""

    acknowledged: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    lost_connections: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Gate:
    """Lets workers work, or one checker alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._working = 0
        self._is_closed = False

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._is_closed)
            self._working += 1
        try:
            yield
        finally:
            with self._condition:
                self._working -= 1
                self._condition.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Wait until no worker works, and keep all of them waiting inside the block."""
        with self._condition:
            self._is_closed = True
            self._condition.wait_for(lambda: not self._working)
        try:
            yield
        finally:
            with self._condition:
                self._is_closed = False
                self._condition.notify_all()


class Worker(threading.Thread):
    """One client."""

    def __init__(self, name: str, daemon: DaemonProcess, model: Model, gate: Gate, counters: Counters) -> None:
        super().__init__(name=name, daemon=True)
        self._daemon, self._model, self._gate, self._counters = daemon, model, gate, counters
        self._chance = random.Random(name)
        self._connection: RawConnection | None = None
        self._number = 0
        self._sessions: dict[str, list[str]] = {}
        self._memories: list[str] = []
        self._documents: list[str] = []
        self.leaving = threading.Event()
        self.crash: BaseException | None = None

    def run(self) -> None:
        steps = [self._upsert] * 8 + [self._batch] * 2 + [self._update] * 3 + [self._delete_session]
        steps += [self._add_memory] * 2 + [self._change_memory] * 2 + [self._delete_memory]
        steps += [self._ingest, self._change_document, self._delete_document] + [self._search] * 2 + [self._read]
        try:
            while not self.leaving.is_set():
                with self._gate.working():
                    try:
                        self._connect()  # first: what was never sent is not in the model
                        self._chance.choice(steps)()
                    except NotAcknowledged:
                        time.sleep(RETRY_SECONDS)
        except BaseException as error:  # reported by the main thread
            self.crash = error
        finally:
            self._disconnect()

    # -- events

    def _upsert(self) -> None:
        session, name = self._session(), self._next("m")
        self._sessions[session].append(name)
        self._store(name, session)

    def _batch(self) -> None:
        session = self._session()
        events = [(self._next("m"), session, self._text()) for _ in range(BATCH_EVENTS)]
        self._sessions[session] += [name for name, _, _ in events]
        texts = {("message", name): text for name, _, text in events}
        with self._model.changing(texts):
            outcome = self._call("events.batch", events=[_event(*one) for one in events])
            if not outcome["ok"]:
                raise NotAcknowledged

    def _update(self) -> None:
        session = self._session()
        if self._sessions[session]:
            self._store(self._chance.choice(self._sessions[session]), session)

    def _store(self, name: str, session: str) -> None:
        text = self._text()
        with self._model.changing({("message", name): text}):
            self._call("upsertMessage", **_event(name, session, text))

    def _delete_session(self) -> None:
        session = self._session()
        with self._model.changing({("message", name): ABSENT for name in self._sessions[session]}):
            reply = self._request("session.delete", {"id": session})
            if "error" in reply and reply["error"]["code"] != 4004:
                raise NotAcknowledged
        del self._sessions[session]

    # -- memories and documents

    def _add_memory(self) -> None:
        if len(self._memories) < MAX_MEMORIES:
            content = self._text()
            name = self._call("memory.add", content=content, scope="global", force=True)["memory"]["id"]
            self._model.allowed["memory", name] = {content}
            self._memories.append(name)

    def _change_memory(self) -> None:
        if self._memories:
            name, content = self._chance.choice(self._memories), self._text()
            with self._model.changing({("memory", name): content}):
                self._call("memory.update", id=name, scopes=["*"], content=content)

    def _delete_memory(self) -> None:
        if self._memories:
            name = self._memories.pop(self._chance.randrange(len(self._memories)))
            with self._model.changing({("memory", name): ABSENT}):
                self._call("memory.delete", id=name, scopes=["*"])

    def _ingest(self) -> None:
        if len(self._documents) < MAX_DOCUMENTS:
            source = self._next("doc")
            self._documents.append(source)
            self._write_document(source)

    def _change_document(self) -> None:
        if self._documents:
            self._write_document(self._chance.choice(self._documents))

    def _write_document(self, source: str) -> None:
        text = self._text(200)
        with self._model.changing({("document", source): text}):
            self._call("document.ingest", source=source, text=text)

    def _delete_document(self) -> None:
        if not self._documents:
            return
        source = self._documents.pop(self._chance.randrange(len(self._documents)))
        found = self._request("document.get", {"source": source, "length": 0})
        if "result" in found:
            with self._model.changing({("document", source): ABSENT}):
                self._call("document.delete", id=found["result"]["document"]["id"])

    # -- reading

    def _search(self) -> None:
        self._call("search", query=" ".join(self._chance.sample(WORDS, 2)), limit=5)

    def _read(self) -> None:
        method = self._chance.choice(["health", "daemon.status", "index.status", "session.list"])
        self._call(method)

    # -- the connection

    def _call(self, method: str, **params: Any) -> Any:
        reply = self._request(method, params)
        if "error" in reply:
            code = reply["error"]["code"]
            self._counters.refused[code] += 1
            if code not in REFUSALS:
                self._counters.unexpected.append(f"{method}: {reply['error']['message']}")
            raise NotAcknowledged
        self._counters.acknowledged += 1
        return reply["result"]

    def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            reply = self._connect().request(method, params)
        except (OSError, AssertionError) as error:  # an AssertionError says that the daemon hung up
            self._counters.lost_connections += 1
            self._disconnect()
            raise NotAcknowledged from error
        if "error" not in reply:
            self._counters.seconds[method].append(time.perf_counter() - began)
        return reply

    def _connect(self) -> RawConnection:
        if self._connection is None:
            try:
                self._connection = self._daemon.connect(TIMEOUT_SECONDS)
            except OSError as error:
                raise NotAcknowledged from error
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.socket.close()
        self._connection = None

    # -- names and texts

    def _next(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}-{self.name}-{self._number}"

    def _session(self) -> str:
        """Return a session: a new one from time to time."""
        if len(self._sessions) < MAX_SESSIONS:
            session = self._next("s")
            self._sessions[session] = []
            return session
        return self._chance.choice(list(self._sessions))

    def _text(self, words: int = 12) -> str:
        return f"{' '.join(self._chance.choices(WORDS, k=words))} {self._next('t')}"


def _event(name: str, session: str, text: str) -> dict[str, Any]:
    return {"message": {"id": name, "sessionId": session, "role": "user", "textContent": text}}
