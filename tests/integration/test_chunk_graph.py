"""The graph between chunks: kept strict, followed far enough, and never lost in circles."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import apsw
import pytest
from support import DaemonProcess, RawConnection, running_daemon

from clankers_protocol.search import Relation


@pytest.fixture
def graph(shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """Two documents of five chunks, unlinked: a0 … a4 and b0 … b4."""
    with shared_daemon.connect() as connection:
        for name in "ab":
            chunks = [{"id": f"{name}{n}", "content": f"Text {name}{n} on its own."} for n in range(5)]
            connection.call("document.store", id=name, source=name, chunks=chunks, sequence=False)
        yield connection
        for name in "ab":
            connection.request("document.delete", {"id": name})


def edge(source: str, target: str, relation: str = "references", weight: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"sourceId": source, "targetId": target, "relation": relation, "weight": weight, **more}


def store(connection: RawConnection, *edges: dict[str, Any]) -> dict[str, int]:
    return dict(connection.call("graph.storeEdges", edges=list(edges)))


def reached(connection: RawConnection, *ids: str, **options: Any) -> dict[str, float]:
    return {one["chunkId"]: one["score"] for one in connection.call("graph.traverse", ids=list(ids), **options)}


def test_edges_lead_out_and_in(graph: RawConnection) -> None:
    store(graph, edge("a0", "a1", description="see there"), edge("a0", "b1", "elaborates", 0.4), edge("a2", "a1"))
    out = graph.call("graph.getEdges", ids=["a0"])
    assert [(one["targetId"], one["weight"], one["description"]) for one in out] == [
        ("a1", 1.0, "see there"),
        ("b1", 0.4, None),
    ]
    assert {one["sourceId"] for one in graph.call("graph.incoming", ids=["a1"])} == {"a0", "a2"}
    assert [one["targetId"] for one in graph.call("graph.getEdges", ids=["a0"], relations=["elaborates"])] == ["b1"]
    assert graph.call("graph.getEdges", ids=["b4"]) == []
    assert len(graph.call("graph.getEdges", ids=["a0", "a2"], limit=2)) == 2


def test_of_the_same_pair_and_relation_the_strongest_is_kept(graph: RawConnection) -> None:
    assert store(graph, edge("a0", "a1", weight=0.5, description="first")) == {
        "stored": 1,
        "strengthened": 0,
        "kept": 0,
    }
    assert store(graph, edge("a0", "a1", weight=0.3)) == {"stored": 0, "strengthened": 0, "kept": 1}
    assert store(graph, edge("a0", "a1", weight=0.9), edge("a0", "a1", weight=0.7)) == {
        "stored": 0,
        "strengthened": 1,
        "kept": 1,
    }
    store(graph, edge("a0", "a1", "similar_to", 0.2), edge("a1", "a0", weight=0.1))
    out = graph.call("graph.getEdges", ids=["a0"])
    assert [(one["relation"], one["weight"], one["description"]) for one in out] == [
        ("references", 0.9, "first"), ("similar_to", 0.2, None),
    ]  # fmt: skip


def test_all_eight_relations_are_known(graph: RawConnection) -> None:
    relations = get_args(Relation)
    assert len(relations) == 8
    assert store(graph, *(edge("a0", "a1", relation) for relation in relations))["stored"] == 8


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (edge("a0", "a0"), "$.edges[1].targetId"),
        (edge("a0", "nobody"), "$.edges[1].targetId"),
        (edge("nobody", "a0"), "$.edges[1].sourceId"),
        (edge("a0", "a1", "likes"), "$.edges[1].relation"),
        (edge("a0", "a1", weight=0), "$.edges[1].weight"),
        (edge("a0", "a1", weight=1.01), "$.edges[1].weight"),
        (edge("a0", "a1", weight=-0.5), "$.edges[1].weight"),
        (edge("a0", "a1", nonsense=1), "nonsense"),
    ],
)
def test_one_bad_edge_refuses_all(graph: RawConnection, bad: dict[str, Any], says: str) -> None:
    reply = graph.request("graph.storeEdges", {"edges": [edge("a3", "a4"), bad]})
    assert reply["error"]["code"] == -32602
    assert says in reply["error"]["message"]
    assert graph.call("graph.getEdges", ids=["a3", "a0"]) == []


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("graph.storeEdges", {"edges": []}, "$.edges"),
        ("graph.getEdges", {"ids": []}, "$.ids"),
        ("graph.getEdges", {"ids": ["a0"], "relations": []}, "$.relations"),
        ("graph.incoming", {"ids": ["a0"], "relations": ["likes"]}, "$.relations"),
        ("graph.traverse", {"ids": ["a0", "nobody"]}, "$.ids[1]"),
        ("graph.traverse", {"ids": ["a0"], "hops": 6}, "$.hops"),
        ("graph.traverse", {"ids": ["a0"], "decay": 0}, "$.decay"),
        ("graph.traverse", {"ids": ["a0"], "direction": "up"}, "$.direction"),
        ("graph.prune", {"minWeight": 2}, "$.minWeight"),
        ("search", {"query": "a", "graph": {"hops": 0}}, "$.graph.hops"),
        ("search", {"query": "a", "graph": {"relations": []}}, "$.graph.relations"),
        ("search", {"query": "a", "graph": {"depth": 1}}, "depth"),
    ],
)
def test_bad_questions_are_refused(graph: RawConnection, method: str, params: dict[str, Any], says: str) -> None:
    reply = graph.request(method, params)
    assert reply["error"]["code"] == -32602
    assert says in reply["error"]["message"]


def test_a_walk_goes_as_far_as_it_may_and_fades(graph: RawConnection) -> None:
    store(graph, edge("a0", "a1", weight=0.8), edge("a1", "a2"), edge("a2", "a3"))
    assert reached(graph, "a0", hops=1, decay=0.5) == {"a1": 0.4}
    assert reached(graph, "a0", hops=3, decay=0.5) == {"a1": 0.4, "a2": 0.2, "a3": 0.1}
    assert reached(graph, "a0", hops=3, decay=0.5, minScore=0.15) == {"a1": 0.4, "a2": 0.2}
    assert reached(graph, "a0", hops=3, decay=0.5, limit=1) == {"a1": 0.4}
    (way,) = [one for one in graph.call("graph.traverse", ids=["a0"], hops=2) if one["chunkId"] == "a2"]
    assert way["hops"] == 2
    assert way["documentId"] == "a"
    assert [(step["fromId"], step["toId"], step["backwards"]) for step in way["way"]] == [
        ("a0", "a1", False), ("a1", "a2", False),
    ]  # fmt: skip


def test_a_walk_respects_direction_and_relations(graph: RawConnection) -> None:
    store(graph, edge("a0", "a1"), edge("a2", "a0"), edge("a0", "a3", "contradicts"))
    assert set(reached(graph, "a0", direction="out", hops=1)) == {"a1", "a3"}
    assert set(reached(graph, "a0", direction="in", hops=1)) == {"a2"}
    assert set(reached(graph, "a0", direction="both", hops=1)) == {"a1", "a2", "a3"}
    assert set(reached(graph, "a0", relations=["contradicts"])) == {"a3"}
    (back,) = graph.call("graph.traverse", ids=["a0"], direction="in", hops=1)
    assert back["way"][0]["backwards"] is True


def test_circles_end_and_the_best_way_counts(graph: RawConnection) -> None:
    store(graph, edge("a0", "a1"), edge("a1", "a2"), edge("a2", "a0"), edge("a0", "a2", "similar_to", 0.3))
    found = reached(graph, "a0", hops=5, decay=0.9, direction="out")
    assert found == {"a1": 0.9, "a2": 0.81}  # by way of a1, not straight


def test_pruning_removes_the_weak_and_the_surplus_but_not_what_ingesting_made(graph: RawConnection) -> None:
    store(graph, *(edge("a0", f"b{n}", weight=0.1 * (n + 1)) for n in range(5)))
    graph.call("document.store", id="c", chunks=[{"id": "c0", "content": "x"}, {"id": "c1", "content": "y"}])
    asked = {"minWeight": 0.25, "mostPerChunk": 2}
    wanted = {"orphans": 0, "weak": 2, "surplus": 1}
    assert graph.call("graph.prune", **asked, dryRun=True) == wanted | {"dryRun": True}
    assert len(graph.call("graph.getEdges", ids=["a0"])) == 5
    assert graph.call("graph.prune", **asked) == wanted | {"dryRun": False}
    assert [one["targetId"] for one in graph.call("graph.getEdges", ids=["a0"])] == ["b4", "b3"]
    assert len(graph.call("graph.getEdges", ids=["c0"])) == 1
    assert graph.call("graph.prune") == {"orphans": 0, "weak": 0, "surplus": 0, "dryRun": False}
    graph.call("document.delete", id="c")


def test_edges_go_with_their_chunks(graph: RawConnection) -> None:
    store(graph, edge("a0", "b0"), edge("b0", "a1"))
    graph.call("document.delete", id="b")
    assert graph.call("graph.getEdges", ids=["a0"]) == []
    assert graph.call("graph.incoming", ids=["a1"]) == []
    assert graph.call("query", sql="SELECT count(*) FROM chunk_edges")["rows"] == [[0]]


def test_orphans_that_a_foreign_hand_left_are_pruned(home: Path) -> None:
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


# -- search along the graph


@pytest.fixture
def linked(graph: RawConnection) -> RawConnection:
    """One chunk that the words find, and others that only the graph leads to."""
    texts = {
        "q0": "The zeppelin landed at dawn.",
        "q1": "Mooring took an hour.",
        "q2": "Tea was served.",
        "q3": "It rained.",
    }
    chunks = [{"id": name, "content": text, "metadata": {"kept": name != "q3"}} for name, text in texts.items()]
    graph.call("document.store", id="q", source="q", title="Journey", chunks=chunks, sequence=False)
    store(
        graph,
        edge("q0", "q1", "caused_by", 0.8),
        edge("q1", "q2", "elaborates", 0.5),
        edge("q0", "q3"),
        edge("q2", "q0"),
    )
    return graph


@pytest.fixture(autouse=True)
def without_q(shared_daemon: DaemonProcess) -> Iterator[None]:
    yield
    with shared_daemon.connect() as connection:
        connection.request("document.delete", {"id": "q"})


def hits(connection: RawConnection, graph: dict[str, Any] | None, **params: Any) -> dict[str, dict[str, Any]]:
    asked = {"query": "zeppelin", "mode": "keyword", "sources": ["documents"], "graph": graph, **params}
    return {hit["ref"]["documentChunkId"]: hit for hit in connection.call("search", **asked)["hits"]}


def test_search_follows_the_graph_only_when_asked(linked: RawConnection) -> None:
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
    assert set(hits(linked, {"direction": "out"})) == {"q0", "q1", "q3"}
    assert set(hits(linked, {"direction": "in"})) == {"q0", "q2"}
    assert set(hits(linked, {"relations": ["caused_by"]})) == {"q0", "q1"}
    assert set(hits(linked, {"seeds": 1, "hops": 5})) == {"q0", "q1", "q2", "q3"}


def test_what_the_graph_leads_to_must_pass_the_filters_too(linked: RawConnection) -> None:
    filters = [{"field": "meta.kept", "op": "eq", "value": True}]
    assert set(hits(linked, {"hops": 2}, filters=filters)) == {"q0", "q1", "q2"}
    assert set(hits(linked, {"hops": 2, "direction": "out"}, minScore=0.6)) == {"q0", "q3"}


def test_a_search_without_documents_is_not_hurt_by_the_graph(linked: RawConnection) -> None:
    linked.call(
        "upsertMessage", message={"id": "zm", "sessionId": "zs", "role": "user", "textContent": "zeppelin talk"}
    )
    found = linked.call("search", query="zeppelin", sources=["sessions"], graph={})["hits"]
    assert [hit["ref"]["messageId"] for hit in found] == ["zm"]
    linked.call("session.delete", id="zs")


def test_neighbours_of_a_hit_are_found_after_ingesting(shared_daemon: DaemonProcess) -> None:
    text = "\n\n".join(f"Part {n}. {'Filler words stand here. ' * 14}{'The dirigible.' * (n == 3)}" for n in range(7))
    with shared_daemon.connect() as connection:
        document = connection.call("document.ingest", text=text, source="parts", chunkTokens=100, overlap=0)["document"]
        found = hits(connection, {"hops": 1}, query="dirigible")
        ways = {hit["ref"]["startLine"]: hit["way"] for hit in found.values()}
        assert ways.pop(7) is None
        assert {line: way[0]["relation"] for line, way in ways.items()} == {5: "sequence", 9: "sequence"}
        connection.call("document.delete", id=document["id"])
