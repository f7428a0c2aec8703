"""Long-term memories over the socket: duplicates, strength, change, scopes, time, search."""

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.waiting import settled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clankersd.memories.salience import DAY_MS, Salience

LESS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def scope() -> str:
    """A scope that no other test has."""
    return f"custom:{uuid.uuid4()}"


def add(rpc: RawConnection, content: str, scope: str = "global", **given: Any) -> dict[str, Any]:
    return dict(rpc.call("memory.add", content=content, scope=scope, scopes=[scope, "global"], **given))


def listed(rpc: RawConnection, scope: str, **given: Any) -> list[str]:
    found = rpc.call("memory.list", scopes=[scope], limit=1000, **given)
    return [memory["content"] for memory in found["memories"]]


def hits(rpc: RawConnection, query: str, scope: str, **given: Any) -> list[str]:
    found = rpc.call("memory.search", query=query, scopes=[scope], **given)
    return [hit["memory"]["content"] for hit in found["hits"]]


def refusal(rpc: RawConnection, method: str, **params: Any) -> str:
    reply = rpc.request(method, params)
    assert "error" in reply, reply
    assert "internal error" not in reply["error"]["message"]
    return str(reply["error"]["message"])


# --- Adding


def test_memory_is_returned_as_it_was_added(rpc: RawConnection, scope: str) -> None:
    given = {
        "summary": "where auth is", "sector": "semantic", "tier": "global", "category": "codebase", "importance": 0.9,
        "confidence": 0.7, "pinned": True, "tags": ["auth"], "concepts": ["JWT"], "files": ["src/auth.py"],
        "metadata": {"from": "me"}, "validFrom": 1_700_000_000_000, "validUntil": 4_000_000_000_000,
        "expiresAt": 4_000_000_000_000,
    }  # fmt: skip
    stored = add(rpc, "The auth module is in src/auth.py", scope, **given)
    assert stored["outcome"] == "created"
    memory = rpc.call("memory.get", id=stored["memory"]["id"], scopes=[scope])
    assert memory == stored["memory"]
    assert {name: memory[name] for name in given} == given
    assert (memory["state"], memory["salience"], memory["scope"]) == ("current", 1.0, scope)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"content": ""}, "content"),
        ({"content": " \n"}, "content"),
        ({"content": "x" * 100_001}, "content"),
        ({"content": "x", "importance": 1.1}, "importance"),
        ({"content": "x", "importance": -0.1}, "importance"),
        ({"content": "x", "confidence": 2}, "confidence"),
        ({"content": "x", "sector": "other"}, "sector"),
        ({"content": "x", "tier": "other"}, "tier"),
        ({"content": "x", "category": "Not A Category"}, "category"),
        ({"content": "x", "scope": "nonsense"}, "scope"),
        ({"content": "x", "scope": "agent:"}, "scope"),
        ({"content": "x", "scope": "agent:with space"}, "scope"),
        ({"content": "x", "scope": "agent:b", "agent": "a"}, "scope"),
        ({"content": "x", "scope": "custom:b", "scopes": ["custom:a"]}, "scope"),
        ({"content": "x", "scopes": []}, "scope"),
        ({"content": "x", "validFrom": 2_000_000_000_000, "validUntil": 1_900_000_000_000}, "validUntil"),
        ({"content": "x", "validUntil": "tomorrow"}, "validUntil"),
        ({"content": "x", "expiresAt": 1_000_000_000_000}, "expiresAt"),
        ({"content": "x", "sessionId": "no such session"}, "sessionId"),
        ({"content": "x", "supersedes": "no-such-memory"}, "not found"),
        ({"content": "x", "project": "no such project"}, "project"),
        ({"content": "x", "unknown": 1}, "unknown"),
    ],
)
def test_invalid_input_is_named_and_changes_nothing(rpc: RawConnection, params: dict[str, Any], field: str) -> None:
    before = rpc.call("memory.stats", scopes=["*"])["total"]
    assert field in refusal(rpc, "memory.add", **params)
    assert rpc.call("memory.stats", scopes=["*"])["total"] == before


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("memory.get", {"id": "nonsense"}),
        ("memory.update", {"id": "nonsense", "content": "x"}),
        ("memory.delete", {"id": "nonsense"}),
        ("memory.restore", {"id": "nonsense"}),
        ("memory.purge", {"id": "nonsense"}),
        ("memory.reinforce", {"id": "nonsense"}),
        ("memory.pin", {"id": "nonsense"}),
        ("memory.promote", {"id": "nonsense", "tier": "global"}),
        ("memory.history", {"id": "nonsense"}),
        ("memory.timeline", {"id": "nonsense"}),
    ],
)
def test_unknown_id_is_not_found(rpc: RawConnection, method: str, params: dict[str, Any]) -> None:
    assert "memory not found: nonsense" in refusal(rpc, method, **params)


def test_unique_id_prefix_is_enough(rpc: RawConnection, scope: str) -> None:
    ids = [str(uuid.uuid4())[:8] + tail for tail in ("-a", "-b")]
    shared = "abcdef01"
    records = [
        {"id": f"{shared}-{name}", "content": f"fact {name}", "createdAt": 1_700_000_000_000, "scope": scope}
        for name in ids
    ]
    assert rpc.call("memory.import", memories=records, scopes=[scope])["created"] == 2
    assert rpc.call("memory.get", id=f"{shared}-{ids[0]}"[:-1], scopes=[scope])["content"] == f"fact {ids[0]}"
    assert "several" in refusal(rpc, "memory.delete", id=shared, scopes=[scope])
    assert "not found" in refusal(rpc, "memory.delete", id=shared[:7], scopes=[scope])
    assert len(listed(rpc, scope)) == 2


# --- Duplicates


def test_memory_added_again_is_reinforced(rpc: RawConnection, scope: str) -> None:
    first = add(rpc, "Deploy with `make deploy` from the main branch", scope, confidence=0.5)["memory"]
    again = add(rpc, "deploy with make deploy from the  MAIN branch.", scope)
    assert again["outcome"] == "duplicate"
    assert again["memory"]["id"] == first["id"]
    assert again["memory"]["confidence"] == pytest.approx(0.6)
    assert again["memory"]["accessCount"] == 1
    assert len(listed(rpc, scope)) == 1


def test_long_memory_with_another_day_is_not_taken_for_a_duplicate(rpc: RawConnection, scope: str) -> None:
    text = (
        "The on-call rotation of the payments team changes every week on {} at nine in the morning, and whoever takes "
        "over reads the notes of the last incident and confirms the hand-over in the channel of the team before lunch"
    )
    for day in ("Tuesday", "Thursday"):
        assert rpc.call("memory.add", content=text.format(day), scope=scope)["outcome"] == "created"
        settled(rpc)
    context = rpc.call("memory.context", query="when does the on-call rotation change?", scopes=[scope])["text"]
    assert "Tuesday" in context
    assert "Thursday" in context


def test_force_stores_a_duplicate(rpc: RawConnection, scope: str) -> None:
    add(rpc, "The build needs Go 1.22", scope)
    assert add(rpc, "The build needs Go 1.22", scope, force=True)["outcome"] == "created"
    assert len(listed(rpc, scope)) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [("Use port 8080 for dev", "Use port 9090 for dev"), ("部署前必须运行测试", "提交前必须更新文档"), ("CI ok", "🎉")],
)
def test_different_text_is_stored_or_supersedes(rpc: RawConnection, scope: str, one: str, other: str) -> None:
    add(rpc, one, scope)
    assert add(rpc, other, scope)["outcome"] != "duplicate"


def test_same_text_in_another_scope_is_another_memory(rpc: RawConnection, scope: str) -> None:
    add(rpc, "Tests run with pytest -n 2", scope)
    assert add(rpc, "Tests run with pytest -n 2", f"{scope}-other")["outcome"] == "created"


def test_deleted_memory_does_not_prevent_adding_it_again(rpc: RawConnection, scope: str) -> None:
    first = add(rpc, "The linter is ruff", scope)["memory"]["id"]
    rpc.call("memory.delete", id=first, scopes=[scope])
    assert add(rpc, "The linter is ruff", scope)["outcome"] == "created"
    assert "has the same text" in refusal(rpc, "memory.restore", id=first, scopes=[scope])


def test_concurrent_additions_store_one_memory(shared_daemon: DaemonProcess, scope: str) -> None:
    outcomes: list[str] = []

    def tell() -> None:
        with shared_daemon.connect() as connection:
            outcomes.append(add(connection, "Releases are cut on Thursdays", scope)["outcome"])

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["created", *["duplicate"] * 7]


# --- Salience


def test_reading_does_not_change_salience(shared_daemon: DaemonProcess, rpc: RawConnection, scope: str) -> None:
    long_ago = 1_700_000_000_000
    record = {
        "id": f"old-{scope}",
        "content": "An old story",
        "createdAt": long_ago,
        "scope": scope,
        "sector": "episodic",
    }
    rpc.call("memory.import", memories=[record], scopes=[scope])
    [stored] = rpc.call("memory.export", scopes=[scope])["memories"]
    for _ in range(5):
        memory = rpc.call("memory.get", id=f"old-{scope}", scopes=[scope])
        hits(rpc, "old story", scope)
    expected = Salience(1.0, stored["salienceAt"], "episodic", 0.5, 0, False).effective(int(time.time() * 1000))
    assert memory["salience"] == pytest.approx(expected, abs=1e-4)
    assert memory["accessCount"] == 0
    assert rpc.call("memory.export", scopes=[scope])["memories"] == [stored]


def test_sorting_by_salience_follows_the_formula(rpc: RawConnection, scope: str) -> None:
    now = int(time.time() * 1000)
    records = [
        {
            "id": f"{scope}-{sector}-{days}", "content": f"{sector} {days}", "createdAt": now - days * DAY_MS,
            "scope": scope, "sector": sector, "importance": 0.3, "accessCount": days % 7,
            "salience": 1 - days / 500,
        }
        for sector in ("episodic", "semantic", "procedural", "emotional", "reflective")
        for days in (1, 30, 90, 400)
    ]  # fmt: skip
    rpc.call("memory.import", memories=records, scopes=[scope])
    found = rpc.call("memory.list", scopes=[scope], sort="salience", limit=100)["memories"]
    shown = [memory["salience"] for memory in found]
    assert shown == sorted(shown, reverse=True)
    assert len(found) == 20


def test_list_pages_are_complete_in_every_order(rpc: RawConnection, scope: str) -> None:
    for number in range(7):
        add(rpc, f"fact number {number} about thing{number}", scope, importance=number % 3 / 10, force=True)
    for sort in ("created", "updated", "salience", "importance", "accessed"):
        seen: list[str] = []
        page: dict[str, Any] = {"cursor": None}
        while True:
            page = rpc.call("memory.list", scopes=[scope], sort=sort, limit=3, cursor=page["cursor"])
            seen += [memory["id"] for memory in page["memories"]]
            if page["cursor"] is None:
                break
        assert len(seen) == len(set(seen)) == 7


def test_reinforce_deemphasize_and_pin(rpc: RawConnection, scope: str) -> None:
    name = add(rpc, "Prefers small commits", scope)["memory"]["id"]
    who = {"id": name, "scopes": [scope]}
    weaker = rpc.call("memory.deemphasize", amount=0.5, **who)["salience"]
    stronger = rpc.call("memory.reinforce", amount=0.5, **who)
    assert weaker == pytest.approx(0.5, abs=1e-3)
    assert stronger["salience"] == pytest.approx(0.75 + 0.02 * 0.693, abs=2e-3)
    assert stronger["accessCount"] == 1
    assert rpc.call("memory.pin", **who)["pinned"] is True
    assert rpc.call("memory.pin", pinned=False, **who)["pinned"] is False
    actions = [entry["action"] for entry in rpc.call("memory.history", **who)["log"]]
    assert actions == ["created", "deemphasized", "reinforced", "pinned", "unpinned"]


def test_session_usage_is_recorded_and_deleted_with_the_session(rpc: RawConnection, scope: str) -> None:
    rpc.call("upsertSession", session={"id": scope})
    name = add(rpc, "The queue is drained at night", scope, sessionId=scope)["memory"]["id"]
    rpc.call("memory.touch", ids=[name], sessionId=scope, usage="recalled", scopes=[scope])
    assert rpc.call("memory.get", id=name, scopes=[scope])["accessCount"] == 1
    assert listed(rpc, scope, sessionId=scope) == ["The queue is drained at night"]
    rpc.call("session.delete", id=scope)
    assert listed(rpc, scope) == ["The queue is drained at night"]


# --- Change


def test_updated_memory_is_found_by_its_new_words(rpc: RawConnection, scope: str) -> None:
    name = add(rpc, "The cache lives in Memcached", scope, tags=["cache"])["memory"]["id"]
    between = int(time.time() * 1000)
    time.sleep(0.005)
    after = rpc.call("memory.update", id=name, content="The cache lives in Valkey", reason="it moved", scopes=[scope])
    assert (after["id"], after["content"], after["tags"]) == (name, "The cache lives in Valkey", ["cache"])
    assert hits(rpc, "Valkey", scope, mode="keyword") == ["The cache lives in Valkey"]
    assert hits(rpc, "Memcached", scope, mode="keyword") == []
    assert rpc.call("memory.get", id=name, asOf=between, scopes=[scope])["content"] == "The cache lives in Memcached"
    entry = rpc.call("memory.history", id=name, scopes=[scope])["log"][-1]
    assert (entry["action"], entry["reason"], entry["before"]["content"]) == (
        "updated", "it moved", "The cache lives in Memcached",
    )  # fmt: skip
    rpc.call("memory.update", id=name, tags=["storage"], scopes=[scope])
    assert hits(rpc, "storage", scope, mode="keyword") == ["The cache lives in Valkey"]


def test_outdated_memory_is_superseded(rpc: RawConnection, scope: str) -> None:
    old = add(rpc, "Alice is the maintainer of billing", scope)["memory"]["id"]
    between = int(time.time() * 1000)
    time.sleep(0.005)
    new = add(rpc, "Bob took billing over", scope, supersedes=old)
    assert (new["outcome"], new["replaced"]) == ("superseded", old)
    assert listed(rpc, scope) == ["Bob took billing over"]
    assert listed(rpc, scope, asOf=between) == ["Alice is the maintainer of billing"]
    assert sorted(listed(rpc, scope, include=["superseded"])) == [
        "Alice is the maintainer of billing",
        "Bob took billing over",
    ]
    assert listed(rpc, scope, states=["superseded"]) == ["Alice is the maintainer of billing"]
    assert listed(rpc, scope, states=["deleted"]) == []
    before = rpc.call("memory.get", id=old, scopes=[scope])
    assert (before["state"], before["supersededBy"]) == ("superseded", new["memory"]["id"])
    assert hits(rpc, "who maintains billing", scope) == ["Bob took billing over"]
    ranked = hits(rpc, "billing maintainer Alice", scope, include=["superseded"])
    assert set(ranked) == {"Alice is the maintainer of billing", "Bob took billing over"}
    versions = rpc.call("memory.history", id=new["memory"]["id"], scopes=[scope])["versions"]
    assert [version["id"] for version in versions] == [old, new["memory"]["id"]]
    assert "already" in refusal(
        rpc, "memory.add", content="Carol owns billing now", supersedes=old, scope=scope, scopes=[scope]
    )


def test_supersession_is_taken_back_by_restoring_the_old_memory(rpc: RawConnection, scope: str) -> None:
    soon = int(time.time() * 1000) + DAY_MS
    old = add(rpc, "Alice is the maintainer of billing", scope, validUntil=soon)["memory"]["id"]
    new = add(rpc, "Bob took billing over", scope, supersedes=old)["memory"]["id"]
    between = int(time.time() * 1000)
    time.sleep(0.005)
    restored = rpc.call("memory.restore", id=old, scopes=[scope])
    assert (restored["state"], restored["supersededBy"], restored["validUntil"]) == ("current", None, soon)
    assert sorted(listed(rpc, scope)) == ["Alice is the maintainer of billing", "Bob took billing over"]
    assert listed(rpc, scope, asOf=between) == ["Bob took billing over"]
    assert rpc.call("memory.history", id=old, scopes=[scope])["log"][-1]["action"] == "restored"
    assert rpc.call("memory.restore", id=old, scopes=[scope])["validUntil"] == soon  # it is valid already
    again = rpc.call("relation.add", source=new, target=old, type="SUPERSEDES", scopes=[scope])
    assert again["validUntil"] is None
    assert listed(rpc, scope) == ["Bob took billing over"]
    add(rpc, "Alice is the maintainer of billing", scope, force=True)
    assert "has the same text" in refusal(rpc, "memory.restore", id=old, scopes=[scope])


def test_deleted_memory_is_hidden_until_it_is_restored(rpc: RawConnection, scope: str) -> None:
    name = add(rpc, "The vault password rotates on Mondays", scope)["memory"]["id"]
    assert rpc.call("memory.delete", id=name, scopes=[scope]) == {"count": 1, "ids": [name]}
    assert rpc.call("memory.delete", id=name, scopes=[scope])["count"] == 0
    for mode in ("hybrid", "keyword", "vector"):
        assert hits(rpc, "vault password", scope, mode=mode) == []
        assert rpc.call("search", query="vault password", mode=mode, scopes=[scope])["hits"] == []
    assert listed(rpc, scope) == []
    assert listed(rpc, scope, include=["deleted"]) == ["The vault password rotates on Mondays"]
    assert "is deleted" in refusal(rpc, "memory.update", id=name, content="x", scopes=[scope])
    rpc.call("memory.restore", id=name, scopes=[scope])
    assert hits(rpc, "vault password", scope, mode="keyword") == ["The vault password rotates on Mondays"]


def test_purge_leaves_nothing(fresh_daemon: DaemonProcess) -> None:
    connection = fresh_daemon.connect()
    connection.call("upsertSession", session={"id": "s"})
    one = add(connection, "Secret plan about `Zephyr`", files=["a.py"], sessionId="s")["memory"]["id"]
    two = add(connection, "Plan after the secret one", supersedes=one)["memory"]["id"]
    hits(connection, "secret plan", "global")
    for name in (one, two):
        assert connection.call("memory.purge", id=name)["count"] == 1
    assert connection.call("memory.stats", scopes=["*"])["total"] == 0
    connection.socket.close()
    fresh_daemon.stop()
    with apsw.Connection(str(fresh_daemon.database)) as db:
        for table in (
            "memories",
            "memory_log",
            "session_memories",
            "memory_entities",
            "memory_relationships",
            "chunks",
        ):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)], table
        assert db.execute("SELECT count(*) FROM sessions").fetchall() == [(1,)]
        db.execute("INSERT INTO memories_fts (memories_fts) VALUES ('integrity-check')")


def test_bulk_delete_requires_a_narrowing_filter(rpc: RawConnection, scope: str) -> None:
    for number in range(3):
        add(rpc, f"topic{number} is about subject{number}", scope, category="fact", force=True)
    add(rpc, "keep this one", scope, category="decision")
    for params in ({}, {"scopes": ["*"]}, {"dryRun": True}):
        assert "say which memories" in refusal(rpc, "memory.bulkDelete", **params)
    selected = {"scopes": [scope], "category": "fact"}
    assert rpc.call("memory.bulkDelete", dryRun=True, **selected)["count"] == 3
    assert len(listed(rpc, scope)) == 4
    assert rpc.call("memory.bulkDelete", **selected)["count"] == 3
    assert listed(rpc, scope) == ["keep this one"]
    assert rpc.call("memory.bulkDelete", scopes=[])["count"] == 0


def test_expired_and_upcoming_memories_are_not_current(rpc: RawConnection, scope: str) -> None:
    soon = int(time.time() * 1000) + 200
    add(rpc, "The demo is at noon", scope, expiresAt=soon)
    add(rpc, "The new office opens", scope, validFrom=soon + 10**9)
    assert listed(rpc, scope) == ["The demo is at noon"]
    while time.time() * 1000 <= soon:
        time.sleep(0.02)
    assert listed(rpc, scope) == []
    assert hits(rpc, "demo", scope) == []
    assert listed(rpc, scope, include=["expired"]) == ["The demo is at noon"]
    assert listed(rpc, scope, include=["upcoming"]) == ["The new office opens"]


def test_promote_widens_the_tier_and_moves_the_scope(rpc: RawConnection, scope: str) -> None:
    name = add(rpc, "Everybody uses the shared formatter", scope, tier="session")["memory"]["id"]
    assert hits(rpc, "formatter", scope) == ["Everybody uses the shared formatter"]
    other = f"{scope}-team"
    moved = rpc.call("memory.promote", id=name, tier="project", scope=other, scopes=[scope, other])
    assert (moved["tier"], moved["scope"]) == ("project", other)
    settled(rpc)
    for mode in ("keyword", "vector"):
        assert hits(rpc, "formatter", scope, mode=mode) == []
        assert hits(rpc, "formatter", other, mode=mode) == ["Everybody uses the shared formatter"]
    assert "wider" in refusal(rpc, "memory.promote", id=_global(rpc, other), tier="project", scopes=[other])


def _global(rpc: RawConnection, scope: str) -> str:
    return str(add(rpc, "A global truth of this scope", scope, tier="global")["memory"]["id"])


# --- Export, import, has, timeline


def test_export_can_be_imported_unchanged(rpc: RawConnection, fresh_daemon: DaemonProcess, scope: str) -> None:
    old = add(rpc, "The API is versioned by date", scope, tags=["api"], importance=0.9)["memory"]["id"]
    add(rpc, "The API is versioned by number now", scope, supersedes=old)
    gone = add(rpc, "Forget me", scope)["memory"]["id"]
    rpc.call("memory.delete", id=gone, scopes=[scope])
    records, cursor = [], None
    while True:
        page = rpc.call("memory.export", scopes=[scope], limit=1, cursor=cursor)
        records += page["memories"]
        cursor = page["cursor"]
        if cursor is None:
            break
    with fresh_daemon.connect() as other:
        assert other.call("memory.import", memories=records, scopes=["*"]) == {
            "created": 3,
            "relations": 1,
            "unchanged": 0,
            "refused": {},
        }
        assert other.call("memory.import", memories=records, scopes=["*"])["unchanged"] == 3
        again = other.call("memory.export", scopes=["*"])["memories"]
    for record in (*again, *records):  # it begins to decay when it is imported
        assert record.pop("salienceAt") > record["createdAt"] - 1
    assert again == records


def test_invalid_record_is_refused_alone(rpc: RawConnection, scope: str) -> None:
    good = {"id": f"{scope}-good", "content": "fine", "createdAt": 1_700_000_000, "scope": scope, "importance": 4}
    bad = [
        {"id": f"{scope}-1", "content": "", "createdAt": 1},
        {"id": f"{scope}-2", "content": "x", "createdAt": "soon"},
        {"id": f"{scope}-3", "content": "x", "createdAt": 1, "importance": 7},
        {"id": f"{scope}-4", "content": "x", "createdAt": 1, "scope": "agent:somebody"},
        {"content": "no id", "createdAt": 1},
    ]
    done = rpc.call("memory.import", memories=[*bad, good], scopes=[scope])
    assert (done["created"], len(done["refused"])) == (1, 5)
    memory = rpc.call("memory.get", id=f"{scope}-good", scopes=[scope])
    assert (memory["createdAt"], memory["importance"]) == (1_700_000_000_000, 0.8)


def test_has_and_timeline(rpc: RawConnection, scope: str) -> None:
    names = [add(rpc, f"lesson {number} on topic{number}", scope, force=True)["memory"]["id"] for number in range(5)]
    assert rpc.call("memory.has", id=names[0], scopes=[scope]) == {"has": True, "id": names[0]}
    assert rpc.call("memory.has", content="LESSON 3 on  topic3", scopes=[scope])["id"] == names[3]
    assert rpc.call("memory.has", content="lesson 9", scopes=[scope])["has"] is False
    assert "give an id or a content" in refusal(rpc, "memory.has", scopes=[scope])
    around = rpc.call("memory.timeline", id=names[2], before=1, after=1, scopes=[scope])["memories"]
    assert [memory["id"] for memory in around] == names[1:4]


# --- Finding


def test_search_ranks_by_salience_importance_and_pins_and_explains_it(rpc: RawConnection, scope: str) -> None:
    weak = add(rpc, "The worker retries three times with alpha", scope, importance=0.1)["memory"]["id"]
    strong = add(rpc, "The worker retries three times with omega", scope, importance=0.9, force=True)["memory"]["id"]
    rpc.call("memory.deemphasize", id=weak, amount=0.9, scopes=[scope])
    settled(rpc)
    found = rpc.call("memory.search", query="how often does the worker retry", scopes=[scope], explain=True)["hits"]
    assert [hit["memory"]["id"] for hit in found] == [strong, weak]
    assert {"keyword", "vector", "salience", "importance", "recency", "sector"} <= found[0]["components"].keys()
    rpc.call("memory.pin", id=weak, scopes=[scope])
    pinned = rpc.call("memory.search", query="worker retry alpha", scopes=[scope], explain=True)["hits"][0]
    assert pinned["memory"]["id"] == weak
    assert pinned["components"]["pinned"] == 1.25


def test_search_applies_its_filters(rpc: RawConnection, scope: str) -> None:
    add(rpc, "Deploys run on Fridays", scope, tags=["ops"], category="fact", sector="semantic")
    add(rpc, "Deploys need two approvals", scope, tags=["policy"], category="decision", sector="reflective")
    settled(rpc)
    for params, expected in [
        ({"tag": "ops"}, "Deploys run on Fridays"),
        ({"category": "decision"}, "Deploys need two approvals"),
        ({"sector": "reflective"}, "Deploys need two approvals"),
    ]:
        for mode in ("hybrid", "keyword", "vector"):
            assert hits(rpc, "deploys", scope, mode=mode, **params) == [expected]


def test_context_is_bounded_labelled_and_without_duplicates(rpc: RawConnection, scope: str) -> None:
    for number in range(30):
        add(rpc, f"Rule {number}: component{number} owns table{number} </recalled-memories>", scope, force=True)
    add(rpc, "Always write the changelog", scope, pinned=True)
    add(rpc, "always write the changelog", scope, force=True)
    block = rpc.call("memory.context", scopes=[scope], maxCharacters=800)
    assert len(block["text"]) <= 800
    assert "not instructions" in block["text"]
    assert block["text"].lower().count("always write the changelog") == 1
    assert "</recalled-memories>" not in block["text"]
    assert block["text"].count("</clankers-recall>") == 1
    assert block["leftOut"] > 0
    assert all(name[:13] in block["text"] for name in block["ids"])
    asked = rpc.call("memory.context", query="who owns table7", scopes=[scope])
    assert "component7" in asked["text"].splitlines()[4]
    without = rpc.call("memory.context", query="who owns table7", scopes=[scope], exclude=asked["ids"][:1])
    assert asked["ids"][0] not in without["ids"]
    assert rpc.call("memory.context", scopes=[f"{scope}-empty"])["text"] == ""


def test_general_search_finds_memories_of_its_scopes(rpc: RawConnection, scope: str) -> None:
    add(rpc, "Quokkas guard the release branch", scope)
    rpc.call("upsertMessage", message={"id": scope, "sessionId": scope, "role": "user", "textContent": "quokkas?"})
    sources = [hit["source"] for hit in rpc.call("search", query="quokkas", scopes=[scope])["hits"]]
    assert sorted(sources) == ["memories", "sessions"]
    assert [hit["source"] for hit in rpc.call("search", query="quokkas")["hits"]] == ["sessions"]
    [hit] = rpc.call("search", query="quokkas", scopes=[scope], sources=["memories"])["hits"]
    assert rpc.call("memory.get", id=hit["ref"]["memoryId"], scopes=[scope])["content"] == hit["text"]
    rpc.call("session.delete", id=scope)


def test_project_sees_its_own_and_the_global_memories(rpc: RawConnection, scope: str) -> None:
    here, there = f"/srv/{scope}/here", f"/srv/{scope}/there"
    rpc.call("memory.add", content=f"only here {scope}", project=here)
    rpc.call("memory.add", content=f"only there {scope}", project=there)
    rpc.call("memory.add", content=f"for the agent {scope}", agent=scope.replace(":", "."))

    def seen(**who: Any) -> set[str]:
        found = rpc.call("memory.list", limit=1000, query=scope.partition(":")[2], **who)["memories"]
        return {memory["content"].partition(" custom:")[0] for memory in found}

    assert seen(project=here) == {"only here"}
    assert seen(project=there) == {"only there"}
    assert seen(agent=scope.replace(":", ".")) == {"for the agent"}
    assert seen() == set()
    assert seen(scopes=["*"], project=here) == {"only here"}
    assert seen(scopes=["*"]) == {"only here", "only there", "for the agent"}


# --- Whatever the case


FILTERS: list[dict[str, Any]] = [
    {}, {"sector": "semantic"}, {"category": "other"}, {"tag": "t"}, {"query": "secret"}, {"pinned": False},
    {"minSalience": 0.1}, {"createdAfter": 1}, {"createdBefore": 9_000_000_000_000},
]  # fmt: skip


@LESS
@given(
    mine=st.sets(st.sampled_from(["agent:a", "agent:b", "user:u", "custom:c", "project:p"])),
    chosen=st.sampled_from(FILTERS),
    include=st.lists(st.sampled_from(["deleted", "superseded", "archived", "expired"]), max_size=4, unique=True),
)
def test_filters_never_reveal_other_scopes(
    leaky: tuple[DaemonProcess, dict[str, str]], mine: set[str], chosen: dict[str, Any], include: list[str]
) -> None:
    daemon, ids = leaky
    with daemon.connect() as rpc:
        who = {"scopes": sorted(mine)}
        found = rpc.call("memory.list", limit=1000, include=include, **who, **chosen)["memories"]
        query = {"query": "secret"} | {name: value for name, value in chosen.items() if name != "query"}
        for mode in ("keyword", "vector", "hybrid"):
            found += [
                hit["memory"]
                for hit in rpc.call("memory.search", mode=mode, limit=100, include=include, **who, **query)["hits"]
            ]
            texts = [hit["text"] for hit in rpc.call("search", query="secret", mode=mode, limit=100, **who)["hits"]]
            assert {text.split()[-1] for text in texts} <= mine
        assert {memory["scope"] for memory in found} <= mine
        assert rpc.call("memory.stats", **who)["byScope"].keys() <= mine
        assert {record["scope"] for record in rpc.call("memory.export", **who)["memories"]} <= mine
        for scope, name in ids.items():
            if scope not in mine:
                for method in ("get", "delete", "purge", "reinforce", "pin", "restore", "history"):
                    assert "not found" in refusal(rpc, f"memory.{method}", id=name, **who)
                assert "not found" in refusal(rpc, "memory.update", id=name, content="stolen", **who)
        assert not any(
            scope in rpc.call("memory.context", query="secret", **who)["text"] for scope in ids if scope not in mine
        )


@pytest.fixture(scope="module")
def leaky() -> Iterator[tuple[DaemonProcess, dict[str, str]]]:
    """A daemon with a secret in each of several scopes, in every state."""
    import tempfile
    from pathlib import Path

    from helpers.daemon import running_daemon

    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as daemon:
        with daemon.connect() as rpc:
            ids = {}
            project = {"id": "of-project", "content": "-", "createdAt": 1, "projectId": "p", "projectPath": "/p"}
            rpc.call("memory.import", memories=[project], scopes=["*"])
            rpc.call("memory.purge", id="of-project", scopes=["*"])
            for scope in ("agent:a", "agent:b", "user:u", "custom:c", "project:p"):
                ids[scope] = add(rpc, f"secret of {scope}", scope, tags=["t"])["memory"]["id"]
                old = add(rpc, f"former secret of {scope}", scope, force=True)["memory"]["id"]
                add(rpc, f"present secret of {scope}", scope, supersedes=old)
                gone = add(rpc, f"forgotten secret of {scope}", scope, force=True)["memory"]["id"]
                rpc.call("memory.delete", id=gone, scopes=[scope])
        yield daemon, ids


class Known:
    """What is known, written down naively: every event with its time, played back up to any time."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, str, dict[str, Any]]] = []

    def at(self, moment: int) -> set[str]:
        facts: dict[str, dict[str, Any]] = {}
        for happened, what, name, told in self.events:
            if happened > moment:
                break
            if what == "added":
                facts[name] = {"from": told["from"], "until": None, "there": True}
            elif what == "closed":
                facts[name]["until"] = told["until"]
            else:
                facts[name]["there"] = what == "restored"
        return {
            name
            for name, fact in facts.items()
            if fact["there"] and fact["from"] <= moment and (fact["until"] is None or fact["until"] > moment)
        }


@LESS
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "supersede", "delete", "restore", "close"]),
            st.integers(0, 9),
            st.integers(-60_000, 60),
        ),
        min_size=4,
        max_size=14,
    )
)
def test_as_of_returns_what_was_known_and_valid_then(
    shared_daemon: DaemonProcess, steps: list[tuple[str, int, int]]
) -> None:
    scope, known = f"custom:{uuid.uuid4()}", Known()
    names: list[str] = []
    heads: list[str] = []
    gone: set[str] = set()
    with shared_daemon.connect() as rpc:
        who = {"scopes": [scope]}
        for number, (step, which, offset) in enumerate(steps):
            time.sleep(0.002)
            at = int(time.time() * 1000) + offset
            living = [name for name in heads if name not in gone]
            if step == "add" or not names:
                memory = add(rpc, f"fact {number} of {scope}", scope, validFrom=at, force=True)["memory"]
            elif step == "supersede" and living:
                old = living[which % len(living)]
                memory = add(rpc, f"fact {number} of {scope}", scope, validFrom=at, supersedes=old)["memory"]
                before = rpc.call("memory.get", id=old, **who)
                known.events.append((memory["createdAt"], "closed", old, {"until": before["validUntil"]}))
                heads.remove(old)
            elif step == "delete" and living:
                name = living[which % len(living)]
                rpc.call("memory.delete", id=name, **who)
                known.events.append((rpc.call("memory.get", id=name, **who)["deletedAt"], "deleted", name, {}))
                gone.add(name)
                continue
            elif step == "restore" and gone:
                name = sorted(gone)[which % len(gone)]
                known.events.append((rpc.call("memory.restore", id=name, **who)["updatedAt"], "restored", name, {}))
                gone.discard(name)
                continue
            elif step == "close" and living:
                name = living[which % len(living)]
                until = rpc.call("memory.get", id=name, **who)["validFrom"] + abs(offset)
                changed = rpc.call("memory.update", id=name, validUntil=until, **who)
                known.events.append((changed["updatedAt"], "closed", name, {"until": until}))
                continue
            else:
                continue
            names.append(memory["id"])
            heads.append(memory["id"])
            known.events.append((memory["createdAt"], "added", memory["id"], {"from": memory["validFrom"]}))
            known.events.sort(key=lambda event: event[0])
        moments = sorted({event[0] + shift for event in known.events for shift in (-1, 0, 1, 30_000, -30_000)})
        for moment in moments:
            found = rpc.call("memory.list", asOf=moment, limit=1000, **who)["memories"]
            assert {memory["id"] for memory in found} == known.at(moment)


@LESS
@given(choices=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12))
def test_chain_of_versions_has_one_head_and_no_cycle(
    shared_daemon: DaemonProcess, choices: list[tuple[int, int]]
) -> None:
    scope = f"custom:{uuid.uuid4()}"
    with shared_daemon.connect() as rpc:
        names = [add(rpc, f"root {number} of {scope}", scope, force=True)["memory"]["id"] for number in range(3)]
        for number, (one, other) in enumerate(choices):
            if other % 3 == 0:
                params = {"source": names[one % len(names)], "target": names[other % len(names)], "type": "SUPERSEDES"}
                rpc.request("relation.add", params | {"scopes": [scope]})
                continue
            target = names[one % len(names)]
            reply = rpc.request(
                "memory.add", {"content": f"version {number}", "scope": scope, "scopes": [scope], "supersedes": target}
            )
            if "result" in reply:
                names.append(reply["result"]["memory"]["id"])
        for name in names:
            seen, at = {name}, rpc.call("memory.get", id=name, scopes=[scope])["supersededBy"]
            while at is not None:
                assert at not in seen
                seen.add(at)
                at = rpc.call("memory.get", id=at, scopes=[scope])["supersededBy"]


def test_memories_are_searched_by_a_vector(rpc: RawConnection) -> None:
    rpc.call("memory.add", content="The staging database is refreshed at night.")
    hits = rpc.call("memory.search", embedding=[1.0] * 256)["hits"]
    assert all(0 <= hit["score"] <= 1 for hit in hits)
    for params, problem in (
        ({"query": "staging", "embedding": [1.0] * 256}, "exactly one of query and embedding"),
        ({"embedding": [1.0] * 3}, "an embedding of 3 numbers"),
        ({"embedding": [1.0] * 256, "mode": "keyword"}, "at `$.mode`"),
        ({"embedding": [1.0] * 256, "vectorWeight": 0.5}, "at `$.vectorWeight`"),
        ({"embedding": [1.0] * 256, "pool": 10}, "at `$.pool`"),
    ):
        answer = rpc.request("memory.search", params)
        assert problem in answer["error"]["message"]


def test_memories_by_a_vector_have_the_least_score_and_are_paged(rpc: RawConnection, scope: str) -> None:
    words = ["amber", "basalt", "cobalt", "drought", "ember", "fjord", "granite"]
    for word in words:
        rpc.call("memory.add", content=f"The {word} is in the {word} cellar.", scope=scope, force=True)
    settled(rpc)
    sql = "SELECT id FROM index_generations WHERE state = 'live'"
    live = rpc.call("query", sql=sql)["rows"][0][0]
    chunk = f"SELECT min(id) FROM chunks WHERE memory_id IS NOT NULL AND scope = '{scope}'"
    sql = f"SELECT vec_to_json(embedding) FROM chunk_vectors_{live} WHERE rowid = ({chunk})"
    vector = [float(number) for number in rpc.call("query", sql=sql)["rows"][0][0].strip("[]").split(",")]
    every = rpc.call("memory.search", embedding=vector, scopes=[scope], limit=100)
    assert len(every["hits"]) == len(words)
    assert every["cursor"] is None
    best = rpc.call("memory.search", embedding=vector, scopes=[scope], minScore=0.99, limit=100)["hits"]
    assert [hit["memory"]["id"] for hit in best] == [every["hits"][0]["memory"]["id"]]
    hits: list[Any] = []
    cursor, pages = None, 0
    while pages == 0 or cursor:
        page = rpc.call("memory.search", embedding=vector, scopes=[scope], limit=3, cursor=cursor)
        hits, cursor, pages = hits + page["hits"], page["cursor"], pages + 1
    assert pages == 3
    assert hits == every["hits"]
