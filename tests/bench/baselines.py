"""What the daemon is compared with: SQLite with nothing around it, and servers with nothing in them.

Run as a process: `python -m tests.bench.baselines echo|naive SOCKET [DATABASE]`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from tests.bench.events import event

from clankers_protocol.framing import Decoder, frame

SCHEMA = """
    CREATE TABLE session (id TEXT PRIMARY KEY, title TEXT, project TEXT, created_at INTEGER) STRICT;
    CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, role TEXT, body TEXT,
                          created_at INTEGER) STRICT;
    CREATE TABLE tool (id TEXT PRIMARY KEY, session_id TEXT, name TEXT, input TEXT, output TEXT,
                       created_at INTEGER) STRICT;
    CREATE INDEX message_by_session ON message (session_id, created_at);
    CREATE INDEX tool_by_session ON tool (session_id, created_at);
"""

UPSERTS = {
    "session": """INSERT INTO session VALUES (:id, :title, :projectPath, :createdAt)
                  ON CONFLICT (id) DO UPDATE SET title = excluded.title""",
    "message": """INSERT INTO message VALUES (:id, :sessionId, :role, :textContent, :createdAt)
                  ON CONFLICT (id) DO UPDATE SET body = excluded.body""",
    "tool": """INSERT INTO tool VALUES (:id, :sessionId, :toolName, :toolInput, :toolOutput, :createdAt)
               ON CONFLICT (id) DO UPDATE SET output = excluded.output""",
}


def database(path: Path) -> apsw.Connection:
    """A new WAL database that commits as durably as the daemon does."""
    db = apsw.Connection(str(path))
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000"):
        db.execute(f"PRAGMA {pragma}")
    db.execute(SCHEMA)
    return db


def store(db: apsw.Connection, one: dict[str, Any]) -> None:
    (kind,) = UPSERTS.keys() & one.keys()
    db.execute(UPSERTS[kind], one[kind])


def commit_loop(path: Path, batch: int, seconds: float) -> float:
    """Seconds of wall time per upsert with a commit after every `batch` of them."""
    db = database(path)
    number = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        with db:
            for _ in range(batch):
                store(db, event("loop", number))
                number += 1
    db.close()
    return elapsed / number


class Served(asyncio.Protocol):
    """A connection on which every body is answered by one function."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for body in self._decoder.feed(data):
            self._transport.write(frame(self._answer(body)))  # type: ignore[attr-defined]


def naive(path: Path) -> Callable[[bytes], bytes]:
    """One commit per request: JSON in, upsert, commit, JSON out."""
    db = database(path)

    def answer(body: bytes) -> bytes:
        request = json.loads(body)
        with db:
            store(db, request["params"])
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"ok": True}}).encode()

    return answer


async def serve(socket_path: Path, answer: Callable[[bytes], bytes]) -> None:
    server = await asyncio.get_running_loop().create_unix_server(lambda: Served(answer), str(socket_path))
    await server.serve_forever()


if __name__ == "__main__":
    kind, socket_file, *rest = sys.argv[1:]
    asyncio.run(serve(Path(socket_file), naive(Path(rest[0])) if kind == "naive" else bytes))
