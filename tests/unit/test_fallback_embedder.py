"""The fallback embedder: it takes over with the same model only, and the first one is used again when it answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from helpers.embedding_service import Answer, Behaviour, Request, Service, embeddings, numbers, say, served

pytest.importorskip("numpy")
pytest.importorskip("httpx")

import numpy as np

from clankersd.embedders import EmbedderSettings, EmbedderUnavailable, ItemFailed, make_embedder
from clankersd.embedders.fallback import FallbackEmbedder
from clankersd.embedders.normalize import unit_vector
from clankersd.embedders.providers import OpenAI
from clankersd.embedders.remote import RemoteEmbedder
from clankersd.http.retry import RetryPolicy

pytestmark = pytest.mark.anyio

DOWN = say({"error": "down"}, 503)
SAMPLES = ["a stored text", "another one"]


@dataclass
class Outages:
    """A service that answers well, or as `bad` says."""

    bad: Answer | None = None
    vectors: Any = None

    def __call__(self, request: Request) -> Answer:
        if self.bad is not None:
            return self.bad
        return embeddings(request, [self.vectors(text) for text in request.texts] if self.vectors else None)


@dataclass
class Pair:
    """A fallback embedder, and the two services behind it."""

    embedder: FallbackEmbedder
    first: Service
    second: Service
    samples: list[str] = field(default_factory=lambda: list(SAMPLES))

    async def read_samples(self) -> list[tuple[str, Any]]:
        return [(text, unit_vector(numbers(text))) for text in self.samples]


async def no_sleep(_: float) -> None:
    """Retry at once."""


@asynccontextmanager
async def pair(first: Behaviour, second: Behaviour) -> AsyncIterator[Pair]:
    with served(first) as one, served(second) as other:
        both = [
            RemoteEmbedder(OpenAI(), EmbedderSettings("openai", "tiny", service.url), RetryPolicy(sleep=no_sleep))
            for service in (one, other)
        ]
        made = Pair(FallbackEmbedder(*both), one, other)
        made.embedder.read_samples = made.read_samples
        try:
            yield made
        finally:
            await made.embedder.close()


@pytest.fixture(autouse=True)
def moving_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed in addition to real time."""
    passed = [0.0]
    now = anyio.current_time
    monkeypatch.setattr("clankersd.embedders.fallback.anyio.current_time", lambda: now() + passed[0])
    return passed


async def test_fallback_is_not_asked_while_the_embedder_answers() -> None:
    async with pair(Outages(), Outages()) as both:
        await both.embedder.embed(["one"])
        await both.embedder.embed_query("two")
        assert both.second.requests == []
        assert both.embedder.outage is None


async def test_fallback_takes_over_for_documents_and_queries_after_a_comparison() -> None:
    async with pair(Outages(DOWN), Outages()) as both:
        [vector] = await both.embedder.embed(["one"])
        assert not isinstance(vector, ItemFailed)
        assert np.allclose(vector, unit_vector(numbers("one")))
        assert np.allclose(await both.embedder.embed_query("two"), unit_vector(numbers("two")))
        assert [request.texts for request in both.second.requests] == [SAMPLES, ["one"], ["two"]]
        assert both.embedder.outage is not None
        assert both.embedder.identity.model == "tiny"


async def test_embedder_is_not_asked_again_for_a_while_and_then_used_as_soon_as_it_answers(
    moving_clock: list[float],
) -> None:
    first = Outages(DOWN)
    async with pair(first, Outages()) as both:
        await both.embedder.embed_query("one")
        asked = len(both.first.requests)
        await both.embedder.embed_query("two")
        assert len(both.first.requests) == asked
        first.bad = None
        moving_clock[0] = 31
        await both.embedder.embed_query("three")
        assert both.first.requests[-1].texts == ["three"]
        assert both.embedder.outage is None


async def test_query_does_not_wait_long_for_an_embedder_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clankersd.embedders.fallback.QUERY_SECONDS", 0.05)
    async with pair(Outages(Answer(drip=True)), Outages()) as both:
        assert np.allclose(await both.embedder.embed_query("one"), unit_vector(numbers("one")))
        assert "within 0.05 seconds" in (both.embedder.outage or "")


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (lambda text: [-number for number in numbers(text)], "another model"),
        (lambda text: [*numbers(text), 1.0], "5 numbers, those of the index 4"),
    ],
)
async def test_fallback_with_another_model_is_never_used(vectors: Any, reason: str) -> None:
    async with pair(Outages(DOWN), Outages(vectors=vectors)) as both:
        for _ in range(2):
            with pytest.raises(EmbedderUnavailable, match=reason):
                await both.embedder.embed_query("one")
        assert [request.texts for request in both.second.requests] == [SAMPLES]


async def test_fallback_is_not_used_before_there_is_a_vector_to_compare_with() -> None:
    async with pair(Outages(DOWN), Outages()) as both:
        both.samples = []
        with pytest.raises(EmbedderUnavailable, match="before that has made a vector"):
            await both.embedder.embed(["one"])
        assert both.second.requests == []


async def test_outage_of_both_names_both_reasons() -> None:
    async with pair(Outages(DOWN), Outages(say({"error": "also down"}, 503))) as both:
        with pytest.raises(EmbedderUnavailable, match=r"down; the fallback openai tiny .* also down"):
            await both.embedder.embed_query("one")


async def test_comparison_is_repeated_in_the_next_outage(moving_clock: list[float]) -> None:
    first, second = Outages(DOWN), Outages()
    async with pair(first, second) as both:
        await both.embedder.embed_query("one")
        first.bad = None
        moving_clock[0] = 31
        await both.embedder.embed_query("two")
        first.bad, second.vectors = DOWN, lambda text: [-number for number in numbers(text)]
        with pytest.raises(EmbedderUnavailable, match="another model"):
            await both.embedder.embed_query("three")


def test_fallback_has_the_prefixes_of_the_embedder_and_a_key_of_its_own() -> None:
    second = EmbedderSettings("openai", "our-alias", "http://localhost:1", key_variable="OTHER")
    embedder = make_embedder(EmbedderSettings("ollama", "nomic-embed-text", fallback=second))
    assert isinstance(embedder, FallbackEmbedder)
    assert embedder._second.profile.query_prefix == embedder.profile.query_prefix == "search_query: "


def test_fallback_that_cannot_be_made_is_named() -> None:
    settings = EmbedderSettings("ollama", fallback=EmbedderSettings("onnx", "/nowhere"))
    with pytest.raises(EmbedderUnavailable, match="the fallback embedder cannot be used: there is no folder"):
        make_embedder(settings)
