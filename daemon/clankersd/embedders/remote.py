"""Embedders on the network: batches, several at once, and one bad text failing alone."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import anyio

from clankersd.embedders.base import (
    NO_TEXT,
    EmbedderSettings,
    EmbedderUnavailable,
    Identity,
    ItemFailed,
    Outcome,
    Vector,
    clean,
    provider_key,
)
from clankersd.embedders.batches import in_batches
from clankersd.embedders.normalize import received_vector
from clankersd.embedders.profiles import configured
from clankersd.embedders.provider import Api, Purpose, Service
from clankersd.http.responses import Refused
from clankersd.http.retry import Patience

MOST_TEXTS = 96
MOST_BYTES = 32_000
SHORTEST = 500  # characters; a text that is still too long here is refused for another reason
PROBE = "ship it"


class RemoteEmbedder:
    """Asks a service for vectors, and believes nothing it says unchecked."""

    def __init__(
        self,
        api: Api,
        settings: EmbedderSettings,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        most_texts: int = MOST_TEXTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._service = Service(api, settings, patience)
        self._model = configured(self._service.model, settings)
        self._patience = patience
        self._most_texts = most_texts
        self._most_bytes = most_bytes
        self._slots = anyio.CapacityLimiter(api.at_once)
        self.weight = self._model.weight
        key = provider_key(url=self._service.url, dims=settings.dims, document_prefix=self._model.document_prefix)
        self.identity = Identity(api.provider, self._service.model, key, settings.dims)

    def preflight(self) -> None:
        for package in ("httpx", "numpy"):
            if find_spec(package) is None:
                raise EmbedderUnavailable(f"remote embedders need the package {package}", permanent=True)

    async def embed(self, texts: list[str]) -> list[Outcome]:
        outcomes: list[Outcome] = [ItemFailed(NO_TEXT) for _ in texts]
        wanted = [position for position, text in enumerate(texts) if text.strip()]
        asked = [self._model.document_prefix + clean(texts[position]) for position in wanted]
        trouble: list[EmbedderUnavailable] = []

        async def fill(batch: list[int]) -> None:
            try:
                async with self._slots:
                    found = await self._batch([asked[number] for number in batch])
            except EmbedderUnavailable as error:
                trouble.append(error)
                group.cancel_scope.cancel()
                return
            for number, outcome in zip(batch, found, strict=True):
                outcomes[wanted[number]] = outcome

        async with anyio.create_task_group() as group:
            for batch in in_batches(asked, self._most_texts, self._most_bytes):
                group.start_soon(fill, batch)
        if trouble:
            raise trouble[0]
        return outcomes

    async def embed_query(self, text: str) -> Vector:
        """Takes no slot: a search does not queue behind the backlog."""
        if not text.strip():
            raise ItemFailed(NO_TEXT)
        try:
            asked = self._model.query_prefix + clean(text)
            [outcome] = await self._ask([asked], "query", self._patience.query_retries)
        except Refused as refusal:
            await self._probe()
            raise ItemFailed(refusal.reason) from refusal
        if isinstance(outcome, ItemFailed):
            raise outcome
        return outcome

    async def close(self) -> None:
        await self._service.close()

    async def _batch(self, texts: list[str]) -> list[Outcome]:
        try:
            return await self._ask(texts, "document", self._patience.retries)
        except Refused as refusal:
            await self._probe()
            outcomes = await self._in_halves(texts, refusal)
        if len(texts) > 1 and not any(isinstance(outcome, ItemFailed) for outcome in outcomes):
            # Nothing was wrong with the texts, so they were too many: services allow 10, 16, 20, 64 …
            self._most_texts = min(self._most_texts, (len(texts) + 1) // 2)
        return outcomes

    async def _probe(self) -> None:
        """Raises EmbedderUnavailable unless a harmless text goes through: else every text would be blamed."""
        try:
            await self._ask([PROBE], "document", retries=0)
        except Refused as refusal:
            raise EmbedderUnavailable(refusal.reason, permanent=refusal.permanent) from refusal

    async def _in_halves(self, texts: list[str], refusal: Refused) -> list[Outcome]:
        """The outcomes of texts that were refused together."""
        if len(texts) == 1:
            return [await self._shortened(texts[0], refusal)]
        outcomes: list[Outcome] = []
        middle = (len(texts) + 1) // 2
        for half in (texts[:middle], texts[middle:]):
            try:
                outcomes += await self._ask(half, "document", retries=1)
            except Refused as again:
                outcomes += await self._in_halves(half, again)
        return outcomes

    async def _shortened(self, text: str, refusal: Refused) -> Outcome:
        """The vector of the text's beginning if only its length is refused; Ollama's own cutting fails at times."""
        if not refusal.too_long or len(text) <= SHORTEST:
            return ItemFailed(refusal.reason)
        half = text[: len(text) // 2]
        try:
            [outcome] = await self._ask([half], "document", retries=1)
        except Refused as again:
            return await self._shortened(half, again)
        return outcome

    async def _ask(self, texts: list[str], purpose: Purpose, retries: int) -> list[Outcome]:
        """Raises Refused when nothing usable comes, or when it is unclear what is."""
        raw = await self._service.ask(texts, purpose, retries)
        try:
            outcomes = await anyio.to_thread.run_sync(_vectors, raw)
        except (MemoryError, RuntimeError) as error:  # RuntimeError: no thread could be started
            raise EmbedderUnavailable(f"too little memory for vectors: {error}") from error
        return self._of_one_length(outcomes)

    def _of_one_length(self, outcomes: list[Outcome]) -> list[Outcome]:
        """The first reply decides the length; a vector of another fails its text, unless all are so."""
        sizes = {len(outcome) for outcome in outcomes if not isinstance(outcome, ItemFailed)}
        if self.identity.dims is None:
            if len(sizes) > 1:
                raise Refused(f"the provider's embeddings differ in length: {sorted(sizes)}")
            self.identity = replace(self.identity, dims=sizes.pop())
            return outcomes
        dims = self.identity.dims
        if dims not in sizes:
            raise Refused(f"the embeddings have {min(sizes)} numbers, not {dims}", permanent=True)
        wrong = ItemFailed(f"its embedding has not {dims} numbers")
        return [outcome if isinstance(outcome, ItemFailed) or len(outcome) == dims else wrong for outcome in outcomes]


def _vectors(raw: list[Any]) -> list[Outcome]:
    """Raises Refused when not one of them is a vector, since then it may not be the texts' fault."""
    outcomes = [received_vector(one) for one in raw]
    failed = [outcome for outcome in outcomes if isinstance(outcome, ItemFailed)]
    if len(failed) == len(outcomes):
        raise Refused(f"the provider's reply is unusable: {failed[0].reason}")
    return outcomes
