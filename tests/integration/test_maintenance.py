"""Looking after memories: what is due is done, with its reason, and a dry run does nothing."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.clock import DAY_SECONDS, ClockedDaemon
from helpers.daemon import RawConnection
from helpers.waiting import eventually

from clankersd.memories.salience import DAY_MS

NOW = int(time.time() * 1000)


@pytest.fixture
def clocked(home: Path) -> Iterator[ClockedDaemon]:
    """A daemon whose clock the test sets; not started yet."""
    process = ClockedDaemon(home, CLANKERS_MAINTAIN_HOURS="0")
    yield process
    process.close()


@pytest.fixture
def rpc(clocked: ClockedDaemon) -> Iterator[RawConnection]:
    with clocked.start().connect() as connection:
        yield connection


def bring(rpc: RawConnection, name: str, content: str, **given: Any) -> None:
    record = {"id": name, "content": content, "createdAt": NOW - 10 * DAY_MS, **given}
    assert rpc.call("memory.import", memories=[record], scopes=["*"])["created"] == 1


def get(rpc: RawConnection, name: str) -> dict[str, Any]:
    return dict(rpc.call("memory.get", id=name, scopes=["*"]))


def actions(rpc: RawConnection, name: str) -> list[tuple[str, str]]:
    log = rpc.call("memory.history", id=name, scopes=["*"])["log"]
    return [(entry["action"], entry["by"]) for entry in log if entry["memoryId"] == name]


def prepare(clocked: ClockedDaemon, rpc: RawConnection) -> None:
    """Something of everything that is due, and beside each something that is not."""
    old = {"sector": "episodic", "importance": 0.1}
    clocked.set_clock(-400 * DAY_SECONDS)
    bring(rpc, "faded", "Somebody asked about lunch", **old)
    bring(rpc, "faded-but-pinned", "Somebody asked about dinner", **old, pinned=True)
    clocked.set_clock(0)
    rpc.call("upsertSession", session={"id": "s1"})
    rpc.call("upsertSession", session={"id": "s2"})
    bring(rpc, "used", "The session found the flaky test", tier="session")
    bring(rpc, "unused", "The session looked at the weather", tier="session")
    for session in ("s1", "s2"):
        rpc.call("memory.touch", ids=["used"], sessionId=session)
    bring(rpc, "past", "The demo takes place in the aula", expiresAt=NOW - DAY_MS)
    for name, scope in (("twin-a", "global"), ("twin-b", "global"), ("twin-c", "custom:other")):
        bring(rpc, name, "Migrations run before every deploy", scope=scope, importance=0.9 if name == "twin-b" else 0.4)
    rpc.call("entity.upsert", name="Lonely", type="concept")


def counts(done: dict[str, Any]) -> dict[str, int]:
    return {name: done[name] for name in ("promoted", "archived", "merged", "expired", "entitiesDropped")}


DUE = {"promoted": 1, "archived": 1, "merged": 1, "expired": 1, "entitiesDropped": 0}


def test_maintenance_applies_its_steps_with_reasons(clocked: ClockedDaemon, rpc: RawConnection) -> None:
    prepare(clocked, rpc)
    done = rpc.call("memory.maintain")
    assert counts(done) == DUE
    assert (get(rpc, "used")["tier"], get(rpc, "unused")["tier"]) == ("project", "session")
    assert (get(rpc, "faded")["state"], get(rpc, "faded-but-pinned")["state"]) == ("archived", "current")
    assert get(rpc, "twin-a")["supersededBy"] == "twin-b"
    assert get(rpc, "twin-c")["state"] == "current"
    for name, action in (("used", "promoted"), ("faded", "archived"), ("past", "expired"), ("twin-a", "superseded")):
        assert (action, "maintenance") in actions(rpc, name)
    assert all(change["reason"] for change in done["changes"])
    assert set(counts(rpc.call("memory.maintain")).values()) == {0}


def test_dry_run_reports_the_same_and_changes_nothing(clocked: ClockedDaemon, rpc: RawConnection) -> None:
    prepare(clocked, rpc)
    before = rpc.call("memory.export", scopes=["*"])["memories"]
    told = rpc.call("memory.maintain", dryRun=True)
    assert (counts(told), told["dryRun"]) == (DUE, True)
    assert rpc.call("memory.export", scopes=["*"])["memories"] == before
    assert counts(rpc.call("memory.maintain")) == DUE


def test_archived_memory_is_found_on_request_and_can_be_restored(clocked: ClockedDaemon, rpc: RawConnection) -> None:
    prepare(clocked, rpc)
    rpc.call("memory.maintain")
    assert rpc.call("memory.search", query="lunch", mode="keyword")["hits"] == []
    [hit] = rpc.call("memory.search", query="lunch", mode="keyword", include=["archived"])["hits"]
    assert hit["memory"]["state"] == "archived"
    assert rpc.call("memory.restore", id="faded", scopes=["*"])["state"] == "current"
    assert rpc.call("memory.maintain")["archived"] == 0
    restored = get(rpc, "faded")
    assert (restored["state"], restored["createdAt"], restored["salience"] > 0.9) == (
        "current", NOW - 10 * DAY_MS, True
    )  # fmt: skip


def test_imported_memories_of_nine_months_ago_survive_maintenance(rpc: RawConnection) -> None:
    """Their decay begins with the import; their dates stay."""
    then = NOW - 270 * DAY_MS
    cases: list[dict[str, Any]] = [{}, {"confidence": 0.2}, {"salience": 0.05}, {"salienceAt": then}]
    for number, given in enumerate(cases):
        bring(rpc, f"old-{number}", f"Rule {number}", createdAt=then, importance=0.1, sector="episodic", **given)
    assert rpc.call("memory.maintain", force=True)["archived"] == 0
    for number, given in enumerate(cases):
        kept = get(rpc, f"old-{number}")
        assert (kept["state"], kept["createdAt"], kept["validFrom"]) == ("current", then, then)
        assert kept["salience"] == pytest.approx(given.get("salience", 1.0), abs=0.01)


def test_merged_memory_has_the_better_values_of_both(rpc: RawConnection) -> None:
    bring(rpc, "one", "Logs are kept thirty days", tags=["logs"], importance=0.8, accessCount=3)
    bring(rpc, "two", "logs are kept thirty  days", tags=["retention"], importance=0.2, confidence=0.9, accessCount=4)
    assert rpc.call("memory.maintain")["merged"] == 1
    kept = get(rpc, "one")
    assert (kept["importance"], kept["confidence"], kept["accessCount"]) == (0.8, 0.9, 7)
    assert kept["tags"] == ["logs", "retention"]
    assert get(rpc, "two")["supersededBy"] == "one"


def test_maintenance_runs_at_its_interval(clocked: ClockedDaemon) -> None:
    import apsw

    with clocked.start().connect() as rpc:
        prepare(clocked, rpc)
    clocked.stop()
    clocked.close()
    with apsw.Connection(str(clocked.database)) as db:
        assert db.execute("SELECT count(*) FROM memory_upkeep").fetchall() == [(0,)]
    clocked.environ |= {"CLANKERS_MAINTAIN_HOURS": "24", "CLANKERS_LOG_LEVEL": "info"}
    with clocked.start().connect() as rpc:
        eventually(lambda: get(rpc, "used")["tier"] == "project", "the memories are maintained")
