"""The fifteen cases that a store of conversations, documents and facts is measured by, in their order."""

import json
import math
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apsw
import pytest
from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.documents import chunks_of, edge, finished, link, search
from helpers.embedding_service import Answer, Request, Service, embeddings, say, served
from helpers.sample_files import pdf
from helpers.schedules import change_database, create, ended, make_due, next_run_of, runs, wake
from helpers.waiting import eventually, settled

from clankers_protocol.errors import InvalidParams, NotFound
from clankersd.index.chunker import QUARTERS_PER_TOKEN, size_of
from clankersd.memories.extraction.chat import decode_answer
from clankersd.memories.salience import DAY_MS
from clankersd.schedule.grammar import parse_schedule

NOW = round(time.time() * 1000)


@pytest.fixture
def scope() -> str:
    """A scope that no other test has."""
    return f"custom:{uuid.uuid4()}"


def texts(page: dict[str, Any]) -> list[str]:
    return [message["textContent"] for message in page["messages"]]


def rows(connection: RawConnection, sql: str) -> list[list[Any]]:
    return list(connection.call("query", sql=sql)["rows"])


def leftovers(connection: RawConnection) -> list[list[int]]:
    """What the index holds of chunks that are gone: of their words, and of what was to be done for them."""
    words = "SELECT count(*) FROM chunks_fts_docsize WHERE id NOT IN (SELECT id FROM chunks)"
    queued = "SELECT count(*) FROM index_queue WHERE chunk NOT IN (SELECT id FROM chunks)"
    return rows(connection, f"SELECT ({words}), ({queued})")


def error_of(connection: RawConnection, method: str, **params: Any) -> tuple[int, str]:
    error = connection.request(method, params)["error"]
    return error["code"], error["message"]


# -- 1


def test_database_creation_is_idempotent(rpc: RawConnection) -> None:
    """Case 1: init idempotent."""
    rpc.call("message.store", threadId="t", role="user", content="here before")
    schema = "SELECT name, sql FROM sqlite_schema ORDER BY name"
    before = rows(rpc, schema)
    for _ in range(3):
        assert rpc.call("ensureDb")["created"] is False
    assert rows(rpc, schema) == before
    assert texts(rpc.call("message.list", threadId="t")) == ["here before"]


def test_concurrent_writers_are_all_served(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    """Case 1: concurrent writes, no busy error."""
    failures: list[object] = []

    def write(writer: int) -> None:
        with shared_daemon.connect() as own:
            for number in range(25):
                params = {"threadId": f"thread-{writer % 3}", "role": "user", "content": f"{writer} says {number}"}
                reply = own.request("message.store", params)
                failures.extend([reply["error"]] if "error" in reply else [])

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    counts = [thread["messages"] for thread in rpc.call("thread.list")["threads"]]
    assert sorted(counts) == [100, 100, 100]


# -- 2


def test_messages_are_the_newest_in_order_also_within_a_millisecond(rpc: RawConnection) -> None:
    """Case 2: messages returned oldest-first, newest N; same-second turns keep order."""
    thread = rpc.call("thread.create", chatId="room")["id"]
    for number in range(50):  # all of one second, as clients that count in seconds send them
        content = f"turn {number}"
        rpc.call("message.store", threadId=thread, role="user", content=content, createdAt=1_700_000_000)
    assert texts(rpc.call("message.list", threadId=thread)) == [f"turn {number}" for number in range(50)]
    page = rpc.call("message.list", threadId=thread, limit=3)
    assert texts(page) == ["turn 47", "turn 48", "turn 49"]
    before = rpc.call("message.list", threadId=thread, limit=3, cursor=page["cursor"])
    assert texts(before) == ["turn 44", "turn 45", "turn 46"]


def test_messages_stored_in_the_same_moment_retain_their_order(rpc: RawConnection) -> None:
    """Case 2: turns that are stored in the same moment keep order, too."""
    for number in range(100):
        params = {"threadId": "busy", "role": "user", "content": f"turn {number}"}
        rpc.send({"jsonrpc": "2.0", "id": number, "method": "message.store", "params": params})
    replies = [rpc.receive() for _ in range(100)]
    assert all("result" in reply for reply in replies)
    assert texts(rpc.call("message.list", threadId="busy", limit=200)) == [f"turn {n}" for n in range(100)]


# -- 3


def test_thread_is_created_read_updated_listed_and_deleted(rpc: RawConnection) -> None:
    """Case 3: thread CRUD."""
    thread = rpc.call("thread.create", chatId="room", title="Refund", project="/src/shop", metadata={"a": 1})
    assert (thread["chatId"], thread["title"], thread["projectPath"]) == ("room", "Refund", "/src/shop")
    assert thread["metadata"] == {"a": 1}
    assert rpc.call("thread.get", id=thread["id"]) == thread
    assert rpc.call("thread.get", id=thread["id"][:23]) == thread
    changed = rpc.call("thread.update", id=thread["id"], title="Settled", metadata={"b": [2]})
    assert (changed["title"], changed["metadata"], changed["chatId"]) == ("Settled", {"b": [2]}, "room")
    assert changed["createdAt"] == thread["createdAt"]
    assert changed["updatedAt"] >= thread["updatedAt"]
    assert rpc.call("thread.list", chatId="room")["threads"] == [changed]
    assert rpc.call("thread.list", chatId="other")["threads"] == []
    assert rpc.call("thread.list", project="/src/shop/")["threads"] == [changed]
    rpc.call("thread.delete", id=thread["id"])
    assert rpc.request("thread.get", {"id": thread["id"]})["error"]["code"] == NotFound.code
    assert rpc.call("thread.list")["threads"] == []


def test_thread_delete_removes_its_messages_everywhere(rpc: RawConnection) -> None:
    """Case 3: delete removes its messages."""
    thread = rpc.call("thread.create", chatId="room")["id"]
    kept = rpc.call("thread.create", chatId="room")["id"]
    rpc.call("message.store", threadId=thread, role="user", content="the zanzibar contract")
    rpc.call("message.store", threadId=kept, role="user", content="something else")
    settled(rpc)
    planned = rpc.call("thread.delete", id=thread, dryRun=True)
    assert planned["counts"]["messages"] == 1
    assert texts(rpc.call("message.list", threadId=thread)) == ["the zanzibar contract"]
    rpc.call("thread.delete", id=thread)
    assert rpc.call("message.search", query="zanzibar", mode="keyword")["messages"] == []
    for table in ("messages", "chunks"):
        assert rows(rpc, f"SELECT DISTINCT session_id FROM {table} WHERE session_id IS NOT NULL") == [[kept]]
    assert leftovers(rpc) == [[0, 0]]


# -- 4


def test_document_delete_removes_chunks_keywords_and_edges(rpc: RawConnection) -> None:
    """Case 4: store/delete document cascades chunks, FTS, edges."""
    other = [{"id": "kept", "content": "Bitterns keep still."}]
    rpc.call("document.store", id="other", chunks=other)
    rpc.call("document.store", id="gone", chunks=[{"id": f"g{n}", "content": f"Zygodactyl {n}."} for n in range(3)])
    link(rpc, edge("g0", "kept"), edge("kept", "g1"))
    settled(rpc)
    assert len(rpc.call("chunk.searchKeyword", query="zygodactyl")["hits"]) == 3
    rpc.call("document.delete", id="gone")
    assert rows(rpc, "SELECT id FROM document_chunks") == [["kept"]]
    assert rows(rpc, "SELECT count(*) FROM chunk_edges") == [[0]]
    assert rows(rpc, "SELECT count(*) FROM chunks WHERE source = 'documents'") == [[1]]
    assert leftovers(rpc) == [[0, 0]]
    assert rpc.call("chunk.searchKeyword", query="zygodactyl")["hits"] == []
    assert rpc.call("chunk.get", ids=["g0", "kept"])[0]["id"] == "kept"


def test_document_can_be_excluded_from_a_search(rpc: RawConnection) -> None:
    """Case 4: search excludes a document via neq filter."""
    for name in ("one", "two"):
        rpc.call("document.store", id=name, chunks=[{"content": f"Bitterns boom in {name} marsh."}])
    eventually(lambda: rpc.call("chunk.search", query="boom")["pending"] == 0, "the vectors are made")
    for method in ("chunk.search", "chunk.searchKeyword"):
        filters = [{"field": "document", "op": "ne", "value": "one"}]
        hits = rpc.call(method, query="bitterns boom", filters=filters)["hits"]
        assert [hit["chunk"]["documentId"] for hit in hits] == ["two"]


# -- 5


def test_scores_are_cosines(rpc: RawConnection) -> None:
    """Case 5: vector search sorted by cosine; identical = 1, opposite = 0; what cannot be compared is refused."""
    east, north = [1.0] + [0.0] * 255, [0.0, 1.0] + [0.0] * 254
    west = [-1.0] + [0.0] * 255
    slant = [3.0, 4.0] + [0.0] * 254
    vectors = {"east": east, "north": north, "west": west, "slant": slant}
    chunks = [{"id": name, "content": name, "embedding": vector} for name, vector in vectors.items()]
    rpc.call("document.store", chunks=chunks, source="compass")
    hits = rpc.call("chunk.search", embedding=[2.0] + [0.0] * 255)["hits"]
    assert [(hit["chunk"]["id"], round(hit["score"], 3)) for hit in hits] == [
        ("east", 1.0), ("slant", 0.6), ("north", 0.0), ("west", 0.0),
    ]  # fmt: skip
    zero = rpc.request("chunk.search", {"embedding": [0.0] * 256})
    assert "zero" in zero["error"]["message"]


# -- 6

SPECIAL = [
    'quote " in it', "AND", "OR NOT", "NEAR(a b)", "col:umn", "star*", "^caret", "(paren", "plus+minus-", "{brace}",
    "dot.dot", "it's", "\x00", "%", "_", "' OR 1=1 --", "🙂", "你好", "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("query", SPECIAL)
def test_query_has_no_syntax(rpc: RawConnection, query: str) -> None:
    """Case 6: special characters do not error."""
    assert isinstance(rpc.call("chunk.searchKeyword", query=query)["hits"], list)


def test_keywords_are_found_or_not(rpc: RawConnection) -> None:
    """Case 6: FTS: hit, no hit; words between special characters are found."""
    rpc.call("document.store", id="birds", chunks=[{"content": f"Dippers number{n} dive."} for n in range(20)])
    found = rpc.call("chunk.searchKeyword", query="dippers number12", limit=1)["hits"]
    assert found[0]["chunk"]["content"] == "Dippers number12 dive."
    assert rpc.call("chunk.searchKeyword", query="xylophonist")["hits"] == []
    for special in SPECIAL:
        hits = rpc.call("chunk.searchKeyword", query=f"{special[:50]} number7 {special[:50]}", limit=1)["hits"]
        assert [hit["chunk"]["content"] for hit in hits] == ["Dippers number7 dive."], special


# -- 7


def bring(store: RawConnection, scope: str, name: str, days: int, **given: Any) -> str:
    """A memory that was last touched so many days ago."""
    known = {
        "id": f"{scope}-{name}",
        "content": f"{name} of the shop",
        "scope": scope,
        "createdAt": NOW - days * DAY_MS,
    }
    assert store.call("memory.import", memories=[known | given], scopes=[scope])["created"] == 1
    return str(known["id"])


def state_of(store: RawConnection, name: str, scope: str) -> str:
    return str(store.call("memory.get", id=name, scopes=[scope])["state"])


def test_similar_fact_raises_confidence_and_another_does_not(rpc: RawConnection, scope: str) -> None:
    """Case 7: facts: similar merges and raises confidence, dissimilar does not."""
    who = {"scope": scope, "scopes": [scope]}
    known = rpc.call("memory.add", content="Deploy with `make deploy` from the main branch", confidence=0.5, **who)
    like = rpc.call("memory.add", content="deploy with make deploy from the  MAIN branch.", **who)
    assert (like["outcome"], like["memory"]["id"]) == ("duplicate", known["memory"]["id"])
    assert like["memory"]["confidence"] == pytest.approx(0.6)
    other = rpc.call("memory.add", content="The staging database is read-only", confidence=0.5, **who)
    assert (other["outcome"], other["memory"]["confidence"]) == ("created", 0.5)
    assert rpc.call("memory.get", id=known["memory"]["id"], scopes=[scope])["confidence"] == pytest.approx(0.6)


def test_low_confidence_fact_is_not_recalled_unless_pinned_or_searched(rpc: RawConnection, scope: str) -> None:
    """Case 7: low confidence hidden."""
    who = {"scope": scope, "scopes": [scope]}
    for content, given in {
        "The bakery opens at six": {"confidence": 0.3},
        "The bakery might close on Mondays": {"confidence": 0.29},
        "The bakery may sell pretzels": {"confidence": 0.1, "pinned": True},
    }.items():
        rpc.call("memory.add", content=content, force=True, **who, **given)
    for asked in ({"query": "the bakery downtown"}, {}):
        told = rpc.call("memory.context", scopes=[scope], **asked)["text"]
        assert "six" in told
        assert "pretzels" in told
        assert "Mondays" not in told
    found = rpc.call("memory.search", query="bakery closed on Mondays", scopes=[scope])["hits"]
    assert found[0]["memory"]["content"] == "The bakery might close on Mondays"


def test_facts_decay_with_the_days_and_are_archived(home: Path, scope: str) -> None:
    """Case 7: decay at 7 d; delete at 30 d: here a fact fades from its first day on, and is put away, not deleted."""
    daemon = ClockedDaemon(home, CLANKERS_EMBEDDER="none", CLANKERS_MAINTAIN_HOURS="0")
    try:
        with daemon.start().connect() as store:

            def age(name: str, days: int, **given: Any) -> str:
                daemon.set_clock(-days * DAY_SECONDS)
                return bring(store, scope, name, days, **given)

            by_age = [age(f"age{days}", days, sector="episodic") for days in (0, 7, 30)]
            faded = {"sector": "episodic", "salience": 0.06}
            week = [age(f"faded{days}", days, **faded) for days in (6, 8)]
            month = [age(f"unsure{days}", days, confidence=0.2) for days in (29, 31)]
            kept = [age("sure", 31), age("pinned", 31, confidence=0.2, pinned=True)]
            daemon.set_clock(0)
            strengths = [store.call("memory.get", id=name, scopes=[scope])["salience"] for name in by_age]
            assert strengths == sorted(strengths, reverse=True)
            assert strengths[1] == pytest.approx(math.exp(-0.02 / 0.6 * 7), abs=0.001)
            changes = {one["memoryId"]: one["reason"] for one in store.call("memory.maintain")["changes"]}
            assert [state_of(store, name, scope) for name in (*week, *month)] == ["current", "archived"] * 2
            assert {state_of(store, name, scope) for name in (*by_age, *kept)} == {"current"}
            assert changes[month[1]] == "unsure (0.20) and not confirmed in 30 days"
            assert store.call("memory.restore", id=month[1], scopes=[scope])["state"] == "current"
    finally:
        daemon.close()


def test_context_works_with_and_without_an_embedder_and_may_be_empty(
    rpc: RawConnection, scope: str, home: Path
) -> None:
    """Case 7: context with and without embedding; empty → ""."""
    assert rpc.call("memory.context", scopes=[scope])["text"] == ""
    assert rpc.call("memory.context", query="anything", scopes=[scope])["text"] == ""
    fact = "Invoices are rounded to cents"
    rpc.call("memory.add", content=fact, scope=scope, scopes=[scope])
    settled(rpc)
    by_meaning = rpc.call("memory.context", query="how do we round money", scopes=[scope])
    assert fact in by_meaning["text"]
    assert by_meaning["degraded"] is None
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as without:
        assert without.call("memory.context")["text"] == ""
        without.call("memory.add", content=fact)
        for asked in ({}, {"query": "how are invoices rounded"}):
            told = without.call("memory.context", **asked)
            assert fact in told["text"]
            assert bool(told["degraded"]) == bool(asked)


# -- 8


def after(schedule: str, now: str, zone: str = "UTC") -> str:
    """The next run after a local moment, in UTC."""
    where = ZoneInfo(zone)
    found = parse_schedule(schedule, where).next_after(
        datetime.fromisoformat(now).replace(tzinfo=where).astimezone(UTC)
    )
    assert found
    return found.strftime("%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("schedule", "now", "expected"),
    [
        ("09:30 once", "2026-03-04 08:00", "2026-03-04 09:30"),
        ("09:30 once", "2026-03-04 10:00", "2026-03-05 09:30"),
        ("09:30 daily", "2026-03-04 09:29", "2026-03-04 09:30"),
        ("09:30 daily", "2026-03-04 09:30", "2026-03-05 09:30"),
        ("9:30 DAILY", "2026-12-31 12:00", "2027-01-01 09:30"),
        ("00:00 daily", "2026-12-31 23:59", "2027-01-01 00:00"),
        ("23:59 daily", "2026-12-31 23:59", "2027-01-01 23:59"),
        ("08:00 weekly(monday)", "2026-03-04 12:00", "2026-03-09 08:00"),
        ("08:00 weekly(Wed)", "2026-03-04 07:00", "2026-03-04 08:00"),
        ("08:00 weekly(wed)", "2026-03-04 08:00", "2026-03-11 08:00"),
        ("08:00 weekly(rabu)", "2026-03-04 07:00", "2026-03-04 08:00"),
        ("08:00 weekly(minggu)", "2026-03-04 07:00", "2026-03-08 08:00"),
        ("08:00 custom(mon, fri)", "2026-03-04 12:00", "2026-03-06 08:00"),
        ("08:00 custom(mon,fri)", "2026-03-06 12:00", "2026-03-09 08:00"),
        ("08:00 custom(senin,thu)", "2026-12-31 12:00", "2027-01-04 08:00"),
        ("08:00 monthly(15)", "2026-03-04 12:00", "2026-03-15 08:00"),
        ("08:00 monthly(15)", "2026-12-20 12:00", "2027-01-15 08:00"),
        ("30 9 * * 1-5", "2026-03-06 12:00", "2026-03-09 09:30"),
        ("*/15 * * * *", "2026-03-06 12:01", "2026-03-06 12:15"),
        ("0 0 1 JAN *", "2026-03-06 12:00", "2027-01-01 00:00"),
        ("@monthly", "2026-12-06 12:00", "2027-01-01 00:00"),
    ],
)
def test_schedule_computes_each_recurrence(schedule: str, now: str, expected: str) -> None:
    """Case 8: schedule: each recurrence, Dec→Jan, before/after time today."""
    assert after(schedule, now) == expected


@pytest.mark.parametrize(
    ("schedule", "now", "expected"),
    [
        ("20:00 daily", "2027-01-31 12:00", "2027-02-01 04:00"),
        ("20:00 monthly(31)", "2027-02-01 12:00", "2027-03-01 04:00"),
        ("20:00 daily", "2026-12-31 21:00", "2027-01-02 04:00"),
    ],
)
def test_schedule_behind_utc_uses_the_local_day(schedule: str, now: str, expected: str) -> None:
    """Case 8: negative tz."""
    assert after(schedule, now, "America/Los_Angeles") == expected


@pytest.mark.parametrize("schedule", ["24:00 daily", "09:60 daily", "09:00 weekly(noday)", "09:00 sometimes"])
def test_schedule_that_is_invalid_is_rejected(rpc: RawConnection, schedule: str) -> None:
    """Case 8: invalid hour/minute/day/recurrence rejected."""
    code, message = error_of(rpc, "schedule.create", description="d", schedule=schedule)
    assert (code, "$.schedule" in message) == (InvalidParams.code, True)
    assert rpc.call("schedule.list")["actions"] == []


# -- 9


def test_next_run_is_set_before_the_action_is_handed_out(fresh_daemon: DaemonProcess) -> None:
    """Case 9: scheduler: next_run updated before execution; once disabled, daily not."""
    with fresh_daemon.connect() as connection, fresh_daemon.connect() as worker:
        daily, once = create(connection), create(connection, "09:00 once")
        worker.call("schedule.subscribe")
        for action in (daily, once):
            make_due(fresh_daemon, action)
            wake(connection, action)
        handed = [next_run_of(worker)["action"] for _ in range(2)]
        states = {action["id"]: (action["enabled"], action["nextRun"]) for action in handed}
        assert states[once] == (False, None)
        assert states[daily][0] is True
        assert states[daily][1] > time.time() * 1000


def test_failed_action_is_recorded_and_does_not_stop_others(fresh_daemon: DaemonProcess) -> None:
    """Case 9: one failing action does not stop others."""
    with fresh_daemon.connect() as connection, fresh_daemon.connect() as worker:
        worker.call("schedule.subscribe")
        bad, good = create(connection, description="bad"), create(connection, description="good")
        for action in (bad, good):
            make_due(fresh_daemon, action)
            wake(connection, action)
        for _ in range(2):
            run = next_run_of(worker)
            state = "failed" if run["action"]["id"] == bad else "done"
            worker.call("schedule.ack", runId=run["runId"], state=state, error="boom" if state == "failed" else None)
        assert [(run["state"], run["error"]) for run in ended(connection, bad)] == [("failed", "boom")]
        assert [run["state"] for run in ended(connection, good)] == ["done"]
        assert connection.call("schedule.get", id=bad)["enabled"] is True
        assert [run["description"] for run in connection.call("schedule.history", state="failed")["runs"]] == ["bad"]


def test_database_error_delays_a_run_and_loses_none(fresh_daemon: DaemonProcess) -> None:
    """Case 9: store error skips the tick."""
    with fresh_daemon.connect() as connection, fresh_daemon.connect() as worker:
        action = create(connection, "0 0 1 1 *")
        lock = apsw.Connection(str(fresh_daemon.database))
        lock.set_busy_timeout(5000)
        lock.execute("BEGIN IMMEDIATE")
        lock.execute("UPDATE scheduled_actions SET next_run = 1 WHERE id = ?", (action,))
        lock.execute("COMMIT; BEGIN IMMEDIATE")
        worker.call("schedule.subscribe")
        eventually(lambda: connection.call("health")["ok"] is False, "the daemon cannot store")
        lock.execute("ROLLBACK")
        lock.close()
        run = next_run_of(worker)
        assert run["action"]["id"] == action
        assert worker.call("schedule.ack", runId=run["runId"])["state"] == "done"
        assert len(runs(connection)) == 1


def test_daemon_stops_promptly_while_actions_wait_and_run(fresh_daemon: DaemonProcess) -> None:
    """Case 9: clean shutdown."""
    with fresh_daemon.connect() as connection, fresh_daemon.connect() as worker:
        worker.call("schedule.subscribe")
        action = create(connection)
        make_due(fresh_daemon, action)
        wake(connection, action)
        next_run_of(worker)
    assert fresh_daemon.stop() == 0


# -- 10


def shelve(store: RawConnection, *names: str) -> None:
    """Documents of five chunks each, unlinked: a0 … a4."""
    for name in names:
        chunks = [{"id": f"{name}{n}", "content": f"Text {name}{n} on its own."} for n in range(5)]
        store.call("document.store", id=name, chunks=chunks, sequence=False)


def test_edges_are_listed_by_source_and_target(rpc: RawConnection) -> None:
    """Case 10: graph: store/get/incoming; description kept."""
    shelve(rpc, "a", "b")
    link(rpc, edge("a0", "a1", description="see there"), edge("a0", "b1", "elaborates", 0.4), edge("a2", "a1"))
    out = rpc.call("graph.getEdges", ids=["a0"])
    assert [(one["targetId"], one["weight"], one["description"]) for one in out] == [
        ("a1", 1.0, "see there"),
        ("b1", 0.4, None),
    ]
    assert {one["sourceId"] for one in rpc.call("graph.incoming", ids=["a1"])} == {"a0", "a2"}
    assert [one["targetId"] for one in rpc.call("graph.getEdges", ids=["a0"], relations=["elaborates"])] == ["b1"]
    assert rpc.call("graph.getEdges", ids=["b4"]) == []
    assert len(rpc.call("graph.getEdges", ids=["a0", "a2"], limit=2)) == 2


def test_edges_of_the_same_pair_and_relation_take_the_highest_weight(rpc: RawConnection) -> None:
    """Case 10: duplicate edges keep max."""
    shelve(rpc, "a")
    assert link(rpc, edge("a0", "a1", weight=0.5, description="first")) == {
        "stored": 1,
        "strengthened": 0,
        "kept": 0,
    }
    assert link(rpc, edge("a0", "a1", weight=0.3)) == {"stored": 0, "strengthened": 0, "kept": 1}
    assert link(rpc, edge("a0", "a1", weight=0.9), edge("a0", "a1", weight=0.7)) == {
        "stored": 0,
        "strengthened": 1,
        "kept": 1,
    }
    link(rpc, edge("a0", "a1", "similar_to", 0.2), edge("a1", "a0", weight=0.1))
    out = rpc.call("graph.getEdges", ids=["a0"])
    assert [(one["relation"], one["weight"], one["description"]) for one in out] == [
        ("references", 0.9, "first"), ("similar_to", 0.2, None),
    ]  # fmt: skip


def test_orphaned_edges_left_by_another_program_are_pruned(home: Path) -> None:
    """Case 10: prune orphan."""
    with running_daemon(home) as daemon:
        with daemon.connect() as connection:
            chunks = [{"id": f"c{n}", "content": f"chunk {n}"} for n in range(3)]
            connection.call("document.store", chunks=chunks, source="s")
        daemon.stop()
        daemon.close()
        db = apsw.Connection(str(daemon.database))
        db.execute("PRAGMA foreign_keys = OFF; DELETE FROM document_chunks WHERE id = 'c2'")
        db.close()
        with daemon.start().connect() as connection:
            assert connection.call("graph.prune")["orphans"] == 1
            assert len(connection.call("graph.getEdges", ids=["c0", "c1"])) == 1


def test_consecutive_chunks_are_linked_in_order(rpc: RawConnection) -> None:
    """Case 10: sequence edges with unsorted input; single chunk none."""
    chunks = [{"id": f"c{number}", "content": f"text {number}"} for number in (3, 1, 2)]
    rpc.call("document.store", chunks=chunks, source="linked")
    edges = rpc.call("graph.getEdges", ids=["c3", "c1", "c2"])
    assert {(edge["sourceId"], edge["targetId"]) for edge in edges} == {("c3", "c1"), ("c1", "c2")}
    assert {(edge["relation"], edge["weight"]) for edge in edges} == {("sequence", 1.0)}
    rpc.call("document.store", chunks=chunks[1:], source="linked")
    assert len(rpc.call("graph.getEdges", ids=["c3", "c1", "c2"])) == 1
    rpc.call("document.store", chunks=[{"id": "alone", "content": "one"}], source="single")
    assert rpc.call("graph.getEdges", ids=["alone"]) == []


@pytest.mark.parametrize("said", ['```json\n{"a": [1]}\n```', '```\n{"a": [1]}\n```\n', ' {"a": [1]} '])
def test_fenced_json_is_parsed(said: str) -> None:
    """Case 10: fenced JSON parsed: what a model is asked for comes wrapped more often than not."""
    assert decode_answer(said, dict) == {"a": [1]}


# -- 11


class Meanings:
    """An embedding service that knows two meanings, until it is away."""

    def __init__(self) -> None:
        self.away = False

    def __call__(self, request: Request) -> Answer:
        if self.away:
            return say({"error": {"message": "come back later"}}, 401)
        return embeddings(request, [self._vector(text) for text in request.texts])

    @staticmethod
    def _vector(text: str) -> list[float]:
        at_sea = any(word in text for word in ("ship", "boat", "vessel"))
        ashore = any(word in text for word in ("forest", "tree"))
        return [float(at_sea and not ashore), float(ashore), 0.1]


@contextmanager
def knowing(home: Path) -> Iterator[tuple[Meanings, Service, RawConnection]]:
    """A daemon whose embedder is that service."""
    meanings = Meanings()
    with served(meanings) as service:
        known = {"EMBEDDER": "openai", "EMBEDDER_URL": service.url, "EMBEDDER_MODEL": "two"}
        environ = {f"CLANKERS_{name}": value for name, value in known.items()}
        with running_daemon(home, **environ) as daemon, daemon.connect() as connection:
            yield meanings, service, connection


def test_hybrid_search_works_with_either_part_alone_and_with_neither(home: Path) -> None:
    """Case 11: RRF order; hybrid falls back to vector only; reranker failure passes through.

    Here scores of both halves are scaled and weighed. What fails is left out and named, and all later stages go on.
    """
    contents = {
        "both": "A ship leaves the harbour.",
        "meaning": "The boat is back.",
        "words": "A ship of the forest: the tree.",
        "none": "The forest is dark.",
    }
    with knowing(home) as (meanings, _, connection):
        chunks = [{"id": name, "content": content} for name, content in contents.items()]
        connection.call("document.store", chunks=chunks, source="stories")
        settled(connection)

        def found(query: str, **params: Any) -> tuple[list[str], dict[str, Any]]:
            answer = connection.call("search", query=query, sources=["documents"], **params)
            return [hit["ref"]["documentChunkId"] for hit in answer["hits"]], answer

        names, answer = found("ship")
        assert (names[0], names[-1]) == ("both", "none")
        assert (answer["mode"], answer["degraded"]) == ("hybrid", None)
        assert set(found("vessel")[0][:2]) == {"both", "meaning"}
        meanings.away = True
        names, answer = found("ship", graph={"hops": 1}, halfLifeDays=30, diversity=0.5)
        assert set(names) == set(contents)  # by its words, and along the graph
        assert answer["mode"] == "keyword"
        assert "vector search unavailable" in answer["degraded"]


def test_child_chunks_are_searched_and_parents_returned_once(rpc: RawConnection) -> None:
    """Case 11: parent-child resolution dedups."""
    text = "\n\n".join(f"Section {n}. The capercaillie displays here. {'More is said of it. ' * 40}" for n in range(12))
    ingested = rpc.call("document.ingest", text=text, source="p", strategy="parentChild", chunkTokens=64)
    rows = chunks_of(rpc, ingested["document"]["id"])
    parents = {row["id"]: row for row in rows if row["parentId"] is None}
    children = [row for row in rows if row["parentId"] is not None]
    assert all(row["content"] in parents[row["parentId"]]["content"] for row in children)
    assert ingested["document"]["chunks"] == len(children)
    settled(rpc)
    found = [rpc.call(method, query="capercaillie")["hits"] for method in ("chunk.search", "chunk.searchKeyword")]
    for hits in (
        [(hit["ref"]["documentChunkId"], hit["text"]) for hit in search(rpc, "capercaillie", limit=50)],
        *([(hit["chunk"]["id"], hit["chunk"]["content"]) for hit in one] for one in found),
    ):
        assert hits
        assert len({chunk for chunk, _ in hits}) == len(hits)
        assert all(parents[chunk]["content"] == content for chunk, content in hits)


# -- 12


@pytest.fixture
def linked(rpc: RawConnection) -> RawConnection:
    """One chunk that the words find, and others that only the graph leads to."""
    texts = {
        "q0": "The zeppelin landed at dawn.",
        "q1": "Mooring took an hour.",
        "q2": "Tea was served.",
        "q3": "It rained.",
    }
    chunks = [{"id": name, "content": text, "metadata": {"kept": name != "q3"}} for name, text in texts.items()]
    rpc.call("document.store", id="q", source="q", title="Journey", chunks=chunks, sequence=False)
    link(
        rpc,
        edge("q0", "q1", "caused_by", 0.8),
        edge("q1", "q2", "elaborates", 0.5),
        edge("q0", "q3"),
        edge("q2", "q0"),
    )
    return rpc


def hits(connection: RawConnection, graph: dict[str, Any] | None, **params: Any) -> dict[str, dict[str, Any]]:
    asked = {"query": "zeppelin", "mode": "keyword", "sources": ["documents"], "graph": graph, **params}
    return {hit["ref"]["documentChunkId"]: hit for hit in connection.call("search", **asked)["hits"]}


def test_search_follows_the_graph_only_on_request(linked: RawConnection) -> None:
    """Case 12: graph traversal adds neighbours, respects hop decay; falls back without graph."""
    assert set(hits(linked, None)) == {"q0"}
    found = hits(linked, {"hops": 2, "decay": 0.5, "direction": "out"}, explain=True)
    assert {name: round(hit["score"] / found["q0"]["score"], 4) for name, hit in found.items()} == {
        "q0": 1.0, "q3": 0.5, "q1": 0.4, "q2": 0.1,
    }  # fmt: skip
    assert found["q0"]["way"] is None
    assert [(step["fromId"], step["relation"], step["toId"]) for step in found["q2"]["way"]] == [
        ("q0", "caused_by", "q1"), ("q1", "elaborates", "q2"),
    ]  # fmt: skip
    assert found["q2"]["components"]["graph"] == pytest.approx(found["q2"]["score"], abs=1e-5)


def test_search_along_the_graph_respects_hops_direction_and_relations(linked: RawConnection) -> None:
    """Case 12: respects direction, relation filter."""
    assert set(hits(linked, {"direction": "out"})) == {"q0", "q1", "q3"}
    assert set(hits(linked, {"direction": "in"})) == {"q0", "q2"}
    assert set(hits(linked, {"relations": ["caused_by"]})) == {"q0", "q1"}
    assert set(hits(linked, {"seeds": 1, "hops": 5})) == {"q0", "q1", "q2", "q3"}


def test_search_along_the_graph_respects_filters(linked: RawConnection) -> None:
    """Case 12: neighbours are added to what was asked for, and to nothing else."""
    filters = [{"field": "meta.kept", "op": "eq", "value": True}]
    assert set(hits(linked, {"hops": 2}, filters=filters)) == {"q0", "q1", "q2"}
    assert set(hits(linked, {"hops": 2, "direction": "out"}, minScore=0.6)) == {"q0", "q3"}


def test_search_without_documents_ignores_the_graph(linked: RawConnection) -> None:
    """Case 12: falls back where there is no graph."""
    linked.call(
        "upsertMessage", message={"id": "zm", "sessionId": "zs", "role": "user", "textContent": "zeppelin talk"}
    )
    found = linked.call("search", query="zeppelin", sources=["sessions"], graph={})["hits"]
    assert [hit["ref"]["messageId"] for hit in found] == ["zm"]
    linked.call("session.delete", id="zs")


def test_search_finds_neighbours_of_a_hit_after_ingestion(rpc: RawConnection) -> None:
    """Case 12: what ingesting links is followed, too."""
    text = "\n\n".join(f"Part {n}. {'Filler words stand here. ' * 14}{'The dirigible.' * (n == 3)}" for n in range(7))
    rpc.call("document.ingest", text=text, source="parts", chunkTokens=100, overlap=0)
    found = hits(rpc, {"hops": 1}, query="dirigible")
    ways = {hit["ref"]["startLine"]: hit["way"] for hit in found.values()}
    assert ways.pop(7) is None
    assert {line: way[0]["relation"] for line, way in ways.items()} == {5: "sequence", 9: "sequence"}


# -- 13


def test_chunks_are_split_where_a_reader_would(rpc: RawConnection) -> None:
    """Case 13: chunkers respect max, abbreviations, decimals, CJK, long word; markdown keeps headings."""
    sentences = [
        "Dr. Smith measured 3.14 metres, e.g. with a tape.", "Prof. Jones had 2.72 of them, i.e. far too few!",
        "我们今天去公园散步。", "明天也许会下雨吗？", "Was it approx. 1.5 miles? Nobody knew.",
    ]  # fmt: skip
    prose = " ".join(sentences * 6)
    long_word = "x" * 3000
    section = "Words that say something about it, at length and in detail. " * 4
    guide = f"# Guide\n\n## Install\n\n{section}\n\n## Use\n\n{section}"
    cut: dict[str, list[dict[str, Any]]] = {}
    for name, text in {"prose": prose, "word": f"Before it. {long_word} After it.", "guide": guide}.items():
        asked = {"chunkTokens": 64, "overlap": 0, "kind": "markdown" if name == "guide" else "text"}
        document = rpc.call("document.ingest", text=text, source=name, **asked)["document"]
        cut[name] = chunks_of(rpc, document["id"])
        for chunk in cut[name]:
            assert size_of(chunk["content"]) <= 64 * QUARTERS_PER_TOKEN
            assert text[chunk["startOffset"] : chunk["endOffset"]] == chunk["content"]
    begins = {"Dr.", "Prof.", "Was", "Nobody", "我们今天去公园散步。", "明天也许会下雨吗？"}
    assert {chunk["content"].split()[0] for chunk in cut["prose"]} <= begins
    assert "".join(chunk["content"] for chunk in cut["word"]).count("x") == 3000
    headings = {"Guide": "# Guide", "Guide > Install": "## Install", "Guide > Use": "## Use"}
    for path, heading in headings.items():
        first = next(chunk for chunk in cut["guide"] if chunk["metadata"]["section_path"] == path)
        assert first["content"].startswith(heading)
    assert {chunk["metadata"]["section_path"] for chunk in cut["guide"]} == set(headings)


# -- 14


def test_embeddings_are_requested_in_batches(home: Path) -> None:
    """Case 14: ingest batches embeddings."""
    with knowing(home) as (_, service, connection):
        chunks = [{"content": f"The tree number {number}."} for number in range(200)]
        connection.call("document.store", chunks=chunks, source="wood")
        settled(connection)
        assert sum(len(request.texts) for request in service.requests) == 200
        assert len(service.requests) <= 20


def test_extraction_process_that_dies_fails_only_its_file(fresh_daemon: DaemonProcess, tmp_path: Path) -> None:
    """Case 14: extractor panic → error."""
    (tmp_path / "slow.json").write_text(json.dumps([str(number) for number in range(2_000_000)]))
    assert fresh_daemon.process
    pid = fresh_daemon.process.pid
    with fresh_daemon.connect() as connection, fresh_daemon.connect() as other:
        params = {"path": str(tmp_path / "slow.json"), "chunkTokens": 32}
        connection.send({"jsonrpc": "2.0", "id": "slow", "method": "document.ingest", "params": params})
        (child,) = eventually(lambda: children(pid), "it is at work")
        os.kill(child, signal.SIGKILL)
        assert "ended the process" in connection.receive()["error"]["message"]
        assert other.call("document.ingest", text="Still here.")["outcome"] == "stored"
        assert (
            other.call("document.get", source=other.call("document.list")["documents"][0]["source"])["text"]
            == "Still here."
        )


def children(parent: int) -> list[int]:
    """The processes a process has begun."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout
        return [int(number) for number in listed.split()]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end while it is looked at
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def test_ingestion_resumes_from_any_stage(home: Path) -> None:
    """Case 14: checkpoint resume per stage: accepted, half stored, stored but not noted, noted but not told."""
    text = {name: f"# {name}\n\n" + f"{name} goes on. " * 400 for name in ("accepted", "half", "stored", "noted")}
    daemon = DaemonProcess(home, CLANKERS_EMBEDDER="none")
    try:
        with daemon.start().connect() as connection:
            for name in ("half", "stored", "noted"):
                connection.call("document.ingest", text=text[name], source=name, kind="markdown")
            whole = rows(connection, "SELECT id, content FROM document_chunks ORDER BY id")
        assert daemon.stop() == 0
        daemon.close()
        halved = "SELECT id FROM documents WHERE source = 'half'"
        change_database(daemon, f"DELETE FROM document_chunks WHERE chunk_index > 0 AND document_id IN ({halved})")
        change_database(daemon, "UPDATE documents SET checksum = NULL WHERE source = 'half'")
        put_down = "INSERT INTO ingest_items (batch, position, request, outcome) VALUES ('0', ?, ?, ?)"
        for position, name in enumerate(text):
            request = json.dumps({"text": text[name], "source": name, "kind": "markdown"})
            change_database(daemon, put_down, position, request, "stored" if name == "noted" else None)
        with daemon.start().connect() as connection:
            job = eventually(lambda: connection.call("job.list", limit=1), "it goes on")[0]["id"]
            result = finished(connection, job)
            assert result == {"stored": 2, "updated": 1, "unchanged": 1, "failed": []}
            assert rows(connection, "SELECT count(*) FROM ingest_items") == [[0]]
            found = connection.call("document.list")["documents"]
            assert {one["source"]: one["complete"] for one in found} == dict.fromkeys(text, True)
            now = rows(connection, "SELECT id, content FROM document_chunks ORDER BY id")
            assert [row for row in now if not row[1].startswith(("# accepted", "accepted"))] == whole
    finally:
        daemon.close()


def test_bad_document_of_a_batch_fails_alone(rpc: RawConnection, tmp_path: Path) -> None:
    """Case 14: batch partial failure."""
    (tmp_path / "locked.pdf").write_bytes(pdf("secret", password="x"))
    (tmp_path / "good.md").write_text("# Good\n\nIt speaks of axolotls.")
    items = [
        {"path": str(tmp_path / "good.md")},
        {"path": str(tmp_path / "locked.pdf")},
        {"path": str(tmp_path / "missing.txt")},
        {"text": "a", "data": "b"},
        {"data": "no base64!", "source": "s"},
        {"text": "Some text on quokkas."},
        {"path": str(tmp_path / "good.md")},
    ]
    result = finished(rpc, rpc.call("document.ingestMany", documents=items)["jobId"])
    assert (result["stored"], result["unchanged"]) == (2, 1)
    assert [one["position"] for one in result["failed"]] == [1, 2, 3, 4]
    assert "encrypted" in result["failed"][0]["error"]
    assert result["failed"][0]["source"] == str(tmp_path / "locked.pdf")
    assert search(rpc, "axolotls")
    assert search(rpc, "quokkas")
    assert rpc.call("query", sql="SELECT count(*) FROM ingest_items")["rows"] == [[0]]


@pytest.mark.parametrize("strategy", ["recursive", "markdown", "semantic", "parentChild"])
def test_chunk_offsets_lie_within_the_document(rpc: RawConnection, strategy: str) -> None:
    """Case 14: offset overflow regression: overlaps longer than chunks, letters of four bytes, reading past the end."""
    text = "# 🙂\n\n" + "Ünïcode 𝄞 and 你好 stand here. " * 60 + "\n\n" + "𝄞" * 500
    asked = {"strategy": strategy, "chunkTokens": 64, "overlap": 1000}
    document = rpc.call("document.ingest", text=text, source=strategy, **asked)["document"]
    assert document["characters"] == len(text)
    for chunk in chunks_of(rpc, document["id"]):
        assert 0 <= chunk["startOffset"] < chunk["endOffset"] <= len(text)
        assert text[chunk["startOffset"] : chunk["endOffset"]] == chunk["content"]
    beyond = rpc.call("document.get", id=document["id"], offset=len(text) + 10**9)
    assert (beyond["text"], beyond["nextOffset"]) == ("", None)


# -- 15


def test_memory_update_preserves_its_creation_time(rpc: RawConnection, scope: str) -> None:
    """Case 15: memory item store conformance: upsert keeps created_at."""
    name, who = bring(rpc, scope, "rule", 3), {"scopes": [scope]}
    made = rpc.call("memory.get", id=name, **who)["createdAt"]
    record = {"id": name, "content": "rule of the shop", "scope": scope, "createdAt": NOW}
    assert rpc.call("memory.import", memories=[record], **who)["unchanged"] == 1
    assert rpc.call("memory.add", content="Rule of the shop", scope=scope, **who)["outcome"] == "duplicate"
    changed = rpc.call("memory.update", id=name, content="the other rule", **who)
    assert (changed["createdAt"], changed["updatedAt"] > made) == (made, True)


def test_memories_are_listed_by_kind_scope_and_pin_and_not_when_expired(rpc: RawConnection, scope: str) -> None:
    """Case 15: list by kind/scope/pinned; expired hidden; get missing = not found."""
    fact = bring(rpc, scope, "fact", 1, category="fact")
    note = bring(rpc, scope, "note", 2, category="decision", pinned=True)
    gone = bring(rpc, scope, "gone", 3, category="fact", expiresAt=NOW - DAY_MS)
    other = bring(rpc, f"{scope}-other", "elsewhere", 4, category="fact")

    def listed(**given: Any) -> list[str]:
        return [one["id"] for one in rpc.call("memory.list", **({"scopes": [scope]} | given))["memories"]]

    assert listed() == [fact, note]
    assert listed(category="fact") == [fact]
    assert listed(pinned=True) == [note]
    assert listed(pinned=False) == [fact]
    assert listed(scopes=[f"{scope}-other"]) == [other]
    assert listed(scopes=[]) == []
    assert listed(include=["expired"], category="fact") == [fact, gone]
    assert rpc.call("memory.search", query="gone", scopes=[scope], mode="keyword")["hits"] == []
    assert error_of(rpc, "memory.get", id="missing") == (NotFound.code, "memory not found: missing")


def test_memory_delete_without_a_filter_is_rejected(rpc: RawConnection, scope: str) -> None:
    """Case 15: delete with empty filter rejected; a filter on tags deletes what has them, and nothing else."""
    tagged, plain = bring(rpc, scope, "tagged", 1, tags=["old"]), bring(rpc, scope, "plain", 1)
    for params in ({}, {"scopes": ["*"]}, {"dryRun": True}):
        assert error_of(rpc, "memory.bulkDelete", **params)[0] == InvalidParams.code
    assert rpc.call("memory.bulkDelete", tag="old", scopes=[scope])["ids"] == [tagged]
    assert (state_of(rpc, tagged, scope), state_of(rpc, plain, scope)) == ("deleted", "current")


def test_sent_event_is_stored_although_the_client_disconnects(
    shared_daemon: DaemonProcess, rpc: RawConnection, scope: str
) -> None:
    """Case 15: persistence survives cancelled context."""
    with shared_daemon.connect() as hasty:
        known = {"content": "Said in passing", "scope": scope, "scopes": [scope]}
        for number, (method, params) in enumerate(
            [
                ("memory.add", known),
                ("message.store", {"threadId": scope, "role": "user", "content": "and gone"}),
                ("document.ingest", {"text": "Left on the table.", "source": scope}),
            ]
        ):
            hasty.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    eventually(lambda: rpc.call("memory.list", scopes=[scope])["memories"], "the memory is stored")
    eventually(lambda: "result" in rpc.request("thread.get", {"id": scope}), "the message is stored")
    eventually(lambda: "result" in rpc.request("document.get", {"source": scope}), "the document is stored")


def test_flood_of_messages_is_stored_completely(shared_daemon: DaemonProcess, rpc: RawConnection) -> None:
    """Case 15: persistence survives backpressure: a client that does not read is not read, and loses nothing."""
    count = 1000

    def send() -> None:
        for number in range(count):
            params = {"threadId": "flood", "role": "user", "content": f"drop {number} {'of water ' * 100}"}
            flooding.send({"jsonrpc": "2.0", "id": number, "method": "message.store", "params": params})

    with shared_daemon.connect() as flooding:
        sender = threading.Thread(target=send)
        sender.start()
        eventually(lambda: rows(rpc, "SELECT count(*) FROM messages")[0][0] >= 50, "it is being flooded")
        answers = [flooding.receive() for _ in range(count)]
        sender.join()
    assert all("result" in answer for answer in answers)
    assert rpc.call("thread.get", id="flood")["messages"] == count
