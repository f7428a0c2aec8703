"""`clankers-ctl backup`: a crashed or running daemon's database is replaced by a backup, and nothing is destroyed."""

import os
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, running_daemon
from helpers.store import message
from helpers.waiting import eventually, settled
from helpers.writers import acknowledged, stored, writing
from tests.faults.upgrades import make_old_database

from clankersd.db.compact_backup import DERIVED_TABLES
from clankersd.db.migrations import bundled


def store(daemon: DaemonProcess, *names: str) -> None:
    with daemon.connect() as connection:
        connection.call("events.batch", events=[{"message": message(name)} for name in names])


def make_backup(daemon: DaemonProcess) -> str:
    made = ctl(daemon, "backup", "create", "--json")
    assert made.code == 0, made.err
    return Path(made.json["path"]).name


def integrity(database: Path) -> str:
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return str(db.pragma("integrity_check"))
    finally:
        db.close()


def table_contents(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, except jobs, which the daemon adds by itself, and shadow tables of the indexes."""
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(5000)
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        tables = [name for (name,) in names if name != "jobs" and "_fts_" not in name and "vectors_" not in name]
        return {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in tables}
    finally:
        db.close()


def test_restore_of_a_running_daemon_gives_back_every_row_and_stops_nothing(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as rpc:
        assert ctl(daemon, "backup", "list").out.startswith("There are no backups")
        store(daemon, "first")
        rpc.call("memory.add", content="The staging database is called heron", scope="global")
        settled(rpc)
        backup = make_backup(daemon)
        before = table_contents(daemon.data / "backups" / backup)
        store(daemon, *(f"later-{number}" for number in range(300)))

        listed = ctl(daemon, "backup", "list", "--json").json["backups"]
        assert [(one["name"], one["reason"], one["sessions"], one["problem"]) for one in listed] == [
            (backup, "manual", 1, None)
        ]
        refused = ctl(daemon, "backup", "restore", backup, typed="n\n")
        assert refused.code == 1
        assert "later-7" in stored(daemon.database)

        done = ctl(daemon, "backup", "restore", backup, "--yes", "--json")
        assert done.code == 0, done.err
        assert stored(daemon.database) == {"first"}
        assert "later-7" in stored(Path(done.json["replaced"]))
        assert table_contents(daemon.database) == before
        health = rpc.call("health")  # on the connection that was open before
        assert (health["ok"], health["warnings"]) == (True, [])
        assert rpc.call("search", query="heron", scopes=["*"])["hits"]
        assert not [job for job in rpc.call("job.list") if job["state"] == "running"]
        store(daemon, "second")
        assert stored(daemon.database) == {"first", "second"}
        assert integrity(daemon.database) == "ok"


def test_events_sent_during_a_restore_wait_and_are_stored(home: Path) -> None:
    with running_daemon(home) as daemon:
        store(daemon, *(f"old-{number}" for number in range(200)))
        backup = make_backup(daemon)
        writers = writing(daemon, 3, "during")
        for _ in range(3):
            assert ctl(daemon, "backup", "restore", backup, "--yes").code == 0
        last = ctl(daemon, "backup", "restore", backup, "--yes", "--json").json
        counts = {writer.name: len(writer.acknowledged) for writer in writers}
        eventually(
            lambda: all(len(writer.acknowledged) > counts[writer.name] for writer in writers), "events are stored again"
        )
        for writer in writers:
            writer.stop()
        assert not [refusal for writer in writers for refusal in writer.refused]
        everywhere = stored(daemon.database).union(
            *map(stored, daemon.data.glob("clankers.db.replaced-????????T*[0-9]"))
        )
        assert acknowledged(writers) <= everywhere
        assert Path(last["replaced"]).exists()


def test_restore_without_a_daemon_keeps_the_replaced_database_with_its_wal(home: Path) -> None:
    with running_daemon(home) as daemon:
        store(daemon, "first")
        backup = make_backup(daemon)
        store(daemon, "second")
        daemon.kill()
        daemon.close()
        done = ctl(daemon, "backup", "restore", str(daemon.data / "backups" / backup), "--yes", "--json")
        assert done.code == 0, done.err
        replaced = Path(done.json["replaced"])
        assert replaced.with_name(f"{replaced.name}-wal").exists()
        assert stored(replaced) == {"first", "second"}
        with daemon.start().connect() as connection:
            health = connection.call("health")
            assert (health["ok"], health["warnings"]) == (True, [])
        assert stored(daemon.database) == {"first"}
        assert integrity(daemon.database) == "ok"
        checks = {check["name"]: check for check in ctl(daemon, "doctor", "--json").json["checks"]}
        assert replaced.name in checks["replaced files"]["advice"]


def test_backup_of_a_later_schema_is_refused_and_the_database_stays(home: Path) -> None:
    with running_daemon(home) as daemon, daemon.connect() as rpc:
        store(daemon, "kept")
        later = daemon.data / "backups" / make_backup(daemon)
        db = apsw.Connection(str(later))
        db.execute("INSERT INTO _migrations (version, name, checksum, applied_at) VALUES (9999, 'later', 'x', 0)")
        db.close()
        refused = ctl(daemon, "backup", "restore", later.name, "--yes")
        assert (refused.code, "9999" in refused.err) == (1, True), refused.err
        assert rpc.call("health")["ok"]
        store(daemon, "after")
        assert stored(daemon.database) == {"kept", "after"}


@pytest.mark.parametrize("version", [1, len(bundled()) - 1])
def test_backup_of_an_earlier_schema_is_restored_and_migrated(home: Path, tmp_path: Path, version: int) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon:
        rows = make_old_database(tmp_path / "old.db", version)
        store(daemon, "replaced")
        assert ctl(daemon, "backup", "restore", str(tmp_path / "old.db"), "--yes").code == 0
        store(daemon, "new")
        assert stored(daemon.database) == rows | {"new"}
        assert daemon.stop() == 0
        daemon.close()
        assert ctl(daemon, "backup", "restore", str(tmp_path / "old.db"), "--yes").code == 0
        with daemon.start().connect() as rpc:
            assert rpc.call("health")["ok"]
        assert stored(daemon.database) == rows
        assert integrity(daemon.database) == "ok"


def test_automatic_backups_are_made_when_due_with_the_memories_beside_them(home: Path) -> None:
    daemon = ClockedDaemon(home, CLANKERS_EMBEDDER="none", CLANKERS_BACKUP_KEEP="2")
    _, program, shift = daemon.program
    often = "import clankersd.backups as b; b.FIRST_BACKUP_SECONDS = b.CHECK_INTERVAL_SECONDS = 0.01\n"
    daemon.program = ("-c", often + program, shift)
    folder = daemon.data / "backups"

    def made() -> list[str]:
        return sorted(path.name for path in folder.glob("clankers-*-daily.db"))

    try:
        with daemon.start().connect() as rpc:
            rpc.call("memory.add", content="The staging database is called heron", scope="global")
            eventually(lambda: list(folder.glob("memory-backup-*.jsonl")), "the first backup is made")
            [first], [memories] = made(), folder.glob("memory-backup-*.jsonl")  # the next one is due in a day
            assert "called heron" in memories.read_text()
            assert integrity(folder / first) == "ok"
            daemon.set_clock(DAY_SECONDS + 60)
            eventually(lambda: len(made()) == 2 and first not in made(), "the newest two are kept")
            eventually(lambda: len(list(folder.glob("memory-backup-*.jsonl"))) == 2, "memories of two days are kept")
    finally:
        daemon.close()


def test_backups_are_shown_verified_and_pruned(home: Path) -> None:
    with running_daemon(home) as daemon:
        store(daemon, "first")
        folder = daemon.data / "backups"
        folder.mkdir(exist_ok=True)
        os.mkfifo(folder / "clankers-20990101T000000000000-daily.db")  # opening it would wait for a writer
        (folder / "clankers-20990102T000000000000-daily.db").symlink_to("/dev/zero")
        (folder / "clankers-20990103T000000000000-daily.db").symlink_to(home / "nothing")
        (folder / "clankers-20990104T000000000000-daily.db").mkdir()
        names = [make_backup(daemon) for _ in range(3)]
        found = [check for check in ctl(daemon, "doctor", "--json").json["checks"] if check["name"] == "backups"]
        assert [check["state"] for check in found] == ["ok"]
        assert "messages" in ctl(daemon, "backup", "show", names[0]).out
        assert ctl(daemon, "backup", "verify").code == 0
        with (daemon.data / "backups" / names[0]).open("r+b") as file:
            file.seek(4096 * 10)
            file.write(b"\xa5" * 4096 * 5)
        damaged = ctl(daemon, "backup", "verify")
        assert (damaged.code, "damaged" in damaged.out) == (4, True)
        planned = ctl(daemon, "backup", "prune", "--keep", "1", "--dry-run", "--json").json
        assert set(planned["deleted"]) == set(names[:2])
        assert ctl(daemon, "backup", "prune", "--keep", "1", "--yes").code == 0
        assert [one["name"] for one in ctl(daemon, "backup", "list", "--json").json["backups"]] == names[2:]


def test_backup_that_cannot_be_written_says_why(home: Path) -> None:
    with running_daemon(home) as daemon:
        store(daemon, "first")
        (daemon.data / "backups").write_text("in the way")
        failed = ctl(daemon, "backup", "create")
        assert (failed.code, "backups: File exists" in failed.err) == (1, True)


def test_backup_restore_refuses_what_is_damaged_or_missing_and_changes_nothing(home: Path) -> None:
    with running_daemon(home) as daemon:
        store(daemon, *(f"kept-{number}" for number in range(300)))
        daemon.stop()
        daemon.close()
        before = daemon.database.read_bytes()
        damaged = home / "damaged.db"
        shutil.copy(daemon.database, damaged)
        with damaged.open("r+b") as file:
            file.seek(8 * 4096)
            file.write(b"\xa5" * 4096 * 20)
        assert "damaged" in ctl(daemon, "backup", "restore", str(damaged), "--yes").err
        text = home / "text.db"
        text.write_text("not a database " * 1000)
        assert ctl(daemon, "backup", "restore", str(text), "--yes").code == 1
        missing = ctl(daemon, "backup", "restore", "nothing.db", "--yes")
        assert (missing.code, "backup list" in missing.err) == (1, True)
        assert daemon.database.read_bytes() == before
        assert not list(daemon.data.glob("*restoring*"))
        assert not list(daemon.data.glob("*replaced*"))


def test_backup_without_derived_is_restored_with_a_new_index(home: Path) -> None:
    with running_daemon(home) as daemon:
        with daemon.connect() as rpc:
            rpc.call("upsertMessage", message=message("prompt", text="The lantern is in the boathouse"))
            rpc.call("memory.add", content="We deploy on Tuesdays", scope="global")
            rpc.call("document.ingest", text="All about quinces.", source="memo", title="Fruit")
            settled(rpc)
        before = table_contents(daemon.database)
        full = Path(ctl(daemon, "backup", "create", "--json").json["path"])
        made = Path(ctl(daemon, "backup", "create", "--without-derived", "--json").json["path"])
        assert made.stat().st_size < full.stat().st_size
        assert made.read_bytes().count(b"boathouse") == 1  # the row itself
        assert full.read_bytes().count(b"quinces") > made.read_bytes().count(b"quinces") > 0
        assert ctl(daemon, "backup", "verify", made.name).code == 0
        restored = ctl(daemon, "backup", "restore", made.name, "--yes")
        assert restored.code == 0, restored.err
        assert "makes it again" in restored.out
        with daemon.connect() as rpc:
            settled(rpc)
            for query in ("lantern boathouse", "deploy Tuesdays", "quinces"):
                found = rpc.call("search", query=query, scopes=["*"])
                assert found["hits"], query
                assert found["mode"] == "hybrid"
        after = table_contents(daemon.database)
        # Maintenance of the memories notes when it ran, which may be meanwhile.
        compared = {name for name in before if name not in (*DERIVED_TABLES, "hook_events", "memory_upkeep")}
        assert {name: after[name] for name in compared} == {name: before[name] for name in compared}
        assert len(after["chunks"]) == len(before["chunks"]) == 3
