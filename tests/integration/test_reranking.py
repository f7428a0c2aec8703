"""Reranking of a search: a configured reranker changes the order, and a failing one is reported."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cross_encoder import put_cross_encoder
from helpers.ctl import ctl
from helpers.daemon import DaemonProcess, RawConnection
from helpers.embedding_service import Answer, Request, always, say, served
from helpers.waiting import settled

TEXTS = {
    "m0": "the parser fails on empty input",
    "m1": "the parser of the dog register",
    "m2": "a parser for cat names",
}


@pytest.fixture
def filled(rpc: RawConnection, shared_daemon: DaemonProcess) -> Iterator[RawConnection]:
    """A daemon with three messages; afterwards it has no reranker again."""
    for name, text in TEXTS.items():
        rpc.call("upsertMessage", message={"id": name, "sessionId": name, "role": "user", "textContent": text})
    settled(rpc)
    yield rpc
    for key in ("reranker", "reranker_model", "reranker_url", "reranker_seconds"):
        rpc.call("daemon.configure", key=key, value=None)


def configure(connection: RawConnection, **settings: Any) -> None:
    for key, value in settings.items():
        connection.call("daemon.configure", key=key, value=value)


def search(connection: RawConnection, **params: Any) -> tuple[list[str], str | None]:
    answer = connection.call("search", query="parser fails on input", **params)
    return [hit["ref"]["messageId"] for hit in answer["hits"]], answer["degraded"]


def prefer_dogs(request: Request) -> Any:
    texts = request.payload["texts"]
    return say([{"index": index, "score": float("dog" in text)} for index, text in enumerate(texts)])


def test_cross_encoder_reorders_the_hits_and_is_explained(filled: RawConnection, tmp_path: Path) -> None:
    assert search(filled)[0][0] == "m0"
    folder = put_cross_encoder(tmp_path / "tiny")
    configure(filled, reranker_seconds=20, reranker_model=str(folder), reranker="onnx")
    names, degraded = search(filled)
    assert (names[0], degraded) == ("m1", None)
    assert search(filled, rerank=False)[0][0] == "m0"
    best = filled.call("search", query="parser fails on input", explain=True)["hits"][0]
    assert best["components"]["rerank"] == 1.0
    assert 0 <= best["score"] <= 1


def test_service_reorders_hits_and_memories(filled: RawConnection) -> None:
    filled.call("memory.add", content="The parser fails on tabs.")
    dog = filled.call("memory.add", content="Our parser is named after a dog.")["memory"]["id"]
    settled(filled)
    with served(prefer_dogs) as service:
        configure(filled, reranker_seconds=20, reranker_url=service.url, reranker="tei")
        assert search(filled, sources=["sessions"])[0][0] == "m1"
        assert filled.call("memory.search", query="parser fails")["hits"][0]["memory"]["id"] == dog
        requests = len(service.requests)
        filled.call("recall.preview", kind="prompt", query="why does the parser fail on empty input", project="/p")
        assert len(service.requests) == requests  # a prompt does not wait for a reranker


def test_service_that_fails_is_reported_and_leaves_the_order(
    shared_daemon: DaemonProcess, filled: RawConnection
) -> None:
    with served(always(say({"error": "overloaded"}, 503))) as service:
        configure(filled, reranker_url=service.url, reranker="tei")
        names, degraded = search(filled)
        assert names[0] == "m0"
        assert degraded is not None
        assert degraded.startswith("not reranked: Text Embeddings Inference")
        assert "not reranked" in ctl(shared_daemon, "search", "parser").err
        checks = ctl(shared_daemon, "doctor", "--json").json["checks"]
        [found] = [one for one in checks if one["name"] == "reranker"]
        assert found["state"] == "warning"
        assert "overloaded" in found["finding"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'[{"index": 0, "score": 1e999}]',
        b'[{"index": 0, "score": 1%s}]' % (b"0" * 400),
        b'[{"index": 7, "score": 0.5}]',
        b'[{"index": 0, "score": 0.5}, {"index": 0, "score": 0.6}]',
        b'[{"index": 0, "score": "good"}]',
    ],
    ids=["empty", "null", "no scores", "infinite", "too large", "another index", "an index twice", "no number"],
)
def test_service_that_answers_nonsense_is_reported_and_leaves_the_order(filled: RawConnection, body: bytes) -> None:
    with served(always(Answer(body=body))) as service:
        configure(filled, reranker_seconds=20, reranker_url=service.url, reranker="tei")
        names, degraded = search(filled)
        assert names[0] == "m0"
        assert degraded is not None
        assert degraded.startswith("not reranked: Text Embeddings Inference")


def test_reranker_without_an_address_is_reported(filled: RawConnection) -> None:
    configure(filled, reranker="vllm")
    names, degraded = search(filled)
    assert names[0] == "m0"
    assert degraded == "not reranked: the vLLM reranker needs an address: set reranker_url"
