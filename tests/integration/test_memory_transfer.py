"""Memories on their way from one store to another: with their relations, entities and projects."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon

EVERYTHING = ["*"]
DAY = 86_400_000
LONG_AGO = 1_600_000_000_000


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[DaemonProcess]:
    """Another store, on another machine as it were."""
    with tempfile.TemporaryDirectory(prefix="clk-") as folder, running_daemon(Path(folder)) as process:
        yield process


@pytest.fixture
def there(elsewhere: DaemonProcess) -> Iterator[RawConnection]:
    with elsewhere.connect() as raw:
        yield raw


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    """A scope of its own for each test."""
    return f"custom:{request.node.name.replace('[', '-').rstrip(']')[:90]}"


def add(rpc: RawConnection, content: str, scope: str, **facts: Any) -> str:
    given = {"scope": scope, "scopes": EVERYTHING, "force": "supersedes" not in facts}
    return str(rpc.call("memory.add", content=content, **given | facts)["memory"]["id"])


def exported(rpc: RawConnection, *scopes: str) -> list[dict[str, Any]]:
    return list(rpc.call("memory.export", scopes=list(scopes))["memories"])


def taken(rpc: RawConnection, records: list[dict[str, Any]], *scopes: str) -> dict[str, Any]:
    return dict(rpc.call("memory.import", memories=records, scopes=list(scopes) or EVERYTHING))


def relations(rpc: RawConnection, scope: str) -> list[dict[str, Any]]:
    found = rpc.call("relation.list", scopes=[scope], includeClosed=True)["relations"]
    return sorted(found, key=lambda one: str(one["id"]))


def states(rpc: RawConnection, scope: str) -> dict[str, tuple[str, str | None]]:
    every = ["superseded", "expired", "archived", "deleted", "upcoming"]
    listed = rpc.call("memory.list", scopes=[scope], include=every)["memories"]
    return {one["content"]: (one["state"], one["supersededBy"]) for one in listed}


def record(memory_id: str, content: str, scope: str, **facts: Any) -> dict[str, Any]:
    return {"id": memory_id, "content": content, "scope": scope, "createdAt": LONG_AGO, **facts}


def relation(source: str, target: str, type_: str = "RELATED_TO", **facts: Any) -> dict[str, Any]:
    named = {"id": f"{source}-{type_}-{target}", "source": source, "target": target, "type": type_}
    return named | {"createdAt": LONG_AGO} | facts


# -- relations


@pytest.mark.parametrize("order", [1, -1], ids=["oldest", "newest"])
@pytest.mark.parametrize("at_once", [True, False], ids=["together", "singly"])
def test_import_includes_every_relation(
    rpc: RawConnection, there: RawConnection, scope: str, order: int, at_once: bool
) -> None:
    first, second, third = (add(rpc, f"{word} of {scope}", scope) for word in ("first", "second", "third"))
    both = {"scopes": [scope], "source": first, "target": second}
    rpc.call("relation.add", **both, type="BUILDS_ON", confidence=0.7, extractedBy="llm")
    held = rpc.call("relation.add", **both, type="DEPENDS_ON", validFrom=LONG_AGO, validUntil=LONG_AGO + DAY)
    closed = rpc.call("relation.add", **both | {"target": third}, type="CONTRADICTS", validFrom=LONG_AGO)
    rpc.call("relation.close", id=closed["id"], scopes=[scope])
    add(rpc, f"fourth of {scope}", scope, supersedes=third)

    records = exported(rpc, scope)[::order]
    for some in [records] if at_once else [[one] for one in records]:
        assert taken(there, some)["refused"] == {}

    assert held["validUntil"] == LONG_AGO + DAY
    assert len(relations(rpc, scope)) == 4
    assert relations(there, scope) == relations(rpc, scope)
    assert states(there, scope) == states(rpc, scope)
    again = taken(there, records)
    assert (again["created"], again["relations"], again["unchanged"]) == (0, 0, 4)


def test_import_preserves_an_older_memory_that_supersedes_a_newer_one(
    rpc: RawConnection, there: RawConnection, scope: str
) -> None:
    older, newer = add(rpc, f"older of {scope}", scope), add(rpc, f"newer of {scope}", scope)
    rpc.call("relation.add", scopes=[scope], source=older, target=newer, type="SUPERSEDES")
    taken(there, exported(rpc, scope))
    assert states(there, scope) == {f"older of {scope}": ("current", None), f"newer of {scope}": ("superseded", older)}


def test_export_leaves_out_relations_with_invisible_memories(rpc: RawConnection, scope: str) -> None:
    mine, secret = add(rpc, f"mine of {scope}", scope), add(rpc, f"secret of {scope}", f"{scope}-secret")
    rpc.call("relation.add", scopes=EVERYTHING, source=mine, target=secret, type="RELATED_TO")
    [told] = exported(rpc, scope)
    assert told["relations"] == []
    assert secret not in str(told)


def test_import_leaves_out_relations_with_missing_or_invisible_memories(there: RawConnection, scope: str) -> None:
    secret = add(there, f"secret of {scope}", f"{scope}-secret")
    ties = [relation(f"{scope}-1", secret), relation("never-heard-of-it", f"{scope}-1")]
    done = taken(there, [record(f"{scope}-1", "tied", scope, relations=ties)], scope)
    assert (done["created"], done["relations"], done["refused"]) == (1, 0, {})
    assert relations(there, scope) == []


def test_imported_supersession_does_not_end_a_valid_memory(there: RawConnection, scope: str) -> None:
    known = add(there, f"known of {scope}", scope)
    tie = relation(f"{scope}-new", known, "SUPERSEDES")
    assert taken(there, [record(f"{scope}-new", "new", scope, relations=[tie])])["relations"] == 0
    assert states(there, scope)[f"known of {scope}"] == ("current", None)


def test_imported_supersessions_form_no_cycle(there: RawConnection, scope: str) -> None:
    names = [f"{scope}-{number}" for number in range(3)]
    ring = [relation(names[number], names[(number + 1) % 3], "SUPERSEDES") for number in range(3)]
    ring.append(relation(names[1], names[0], "SUPERSEDES"))
    records = [
        record(name, name, scope, validUntil=LONG_AGO + DAY, relations=[tie for tie in ring if name in str(tie)])
        for name in names
    ]
    assert taken(there, records)["created"] == 3
    successor = {content: superseded_by for content, (_, superseded_by) in states(there, scope).items()}
    heads = [name for name in names if successor[name] is None]
    assert len(heads) == 1
    assert len(there.call("memory.history", id=names[0], scopes=[scope])["versions"]) == 3


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"relations": [relation("bad-memory", "bad-memory")]}, "$.relations"),
        ({"relations": [relation("another", "a-third")]}, "$.relations"),
        ({"relations": [relation("bad-memory", "other", "LOVES")]}, "$.relations[0].type"),
        ({"relations": [relation("bad-memory", "other", confidence=1.5)]}, "$.relations[0].confidence"),
        ({"relations": [relation("bad-memory", "other", validUntil=LONG_AGO - 1)]}, "$.relations"),
        ({"relations": [relation("bad-memory", "other", surprise=1)]}, "$.relations[0]"),
        ({"entities": [{"name": " ", "type": "person"}]}, "$.entities"),
        ({"entities": [{"name": "Ada", "type": "ghost"}]}, "$.entities[0].type"),
    ],
)
def test_import_refuses_invalid_parts_with_memory(there: RawConnection, wrong: dict[str, Any], where: str) -> None:
    done = taken(there, [record("bad-memory", "Bad", "global", **wrong)])
    assert done["created"] == 0
    assert f"at `{where}`" in done["refused"]["bad-memory"]
    assert not there.call("memory.has", id="bad-memory")["has"]


# -- entities


def test_import_includes_entities(rpc: RawConnection, there: RawConnection, scope: str) -> None:
    entity = rpc.call("entity.upsert", name="Ada Lovelace", type="person", summary="Writes the engine", scopes=[scope])
    engine = add(rpc, "The engine is nearly done, says Ada Lovelace", scope, files=["src/engine.py"])
    by_hand = add(rpc, "It was written at night", scope)
    rpc.call("entity.link", memoryId=by_hand, entityId=entity["id"], role="subject", scopes=[scope])

    taken(there, exported(rpc, scope))

    def graph(rpc: RawConnection) -> list[Any]:
        [ada] = rpc.call("entity.list", query="ada", scopes=[scope])["entities"]
        found = rpc.call("graph.neighbors", id=ada["id"], hops=2, scopes=[scope])
        edges = sorted((one["source"], one["type"]) for one in found["edges"])
        return [ada["summary"], ada["memories"], sorted(one["label"] for one in found["nodes"]), edges]

    assert graph(there) == graph(rpc)
    assert (by_hand, "subject") in graph(there)[3]
    # What was noticed in the text goes with the text; what was said by hand stays.
    for memory in (engine, by_hand):
        there.call("memory.update", id=memory, content="Nobody is named here", scopes=[scope])
    [ada] = there.call("entity.list", query="ada", scopes=[scope])["entities"]
    assert ada["memories"] == 1


# -- projects


def test_imported_project_memories_are_found_by_their_project(
    rpc: RawConnection, there: RawConnection, tmp_path: Path
) -> None:
    known, new = str(tmp_path / "known"), str(tmp_path / "new")
    of_known = rpc.call("memory.add", content="The known project is deployed by hand", project=known)["memory"]
    of_new = rpc.call("memory.add", content="The new project is deployed by cron", project=new)["memory"]
    there.call("memory.add", content="Something of its own", project=known)
    records = [one for one in exported(rpc, *EVERYTHING) if one["id"] in (of_known["id"], of_new["id"])]

    assert taken(there, records)["created"] == 2

    for project, memory in ((known, of_known), (new, of_new)):
        found = there.call("memory.list", project=project)["memories"]
        assert memory["id"] in [one["id"] for one in found if one["scope"].startswith("project:")]
        assert {one["scope"] for one in found} == {f"project:{one['projectId']}" for one in found}
        assert there.call("memory.get", id=memory["id"], project=project)["projectPath"] == project


def test_import_into_another_scope_is_refused_and_creates_no_project(there: RawConnection, tmp_path: Path) -> None:
    path = str(tmp_path / "secret")
    given = record("elses", "x", "project:p-1", projectId="p-1", projectPath=path)
    assert "not one of the caller's scopes" in taken(there, [given], "global")["refused"]["elses"]
    assert path not in [one["path"] for one in there.call("project.list")]


# -- secrets


def test_import_redacts_secrets(there: RawConnection, scope: str) -> None:
    secret = "sk-ant-api03-" + "Zx9Kq2Lm7Pv4Rt8Wy1Bn6Cd3Fg5Hj0" * 2  # made up
    told = {"tags": [secret], "concepts": [secret], "files": [f"/tmp/{secret}"], "metadata": {"key": secret}}
    memory = add(there, f"a {secret}", scope, summary=secret, **told)
    there.call("memory.update", id=memory, importance=0.9, reason=f"because of {secret}", scopes=[scope])
    there.call("memory.promote", id=memory, tier="global", reason=f"since {secret}", scopes=[scope])
    there.call("memory.delete", id=memory, reason=f"it said {secret}", scopes=[scope])
    there.call("entity.upsert", name=f"key {secret}", type="concept", summary=secret, scopes=[scope])
    mention = {"name": secret, "type": "concept", "summary": secret}
    taken(there, [record(f"{scope}-in", f"b {secret}", scope, entities=[mention], **told)])

    kept = [exported(there, scope), there.call("memory.history", id=memory, scopes=[scope])]
    kept.append(there.call("entity.list", scopes=[scope]))
    assert secret not in str(kept)
    assert "[redacted:" in str(kept[1]["log"])
