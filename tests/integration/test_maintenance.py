"""Looking after memories: what is due is done, with its reason, and a dry run does nothing."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually

from clankersd.memories.salience import DAY_MS

NOW = int(time.time() * 1000)


@pytest.fixture
def fresh_rpc(fresh_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A connection to a daemon of its own: maintenance remembers how far it has come."""
    with fresh_daemon.connect() as connection:
        yield connection


def bring(rpc: RawConnection, name: str, content: str, **given: Any) -> None:
    record = {"id": name, "content": content, "createdAt": NOW - 10 * DAY_MS, **given}
    assert rpc.call("memory.import", memories=[record], scopes=["*"])["created"] == 1


def get(rpc: RawConnection, name: str) -> dict[str, Any]:
    return dict(rpc.call("memory.get", id=name, scopes=["*"]))


def actions(rpc: RawConnection, name: str) -> list[tuple[str, str]]:
    log = rpc.call("memory.history", id=name, scopes=["*"])["log"]
    return [(entry["action"], entry["by"]) for entry in log if entry["memoryId"] == name]


def prepare(rpc: RawConnection) -> None:
    """Something of everything that is due, and beside each something that is not."""
    rpc.call("upsertSession", session={"id": "s1"})
    rpc.call("upsertSession", session={"id": "s2"})
    bring(rpc, "used", "The session found the flaky test", tier="session")
    bring(rpc, "unused", "The session looked at the weather", tier="session")
    for session in ("s1", "s2"):
        rpc.call("memory.touch", ids=["used"], sessionId=session)
    old = {"sector": "episodic", "createdAt": NOW - 400 * DAY_MS, "importance": 0.1}
    bring(rpc, "faded", "Somebody asked about lunch", **old)
    bring(rpc, "faded-but-pinned", "Somebody asked about dinner", **old, pinned=True)
    bring(rpc, "past", "The demo takes place in the aula", expiresAt=NOW - DAY_MS)
    for name, scope in (("twin-a", "global"), ("twin-b", "global"), ("twin-c", "custom:other")):
        bring(rpc, name, "Migrations run before every deploy", scope=scope, importance=0.9 if name == "twin-b" else 0.4)
    rpc.call("entity.upsert", name="Lonely", type="concept")


def counts(done: dict[str, Any]) -> dict[str, int]:
    return {name: done[name] for name in ("promoted", "archived", "merged", "expired", "entitiesDropped")}


DUE = {"promoted": 1, "archived": 1, "merged": 1, "expired": 1, "entitiesDropped": 0}


def test_maintenance_applies_its_steps_with_reasons(fresh_rpc: RawConnection) -> None:
    prepare(fresh_rpc)
    done = fresh_rpc.call("memory.maintain")
    assert counts(done) == DUE
    assert (get(fresh_rpc, "used")["tier"], get(fresh_rpc, "unused")["tier"]) == ("project", "session")
    assert (get(fresh_rpc, "faded")["state"], get(fresh_rpc, "faded-but-pinned")["state"]) == ("archived", "current")
    assert get(fresh_rpc, "twin-a")["supersededBy"] == "twin-b"
    assert get(fresh_rpc, "twin-c")["state"] == "current"
    for name, action in (("used", "promoted"), ("faded", "archived"), ("past", "expired"), ("twin-a", "superseded")):
        assert (action, "maintenance") in actions(fresh_rpc, name)
    assert all(change["reason"] for change in done["changes"])
    assert set(counts(fresh_rpc.call("memory.maintain")).values()) == {0}


def test_dry_run_reports_the_same_and_changes_nothing(fresh_rpc: RawConnection) -> None:
    prepare(fresh_rpc)
    before = fresh_rpc.call("memory.export", scopes=["*"])["memories"]
    told = fresh_rpc.call("memory.maintain", dryRun=True)
    assert (counts(told), told["dryRun"]) == (DUE, True)
    assert fresh_rpc.call("memory.export", scopes=["*"])["memories"] == before
    assert counts(fresh_rpc.call("memory.maintain")) == DUE


def test_archived_memory_is_found_on_request_and_can_be_restored(fresh_rpc: RawConnection) -> None:
    prepare(fresh_rpc)
    fresh_rpc.call("memory.maintain")
    assert fresh_rpc.call("memory.search", query="lunch", mode="keyword")["hits"] == []
    [hit] = fresh_rpc.call("memory.search", query="lunch", mode="keyword", include=["archived"])["hits"]
    assert hit["memory"]["state"] == "archived"
    assert fresh_rpc.call("memory.restore", id="faded", scopes=["*"])["state"] == "current"


def test_merged_memory_has_the_better_values_of_both(fresh_rpc: RawConnection) -> None:
    bring(fresh_rpc, "one", "Logs are kept thirty days", tags=["logs"], importance=0.8, accessCount=3)
    bring(
        fresh_rpc,
        "two",
        "logs are kept thirty  days",
        tags=["retention"],
        importance=0.2,
        confidence=0.9,
        accessCount=4,
    )
    assert fresh_rpc.call("memory.maintain")["merged"] == 1
    kept = get(fresh_rpc, "one")
    assert (kept["importance"], kept["confidence"], kept["accessCount"]) == (0.8, 0.9, 7)
    assert kept["tags"] == ["logs", "retention"]
    assert get(fresh_rpc, "two")["supersededBy"] == "one"


def test_maintenance_runs_at_its_interval(home: Any) -> None:
    import apsw

    with running_daemon(home) as daemon:
        with daemon.connect() as rpc:
            assert rpc.call("daemon.configure", key="maintain_hours", value=0)
            prepare(rpc)
        daemon.stop()
        with apsw.Connection(str(daemon.database)) as db:
            assert db.execute("SELECT count(*) FROM memory_upkeep").fetchall() == [(0,)]
    with (
        running_daemon(home, CLANKERS_MAINTAIN_HOURS="24", CLANKERS_LOG_LEVEL="info") as daemon,
        daemon.connect() as rpc,
    ):
        eventually(lambda: get(rpc, "used")["tier"] == "project", "the memories are maintained")
