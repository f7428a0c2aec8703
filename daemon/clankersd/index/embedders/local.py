"""An embedder that computes here: in worker threads, a few texts at a time, loaded on first use."""

import threading
from collections.abc import Callable
from dataclasses import replace

from anyio import CapacityLimiter, to_thread

from clankersd.index.embedders.base import NO_TEXT, EmbedderUnavailable, Identity, ItemFailed, Outcome, Vector, clean
from clankersd.index.embedders.models import Model

Encoder = Callable[[list[str]], list[Outcome]]


class LocalEmbedder:
    """Runs an encoder of texts that `load` brings into memory."""

    def __init__(self, identity: Identity, model: Model, load: Callable[[], Encoder], at_once: int) -> None:
        self.identity = identity
        self.weight = model.weight
        self._model = model
        self._load = load
        self._at_once = at_once
        self._encoder: Encoder | None = None
        self._loading = threading.Lock()
        # Two lanes, so that a search never waits for the backlog.
        self._documents = CapacityLimiter(1)
        self._queries = CapacityLimiter(1)

    async def embed(self, texts: list[str]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(texts), self._at_once):
            some = texts[start : start + self._at_once]
            outcomes += await to_thread.run_sync(
                self._encode, self._model.document_prefix, some, limiter=self._documents
            )
        return outcomes

    async def embed_query(self, text: str) -> Vector:
        [outcome] = await to_thread.run_sync(
            self._encode,
            self._model.query_prefix,
            [text],
            limiter=self._queries,
            abandon_on_cancel=True,  # a search has a deadline, and loading a model does not
        )
        if isinstance(outcome, ItemFailed):
            raise outcome
        return outcome

    async def close(self) -> None:
        self._encoder = None

    def _encode(self, prefix: str, texts: list[str]) -> list[Outcome]:
        """Runs in a worker thread."""
        encoded = iter(self._loaded()([prefix + clean(text) for text in texts if text.strip()]))
        outcomes = [next(encoded) if text.strip() else ItemFailed(NO_TEXT) for text in texts]
        self._check_dims(outcomes)
        return outcomes

    def _loaded(self) -> Encoder:
        with self._loading:
            if self._encoder is None:
                self._encoder = self._load()
            return self._encoder

    def _check_dims(self, outcomes: list[Outcome]) -> None:
        for size in {len(outcome) for outcome in outcomes if not isinstance(outcome, ItemFailed)}:
            if self.identity.dims is None:
                self.identity = replace(self.identity, dims=size)
            if size != self.identity.dims:
                raise EmbedderUnavailable(
                    f"the model's vectors have {size} numbers, not {self.identity.dims}: unset dims",
                    permanent=True,
                )
