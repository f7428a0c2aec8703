"""Rerankers on the network: services with the common rerank API, each with its own names for the same things."""

import math
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from clankersd.embedders.base import to_valid_unicode
from clankersd.http.api_keys import Key, find_key
from clankersd.http.client import Endpoint, validate_url
from clankersd.http.responses import ErrorTexts, RequestRejected, ServiceUnavailable, TransientError, check_status
from clankersd.http.retry import RetryPolicy
from clankersd.rerankers.base import RerankerSettings, RerankerUnavailable
from clankersd.rerankers.onnx import sigmoid

KEY_VARIABLE = "CLANKERS_RERANKER_KEY"
MAX_REPLY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class RerankService:
    """The rerank API of one kind of service: POST {url}/rerank.

    `texts` and `results` are the names of the lists in the request and in the reply, "" for a reply that is a list;
    `score` is the name of the score of a result, which refers to a text by `index`. `options` are sent with a request.
    """

    title: str
    texts: str = "documents"
    results: str = "results"
    score: str = "relevance_score"
    options: dict[str, Any] = field(default_factory=dict)
    model_needed: bool = True


SERVICES = {
    "jina": RerankService("the Jina reranker", options={"return_documents": False}),
    "cohere": RerankService("the Cohere reranker"),
    "voyage": RerankService(
        "the Voyage reranker", results="data", options={"truncation": True, "return_documents": False}
    ),
    "tei": RerankService(
        "Text Embeddings Inference",
        texts="texts",
        results="",
        score="score",
        options={"truncate": True, "raw_scores": False},
        model_needed=False,
    ),
    "vllm": RerankService("the vLLM reranker", model_needed=False),
}


class RemoteReranker:
    """Requests scores from a service, and validates everything it sends."""

    def __init__(self, service: RerankService, settings: RerankerSettings) -> None:
        if not settings.url:
            raise RerankerUnavailable(f"{service.title} needs an address: set reranker_url", permanent=True)
        if service.model_needed and not settings.model:
            raise RerankerUnavailable(f"{service.title} needs a model: set reranker_model", permanent=True)
        try:
            url = validate_url(settings.url, "reranker_url")
        except ServiceUnavailable as error:
            raise RerankerUnavailable(error.reason, permanent=True) from error
        self._service = service
        self._settings = settings
        self._endpoint = Endpoint(
            url, service.title, settings.seconds, RetryPolicy(retries=0), ("Authorization", "Bearer ")
        )  # fmt: skip
        self.name = f"{settings.provider} {settings.model}".rstrip()
        self.omission_reason = f"{self._endpoint.name} left the others out"

    async def score(self, query: str, texts: list[str], seconds: float) -> list[float | None]:
        """Send one request, without a retry: the search goes on without it."""
        service = self._service
        payload = {"query": to_valid_unicode(query), service.texts: [to_valid_unicode(text) for text in texts]}
        if self._settings.model:
            payload["model"] = self._settings.model
        content = msgspec.json.encode(payload | service.options)
        try:
            key = find_key(self._settings.key_file, (), first_variable=KEY_VARIABLE)
            with anyio.fail_after(seconds):
                reply = await self._endpoint.post("/rerank", content, key, MAX_REPLY_BYTES)
            check_status(reply, self._error_texts(key))
        except TimeoutError as error:
            raise RerankerUnavailable(f"{self._endpoint.name} did not answer within {seconds:g} seconds") from error
        except (RequestRejected, TransientError, ServiceUnavailable) as error:
            permanent = isinstance(error, ServiceUnavailable) and error.permanent
            retry_after = None if isinstance(error, RequestRejected) else error.retry_after
            raise RerankerUnavailable(error.reason, retry_after=retry_after, permanent=permanent) from error
        return parse_scores(service, reply.body, len(texts), self._endpoint.name)

    async def close(self) -> None:
        await self._endpoint.close()

    def _error_texts(self, key: Key | None) -> ErrorTexts:
        name = self._endpoint.name
        wrong_key = f"{name} wants a key: set {KEY_VARIABLE} or reranker_key_file"
        if key:
            wrong_key = f"{name} refuses the key in {key.source}: put a valid one there"
        missing = f"{name} has no rerank API at that address: set reranker_url, or reranker_model if it needs one"
        if model := self._settings.model:
            missing = f"{name} has no model {model}, or the url is wrong: set reranker_model or reranker_url"
        return ErrorTexts(name, wrong_key, missing, "reranker_url")


def parse_scores(service: RerankService, body: bytes, count: int, name: str) -> list[float | None]:
    """Read the score of each of `count` texts from a reply; raises RerankerUnavailable if it is malformed.

    A service may leave out texts. Scores beyond 0 to 1 are logits, and become probabilities.
    """
    try:
        reply = msgspec.json.decode(body)
        results = reply[service.results] if service.results else reply
        scores: dict[int, float] = {result["index"]: float(result[service.score]) for result in results}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RerankerUnavailable(f"{name} sent a reply without scores") from error
    if len(scores) != len(results) or not all(type(index) is int and 0 <= index < count for index in scores):
        raise RerankerUnavailable(f"{name} numbered its scores wrongly")
    if not scores or not all(map(math.isfinite, scores.values())):
        raise RerankerUnavailable(f"{name} sent a reply without usable scores")
    if min(scores.values()) < 0 or max(scores.values()) > 1:
        scores = {index: sigmoid(score) for index, score in scores.items()}
    return [scores.get(index) for index in range(count)]
