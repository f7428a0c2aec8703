"""The doctor: each deliberate damage is reported, and repaired if the data is derived."""

import json
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import apsw
import pytest
import sqlite_vec
from click.testing import CliRunner
from helpers.ctl import ctl, on_a_terminal
from helpers.daemon import DaemonProcess, running_daemon
from helpers.store import message
from helpers.waiting import eventually, settled

from clankers.ctl import cli
from clankers.ctl.doctor.files import check_files
from clankers.ctl.service_managers import Systemd
from clankers.spool import spool_event
from clankers_protocol.errors import StorageUnavailable
from clankers_protocol.paths import Paths
from clankersd.db import Db, Store
from clankersd.db.connection import has_wal_reset_bug

Break = Callable[[apsw.Connection], Any]


@pytest.fixture(scope="module")
def filled() -> Iterator[DaemonProcess]:
    """A daemon with messages, an error and a memory, for all tests of this file; each repairs what it damages."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder), HOME=folder) as process:
        with process.connect() as connection:
            for number in range(5):
                connection.call("upsertMessage", message=message(f"m{number}", text=f"the lighthouse number {number}"))
            connection.call("upsertSessionError", sessionError={"id": "e", "sessionId": "session"})
            connection.call("memory.add", content="We deploy on Tuesdays.")
            settled(connection)
        yield process


@pytest.fixture
def healthy(filled: DaemonProcess) -> DaemonProcess:
    """The filled daemon, once the doctor reports no problem left by an earlier test."""
    eventually(lambda: not ailing(filled), "everything is as the last test should have left it")
    return filled


def diagnosis(daemon: DaemonProcess, method: str = "doctor.check") -> dict[str, Any]:
    """What the job comes to."""
    with daemon.connect() as connection:
        job_id = connection.call(method)["jobId"]
        job = eventually(lambda: ended(connection.call("job.status", id=job_id)), "the doctor has looked at everything")
    assert job["state"] == "done", job
    return dict(job["result"])


def ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return None if job["state"] == "running" else job


def ailing(daemon: DaemonProcess) -> dict[str, str]:
    """What is not well, and how bad it is."""
    return {each["name"]: each["state"] for each in diagnosis(daemon)["checks"] if each["state"] != "ok"}


def doctor(daemon: DaemonProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and what it prints."""
    ran = CliRunner().invoke(cli, ["doctor", "--json", *words], env=daemon.environ)
    return ran.exit_code, json.loads(ran.stdout)


def finding(found: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(next(each for each in found["checks"] if each["name"] == name))


def changed(daemon: DaemonProcess, change: Break) -> None:
    """Do to the database what no daemon would."""
    with closing(apsw.Connection(str(daemon.database))) as db:
        db.set_busy_timeout(5000)
        db.enable_load_extension(True)
        db.load_extension(sqlite_vec.loadable_path())
        change(db)


def sql(statement: str) -> Break:
    return lambda db: db.execute(statement)


def hide_a_row_from_an_index(db: apsw.Connection) -> None:
    """Store a row while the schema does not tell of the index."""
    index = "type = 'index' AND name = 'idx_session_errors_session'"
    db.execute("PRAGMA writable_schema = ON")
    row = db.execute(f"SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE {index}").fetchone()
    db.execute(f"DELETE FROM sqlite_master WHERE {index}")
    db.execute("PRAGMA writable_schema = RESET")
    db.execute("INSERT INTO session_errors (id, session_id, created_at) VALUES ('hidden', 'session', 1)")
    db.execute("PRAGMA writable_schema = ON")
    db.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)
    db.execute(f"PRAGMA schema_version = {db.pragma('schema_version') + 1}")


FIRST = "(SELECT min(id) FROM chunks WHERE message_id = 'm1')"
OTHER_WORDS = (
    "UPDATE chunks_fts SET text = 'other words', header = '', extra = '' WHERE rowid = (SELECT min(id) FROM chunks)"
)
BROKEN: dict[str, tuple[Break, set[str], str]] = {
    "words that no text has": (sql(OTHER_WORDS), {"full text"}, "rebuilt chunks_fts"),
    "no words at all": (sql("INSERT INTO chunks_fts (chunks_fts) VALUES ('delete-all')"), {"full text"}, "chunks_fts"),
    "damaged words": (
        sql("UPDATE chunks_fts_data SET block = substr(block, 1, 6) WHERE id > 10"), {"full text"}, "chunks_fts",
    ),
    "memories without words": (
        sql("INSERT INTO memories_fts (memories_fts) VALUES ('delete-all')"), {"full text"}, "rebuilt memories_fts",
    ),
    "a message that went without its chunks": (
        sql("DELETE FROM messages WHERE id = 'm0'"), {"owners", "full text"},
        "removed 1 row of the index without an owner",
    ),
    "a chunk of nothing": (
        sql(f"UPDATE chunks SET message_id = NULL WHERE id = {FIRST}"),
        {"owners", "texts", "full text"}, "chunked 1 text that",
    ),
    "a message without chunks": (
        sql("DELETE FROM chunks WHERE message_id = 'm2'"), {"texts", "vectors"}, "removed 1 vector without a chunk",
    ),
    "a chunk without its vector": (
        sql(f"DELETE FROM chunk_vectors_1 WHERE rowid = {FIRST}"), {"vectors"}, "queued 1 chunk without a vector",
    ),
    "an index and a trigger dropped": (
        sql("DROP INDEX idx_tools_created; DROP TRIGGER chunks_ad"), {"schema"}, "created the trigger chunks_ad",
    ),
    "an index that lacks a row": (hide_a_row_from_an_index, {"database"}, "rebuilt the indexes of session_errors"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_doctor_finds_and_repairs_damaged_derived_data(healthy: DaemonProcess, what: str) -> None:
    broken, names, told = BROKEN[what]
    changed(healthy, broken)
    found = diagnosis(healthy)
    assert {each["name"] for each in found["checks"] if each["state"] == "problem"} == names
    assert all(finding(found, name)["repairable"] and finding(found, name)["finding"] for name in names)
    assert found["repaired"] == []

    repaired = diagnosis(healthy, "doctor.repair")
    assert any(told in step for step in repaired["repaired"]), repaired["repaired"]
    assert {each["state"] for each in repaired["checks"]} == {"ok"}
    assert diagnosis(healthy, "doctor.repair")["repaired"] == []
    with healthy.connect() as connection:
        hits = connection.call("search", query="lighthouse", mode="keyword", limit=10)["hits"]
        kept = [row[0] for row in connection.call("query", sql="SELECT id FROM messages ORDER BY id")["rows"]]
    assert sorted(hit["ref"]["messageId"] for hit in hits) == kept


def test_doctor_reports_damaged_captured_data_and_does_not_change_it(healthy: DaemonProcess) -> None:
    changed(healthy, sql("INSERT INTO tools (id, session_id, tool_name, created_at) VALUES ('t', 'nobody', 'Bash', 1)"))
    found = diagnosis(healthy, "doctor.repair")
    assert finding(found, "owners")["state"] == "problem"
    assert not finding(found, "owners")["repairable"]
    assert found["repaired"] == []
    changed(healthy, sql("DELETE FROM tools WHERE id = 't'"))


def test_search_rebuilds_a_damaged_full_text_index(healthy: DaemonProcess) -> None:
    with healthy.connect() as connection:  # what was searched before a message came is not in memory any more
        connection.call("upsertMessage", message=message("m5", text="the lighthouse number 5"))
    changed(healthy, BROKEN["damaged words"][0])
    with healthy.connect() as connection:
        connection.request("search", {"query": "lighthouse"})

        def found() -> bool:
            reply = connection.request("search", {"query": "lighthouse", "mode": "keyword"})
            return bool(reply.get("result", {}).get("hits"))

        eventually(found, "the search works again")
        assert connection.call("health")["ok"]


def test_doctor_reports_invalid_settings(healthy: DaemonProcess) -> None:
    settings = Path(healthy.environ["CLANKERS_CONFIG_PATH"])
    settings.write_text("log_level = 'loud'\n")
    found = finding(diagnosis(healthy), "settings")
    assert (found["state"], "log_level" in found["finding"]) == ("problem", True)
    settings.write_text("log_level = 'warn'\n")
    assert finding(diagnosis(healthy), "settings")["state"] == "warning"
    settings.unlink()


def test_doctor_reports_stuck_and_failed_scheduled_actions(healthy: DaemonProcess) -> None:
    with healthy.connect() as connection:
        action = connection.call("schedule.create", description="Water the plants", schedule="09:00 daily")["id"]
        run = (
            f"INSERT INTO schedule_runs (id, action_id, scheduled_for, state, created_at) VALUES ('r', '{action}', 1, "
        )
        changed(healthy, sql(f"{run} 'waiting', 1)"))
        found = finding(diagnosis(healthy), "schedule")
        assert (found["state"], found["finding"]) == ("warning", "No client runs these due actions: Water the plants.")
        changed(healthy, sql("UPDATE schedule_runs SET state = 'failed', error = 'no water' WHERE id = 'r'"))
        assert "no water" in finding(diagnosis(healthy), "schedule")["finding"]
        connection.call("schedule.delete", id=action)


# -- the command


def test_doctor_repairs_files_and_index_and_then_finds_nothing(healthy: DaemonProcess) -> None:
    left = healthy.data / "backups" / "clankers-1-scheduled.unfinished"
    left.parent.mkdir(mode=0o700, exist_ok=True)
    left.touch(mode=0o600)
    os.utime(left, (1, 1))
    healthy.data.chmod(0o755)
    healthy.database.chmod(0o644)
    changed(healthy, BROKEN["words that no text has"][0])

    code, found = doctor(healthy)
    assert (code, found["ok"], found["repaired"]) == (4, False, [])
    assert {each["name"] for each in found["checks"] if each["repairable"]} == {"permissions", "leftovers", "full text"}
    assert str(healthy.database) in finding(found, "permissions")["finding"]

    code, found = doctor(healthy, "--repair")
    assert (code, found["ok"], len(found["repaired"])) == (0, True, 4)
    assert healthy.data.stat().st_mode & 0o777 == 0o700
    assert healthy.database.stat().st_mode & 0o777 == 0o600
    assert not left.exists()
    code, found = doctor(healthy, "--repair")
    assert (code, found["repaired"]) == (0, [])


def test_doctor_reports_a_rejected_event_with_advice(healthy: DaemonProcess) -> None:
    spool_event(str(healthy.data / "spool"), b"{not json")
    rejected = healthy.data / "spool" / "rejected"
    eventually(lambda: rejected.is_dir() and list(rejected.iterdir()), "the event is rejected")
    code, found = doctor(healthy, "--repair")
    assert code == 4
    assert finding(found, "rejected events")["finding"].startswith(f"1 event could not be stored and is in {rejected}")
    assert f"rm {rejected}/*.json" in finding(found, "rejected events")["advice"]
    for event in rejected.iterdir():
        event.unlink()
    assert doctor(healthy)[0] == 0


def test_doctor_checks_backups(healthy: DaemonProcess) -> None:
    backup = healthy.data / "backups" / "clankers-20250101T000000000000-scheduled.db"
    backup.parent.mkdir(mode=0o700, exist_ok=True)
    backup.touch(mode=0o600)
    code, found = doctor(healthy)
    assert (code, finding(found, "backups")["state"]) == (4, "problem")
    with closing(apsw.Connection(str(backup))) as db:
        db.execute("CREATE TABLE sessions (id); INSERT INTO sessions VALUES ('s')")
    assert finding(doctor(healthy)[1], "backups")["state"] == "ok"
    os.utime(backup, (1, time.time() - 30 * 86_400))
    assert finding(doctor(healthy)[1], "backups")["state"] == "warning"
    backup.unlink()
    assert finding(doctor(healthy)[1], "backups")["finding"].startswith("There is no backup yet.")
    paths = Paths(healthy.data, healthy.database, healthy.socket_path, healthy.data / "logs", healthy.data / "c.toml")
    [checked] = [one for one in check_files(paths, None) if one.name == "backups"]
    assert (checked.state, (checked.advice or "")[:26]) == ("warning", "clankers-ctl backup create")


def test_doctor_warns_of_a_harness_that_is_no_longer_captured(healthy: DaemonProcess) -> None:
    with healthy.connect() as connection:
        connection.call("hook.event", harness="claude-code", event={"hook_event_name": "Stop", "session_id": "c"})
    transcript = healthy.home / ".claude" / "projects" / "shop" / "c.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.touch()
    os.utime(transcript, (1, time.time() + 3600))
    code, found = doctor(healthy)
    capture = finding(found, "capture claude-code")
    assert (code, capture["state"]) == (0, "warning")
    assert "minutes after its last event" in capture["finding"]
    assert "clankers-ctl plugin status claude-code" in capture["advice"]
    assert finding(found, "plugin claude-code")["advice"] == "clankers-ctl plugin install claude-code"
    transcript.unlink()


def test_doctor_reports_an_outdated_plugin_and_service(healthy: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Systemd, "is_usable", lambda self: True)
    for words in (["plugin", "install", "opencode"], ["service", "install", "--no-start"]):
        assert CliRunner().invoke(cli, words, env=healthy.environ).exit_code == 0
    assert {finding(doctor(healthy)[1], name)["state"] for name in ("plugin opencode", "service")} == {"ok"}
    for path in (".config/opencode/plugin/clankers.js", ".config/systemd/user/clankersd.service"):
        with (healthy.home / path).open("a") as file:
            file.write("\n")
    code, found = doctor(healthy)
    assert (code, finding(found, "plugin opencode")["state"], finding(found, "service")["state"]) == (
        4, "problem", "warning",
    )  # fmt: skip
    for words in (["plugin", "uninstall", "opencode"], ["service", "uninstall"]):
        assert CliRunner().invoke(cli, words, env=healthy.environ).exit_code == 0


def test_doctor_table_fits_the_terminal_and_has_colours_only_there(healthy: DaemonProcess) -> None:
    backup = healthy.data / "backups" / "clankers-20250101T000000000000-scheduled.db"
    backup.parent.mkdir(mode=0o700, exist_ok=True)
    backup.touch(mode=0o600)
    with closing(apsw.Connection(str(backup))) as db:
        db.execute("CREATE TABLE sessions (id)")
    shown = on_a_terminal(healthy, "doctor", COLUMNS="70")
    assert "\x1b[" in shown
    piped = ctl(healthy, "doctor", COLUMNS="70")
    assert "\x1b[" not in piped.out
    assert max(map(len, piped.out.splitlines())) <= 70
    assert "→ clankers-ctl backup create" in piped.out
    assert piped.code == 0
    backup.unlink()


def test_doctor_without_a_daemon_checks_the_files(home: Path) -> None:
    down = DaemonProcess(home, HOME=str(home))
    (home / "clankers.toml").write_text("log_levle = 'info'\n")
    spool_event(str(down.data / "spool"), b"{}")
    ran = ctl(down, "doctor", "--json")
    assert ran.code == 3
    found = ran.json
    assert "`clankersd`" in finding(found, "daemon")["advice"]
    assert "log_levle" in finding(found, "settings")["finding"]
    assert finding(found, "spool")["finding"].startswith("1 event ")
    assert finding(found, "database file")["state"] == "ok"
    down.database.write_bytes(b"nonsense, and more of it")
    assert finding(doctor(down)[1], "database file")["state"] == "problem"


def test_doctor_reports_why_a_database_is_refused(fresh_daemon: DaemonProcess) -> None:
    fresh_daemon.stop()
    changed(
        fresh_daemon, sql("INSERT INTO _migrations (version, name, checksum, applied_at) VALUES (9999, 'x', 'x', 1)")
    )
    fresh_daemon.close()
    with running_daemon(fresh_daemon.home, HOME=str(fresh_daemon.home)) as again:
        code, found = doctor(again, "--repair")
    assert code == 4
    assert "9999" in finding(found, "database")["finding"]
    assert "newer clankers" in finding(found, "database")["advice"]


# -- looking aside


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Store]:
    """A store that commits."""
    store = Store(home / "test.db", home / "backups", "normal")
    await store.open()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            yield store
            tasks.cancel_scope.cancel()
    finally:
        await store.close()


@pytest.mark.anyio
async def test_events_are_stored_while_something_is_looked_at_aside(home: Path) -> None:
    looking, stored = threading.Event(), threading.Event()
    projects = "SELECT count(*) FROM projects"
    insert = "INSERT INTO projects (id, path, created_at, updated_at) VALUES ('p', '/p', 1, 1)"
    seen: list[tuple[int, int]] = []

    def look(db: Db) -> None:
        before = db.value(projects)
        looking.set()
        assert stored.wait(30)
        seen.append((before, db.value(projects)))

    async with opened(home) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.snapshot_read, look)
        assert await anyio.to_thread.run_sync(looking.wait, 30)
        await store.write(lambda db: db.execute(insert))
        stored.set()
    assert seen == [(0, 0)]  # it goes on seeing what was there when it began


@pytest.mark.anyio
async def test_nothing_is_written_aside(home: Path) -> None:
    async with opened(home) as store:
        with pytest.raises(StorageUnavailable):
            await store.snapshot_read(lambda db: db.execute("DELETE FROM projects"))
        await store.write(lambda db: db.execute("DELETE FROM projects"))  # nobody else is troubled by it


@pytest.mark.anyio
async def test_look_aside_that_nobody_waits_for_is_interrupted(home: Path) -> None:
    looking, over = threading.Event(), threading.Event()
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    def look(db: Db) -> None:
        looking.set()
        try:
            db.value(endless)
        finally:
            over.set()

    async with opened(home) as store:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.snapshot_read, look)
            assert await anyio.to_thread.run_sync(looking.wait, 30)
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(over.wait, 30)


@pytest.mark.parametrize(
    ("version", "resets"),
    [("3.6.23", False), ("3.7.0", True), ("3.44.5", True), ("3.44.6", False), ("3.45.0", True), ("3.50.6", True),
     ("3.50.7", False), ("3.51.2", True), ("3.51.3", False), ("3.54.1", False)],
)  # fmt: skip
def test_sqlite_that_may_lose_commits_is_known_by_its_version(version: str, resets: bool) -> None:
    assert has_wal_reset_bug(version) is resets
