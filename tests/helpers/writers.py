"""Connections that write for as long as they can, and remember what was acknowledged."""

import json
import threading
from pathlib import Path
from typing import Any

import apsw

from clankers_protocol.framing import frame
from helpers.daemon import DaemonProcess
from helpers.store import message, request


class Writer(threading.Thread):
    """One connection that stores messages until the daemon goes: alone, pipelined, and in batches."""

    PIPELINED = 16

    def __init__(self, daemon: DaemonProcess, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.connection = daemon.connect()
        self.acknowledged: list[str] = []
        self.refused: list[dict[str, Any]] = []
        self._count = 0
        self._leaving = threading.Event()

    def run(self) -> None:
        try:
            while not self._leaving.is_set():
                self._alone()
                self._pipelined()
                self._batch()
        except (OSError, EOFError):
            return  # the daemon went, which is what some tests are about
        finally:
            self.connection.socket.close()

    def stop(self) -> None:
        """Finish what is under way, and leave."""
        self._leaving.set()
        self.join()

    def _next(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"

    def _alone(self) -> None:
        name = self._next()
        self._send({name: name})
        self._receive({name: name})

    def _pipelined(self) -> None:
        names = {name: name for name in (self._next() for _ in range(self.PIPELINED))}
        self._send(names)
        self._receive(names)

    def _batch(self) -> None:
        names = [self._next() for _ in range(self.PIPELINED)]
        events = [{"message": message(name, session=self.name)} for name in names]
        self.connection.send({"jsonrpc": "2.0", "id": names[0], "method": "events.batch", "params": {"events": events}})
        reply = self._reply()
        for name, outcome in zip(names, reply.get("result", {}).get("outcomes", ()), strict=False):
            if outcome["ok"]:
                self.acknowledged.append(name)
            else:
                self.refused.append(outcome)
        if "error" in reply:
            self.refused.append(reply["error"])

    def _send(self, names: dict[str, str]) -> None:
        frames = [
            frame(json.dumps(request(name, "upsertMessage", message=message(name, session=self.name))).encode())
            for name in names
        ]
        self.connection.socket.sendall(b"".join(frames))

    def _receive(self, names: dict[str, str]) -> None:
        for _ in names:
            reply = self._reply()
            if "error" in reply:
                self.refused.append(reply["error"])
            else:
                self.acknowledged.append(names[reply["id"]])

    def _reply(self) -> dict[str, Any]:
        reply = self.connection.receive()
        if reply is None:
            raise EOFError
        return dict(reply)


def writing(daemon: DaemonProcess, count: int, prefix: str) -> list[Writer]:
    """`count` connections that have begun to write."""
    writers = [Writer(daemon, f"{prefix}w{number}") for number in range(count)]
    for writer in writers:
        writer.start()
    return writers


def acknowledged(writers: list[Writer]) -> set[str]:
    return {name for writer in writers for name in writer.acknowledged}


def stored(database: Path) -> set[str]:
    """The ids of all messages in the file, read beside the daemon."""
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        return {name for (name,) in db.execute("SELECT id FROM messages")}
    finally:
        db.close()


def quick_check(database: Path) -> str:
    """SQLite's verdict on the file: "ok" when it is whole."""
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        return "\n".join(str(line) for (line,) in db.execute("PRAGMA quick_check"))
    finally:
        db.close()
