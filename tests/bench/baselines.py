"""Baselines for the daemon: SQLite with nothing around it, and servers with nothing in them.

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
from clankersd.db.connection import Db
from clankersd.db.migrations import migrate

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


ROWS = {
    "session": """INSERT INTO sessions (id, title, project_path, created_at, updated_at)
                  VALUES (:id, :title, :projectPath, :createdAt, :createdAt)
                  ON CONFLICT (id) DO UPDATE SET title = excluded.title""",
    "message": """INSERT INTO messages (id, session_id, role, text_content, created_at)
                  VALUES (:id, :sessionId, :role, :textContent, :createdAt)
                  ON CONFLICT (id) DO UPDATE SET text_content = excluded.text_content""",
    "tool": """INSERT INTO tools (id, session_id, tool_name, tool_input, tool_output, success, created_at)
               VALUES (:id, :sessionId, :toolName, :toolInput, :toolOutput, :success, :createdAt)
               ON CONFLICT (id) DO UPDATE SET tool_output = excluded.tool_output""",
}
CHUNK = """
    INSERT INTO chunks (chunk_id, chunking, source, message_id, session_id, turn, role, position, start_line, end_line,
                        start_offset, end_offset, tokens, created_at, hash, text)
    VALUES (:id, 1, 'sessions', :id, :sessionId, 1, :role, 0, 1, 1, 0, 1024, 200, :createdAt, :id, :textContent)
"""
FULL_TEXT = "INSERT INTO chunks_fts (rowid, text, header, extra) VALUES (last_insert_rowid(), :textContent, '', '')"


def rows_loop(
    path: Path, batch: int, seconds: float, make_event: Callable[[str, int], dict[str, Any]] = event
) -> float:
    """Seconds of CPU time per event for its rows and full text in the daemon's schema, `batch` events a commit.

    No socket, no JSON, no validation, no redaction, no chunking: what is left if an upsert were nothing but SQL.
    """
    db = apsw.Connection(str(path))
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-32768", "secure_delete=1"):
        db.execute(f"PRAGMA {pragma}")
    migrate(Db(db), path.parent)
    number, began, used = 0, time.perf_counter(), 0.0
    while time.perf_counter() - began < seconds:
        events = [make_event("loop", number + place) for place in range(batch)]
        number += batch
        started = time.process_time()
        with db:
            for one in events:
                (kind,) = one
                db.execute(ROWS[kind], one[kind])
                if kind == "message":
                    db.execute(CHUNK, one[kind])
                    db.execute(FULL_TEXT, one[kind])
        used += time.process_time() - started
    db.close()
    return used / number


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
