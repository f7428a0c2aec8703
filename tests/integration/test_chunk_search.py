"""Search of document chunks: the right ones and all of them, with any filter."""

import base64
import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.daemon import DaemonProcess, RawConnection, running_daemon
from helpers.waiting import eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clankers.client import Client
from clankers_protocol.documents import (
    ChunkSearch,
    by_document,
    by_meta,
    by_source,
    created_after,
    created_before,
    negated,
)
from clankers_protocol.search import Filter

DIMS = 256
DOCUMENTS, EACH = 40, 500
BEGAN = 1_700_000_000_000
COLOURS = ("red", "green", "blue", None)


def packed(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


class Shelf:
    """Chunks with known vectors (20,000 unless fewer are wanted), and the plain way to search them."""

    def __init__(self, documents: int = DOCUMENTS) -> None:
        self.documents = documents
        chance = np.random.default_rng(7)
        vectors = chance.standard_normal((documents * EACH, DIMS)).astype(np.float32)
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self.rows = [
            {
                "id": f"d{document}c{number}", "document": f"d{document}",
                "documentSource": f"source/{document % 7}/{document}",
                "meta.colour": COLOURS[number % 4], "meta.level": document % 5, "meta.shelf": f"s{document % 3}",
                "created": BEGAN + document * 1000,
            }
            for document in range(documents) for number in range(EACH)
        ]  # fmt: skip

    def store(self, connection: RawConnection) -> None:
        for document in range(self.documents):
            rows = range(document * EACH, (document + 1) * EACH)
            chunks = [
                {
                    "id": self.rows[row]["id"], "content": f"chunk {row} of document {document}",
                    "metadata": {"colour": self.rows[row]["meta.colour"], "level": document % 5},
                    "embedding": packed(self.vectors[row]),
                }
                for row in rows
            ]  # fmt: skip
            connection.call(
                "document.store", id=f"d{document}", source=self.rows[rows[0]]["documentSource"], chunks=chunks,
                createdAt=self.rows[rows[0]]["created"], metadata={"shelf": f"s{document % 3}"}, sequence=False,
            )  # fmt: skip

    def nearest(self, query: Any, filters: list[dict[str, Any]], k: int) -> list[tuple[str, float]]:
        """Every vector compared, of every chunk that passes."""
        passing = [at for at, row in enumerate(self.rows) if all(passes(row, one) for one in filters)]
        similar = self.vectors[passing].astype(np.float64) @ np.asarray(query, np.float64)
        best = np.argsort(-similar, kind="stable")[:k]
        return [(self.rows[passing[at]]["id"], float(similar[at])) for at in best]


def passes(row: dict[str, Any], one: dict[str, Any]) -> bool:
    value, wanted = row[one["field"]], one["value"]
    if one["op"] in ("in", "notIn"):
        return bool((value in wanted) == (one["op"] == "in"))
    compare = {"eq": "eq", "ne": "ne", "before": "lt", "after": "gt", "notBefore": "ge", "notAfter": "le"}
    return bool(getattr(operator, compare[one["op"]])(value, wanted))


DOCUMENT = st.integers(0, DOCUMENTS + 3)
VALUES = {
    "document": DOCUMENT.map("d{}".format),
    "documentSource": DOCUMENT.map(lambda number: f"source/{number % 7}/{number}"),
    "meta.colour": st.sampled_from(["red", "green", "blue", "none"]),
    "meta.level": st.integers(0, 5),
    "meta.shelf": st.sampled_from(["s0", "s1", "s2"]),
}


@st.composite
def one_filter(draw: st.DrawFn) -> dict[str, Any]:
    field = draw(st.sampled_from([*VALUES, "created"]))
    if field == "created":
        op = draw(st.sampled_from(["before", "after", "notBefore", "notAfter"]))
        return {"field": field, "op": op, "value": BEGAN + draw(DOCUMENT) * 1000}
    op = draw(st.sampled_from(["eq", "ne", "in", "notIn"]))
    many = op in ("in", "notIn")
    value = draw(st.lists(VALUES[field], min_size=1, max_size=12) if many else VALUES[field])
    return {"field": field, "op": op, "value": value}


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(scope="module")
def library(shared_daemon: DaemonProcess, shelf: Shelf) -> Iterator[RawConnection]:
    with shared_daemon.connect() as connection:
        shelf.store(connection)
        yield connection


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters=st.lists(one_filter(), max_size=4), k=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_filtered_search_equals_an_exhaustive_comparison(
    library: RawConnection, shelf: Shelf, filters: list[dict[str, Any]], k: int, seed: int
) -> None:
    query = np.random.default_rng(seed).standard_normal(DIMS)
    query /= np.linalg.norm(query)
    found = library.call("chunk.search", embedding=packed(query), filters=filters, limit=k)["hits"]
    wanted = shelf.nearest(query, filters, k)
    assert [hit["chunk"]["id"] for hit in found] == [chunk for chunk, _ in wanted]
    assert all(abs(hit["score"] - score) < 1e-4 for hit, (_, score) in zip(found, wanted, strict=True))


def test_search_finds_the_same_before_vectors_are_in_memory(home: Path) -> None:
    shelf = Shelf(12)  # more than are brought into memory while a search waits
    query = shelf.vectors[4321]
    filters = [{"field": "meta.colour", "op": "eq", "value": "green"}]
    with running_daemon(home) as daemon, daemon.connect() as connection:
        shelf.store(connection)
        daemon.stop()
        daemon.close()
        with daemon.start().connect() as again:
            found = again.call("chunk.search", embedding=packed(query), filters=filters, limit=25)["hits"]
    assert [hit["chunk"]["id"] for hit in found] == [chunk for chunk, _ in shelf.nearest(query, filters, 25)]


def test_filtered_hybrid_search_returns_as_many_as_requested(library: RawConnection) -> None:
    filters = [{"field": "document", "op": "eq", "value": "d3"}]
    hits = library.call("search", query="chunk of document", filters=filters, limit=100)["hits"]
    assert len(hits) == 100
    assert {hit["ref"]["documentId"] for hit in hits} == {"d3"}


def test_filters_of_the_client_and_their_negations(
    library: RawConnection, shared_daemon: DaemonProcess, shelf: Shelf
) -> None:
    vector = packed(shelf.vectors[0])
    chosen: list[tuple[Filter, Callable[[dict[str, Any]], bool]]] = [
        (by_document("d1", "d2"), lambda row: row["document"] in ("d1", "d2")),
        (by_source("source/5/5"), lambda row: row["documentSource"] == "source/5/5"),
        (by_meta("colour", "red"), lambda row: row["meta.colour"] == "red"),
        (created_after(BEGAN + 30_000), lambda row: row["created"] > BEGAN + 30_000),
        (created_before(BEGAN + 5_000), lambda row: row["created"] < BEGAN + 5_000),
    ]
    rows = {row["id"]: row for row in shelf.rows}
    with Client(shared_daemon.socket_path, timeout=30) as client:
        for one, test in chosen:
            hits = client.call(ChunkSearch(embedding=vector, filters=[one], limit=50)).hits
            others = client.call(ChunkSearch(embedding=vector, filters=[negated(one)], limit=50)).hits
            assert len(hits) == len(others) == 50
            assert all(test(rows[hit.chunk.id]) for hit in hits)
            assert not any(test(rows[hit.chunk.id]) for hit in others)


def test_chunks_are_returned_in_the_order_of_the_given_ids(library: RawConnection) -> None:
    ids = ["d3c7", "d0c0", "nothing", "d39c499"]
    assert [chunk["id"] for chunk in library.call("chunk.get", ids=ids)] == ["d3c7", "d0c0", "d39c499"]


def test_keyword_search_works_without_an_embedder(home: Path) -> None:
    with running_daemon(home, CLANKERS_EMBEDDER="none") as daemon, daemon.connect() as connection:
        connection.call("document.ingest", text="Dippers walk under water.", source="birds")
        found = connection.call("chunk.search", query="dippers")
        assert found["hits"] == []
        assert "vector search unavailable" in found["degraded"]
        assert connection.call("chunk.searchKeyword", query="dippers")["hits"]
        for method, params in (
            ("chunk.search", {"embedding": [1.0]}),
            ("document.store", {"chunks": [{"content": "a", "embedding": [1.0]}]}),
            ("document.ingest", {"text": "a b", "strategy": "semantic"}),
        ):
            assert connection.request(method, params)["error"]["code"] == 4009


def test_client_vectors_are_stored_and_missing_ones_computed(rpc: RawConnection) -> None:
    chance = random.Random(3)
    own = [chance.gauss(0, 1) for _ in range(256)]
    chunks = [
        {"id": "given", "content": "Cranes dance.", "embedding": own},
        {"id": "made", "content": "Storks clatter."},
    ]
    rpc.call("document.store", chunks=chunks, source="s")
    best = rpc.call("chunk.search", embedding=own)["hits"][0]
    assert (best["chunk"]["id"], round(best["score"], 3)) == ("given", 1.0)
    eventually(lambda: rpc.call("chunk.search", query="storks")["pending"] == 0, "the other vector is made")
    by_meaning = rpc.call("chunk.search", query="storks that clatter")["hits"]
    assert by_meaning[0]["chunk"]["id"] == "made"
