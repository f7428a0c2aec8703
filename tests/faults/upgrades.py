"""Upgrades: a database of every earlier schema, with data, is migrated when the daemon starts."""

import shutil
import time
from pathlib import Path

import apsw
from helpers.writers import stored
from tests.faults.harness import NOTHING, Run, fault, integrity_check

from clankersd.db import migrations
from clankersd.db.sqlite_engine import SqliteEngine

ROWS = 500


def make_old_database(path: Path, version: int) -> set[str]:
    """Create a database of this schema version with sessions, messages and tool calls; returns the ids of messages."""
    db = apsw.Connection(str(path))
    ids = {f"old-{number}" for number in range(ROWS)}
    try:
        db.pragma("journal_mode", "wal")
        db.execute(SqliteEngine.migrations_table)
        for migration in migrations.bundled()[:version]:
            with db:
                db.execute(migration.up)
                row = (migration.version, migration.name, migration.checksum, int(time.time() * 1000))
                db.execute("INSERT INTO _migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)", row)
        with db:
            db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('old-session', 1, 1)")
            messages = [(name, f"the old message {name}") for name in sorted(ids)]
            insert = "INSERT INTO messages (id, session_id, text_content, created_at) VALUES (?, 'old-session', ?, 1)"
            db.executemany(insert, messages)
            db.execute("INSERT INTO tools (id, session_id, tool_name, created_at) VALUES ('t', 'old-session', 'sh', 1)")
    finally:
        db.close()
    return ids


@fault(
    "upgrade from every earlier schema", "the database replaced by one of each schema with 500 messages, then started"
)
def upgrade(run: Run) -> frozenset[str]:
    run.crash()
    run.stop_writing()
    aside = run.daemon.home / "aside"
    aside.mkdir()
    move_files(run.daemon.data, aside)
    for version in range(1, len(migrations.bundled())):
        rows = make_old_database(run.daemon.database, version)
        with run.daemon.start().connect() as connection:
            health = connection.call("health")
            assert health["ok"], f"schema {version}: {health['problem']}"
            assert "error" not in connection.request("upsertMessage", {"message": {"id": "new", "sessionId": "new"}})
        assert run.daemon.stop() == 0
        run.daemon.close()
        assert stored(run.daemon.database) == rows | {"new"}, f"rows of schema {version} are missing"
        assert integrity_check(run.daemon.database) == "ok"
        for path in run.daemon.data.glob("clankers.db*"):
            path.unlink()
    move_files(aside, run.daemon.data)
    run.daemon.start()
    return NOTHING


def move_files(source: Path, target: Path) -> None:
    for path in source.glob("clankers.db*"):
        shutil.move(path, target / path.name)
