"""Migrations: whole or not at all, recorded, refused when strange."""

import time
from pathlib import Path

import apsw
import pytest
from tests.faults.upgrades import make_old_database

from clankersd.db.connection import Db
from clankersd.db.errors import SchemaRefused
from clankersd.db.migrations import Migration, bundled, migrate, roll_back, version
from clankersd.index.repair import FULL_TEXT

ORIGINAL = """
    CREATE TABLE sessions (id TEXT PRIMARY KEY, title TEXT, project_path TEXT, project_name TEXT, model TEXT,
        provider TEXT, source TEXT, status TEXT, prompt_tokens INTEGER, completion_tokens INTEGER, cost REAL,
        message_count INTEGER, tool_call_count INTEGER, permission_mode TEXT, created_at INTEGER,
        updated_at INTEGER, ended_at INTEGER);
    CREATE TABLE messages (id TEXT PRIMARY KEY, session_id TEXT, role TEXT, text_content TEXT, model TEXT,
        source TEXT, prompt_tokens INTEGER, completion_tokens INTEGER, duration_ms INTEGER,
        created_at INTEGER, completed_at INTEGER,
        FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE);
    CREATE TABLE tools (id TEXT PRIMARY KEY, session_id TEXT NOT NULL, message_id TEXT,
        tool_name TEXT NOT NULL, tool_input TEXT, tool_output TEXT, file_path TEXT, success BOOLEAN,
        error_message TEXT, duration_ms INTEGER, created_at INTEGER NOT NULL,
        FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE);
    CREATE INDEX idx_tools_session ON tools(session_id);
    CREATE INDEX idx_tools_name ON tools(tool_name);
    INSERT INTO sessions VALUES ('s', 'Untitled Session', '/p', 'p', 'm', 'anthropic', 'claude-code', 'ended',
        1, 2, 0, 3, 4, NULL, 1700000000000, NULL, NULL);
    INSERT INTO messages VALUES ('m', 's', 'user', 'hello', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    INSERT INTO tools VALUES ('t', 's', NULL, 'Bash', '{}', NULL, NULL, TRUE, NULL, 5, 1700000000001);
"""


@pytest.fixture
def db(tmp_path: Path) -> Db:
    raw = apsw.Connection(str(tmp_path / "test.db"))
    raw.pragma("journal_mode", "wal")
    raw.pragma("foreign_keys", True)
    return Db(raw)


def schema(db: Db) -> list[dict[str, object]]:
    return db.fetch("SELECT type, name, sql FROM sqlite_master WHERE name <> '_migrations' ORDER BY name")


def test_files_are_numbered_without_gaps_and_say_why() -> None:
    assert [migration.version for migration in bundled()] == list(range(1, len(bundled()) + 1))
    for migration in bundled():
        assert migration.up.startswith("--")


def test_last_migration_has_a_way_down() -> None:
    assert bundled()[-1].down


def test_new_database_is_brought_up_to_date_without_a_backup(db: Db, tmp_path: Path) -> None:
    change = migrate(db, tmp_path)
    assert (change.before, change.after) == (0, bundled()[-1].version)
    assert change.backup is None
    names = {row["name"] for row in db.fetch("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"projects", "sessions", "messages", "tools", "session_errors", "compaction_events"} <= names
    assert {"_migrations", "jobs"} <= names


def test_migrating_twice_changes_nothing(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    before = schema(db)
    assert migrate(db, tmp_path).applied == []
    assert schema(db) == before


def test_broken_migration_leaves_the_database_as_it_was(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    before = schema(db)
    broken = Migration(bundled()[-1].version + 1, "broken", "CREATE TABLE half (x); SELECT nonsense;", None)
    with pytest.raises(apsw.SQLError):
        migrate(db, tmp_path, (*bundled(), broken))
    assert schema(db) == before
    assert version(db) == bundled()[-1].version


def test_database_with_content_is_backed_up_before_it_is_migrated(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('kept', 1, 1)")
    more = Migration(bundled()[-1].version + 1, "more", "CREATE TABLE more (x);", "DROP TABLE more;")
    change = migrate(db, tmp_path / "backups", (*bundled(), more))
    assert change.backup
    copy = apsw.Connection(str(change.backup))
    assert copy.pragma("integrity_check") == "ok"
    assert list(copy.execute("SELECT id FROM sessions")) == [("kept",)]
    assert not copy.table_exists("main", "more")
    assert list((tmp_path / "backups").iterdir()) == [change.backup]


def test_newer_database_is_refused_untouched(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    newer = Migration(bundled()[-1].version + 1, "newer", "CREATE TABLE newer (x);", None)
    migrate(db, tmp_path, (*bundled(), newer))
    with pytest.raises(SchemaRefused, match="install a newer clankers"):
        migrate(db, tmp_path)
    assert version(db) == newer.version


def test_changed_migration_is_refused(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    db.execute("UPDATE _migrations SET checksum = 'other'")
    with pytest.raises(SchemaRefused, match="another text"):
        migrate(db, tmp_path)


def test_rolling_back_undoes_the_last_migration_and_keeps_a_backup(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    change = roll_back(db, tmp_path / "backups")
    assert (change.before, change.after) == (bundled()[-1].version, bundled()[-2].version)
    assert change.backup
    assert change.backup.exists()
    assert migrate(db, tmp_path / "backups").after == bundled()[-1].version


def test_database_of_the_original_clankers_is_taken_over(db: Db, tmp_path: Path) -> None:
    db.execute(ORIGINAL)
    change = migrate(db, tmp_path / "backups")
    assert change.backup
    session = db.fetch_one("SELECT title, project_path, prompt_tokens, created_at FROM sessions")
    assert session == {"title": None, "project_path": "/p", "prompt_tokens": 1, "created_at": 1700000000000}
    assert db.value("SELECT path FROM projects JOIN sessions ON project_id = projects.id") == "/p"
    assert db.value("SELECT text_content FROM messages WHERE session_id = 's'") == "hello"
    assert db.value("SELECT success FROM tools WHERE session_id = 's'") == 1
    assert not db.fetch("SELECT name FROM sqlite_master WHERE name LIKE 'original_%'")
    assert db.value("PRAGMA foreign_keys") == 1
    db.execute("DELETE FROM sessions")
    assert db.value("SELECT count(*) FROM messages") == 0


def test_a_missing_time_of_an_original_becomes_the_first_known_time_of_its_session(db: Db, tmp_path: Path) -> None:
    db.execute(ORIGINAL)
    db.execute("""
        INSERT INTO sessions (id, updated_at) VALUES ('later', 1700000009000), ('by tool', NULL), ('unknown', NULL);
        INSERT INTO messages (id, session_id, completed_at) VALUES ('m1', 'later', 1700000005000);
        INSERT INTO messages (id, session_id) VALUES ('m2', 'by tool'), ('m3', 'unknown');
        INSERT INTO tools (id, session_id, tool_name, created_at) VALUES ('t1', 'by tool', 'Bash', 1700000002000);
    """)
    began = int(time.time() * 1000)
    migrate(db, tmp_path / "backups")
    assert db.value("SELECT created_at FROM messages WHERE id = 'm'") == 1700000000000
    times = dict(db.tuples("SELECT id, created_at FROM sessions WHERE created_guessed"))
    assert times.pop("unknown") >= began
    assert times == {"later": 1700000005000, "by tool": 1700000002000}
    assert db.value("SELECT created_at FROM messages WHERE id = 'm1'") == 1700000005000
    assert db.value("SELECT created_at FROM messages WHERE id = 'm2'") == 1700000002000
    assert db.value("SELECT min(updated_at) FROM sessions WHERE id <> 's'") == 1700000002000
    assert db.value("SELECT min(created_at) FROM projects") == 1700000000000


def test_summaries_lose_the_orders_of_the_harness_and_titles_are_queued(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path)
    while roll_back(db, tmp_path / "backups").after >= 10:
        pass
    orders = "If you need specific details from before compaction, read it.\nContinue the conversation"
    db.execute(
        "INSERT INTO sessions (id, title, summary, created_at, updated_at) VALUES ('s', 'Fix it', :summary, 1, 1)",
        {"summary": f"Moved the cart.\n\n{orders}"},
    )
    migrate(db, tmp_path / "backups")
    assert db.value("SELECT summary FROM sessions") == "Moved the cart."
    assert db.value("SELECT owner FROM index_backlog WHERE kind = 'session title'") == "s"


@pytest.mark.parametrize("version", [migration.version for migration in bundled()[:-1]])
def test_every_earlier_schema_is_migrated_with_its_data(tmp_path: Path, version: int) -> None:
    rows = make_old_database(tmp_path / "old.db", version)
    db = Db(apsw.Connection(str(tmp_path / "old.db")))
    run = migrate(db, tmp_path / "backups")
    assert (run.before, run.after) == (version, bundled()[-1].version)
    assert {row[0] for row in db.tuples("SELECT id FROM messages")} == rows
    assert db.value("PRAGMA integrity_check") == "ok"
    assert not db.fetch("PRAGMA foreign_key_check")
    db.raw.close()


def test_chunks_of_messages_share_their_text_and_get_it_back(db: Db, tmp_path: Path) -> None:
    migrate(db, tmp_path / "backups", bundled()[:17])
    text, chunk = "the naïve walrus sings", "walrus sings"
    db.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('s', 1, 1)")
    insert = "INSERT INTO messages (id, session_id, text_content, created_at) VALUES (:id, 's', :text, 1)"
    for name, stored in (("short", text), ("long", text + " " * 20_000)):
        db.execute(insert, {"id": name, "text": stored})
        db.execute(
            """
            INSERT INTO chunks (chunk_id, chunking, source, message_id, position, start_line, end_line, start_offset,
                                end_offset, tokens, created_at, hash, text)
            VALUES (:id, 1, 'sessions', :id, 0, 1, 1, 10, 22, 2, 1, '', :text)
            """,
            {"id": name, "text": chunk},
        )
    db.execute("INSERT INTO chunks_fts (chunks_fts) VALUES ('rebuild')")
    texts = "SELECT chunk_id, text FROM chunks ORDER BY id"
    found = "SELECT count(*) FROM chunks_fts WHERE chunks_fts MATCH 'walrus'"

    migrate(db, tmp_path / "backups", bundled()[:18])
    assert db.tuples(texts) == [("short", ""), ("long", chunk)]
    assert (db.value(found), db.engine.find_fault(db, FULL_TEXT, 2)) == (2, None)

    db.execute(bundled()[17].down or "")
    assert db.tuples(texts) == [("short", chunk), ("long", chunk)]
    assert db.value(found) == 2
    db.execute("INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('integrity-check', 1)")
