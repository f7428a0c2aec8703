"""What the memory store promises its users, one test for each promise."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
import sqlite_vec
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import settled

from clankers_protocol.paths import default_paths

pytestmark = pytest.mark.usefixtures("rpc")  # the shared daemon is emptied after each test

TABLES = {
    "projects", "sessions", "memories", "session_memories", "entities", "memory_entities", "memory_relationships",
    "embedding_models", "memories_fts", "_migrations",
}  # fmt: skip
INDEXES = {
    "idx_memories_project", "idx_memories_sector", "idx_memories_tier", "idx_memories_salience", "idx_memories_created",
    "idx_memories_simhash", "idx_memories_valid", "idx_session_memories_session", "idx_session_memories_memory",
    "idx_entities_type", "idx_entities_name", "idx_memory_entities_memory", "idx_memory_entities_entity",
    "idx_relationships_source", "idx_relationships_target", "idx_relationships_type",
}  # fmt: skip


def opened(daemon: DaemonProcess) -> apsw.Connection:
    db = apsw.Connection(str(daemon.database), flags=apsw.SQLITE_OPEN_READONLY)
    db.enable_load_extension(True)
    db.load_extension(sqlite_vec.loadable_path())
    return db


def names(db: apsw.Connection, kind: str) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = ?", (kind,))}


def test_database_is_created_in_wal_mode(shared_daemon: DaemonProcess) -> None:
    assert opened(shared_daemon).pragma("journal_mode") == "wal"


def test_tables_indexes_and_triggers_exist_on_the_first_run(shared_daemon: DaemonProcess) -> None:
    db = opened(shared_daemon)
    assert names(db, "table") >= TABLES
    assert names(db, "index") >= INDEXES
    assert {"memories_ai", "memories_ad", "memories_au"} <= names(db, "trigger")


def test_migrations_are_idempotent(home: Path) -> None:
    seen = []
    for _ in range(2):
        with running_daemon(home) as daemon:
            schema = opened(daemon).execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
            seen.append((schema, opened(daemon).execute("SELECT version FROM _migrations ORDER BY 1").fetchall()))
    assert seen[0] == seen[1]


def test_full_text_index_is_updated_by_triggers(fresh_daemon: DaemonProcess) -> None:
    def matching(word: str) -> int:
        sql = "SELECT count(*) FROM memories_fts WHERE memories_fts MATCH ?"
        [(count,)] = opened(fresh_daemon).execute(sql, (word,)).fetchall()
        assert isinstance(count, int)
        return count

    with fresh_daemon.connect() as rpc:
        name = rpc.call("memory.add", content="The parser is hand-written", tags=["parsing"])["memory"]["id"]
        assert (matching("parser"), matching("parsing")) == (1, 1)
        rpc.call("memory.update", id=name, content="The lexer is generated")
        assert (matching("parser"), matching("lexer")) == (0, 1)
        rpc.call("memory.reinforce", id=name)
        assert matching("lexer") == 1
        rpc.call("memory.purge", id=name)
        assert matching("lexer") == 0
    fresh_daemon.stop()
    with apsw.Connection(str(fresh_daemon.database)) as db:
        db.execute("INSERT INTO memories_fts (memories_fts, rank) VALUES ('integrity-check', 1)")


def test_vectors_are_stored_with_their_model(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    rpc.call("memory.add", content="Vectors have a length of one")
    settled(rpc)
    db = opened(shared_daemon)
    [(model, dims)] = db.execute("SELECT id, dimensions FROM embedding_models WHERE is_active").fetchall()
    [(generation,)] = db.execute("SELECT id FROM index_generations WHERE state = 'live'").fetchall()
    [(blob,)] = db.execute(f"SELECT embedding FROM chunk_vectors_{generation}").fetchall()
    assert str(model).startswith("static:")
    assert isinstance(dims, int)
    assert isinstance(blob, bytes)
    assert len(blob) == dims * 4


def test_nearest_vectors_are_the_most_similar_memories(rpc: RawConnection) -> None:
    facts = ["The database is backed up every night", "Lunch is at noon in the canteen", "Tabs are four spaces wide"]
    for fact in facts:
        rpc.call("memory.add", content=fact)
    settled(rpc)
    for question, fact in zip(["nightly database backup", "when is lunch", "width of a tab"], facts, strict=True):
        hits = rpc.call("memory.search", query=question, mode="vector")["hits"]
        assert hits[0]["memory"]["content"] == fact
        assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_connections_write_and_read_concurrently(shared_daemon: DaemonProcess) -> None:
    problems: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            with shared_daemon.connect() as rpc:
                for number in range(10):
                    rpc.call("memory.add", content=f"worker{worker} learnt fact{number}", force=True)
                    rpc.call("memory.search", query=f"fact{number}", mode="keyword")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with shared_daemon.connect() as rpc:
        assert rpc.call("memory.stats")["current"] == 80


def test_platform_paths_are_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLANKERS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = default_paths()
    assert paths.database.is_relative_to(tmp_path)
    monkeypatch.setenv("CLANKERS_DATA_PATH", str(tmp_path / "elsewhere"))
    assert default_paths().database.is_relative_to(tmp_path / "elsewhere")


def test_acknowledged_writes_survive_a_crash(home: Path) -> None:
    with running_daemon(home) as daemon:
        with daemon.connect() as rpc:
            kept = [rpc.call("memory.add", content=f"kept fact{n}", force=True)["memory"]["id"] for n in range(20)]
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    with running_daemon(home) as daemon, daemon.connect() as rpc:
        assert {memory["id"] for memory in rpc.call("memory.list")["memories"]} == set(kept)
        assert opened(daemon).pragma("quick_check") == "ok"


def test_session_links_record_the_usage_of_a_memory(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    rpc.call("upsertSession", session={"id": "s"})
    name = rpc.call("memory.add", content="Used in many ways", sessionId="s")["memory"]["id"]
    rpc.call("memory.update", id=name, importance=0.9, sessionId="s")
    for usage in ("recalled", "reinforced"):
        rpc.call("memory.touch", ids=[name], sessionId="s", usage=usage)
    rows = (
        opened(shared_daemon).execute("SELECT usage_type FROM session_memories WHERE memory_id = ?", (name,)).fetchall()
    )
    assert {row[0] for row in rows} == {"created", "updated", "recalled", "reinforced"}


def test_relations_can_be_added_and_listed(rpc: RawConnection) -> None:
    one, other = (
        rpc.call("memory.add", content=content)["memory"]["id"]
        for content in ("The cache is write-through", "The cache is warmed at start")
    )
    made = rpc.call("relation.add", source=one, target=other, type="BUILDS_ON", confidence=0.8)
    [found] = rpc.call("relation.list", memoryId=other)["relations"]
    assert found == made
    assert (found["source"], found["target"], found["type"], found["validUntil"]) == (one, other, "BUILDS_ON", None)


def test_soft_delete_hides_the_row(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    name = rpc.call("memory.add", content="Soon hidden")["memory"]["id"]
    rpc.call("memory.delete", id=name)
    assert rpc.call("memory.list")["memories"] == []
    rows = (
        opened(shared_daemon)
        .execute("SELECT is_deleted, deleted_at > 0 FROM memories WHERE id = ?", (name,))
        .fetchall()
    )
    assert rows == [(1, 1)]
    assert rpc.call("memory.restore", id=name)["state"] == "current"


def test_validity_and_knowledge_times_are_both_stored(rpc: RawConnection) -> None:
    def at(moment: int) -> list[Any]:
        return [memory["content"] for memory in rpc.call("memory.list", asOf=moment)["memories"]]

    year = 365 * 86_400_000
    now = int(time.time() * 1000)
    first = rpc.call("memory.add", content="The lead is Ada", validFrom=now - 2 * year)["memory"]
    time.sleep(0.005)
    between = int(time.time() * 1000)
    time.sleep(0.005)
    rpc.call("memory.add", content="The lead is Grace", validFrom=now - year, supersedes=first["id"])
    assert at(int(time.time() * 1000)) == ["The lead is Grace"]
    assert at(between) == ["The lead is Ada"]  # that it had ended was not known yet
    assert at(now - 2 * year) == []  # and long ago nothing was known
