"""Providers of embeddings on the network: how each expects a request and how it replies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from clankersd.embedders.base import EmbedderSettings, EmbedderUnavailable
from clankersd.http.api_keys import Key, find_key
from clankersd.http.client import Endpoint, validate_url
from clankersd.http.responses import ErrorTexts, ServiceUnavailable, TransientError, check_status, decode_reply
from clankersd.http.retry import RetryPolicy

Purpose = Literal["document", "query"]

MAX_REPLY_BYTES = 32 * 1024 * 1024


class ProviderApi(Protocol):
    """The HTTP API of one provider."""

    provider: str
    title: str
    default_url: str
    default_model: str
    key_variables: tuple[str, ...]
    key_header: tuple[str, str]  # the header's name, and the text before the key
    key_needed: bool  # at the default url
    max_concurrent_requests: int

    def path(self, model: str) -> str: ...

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> Any: ...

    def embeddings(self, body: bytes) -> list[Any]:
        """Extract the raw embedding of each text, in the order of the texts; raises TransientError if unclear."""
        ...

    def missing_model(self, model: str, service: str) -> str: ...


class _OpenAIItem(msgspec.Struct):
    embedding: Any
    index: int | None = None


class _OpenAIReply(msgspec.Struct):
    data: list[_OpenAIItem]


class OpenAI:
    """OpenAI and compatible services (LM Studio, llama.cpp, vLLM, OpenRouter …): POST {url}/embeddings."""

    provider = "openai"
    title = "the OpenAI-compatible service"
    default_url = "https://api.openai.com/v1"
    default_model = "text-embedding-3-small"
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",)
    key_header = ("Authorization", "Bearer ")
    key_needed = True
    max_concurrent_requests = 4

    def path(self, model: str) -> str:
        return "/embeddings"

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> dict[str, Any]:
        payload: dict[str, Any] = {"model": model, "input": texts}
        if dims:
            payload["dimensions"] = dims
        return payload

    def embeddings(self, body: bytes) -> list[Any]:
        """Return the embeddings in the order of their indexes; a service that sends no index sends them in order."""
        items = decode_reply(body, _OpenAIReply).data
        indexes = [item.index for item in items]
        if any(index is not None for index in indexes):
            if {*indexes} != {*range(len(items))}:
                raise TransientError("the provider's embeddings are numbered wrongly", suspect=True)
            items.sort(key=lambda item: item.index or 0)
        return [item.embedding for item in items]

    def missing_model(self, model: str, service: str) -> str:
        return f"{service} has no model {model}, or the url is wrong: set the embedder's model or url"


class _OllamaReply(msgspec.Struct):
    embeddings: list[Any]


class Ollama:
    """Ollama's own API: POST {url}/api/embed."""

    provider = "ollama"
    title = "Ollama"
    default_url = "http://127.0.0.1:11434"
    default_model = "nomic-embed-text"
    key_variables: tuple[str, ...] = ()
    key_header = ("Authorization", "Bearer ")
    key_needed = False
    max_concurrent_requests = 1  # it computes on this machine, one request after the other

    def path(self, model: str) -> str:
        return "/api/embed"

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> dict[str, Any]:
        payload: dict[str, Any] = {"model": model, "input": texts, "truncate": True}
        if dims:
            payload["dimensions"] = dims
        return payload

    def embeddings(self, body: bytes) -> list[Any]:
        return decode_reply(body, _OllamaReply).embeddings

    def missing_model(self, model: str, service: str) -> str:
        return f"{service} has no model {model}; run: ollama pull {model}"


class _GeminiItem(msgspec.Struct):
    values: Any = None


class _GeminiReply(msgspec.Struct):
    embeddings: list[_GeminiItem]


class Gemini:
    """Google's Gemini API: POST {url}/models/{model}:batchEmbedContents."""

    provider = "gemini"
    title = "Gemini"
    default_url = "https://generativelanguage.googleapis.com/v1beta"
    default_model = "gemini-embedding-001"
    key_variables: tuple[str, ...] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    key_header = ("x-goog-api-key", "")
    key_needed = True
    max_concurrent_requests = 4

    def path(self, model: str) -> str:
        return f"/models/{quote(model.removeprefix('models/'), safe='')}:batchEmbedContents"

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> dict[str, Any]:
        common: dict[str, Any] = {
            "model": f"models/{model.removeprefix('models/')}",
            "taskType": "RETRIEVAL_DOCUMENT" if purpose == "document" else "RETRIEVAL_QUERY",
        }
        if dims:
            common["outputDimensionality"] = dims
        return {"requests": [{**common, "content": {"parts": [{"text": text}]}} for text in texts]}

    def embeddings(self, body: bytes) -> list[Any]:
        return [item.values for item in decode_reply(body, _GeminiReply).embeddings]

    def missing_model(self, model: str, service: str) -> str:
        return f"{service} has no model {model}: set the embedder's model"


PROVIDERS: dict[str, ProviderApi] = {api.provider: api for api in (OpenAI(), Ollama(), Gemini())}


def is_default_host(api: ProviderApi, url: str) -> bool:
    """Tell whether `url` is at the provider's own address: a key in the environment is sent only there."""
    return not url or urlsplit(url)[:2] == urlsplit(api.default_url)[:2]


class EmbeddingsClient:
    """Requests embeddings of one model from one API at one address."""

    def __init__(self, api: ProviderApi, settings: EmbedderSettings, retry_policy: RetryPolicy) -> None:
        self.model = settings.model or api.default_model
        with _as_embedder_error():
            self.url = validate_url(settings.url or api.default_url, "the embedder's url").rstrip("/")
        self._api = api
        self._settings = settings
        self._endpoint = Endpoint(self.url, api.title, settings.timeout, retry_policy, api.key_header)

    async def embeddings(self, texts: list[str], purpose: Purpose, retries: int) -> list[Any]:
        """Return the raw embedding of each text; raises RequestRejected or EmbedderUnavailable."""
        with _as_embedder_error():
            return await self._endpoint.with_retries(lambda: self._request(texts, purpose), retries)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _request(self, texts: list[str], purpose: Purpose) -> list[Any]:
        key = self._find_key()
        payload = self._api.payload(self.model, texts, purpose, self._settings.dims)
        path = self._api.path(self.model)
        reply = await self._endpoint.post(path, msgspec.json.encode(payload), key, MAX_REPLY_BYTES)
        check_status(reply, self._error_texts(key))
        embeddings = await anyio.to_thread.run_sync(self._api.embeddings, reply.body)
        if len(embeddings) != len(texts):
            reason = f"{self._endpoint.name} sent {len(embeddings)} embeddings for {len(texts)} texts"
            raise TransientError(reason, suspect=True)
        return embeddings

    def _find_key(self) -> Key | None:
        """Read the key for each request, so that a corrected key needs no restart."""
        is_default = is_default_host(self._api, self.url)
        variables = self._api.key_variables if is_default else ()
        key = find_key(self._settings.key_file, variables, first_variable=self._settings.key_variable)
        if key is None and self._api.key_needed and is_default:
            raise EmbedderUnavailable(
                f"{self._api.title} needs a key: set {' or '.join(variables)}, or key_file", permanent=True
            )
        return key

    def _error_texts(self, key: Key | None) -> ErrorTexts:
        service = self._endpoint.name
        wrong_key = f"{service} wants a key: set {self._settings.key_variable} or key_file"
        if key:
            wrong_key = f"{service} refuses the key in {key.source}: put one there that is valid and may embed"
        return ErrorTexts(service, wrong_key, self._api.missing_model(self.model, service))


@contextmanager
def _as_embedder_error() -> Iterator[None]:
    try:
        yield
    except ServiceUnavailable as error:
        raise EmbedderUnavailable(error.reason, retry_after=error.retry_after, permanent=error.permanent) from error
