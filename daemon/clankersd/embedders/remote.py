"""Embedders on the network: concurrent batches, in which one bad text fails alone."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import anyio

from clankersd.embedders.base import (
    NO_TEXT,
    PROBE_TEXT,
    EmbedderSettings,
    EmbedderUnavailable,
    Identity,
    ItemFailed,
    Outcome,
    Vector,
    provider_key,
    to_valid_unicode,
)
from clankersd.embedders.memory_headroom import import_numpy
from clankersd.embedders.normalize import parse_embedding
from clankersd.embedders.profiles import configured_profile
from clankersd.embedders.providers import EmbeddingsClient, ProviderApi, Purpose
from clankersd.http.responses import RequestRejected
from clankersd.http.retry import RetryPolicy

MAX_BATCH_TEXTS = 96
MAX_BATCH_BYTES = 32_000
MIN_SHORTENED_CHARS = 500
"""A text of this length that is still rejected as too long is rejected for another reason."""


class RemoteEmbedder:
    """Requests vectors from a service, and validates everything it sends."""

    def __init__(
        self,
        api: ProviderApi,
        settings: EmbedderSettings,
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        max_batch_texts: int = MAX_BATCH_TEXTS,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._client = EmbeddingsClient(api, settings, retry_policy)
        self.profile = configured_profile(self._client.model, settings)
        self._retry_policy = retry_policy
        self._max_batch_texts = max_batch_texts
        self._max_batch_bytes = max_batch_bytes
        self._slots = anyio.CapacityLimiter(api.max_concurrent_requests)
        self._numpy_imported = False
        self.weight = self.profile.weight
        self.agreed_weight = self.profile.agreed_weight
        key = provider_key(url=self._client.url, dims=settings.dims, document_prefix=self.profile.document_prefix)
        self.identity = Identity(api.provider, self._client.model, key, settings.dims)

    def preflight(self) -> None:
        for package in ("httpx", "numpy"):
            if find_spec(package) is None:
                raise EmbedderUnavailable(f"remote embedders need the package {package}", permanent=True)

    async def embed(self, texts: list[str]) -> list[Outcome]:
        outcomes: list[Outcome] = [ItemFailed(NO_TEXT) for _ in texts]
        positions = [position for position, text in enumerate(texts) if text.strip()]
        prefixed = [self.profile.document_prefix + to_valid_unicode(texts[position]) for position in positions]
        errors: list[EmbedderUnavailable] = []

        async def embed_batch(batch: list[int]) -> None:
            try:
                async with self._slots:
                    embedded = await self._embed_batch([prefixed[number] for number in batch])
            except EmbedderUnavailable as error:
                errors.append(error)
                group.cancel_scope.cancel()
                return
            for number, outcome in zip(batch, embedded, strict=True):
                outcomes[positions[number]] = outcome

        async with anyio.create_task_group() as group:
            for batch in split_batches(prefixed, self._max_batch_texts, self._max_batch_bytes):
                group.start_soon(embed_batch, batch)
        if errors:
            raise errors[0]
        return outcomes

    async def embed_query(self, text: str) -> Vector:
        """Embed without taking a slot, so that a search does not queue behind the backlog."""
        if not text.strip():
            raise ItemFailed(NO_TEXT)
        try:
            prefixed = self.profile.query_prefix + to_valid_unicode(text)
            [outcome] = await self._request([prefixed], "query", self._retry_policy.query_retries)
        except RequestRejected as rejection:
            await self._probe()
            raise ItemFailed(rejection.reason) from rejection
        if isinstance(outcome, ItemFailed):
            raise outcome
        return outcome

    async def close(self) -> None:
        await self._client.close()

    async def _embed_batch(self, texts: list[str]) -> list[Outcome]:
        try:
            return await self._request(texts, "document", self._retry_policy.retries)
        except RequestRejected as rejection:
            await self._probe()
            outcomes = await self._embed_halves(texts, rejection)
        if len(texts) > 1 and not any(isinstance(outcome, ItemFailed) for outcome in outcomes):
            # Nothing was wrong with the texts, so there were too many: services allow 10, 16, 20, 64 …
            self._max_batch_texts = min(self._max_batch_texts, (len(texts) + 1) // 2)
        return outcomes

    async def _probe(self) -> None:
        """Raise EmbedderUnavailable unless a harmless text is accepted: otherwise every text would be blamed."""
        try:
            await self._request([PROBE_TEXT], "document", retries=0)
        except RequestRejected as rejection:
            raise EmbedderUnavailable(rejection.reason, permanent=rejection.permanent) from rejection

    async def _embed_halves(self, texts: list[str], rejection: RequestRejected) -> list[Outcome]:
        """Embed texts that were rejected together, by halving until the texts at fault are alone."""
        if len(texts) == 1:
            return [await self._embed_shortened(texts[0], rejection)]
        outcomes: list[Outcome] = []
        middle = (len(texts) + 1) // 2
        for half in (texts[:middle], texts[middle:]):
            try:
                outcomes += await self._request(half, "document", retries=1)
            except RequestRejected as second_rejection:
                outcomes += await self._embed_halves(half, second_rejection)
        return outcomes

    async def _embed_shortened(self, text: str, rejection: RequestRejected) -> Outcome:
        """Embed the beginning of a text that is rejected for its length; Ollama's own truncation fails at times."""
        if not rejection.too_long or len(text) <= MIN_SHORTENED_CHARS:
            return ItemFailed(rejection.reason)
        half = text[: len(text) // 2]
        try:
            [outcome] = await self._request([half], "document", retries=1)
        except RequestRejected as second_rejection:
            return await self._embed_shortened(half, second_rejection)
        return outcome

    async def _request(self, texts: list[str], purpose: Purpose, retries: int) -> list[Outcome]:
        """Request embeddings; raises RequestRejected when none is usable, or when it is unclear which are."""
        await self._import_numpy()  # before the request, which may cost money
        raw = await self._client.embeddings(texts, purpose, retries)
        try:
            outcomes = await anyio.to_thread.run_sync(lambda: [parse_embedding(embedding) for embedding in raw])
        except (MemoryError, RuntimeError) as error:  # RuntimeError: no thread could be started
            raise EmbedderUnavailable(f"too little memory for vectors: {error}") from error
        failed = [outcome for outcome in outcomes if isinstance(outcome, ItemFailed)]
        if len(failed) == len(outcomes):  # the texts may not be at fault then
            raise RequestRejected(f"the provider's reply is unusable: {failed[0].reason}")
        return self._check_dims(outcomes)

    async def _import_numpy(self) -> None:
        if self._numpy_imported:
            return
        try:
            await anyio.to_thread.run_sync(import_numpy)
        except ImportError as error:
            raise EmbedderUnavailable(f"remote embedders need numpy: {error}", permanent=True) from error
        except (MemoryError, RuntimeError) as error:  # RuntimeError: no thread could be started
            raise EmbedderUnavailable(f"too little memory for vectors: {error}") from error
        self._numpy_imported = True

    def _check_dims(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Take the dimensions from the first reply; later, fail each vector that differs, and reject if all do."""
        sizes = {len(outcome) for outcome in outcomes if not isinstance(outcome, ItemFailed)}
        dims = self.identity.dims
        if dims is None:
            if len(sizes) > 1:
                raise RequestRejected(f"the provider's embeddings differ in length: {sorted(sizes)}")
            self.identity = replace(self.identity, dims=sizes.pop())
            return outcomes
        if dims not in sizes:
            raise RequestRejected(f"the embeddings have {min(sizes)} numbers, not {dims}", permanent=True)
        wrong = ItemFailed(f"its embedding has not {dims} numbers")
        return [outcome if isinstance(outcome, ItemFailed) or len(outcome) == dims else wrong for outcome in outcomes]


def split_batches(texts: list[str], max_texts: int, max_bytes: int) -> Iterator[list[int]]:
    """Yield the positions of the texts in batches within both limits; a text over the limit is a batch of its own."""
    batch: list[int] = []
    batch_bytes = 0
    for position, text in enumerate(texts):
        size = len(text.encode())
        if batch and (len(batch) >= max_texts or batch_bytes + size > max_bytes):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(position)
        batch_bytes += size
    if batch:
        yield batch
