"""Rerankers: scores of texts for a query from a cross-encoder, and the replies of rerank services."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.cross_encoder import put_cross_encoder
from helpers.embedding_service import Answer, Behaviour, Service, always, say, served

pytest.importorskip("numpy")
pytest.importorskip("httpx")

from clankersd.rerankers import Reranker, RerankerSettings, RerankerUnavailable, make_reranker
from clankersd.rerankers.onnx import sigmoid
from clankersd.rerankers.remote import SERVICES
from clankersd.search.ranking import Candidate
from clankersd.search.reranking import Reranking, mix
from clankersd.search.rows import ChunkRow

pytestmark = pytest.mark.anyio

SECRET = "rk-never-to-be-seen"


@pytest.fixture(autouse=True)
def no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLANKERS_RERANKER_KEY", raising=False)


def made(provider: str, **other: Any) -> Reranker:
    reranker = make_reranker(RerankerSettings(provider, **other))
    assert reranker is not None
    return reranker


# -- a cross-encoder in a folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put_cross_encoder(tmp_path / "tiny-reranker")


async def test_cross_encoder_scores_the_text_and_not_the_query(folder: Path) -> None:
    scores = await made("onnx", model=str(folder)).score("cat", ["cat", "dog cat", "nothing"], 10)
    assert [round(score or 0, 4) for score in scores] == [
        round(sigmoid(one), 4) for one in (1.0, 3.0, 0.0)
    ]  # cat is 1, dog is 2


async def test_cross_encoder_with_two_labels_scores_their_difference(tmp_path: Path) -> None:
    folder = put_cross_encoder(tmp_path / "two", labels=2)
    [score] = await made("onnx", model=str(folder)).score("cat", ["dog"], 10)
    assert score == pytest.approx(sigmoid(2.0 + 2.0))


async def test_cross_encoder_truncates_long_pairs(folder: Path) -> None:
    [score] = await made("onnx", model=str(folder)).score("cat " * 400, ["dog " * 5000], 10)
    assert score == pytest.approx(1.0)


async def test_cross_encoder_without_time_scores_nothing(folder: Path) -> None:
    assert await made("onnx", model=str(folder)).score("cat", ["cat", "dog"], 0) == [None, None]


async def test_cross_encoder_takes_one_query_at_a_time(folder: Path) -> None:
    reranker = made("onnx", model=str(folder))
    reranker._working.acquire()  # type: ignore[attr-defined]
    with pytest.raises(RerankerUnavailable, match="busy"):
        await reranker.score("cat", ["cat"], 10)


async def test_cross_encoder_that_is_an_embedder_is_refused(tmp_path: Path) -> None:
    folder = put_cross_encoder(tmp_path / "embedder", labels=6)
    with pytest.raises(RerankerUnavailable, match="one or two"):
        await made("onnx", model=str(folder)).score("cat", ["dog"], 10)


def test_cross_encoder_without_a_folder_says_what_to_set(tmp_path: Path) -> None:
    for model in ("", str(tmp_path / "missing")):
        with pytest.raises(RerankerUnavailable, match=r"model\.onnx"):
            made("onnx", model=model)


# -- services


def results(service: str, scores: dict[int, Any]) -> Any:
    """A reply of this kind of service, worst first."""
    if service == "tei":
        return [{"index": index, "score": score} for index, score in scores.items()]
    name = "data" if service == "voyage" else "results"
    return {name: [{"index": index, "relevance_score": score} for index, score in scores.items()]}


@asynccontextmanager
async def asking(service: str, behaviour: Behaviour, **settings: Any) -> AsyncIterator[tuple[Reranker, Service]]:
    with served(behaviour) as running:
        reranker = made(service, **{"url": running.url, "model": "tiny", "seconds": 5.0} | settings)
        try:
            yield reranker, running
        finally:
            await reranker.close()


PAYLOADS: dict[str, Any] = {
    "jina": {"model": "tiny", "query": "q", "documents": ["a", "b"], "return_documents": False},
    "cohere": {"model": "tiny", "query": "q", "documents": ["a", "b"]},
    "voyage": {"model": "tiny", "query": "q", "documents": ["a", "b"], "truncation": True, "return_documents": False},
    "tei": {"model": "tiny", "query": "q", "texts": ["a", "b"], "truncate": True, "raw_scores": False},
    "vllm": {"model": "tiny", "query": "q", "documents": ["a", "b"]},
}


@pytest.mark.parametrize("service", SERVICES)
async def test_service_is_asked_and_understood_in_its_own_format(service: str) -> None:
    async with asking(service, lambda _: say(results(service, {1: 0.25, 0: 0.75}))) as (reranker, running):
        assert await reranker.score("q", ["a", "b"], 5) == [0.75, 0.25]
        [request] = running.requests
        assert request.path == "/rerank"
        assert request.payload == PAYLOADS[service]


async def test_service_with_logits_gets_probabilities() -> None:
    async with asking("vllm", lambda _: say(results("vllm", {0: -3.0, 1: 4.0}))) as (reranker, _):
        assert await reranker.score("q", ["a", "b"], 5) == [sigmoid(-3.0), sigmoid(4.0)]


async def test_service_may_leave_out_texts() -> None:
    async with asking("jina", lambda _: say(results("jina", {1: 0.5}))) as (reranker, _):
        assert await reranker.score("q", ["a", "b"], 5) == [None, 0.5]


@pytest.mark.parametrize(
    "reply",
    [
        Answer(body=b"<html>"), say([]), say({"results": []}), say({"results": [{"index": 0}]}),
        say({"results": [{"index": 7, "relevance_score": 0.5}]}), say({"results": "no"}),
        say({"results": [{"index": 0, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.6}]}),
        say({"results": [{"index": "0", "relevance_score": 0.5}]}),
        say({"results": [{"index": 0, "relevance_score": math.nan}]}),
        say({"results": [{"index": True, "relevance_score": 0.5}]}), Answer(body=b"\xff"),
        say({"error": "down"}, 503), say({"detail": "bad"}, 422), Answer(302, headers={"location": "/elsewhere"}),
    ],
)  # fmt: skip
async def test_malformed_reply_of_a_service_is_an_error(reply: Answer) -> None:
    async with asking("jina", always(reply)) as (reranker, _):
        with pytest.raises(RerankerUnavailable):
            await reranker.score("q", ["a", "b"], 5)


async def test_service_that_is_late_is_not_waited_for() -> None:
    async with asking("jina", always(Answer(drip=True))) as (reranker, _):
        with pytest.raises(RerankerUnavailable, match=r"within 0\.05 seconds"):
            await reranker.score("q", ["a"], 0.05)


async def test_key_of_a_service_comes_from_its_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(SECRET)
    file.chmod(0o600)
    async with asking("cohere", always(say({"message": SECRET}, 401)), key_file=str(file)) as (reranker, running):
        with pytest.raises(RerankerUnavailable, match="refuses the key") as caught:
            await reranker.score("q", ["a"], 5)
        assert caught.value.permanent
        assert SECRET not in caught.value.reason
        assert running.requests[0].headers["authorization"] == f"Bearer {SECRET}"


def test_key_of_the_embedder_is_not_sent_to_the_reranker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLANKERS_EMBEDDER_KEY", SECRET)

    async def ask() -> dict[str, str]:
        async with asking("tei", lambda _: say(results("tei", {0: 0.5}))) as (reranker, running):
            await reranker.score("q", ["a"], 5)
            return running.requests[0].headers

    assert SECRET not in json.dumps(anyio.run(ask))


@pytest.mark.parametrize(
    ("model", "missing"),
    [("", "has no rerank API at that address"), ("tiny", "has no model tiny, or the url is wrong")],
)
async def test_service_that_is_not_found_names_the_model_if_one_is_set(model: str, missing: str) -> None:
    async with asking("vllm", always(say({"detail": "Not Found"}, 404)), model=model) as (reranker, _):
        with pytest.raises(RerankerUnavailable, match=missing):
            await reranker.score("q", ["a"], 5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model": "m"}, "reranker_url"),
        ({"url": "http://localhost:1"}, "reranker_model"),
        ({"url": "ftp://localhost", "model": "m"}, "reranker_url"),
        ({"url": "http://user:pass@localhost", "model": "m"}, "reranker_url"),
    ],
)
def test_service_that_lacks_a_setting_says_which(settings: dict[str, str], named: str) -> None:
    with pytest.raises(RerankerUnavailable, match=named):
        made("jina", **settings)


# -- the judgement in the scores


def candidates(*scores: float) -> list[Candidate[ChunkRow]]:
    values: dict[str, Any] = dict.fromkeys((column.name for column in fields(ChunkRow)), 0)
    rows = (ChunkRow(**values | {"id": number, "text": f"text {number}"}) for number in range(len(scores)))
    return [Candidate(row, score) for row, score in zip(rows, scores, strict=True)]


def test_judgement_reorders_the_candidates_and_is_a_component() -> None:
    found = candidates(1.0, 0.8, 0.6)
    mix(found, {0: 0.1, 1: 0.5, 2: 0.9}, 0.5)
    assert [(one.row.id, round(one.score, 3), one.components["rerank"]) for one in found] == [
        (2, 0.8, 1.0),
        (1, 0.65, 0.5),
        (0, 0.5, 0.0),
    ]


def test_candidates_without_a_judgement_stay_behind_those_with_one() -> None:
    found = candidates(1.0, 0.9, 0.8, 0.7)
    mix(found, {0: 0.2, 1: 0.1, 2: None}, 0.9)
    assert [one.row.id for one in found] == [0, 1, 2, 3]
    assert all(0 <= one.score <= 1 for one in found)


@pytest.mark.parametrize("judgements", [{1: 0.01}, {0: None, 1: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5}, {0: None, 1: None}])
def test_judgements_that_compare_nothing_change_nothing(judgements: dict[int, float | None]) -> None:
    found = candidates(1.0, 0.8, 0.6)
    mix(found, judgements, 0.6)
    assert [(one.row.id, one.score, one.components) for one in found] == [(0, 1.0, {}), (1, 0.8, {}), (2, 0.6, {})]


def reranking(**settings: Any) -> Reranking:
    @asynccontextmanager
    async def no_turn() -> AsyncIterator[None]:
        yield

    return Reranking(RerankerSettings(**settings), no_turn)


async def test_reranking_that_fails_leaves_the_order_and_is_not_tried_again_at_once() -> None:
    with served(always(say({"error": "down"}, 503))) as service:
        one = reranking(provider="tei", url=service.url)
        for _ in range(3):
            found = candidates(1.0, 0.5)
            note = await one.apply("q", found, found)
            assert [each.score for each in found] == [1.0, 0.5]
            assert note is not None
            assert note.startswith("not reranked: Text Embeddings Inference")
        assert len(service.requests) == 1
        await one.probe()
        assert len(service.requests) == 2
        await one.apply_settings(RerankerSettings())


@pytest.mark.parametrize(
    ("scores", "note"),
    [
        ({0: 0.1, 2: 0.9}, "only 2 of 4 candidates were reranked (the Jina reranker at 127.0.0.1 left the others out)"),
        (
            {2: 0.01},
            "not reranked: 1 of 4 candidates got a judgement (the Jina reranker at 127.0.0.1 left the others out)",
        ),
        ({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}, "not reranked: all 4 judgements are equal"),
        ({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.4}, None),
    ],
)
async def test_reranking_says_what_a_service_left_out(scores: dict[int, float], note: str | None) -> None:
    with served(always(say(results("jina", scores)))) as service:
        one = reranking(provider="jina", url=service.url, model="tiny", seconds=5.0)
        found = candidates(1.0, 0.9, 0.8, 0.7)
        assert await one.apply("q", found, found) == note
        await one.apply_settings(RerankerSettings())


async def test_reranking_without_time_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = reranking(provider="onnx", model=str(folder), seconds=20.0)

    async def score_first(query: str, texts: list[str], seconds: float) -> list[float | None]:
        return [0.5, 0.4, *[None] * (len(texts) - 2)]

    monkeypatch.setattr(one._reranker, "score", score_first)
    found = candidates(1.0, 0.9, 0.8)
    assert await one.apply("q", found, found) == "only 2 of 3 candidates were reranked (time ran out)"


async def test_reranking_does_not_judge_a_single_text() -> None:
    with served(always(say({"error": "not to be asked"}, 503))) as service:
        one = reranking(provider="tei", url=service.url)
        found = candidates(1.0, 0.9)
        found[0].row.text = found[1].row.text
        assert await one.apply("q", found, found) is None
        assert not service.requests


async def test_reranking_sends_few_short_and_distinct_texts() -> None:
    with served(
        lambda request: say(results("tei", {index: 0.5 - index / 10 for index in range(len(request.payload["texts"]))}))
    ) as service:
        one = reranking(provider="tei", url=service.url, candidates=3, seconds=5.0)
        found = candidates(1.0, 0.9, 0.8, 0.7)
        found[0].row.text = found[1].row.text = "long " * 1_000
        assert await one.apply("q" * 5_000, found[:3], found) is None
        payload = service.requests[0].payload
        assert [len(text) for text in payload["texts"]] == [2_000, len("text 2")]
        assert len(payload["query"]) == 1_000
        await one.apply_settings(RerankerSettings())
