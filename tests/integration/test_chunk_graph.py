"""The graph of document chunks: validation, traversal, cycles, pruning."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from helpers.daemon import DaemonProcess, RawConnection
from helpers.documents import edge, link

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


def reached(connection: RawConnection, *ids: str, **options: Any) -> dict[str, float]:
    return {one["chunkId"]: one["score"] for one in connection.call("graph.traverse", ids=list(ids), **options)}


def test_edges_accept_all_eight_relations(graph: RawConnection) -> None:
    relations = get_args(Relation)
    assert len(relations) == 8
    assert link(graph, *(edge("a0", "a1", relation) for relation in relations))["stored"] == 8


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
def test_edges_with_one_invalid_are_all_rejected(graph: RawConnection, bad: dict[str, Any], says: str) -> None:
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
def test_invalid_graph_params_are_rejected(
    graph: RawConnection, method: str, params: dict[str, Any], says: str
) -> None:
    reply = graph.request(method, params)
    assert reply["error"]["code"] == -32602
    assert says in reply["error"]["message"]


def test_traversal_stops_at_its_hops_and_decays(graph: RawConnection) -> None:
    link(graph, edge("a0", "a1", weight=0.8), edge("a1", "a2"), edge("a2", "a3"))
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


def test_traversal_respects_direction_and_relations(graph: RawConnection) -> None:
    link(graph, edge("a0", "a1"), edge("a2", "a0"), edge("a0", "a3", "contradicts"))
    assert set(reached(graph, "a0", direction="out", hops=1)) == {"a1", "a3"}
    assert set(reached(graph, "a0", direction="in", hops=1)) == {"a2"}
    assert set(reached(graph, "a0", direction="both", hops=1)) == {"a1", "a2", "a3"}
    assert set(reached(graph, "a0", relations=["contradicts"])) == {"a3"}
    (back,) = graph.call("graph.traverse", ids=["a0"], direction="in", hops=1)
    assert back["way"][0]["backwards"] is True


def test_traversal_ends_in_cycles_and_takes_the_best_path(graph: RawConnection) -> None:
    link(graph, edge("a0", "a1"), edge("a1", "a2"), edge("a2", "a0"), edge("a0", "a2", "similar_to", 0.3))
    found = reached(graph, "a0", hops=5, decay=0.9, direction="out")
    assert found == {"a1": 0.9, "a2": 0.81}  # by way of a1, not straight


def test_prune_removes_weak_and_surplus_edges_but_none_made_by_ingestion(graph: RawConnection) -> None:
    link(graph, *(edge("a0", f"b{n}", weight=0.1 * (n + 1)) for n in range(5)))
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


def test_edges_are_deleted_with_their_chunks(graph: RawConnection) -> None:
    link(graph, edge("a0", "b0"), edge("b0", "a1"))
    graph.call("document.delete", id="b")
    assert graph.call("graph.getEdges", ids=["a0"]) == []
    assert graph.call("graph.incoming", ids=["a1"]) == []
    assert graph.call("query", sql="SELECT count(*) FROM chunk_edges")["rows"] == [[0]]
