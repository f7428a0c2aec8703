"""Embedders on the network, tested with services that misbehave in every known way."""

import base64
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.embedding_service import (
    Answer,
    Behaviour,
    Request,
    Service,
    always,
    embeddings,
    first,
    numbers,
    refusing,
    say,
    served,
)

pytest.importorskip("numpy")
pytest.importorskip("httpx")

import numpy as np

from clankersd.embedders import EmbedderSettings, EmbedderUnavailable, ItemFailed, providers
from clankersd.embedders.providers import Gemini, Ollama, OpenAI
from clankersd.embedders.remote import RemoteEmbedder
from clankersd.http.retry import RetryPolicy

pytestmark = pytest.mark.anyio

APIS: dict[str, Any] = {"openai": OpenAI, "ollama": Ollama, "gemini": Gemini}
SECRET = "sk-never-to-be-seen"
NOW = 1_700_000_000.0


@pytest.fixture(params=APIS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "CLANKERS_EMBEDDER_KEY"):
        monkeypatch.delenv(variable, raising=False)


class Asked:
    """An embedder at a service, and how long it would have slept."""

    def __init__(self, provider: str, service: Service, limits: dict[str, Any], **settings: Any) -> None:
        self.service = service
        self.slept: list[float] = []
        self.embedder = RemoteEmbedder(
            APIS[provider](),
            EmbedderSettings(provider, **{"url": service.url, "model": "tiny", "timeout": 5.0, **settings}),
            RetryPolicy(sleep=self._sleep, now=lambda: NOW),
            **limits,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def embed(self, *texts: str) -> list[Any]:
        return await self.embedder.embed(list(texts))

    async def unavailable(self, *texts: str) -> EmbedderUnavailable:
        with pytest.raises(EmbedderUnavailable) as caught:
            await self.embed(*(texts or ("one", "two")))
        return caught.value

    @property
    def batches(self) -> list[list[str]]:
        return [request.texts for request in self.service.requests]


@asynccontextmanager
async def asking(
    behaviour: Behaviour, provider: str = "openai", limits: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Asked]:
    with served(behaviour) as service:
        asked = Asked(provider, service, limits or {}, **settings)
        try:
            yield asked
        finally:
            await asked.embedder.close()


def assert_right(outcome: Any, text: str) -> None:
    """It is the vector of this text, of length 1."""
    wanted = np.array(numbers(text))
    np.testing.assert_allclose(outcome, wanted / np.linalg.norm(wanted), rtol=1e-6)
    assert outcome.dtype == np.float32


def assert_all_right(outcomes: list[Any], texts: list[str]) -> None:
    assert len(outcomes) == len(texts)
    for outcome, text in zip(outcomes, texts, strict=True):
        assert_right(outcome, text)


# --- When all is well


async def test_embed_returns_each_texts_vector_in_order(provider: str) -> None:
    texts = [f"text {number} ünï 漢字 🐢" for number in range(250)]
    async with asking(embeddings, provider) as asked:
        assert asked.embedder.identity.dims is None
        assert_all_right(await asked.embed(*texts), texts)
        assert asked.embedder.identity.dims == 4


async def test_embed_without_text_sends_nothing(provider: str) -> None:
    async with asking(embeddings, provider) as asked:
        assert await asked.embed() == []
        outcomes = await asked.embed("", " \n\t")
        assert all(isinstance(outcome, ItemFailed) for outcome in outcomes)
        assert asked.batches == []


async def test_empty_text_among_others_fails_alone_and_is_not_sent(provider: str) -> None:
    async with asking(embeddings, provider) as asked:
        left, empty, right = await asked.embed("left", "", "right")
        assert_right(left, "left")
        assert_right(right, "right")
        assert isinstance(empty, ItemFailed)
        assert asked.batches == [["left", "right"]]


async def test_unpaired_surrogate_is_sent_as_a_question_mark(provider: str) -> None:
    async with asking(embeddings, provider) as asked:
        [outcome] = await asked.embed("a\ud83d")
        assert_right(outcome, "a?")


async def test_batches_respect_both_limits() -> None:
    async with asking(embeddings, "ollama", {"max_batch_texts": 3, "max_batch_bytes": 10}) as asked:
        texts = ["a", "b", "c", "d", "ööö", "ööö", "far too long to be with others", "e"]
        assert_all_right(await asked.embed(*texts), texts)
        assert sorted(asked.batches) == sorted(
            [["a", "b", "c"], ["d", "ööö"], ["ööö"], ["far too long to be with others"], ["e"]]
        )


@pytest.mark.parametrize(
    ("provider", "path", "payload"),
    [
        ("openai", "/embeddings", {"model": "tiny", "input": ["hi"], "dimensions": 4}),
        ("ollama", "/api/embed", {"model": "tiny", "input": ["hi"], "truncate": True, "dimensions": 4}),
        (
            "gemini",
            "/models/tiny:batchEmbedContents",
            {
                "requests": [
                    {
                        "model": "models/tiny",
                        "taskType": "RETRIEVAL_DOCUMENT",
                        "outputDimensionality": 4,
                        "content": {"parts": [{"text": "hi"}]},
                    }
                ]
            },
        ),
    ],
)
async def test_request_has_the_format_of_its_provider(provider: str, path: str, payload: Any) -> None:
    async with asking(embeddings, provider, dims=4) as asked:
        await asked.embed("hi")
        [request] = asked.service.requests
        assert (request.path, request.payload) == (path, payload)


async def test_gemini_request_marks_a_query() -> None:
    async with asking(embeddings, "gemini") as asked:
        await asked.embedder.embed_query("hi")
        [request] = asked.service.requests
        assert request.payload["requests"][0]["taskType"] == "RETRIEVAL_QUERY"


async def test_prefixes_depend_on_the_model_and_can_be_configured(provider: str) -> None:
    async with asking(embeddings, provider, model="nomic-embed-text") as asked:
        await asked.embed("x")
        await asked.embedder.embed_query("y")
        assert asked.batches == [["search_document: x"], ["search_query: y"]]
    async with asking(embeddings, provider, model="nomic-embed-text", query_prefix="", document_prefix="D ") as asked:
        await asked.embed("x")
        await asked.embedder.embed_query("y")
        assert asked.batches == [["D x"], ["y"]]


# --- Concurrency


@pytest.mark.parametrize(("provider", "expected"), [("openai", 4), ("gemini", 4), ("ollama", 1)])
async def test_concurrent_requests_are_limited(provider: str, expected: int) -> None:
    condition = threading.Condition()
    busy = {"now": 0, "most": 0}

    def together(request: Request) -> Answer:
        with condition:
            busy["now"] += 1
            busy["most"] = max(busy["most"], busy["now"])
            condition.notify_all()
            condition.wait_for(lambda: busy["most"] >= expected, timeout=10)
            condition.wait_for(lambda: busy["most"] > expected, timeout=0.05)  # one too many would come now
            busy["now"] -= 1
        return embeddings(request)

    async with asking(together, provider, {"max_batch_texts": 1}) as asked:
        texts = [f"text {number}" for number in range(8)]
        assert_all_right(await asked.embed(*texts), texts)
    assert busy["most"] == expected


async def test_query_does_not_wait_for_the_backlog() -> None:
    answered = threading.Event()

    def slow_for_documents(request: Request) -> Answer:
        if request.texts != ["query"]:
            answered.wait(10)
        return embeddings(request)

    async with asking(slow_for_documents, "ollama") as asked, anyio.create_task_group() as group:
        group.start_soon(asked.embed, "document")
        assert_right(await asked.embedder.embed_query("query"), "query")
        answered.set()


# --- Trouble that passes


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
async def test_transient_errors_are_retried(provider: str, status: int) -> None:
    async with asking(first(Answer(status, b"busy"), times=3), provider) as asked:
        assert_all_right(await asked.embed("one", "two"), ["one", "two"])
        assert len(asked.batches) == 4


async def test_retry_waits_double_and_respect_retry_after(provider: str) -> None:
    async with asking(first(Answer(503), times=3), provider) as asked:
        await asked.embed("one")
        for slept, doubled in zip(asked.slept, (0.5, 1, 2), strict=True):
            assert doubled <= slept <= doubled * 1.2


@pytest.mark.parametrize("header", ["7", formatdate(NOW + 7, usegmt=True)])
async def test_retry_after_is_honoured_in_seconds_and_as_a_date(provider: str, header: str) -> None:
    async with asking(first(Answer(429, headers={"Retry-After": header})), provider) as asked:
        assert_all_right(await asked.embed("one"), ["one"])
        assert asked.slept == [7]


@pytest.mark.parametrize("header", ["soon", "-3", "nan", "inf", "Fri, 99 Foo 2023"])
async def test_invalid_retry_after_is_ignored(header: str) -> None:
    async with asking(first(Answer(429, headers={"Retry-After": header}))) as asked:
        assert_all_right(await asked.embed("one"), ["one"])
        [slept] = asked.slept
        assert 0.5 <= slept <= 0.6


async def test_long_retry_after_is_reported_instead_of_waited_for(provider: str) -> None:
    async with asking(always(Answer(429, headers={"Retry-After": "3600"})), provider) as asked:
        error = await asked.unavailable()
        assert (error.retry_after, error.permanent) == (3600, False)
        assert asked.slept == []
        assert len(asked.batches) == 1


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_outage_is_reported_after_three_retries(provider: str, status: int) -> None:
    async with asking(always(Answer(status)), provider) as asked:
        error = await asked.unavailable()
        assert not error.permanent
        assert len(asked.batches) == 4


async def test_server_that_always_fails_is_an_outage_and_fails_no_text(provider: str) -> None:
    async with asking(always(say({"error": "out of memory"}, 500)), provider) as asked:
        error = await asked.unavailable()
        assert not error.permanent
        assert "out of memory" in error.reason


async def test_service_that_cannot_be_reached_is_an_outage(provider: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with asking(embeddings, provider, url=address) as asked:
            error = await asked.unavailable()
            assert not error.permanent
            assert "cannot be reached" in error.reason
            assert len(asked.slept) == 3


@contextmanager
def silent() -> Iterator[str]:
    """A socket that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_request_without_a_reply_ends_with_the_timeout(provider: str) -> None:
    with silent() as address:
        async with asking(embeddings, provider, url=address, timeout=0.1) as asked:
            error = await asked.unavailable()
            assert not error.permanent
            assert "0.1 seconds" in error.reason


async def test_slow_reply_ends_with_the_timeout(provider: str) -> None:
    async with asking(always(Answer(drip=True)), provider, timeout=0.1) as asked:
        assert "0.1 seconds" in (await asked.unavailable()).reason


async def test_query_is_retried_only_once(provider: str) -> None:
    async with asking(always(Answer(503)), provider) as asked:
        with pytest.raises(EmbedderUnavailable):
            await asked.embedder.embed_query("where is it?")
        assert len(asked.batches) == 2


async def test_embedder_works_again_after_an_outage(provider: str) -> None:
    async with asking(first(Answer(503), times=4), provider) as asked:
        await asked.unavailable()
        assert_all_right(await asked.embed("one"), ["one"])


async def test_error_in_one_batch_cancels_the_others() -> None:
    behaviour = refusing("bad", Answer(503, headers={"Retry-After": "120"}))
    async with asking(behaviour, "openai", {"max_batch_texts": 1}) as asked:
        error = await asked.unavailable(*["good"] * 5, "bad", *["good"] * 200)
        assert error.retry_after == 120
        assert len(asked.batches) < 206


async def test_embedder_works_after_a_cancelled_call() -> None:
    behaviour = first(Answer(drip=True))
    async with asking(behaviour) as asked:
        with anyio.move_on_after(0.05):
            await asked.embed("one")
        assert_all_right(await asked.embed("two"), ["two"])


# --- Trouble that does not pass


def quota(message: str, *details: Any) -> Any:
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": message, "details": details}}


@pytest.mark.parametrize(
    "answer",
    [
        say({"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}, 429),
        say({"error": {"type": "insufficient_quota"}}, 403),
        say({"error": "Payment required"}, 402),
        say(quota("You exceeded your current quota, please check your plan and billing details."), 429),
    ],
)
async def test_exhausted_quota_is_not_retried(provider: str, answer: Answer) -> None:
    async with asking(always(answer), provider) as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "billing" in error.reason
        assert len(asked.batches) == 1


async def test_google_limit_per_minute_is_retried_although_it_says_quota() -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    async with asking(first(say(quota("You exceeded your current quota", delay), 429)), "gemini") as asked:
        assert_all_right(await asked.embed("one"), ["one"])
        assert asked.slept == [34.5]


async def test_google_limit_per_day_is_retried_after_an_hour() -> None:
    violation = {"violations": [{"quotaId": "EmbedContentRequestsPerDayPerUserPerProject-FreeTier"}]}
    async with asking(always(say(quota("quota exceeded", violation), 429)), "gemini") as asked:
        error = await asked.unavailable()
        assert (error.permanent, error.retry_after) == (False, 3600)
        assert len(asked.batches) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_key_error_names_its_source_and_not_the_key(
    provider: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLANKERS_EMBEDDER_KEY", SECRET)
    async with asking(always(say({"error": f"wrong key {SECRET}"}, status)), provider) as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "CLANKERS_EMBEDDER_KEY" in error.reason
        assert SECRET not in repr(error)
        assert SECRET not in repr(vars(asked.embedder))
        assert len(asked.batches) == 1


async def test_refusal_without_a_key_says_where_to_put_one(provider: str) -> None:
    async with asking(always(Answer(401)), provider) as asked:
        assert "set CLANKERS_EMBEDDER_KEY or key_file" in (await asked.unavailable()).reason


async def test_google_status_400_for_a_wrong_key_is_recognised() -> None:
    answer = say({"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}}, 400)
    async with asking(always(answer), "gemini") as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "key" in error.reason


async def test_missing_model_error_says_what_to_do() -> None:
    async with asking(always(say({"error": 'model "tiny" not found'}, 404)), "ollama") as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "run: ollama pull tiny" in error.reason
        assert len(asked.batches) == 1


@pytest.mark.parametrize("provider", ["openai", "gemini"])
async def test_missing_model_error_names_the_model(provider: str) -> None:
    async with asking(always(Answer(404, b"<html>")), provider) as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "no model tiny" in error.reason


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(provider: str, status: int) -> None:
    with served(embeddings) as elsewhere:
        answer = Answer(status, headers={"Location": f"{elsewhere.url}/embeddings"})
        async with asking(always(answer), provider) as asked:
            error = await asked.unavailable()
            assert error.permanent
            assert "url" in error.reason
        assert elsewhere.requests == []


async def test_service_that_rejects_everything_is_unavailable_and_fails_no_text(provider: str) -> None:
    answer = say({"error": {"message": "dimensions is not supported"}}, 400)
    async with asking(always(answer), provider) as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "dimensions is not supported" in error.reason
        assert len(asked.batches) == 2


# --- One bad text among good ones


@pytest.mark.parametrize("answer", [Answer(400), Answer(413), Answer(422), Answer(500), Answer(cut=True)])
async def test_rejected_text_fails_alone(provider: str, answer: Answer) -> None:
    texts = [f"text {number}" for number in range(13)]
    async with asking(refusing("text 6", answer), provider) as asked:
        outcomes = await asked.embed(*texts)
        assert isinstance(outcomes.pop(6), ItemFailed)
        assert_all_right(outcomes, texts[:6] + texts[7:])


async def test_rejected_text_reports_the_providers_message(provider: str) -> None:
    async with asking(refusing("bad", say({"error": {"message": "no swearing"}}, 422)), provider) as asked:
        [outcome] = await asked.embed("bad")
        assert isinstance(outcome, ItemFailed)
        assert "no swearing" in outcome.reason


async def test_rejected_query_fails_with_the_reason(provider: str) -> None:
    async with asking(refusing("bad", Answer(400)), provider) as asked:
        with pytest.raises(ItemFailed):
            await asked.embedder.embed_query("bad")
        with pytest.raises(ItemFailed):
            await asked.embedder.embed_query(" ")


async def test_batch_size_shrinks_for_a_service_that_takes_fewer_texts(provider: str) -> None:
    def at_most_ten(request: Request) -> Answer:
        return embeddings(request) if len(request.texts) <= 10 else Answer(400)

    texts = [f"text {number}" for number in range(32)]
    async with asking(at_most_ten, provider) as asked:
        for _ in range(3):
            assert_all_right(await asked.embed(*texts), texts)
        asked.service.requests.clear()
        assert_all_right(await asked.embed(*texts), texts)
        assert [len(batch) for batch in asked.batches] == [8, 8, 8, 8]


async def test_text_that_is_too_long_gets_the_vector_of_its_beginning(provider: str) -> None:
    def short_only(request: Request) -> Answer:
        if any(len(text) > 1000 for text in request.texts):
            return say({"error": "the input length exceeds the context length"}, 400)
        return embeddings(request)

    async with asking(short_only, provider) as asked:
        short, long = await asked.embed("short", "x" * 3000)
        assert_right(short, "short")
        assert_right(long, "x" * 750)


# --- Replies that are not what they should be


def answering(vectors: Any) -> Behaviour:
    """Vectors made from the request, whatever they are."""
    return lambda request: embeddings(request, vectors(request.texts))


@pytest.mark.parametrize(
    "garbage",
    [
        Answer(200, b"<html>Log in to the wifi</html>"),
        Answer(200, b""),
        Answer(200, b'{"data": [{"index": 0, "embed'),
        Answer(200, b"\xff\xfe\x00"),
        Answer(200, b"[NaN"),
        Answer(200, b"[" * 100_000),
        Answer(200, b"null"),
        Answer(200, b'{"data": {}, "embeddings": {}}'),
        Answer(200, b'{"error": {"message": "no provider"}}'),
        Answer(204),
        Answer(200, b"not gzip", {"Content-Encoding": "gzip"}),
        Answer(200, b'{"data": ', cut=True),
    ],
)
async def test_invalid_body_is_retried_and_then_an_outage(provider: str, garbage: Answer) -> None:
    async with asking(first(garbage), provider) as asked:
        assert_all_right(await asked.embed("one", "two"), ["one", "two"])
    async with asking(always(garbage), provider) as asked:
        assert not (await asked.unavailable()).permanent


@pytest.mark.parametrize("wrong", [lambda vectors: vectors[1:], lambda vectors: [*vectors, [1, 2, 3, 4]]])
async def test_wrong_number_of_embeddings_is_rejected(provider: str, wrong: Any) -> None:
    async with asking(answering(lambda texts: wrong([numbers(text) for text in texts])), provider) as asked:
        error = await asked.unavailable()
        assert not error.permanent
        assert "embeddings for" in error.reason


async def test_service_that_answers_one_text_at_a_time_gets_single_texts(provider: str) -> None:
    async with asking(answering(lambda texts: [numbers(texts[0])]), provider) as asked:
        texts = ["one", "two", "three"]
        assert_all_right(await asked.embed(*texts), texts)


async def test_openai_embeddings_are_ordered_by_index() -> None:
    def backwards(request: Request) -> Answer:
        items = [{"index": i, "embedding": numbers(text)} for i, text in enumerate(request.texts)]
        return say({"data": items[::-1]})

    async with asking(backwards) as asked:
        texts = ["one", "two", "three"]
        assert_all_right(await asked.embed(*texts), texts)


async def test_openai_embeddings_without_indexes_stay_in_order() -> None:
    def plain(request: Request) -> Answer:
        return say({"data": [{"embedding": numbers(text)} for text in request.texts]})

    async with asking(plain) as asked:
        assert_all_right(await asked.embed("one", "two"), ["one", "two"])


@pytest.mark.parametrize("indexes", [[0, 0], [1, 2], [0, None], [-1, 0], [0, 99]])
async def test_openai_embeddings_with_invalid_indexes_are_rejected(indexes: list[int | None]) -> None:
    def confused(request: Request) -> Answer:
        if len(request.texts) == 1:
            return embeddings(request)
        pairs = zip(indexes, reversed(request.texts), strict=True)
        return say({"data": [{"index": index, "embedding": numbers(text)} for index, text in pairs]})

    async with asking(confused) as asked:
        assert_all_right(await asked.embed("one", "two"), ["one", "two"])


@pytest.mark.parametrize(
    "garbage",
    [
        [float("nan"), 1, 1, 1],
        [float("inf"), 1, 1, 1],
        [1, float("-inf"), 1, 1],
        [0, 0, 0, 0],
        [],
        None,
        "!!!",
        {"a": 1},
        ["1", "2", "3", "4"],
        [None, 1, 1, 1],
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        [True, True, True, True],
        [1, 2, 3],
        [1, 2, 3, 4, 5],
        [1e400, 1, 1, 1],
    ],
)
async def test_invalid_vector_fails_its_text_alone(provider: str, garbage: Any) -> None:
    def vectors(texts: list[str]) -> list[Any]:
        return [garbage if text == "bad" else numbers(text) for text in texts]

    async with asking(answering(vectors), provider) as asked:
        one, bad, two = await asked.embed("one", "bad", "two")
        assert isinstance(bad, ItemFailed)
        assert_all_right([one, two], ["one", "two"])
        [alone] = await asked.embed("bad")
        assert isinstance(alone, ItemFailed)
        assert asked.embedder.identity.dims == 4


async def test_nan_fails_its_text_without_a_retry(provider: str) -> None:
    def vectors(texts: list[str]) -> list[Any]:
        return [[float("nan")] * 4 if text == "bad" else numbers(text) for text in texts]

    async with asking(answering(vectors), provider) as asked:
        bad, good = await asked.embed("bad", "good")
        assert isinstance(bad, ItemFailed)
        assert_right(good, "good")
        assert len(asked.batches) == 1


async def test_vectors_of_two_lengths_are_never_both_accepted() -> None:
    both = threading.Barrier(2)

    def by_name(request: Request) -> Answer:
        [text] = request.texts
        if request.number < 2:
            both.wait(10)
        return embeddings(request, [numbers(text, 5 if text == "five" else 4)])

    async with asking(by_name, "openai", {"max_batch_texts": 1}) as asked:
        outcomes: list[Any] = []
        with suppress(EmbedderUnavailable):  # if the probe is answered with the other length
            outcomes = await asked.embed("four", "five")
        assert len({len(outcome) for outcome in outcomes if not isinstance(outcome, ItemFailed)}) <= 1


async def test_reply_with_only_invalid_vectors_is_an_outage_and_fails_no_text(provider: str) -> None:
    async with asking(answering(lambda texts: [[0, 0, 0, 0] for _ in texts]), provider) as asked:
        assert not (await asked.unavailable()).permanent


async def test_changed_dimensions_are_detected(provider: str) -> None:
    def growing(request: Request) -> Answer:
        dims = 4 if request.number == 0 else 5
        return embeddings(request, [numbers(text, dims) for text in request.texts])

    async with asking(growing, provider) as asked:
        await asked.embed("one")
        error = await asked.unavailable()
        assert error.permanent
        assert "5 numbers, not 4" in error.reason


async def test_service_that_ignores_the_configured_dims_is_not_used(provider: str) -> None:
    async with asking(embeddings, provider, dims=3) as asked:
        assert asked.embedder.identity.dims == 3
        error = await asked.unavailable()
        assert error.permanent
        assert "4 numbers, not 3" in error.reason


async def test_base64_embeddings_are_decoded() -> None:
    def packed(request: Request) -> Answer:
        vectors = [base64.b64encode(struct.pack("<4f", *numbers(text))).decode() for text in request.texts]
        return embeddings(request, vectors)

    async with asking(packed) as asked:
        assert_all_right(await asked.embed("one", "two"), ["one", "two"])


async def test_truncated_base64_fails_its_text() -> None:
    def packed(request: Request) -> Answer:
        whole = [base64.b64encode(struct.pack("<4f", *numbers(text))).decode() for text in request.texts]
        return embeddings(
            request, [one[:-4] if text == "bad" else one for one, text in zip(whole, request.texts, strict=True)]
        )

    async with asking(packed) as asked:
        good, bad = await asked.embed("good", "bad")
        assert_right(good, "good")
        assert isinstance(bad, ItemFailed)


async def test_reply_over_the_size_limit_is_rejected(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "MAX_REPLY_BYTES", 1000)
    async with asking(always(Answer(200, b" " * 5000)), provider) as asked:
        error = await asked.unavailable()
        assert not error.permanent
        assert "more than 1000 bytes" in error.reason


# --- Keys


async def test_key_is_sent_in_the_header_only(
    provider: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLANKERS_EMBEDDER_KEY", SECRET)
    caplog.set_level("DEBUG")
    async with asking(embeddings, provider) as asked:
        await asked.embed("one")
        [request] = asked.service.requests
        carrying = [name for name, value in request.headers.items() if SECRET in value]
        assert carrying == ["x-goog-api-key" if provider == "gemini" else "authorization"]
        assert SECRET not in request.path
    assert SECRET not in caplog.text


async def test_provider_key_is_not_sent_to_another_host(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(variable, SECRET)
    async with asking(embeddings, provider) as asked:
        await asked.embed("one")
        assert SECRET not in str(asked.service.requests)


async def test_key_file_is_read_again_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    async with asking(embeddings, key_file=str(file)) as asked:
        error = await asked.unavailable()
        assert error.permanent
        assert "chmod 600" in error.reason
        assert asked.batches == []
        file.chmod(0o600)
        await asked.embed("one")
        assert asked.service.requests[0].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(("api", "variable"), [(OpenAI, "OPENAI_API_KEY"), (Gemini, "GEMINI_API_KEY")])
async def test_provider_is_not_called_without_a_key(api: Any, variable: str) -> None:
    embedder = RemoteEmbedder(api(), EmbedderSettings())
    with pytest.raises(EmbedderUnavailable, match=f"set {variable}") as caught:
        await embedder.embed(["one"])
    assert caught.value.permanent
