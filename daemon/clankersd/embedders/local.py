"""An embedder that computes here: in worker threads, a few texts at a time, loaded on first use."""

import threading
from collections.abc import Callable
from dataclasses import replace

import structlog
from anyio import CapacityLimiter, to_thread

from clankersd.embedders.base import NO_TEXT, EmbedderUnavailable, Identity, ItemFailed, Outcome, Vector, clean
from clankersd.embedders.profiles import Model

RETRY_SECONDS = 30.0
"""Pause before a model is tried again that could not be loaded or used; changed settings end it."""

PROBE_TEXT = "ship it"

Encoder = Callable[[list[str]], list[Outcome]]

log = structlog.get_logger(component="embedder")


class LocalEmbedder:
    """Runs an encoder of texts that `load` brings into memory."""

    def __init__(
        self,
        identity: Identity,
        model: Model,
        load: Callable[[], Encoder],
        at_once: int,
        preflight: Callable[[], None] = lambda: None,
    ) -> None:
        self.preflight = preflight
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
            outcomes += await self._in_thread(self._model.document_prefix, some, self._documents)
        return outcomes

    async def embed_query(self, text: str) -> Vector:
        # A search has a deadline, and loading a model does not.
        [outcome] = await self._in_thread(self._model.query_prefix, [text], self._queries, abandon_on_cancel=True)
        if isinstance(outcome, ItemFailed):
            raise outcome
        return outcome

    async def close(self) -> None:
        self._encoder = None

    async def _in_thread(
        self, prefix: str, texts: list[str], limiter: CapacityLimiter, *, abandon_on_cancel: bool = False
    ) -> list[Outcome]:
        try:
            return await to_thread.run_sync(
                self._encode, prefix, texts, limiter=limiter, abandon_on_cancel=abandon_on_cancel
            )
        except RuntimeError as error:  # "can't start new thread"; `_encode` raises EmbedderUnavailable only
            raise EmbedderUnavailable(f"no thread to embed in: {error}", retry_after=RETRY_SECONDS) from error

    def _encode(self, prefix: str, texts: list[str]) -> list[Outcome]:
        """Encode texts, in a worker thread; raises EmbedderUnavailable and nothing else."""
        try:
            encoder = self._loaded()
            encoded = iter(self._encode_each(encoder, [prefix + clean(text) for text in texts if text.strip()]))
            outcomes = [next(encoded) if text.strip() else ItemFailed(NO_TEXT) for text in texts]
            self._check_dims(outcomes)
        except EmbedderUnavailable as error:
            error.retry_after = error.retry_after or RETRY_SECONDS
            raise
        except MemoryError as error:
            self._encoder = None  # it may be what takes the memory
            reason = f"too little memory for the model: {error}" if str(error) else "too little memory for the model"
            raise EmbedderUnavailable(reason, retry_after=RETRY_SECONDS) from error
        except BaseException as error:  # native code panics with classes that are no Exception
            self._encoder = None
            log.exception("embedder failed", model=self.identity.model)
            raise EmbedderUnavailable(
                f"the model cannot be used: {_describe(error)}", retry_after=RETRY_SECONDS
            ) from error
        return outcomes

    def _encode_each(self, encoder: Encoder, texts: list[str]) -> list[Outcome]:
        """Encode texts together; if that fails, one by one, so that a text the model fails on fails alone."""
        try:
            return encoder(texts)
        except (EmbedderUnavailable, MemoryError):
            raise
        except BaseException:  # native code panics with classes that are no Exception
            encoder([PROBE_TEXT])  # raises if it is not the texts' fault
        outcomes: list[Outcome] = []
        for text in texts:
            try:
                outcomes += encoder([text])
            except (EmbedderUnavailable, MemoryError):
                raise
            except BaseException as error:
                outcomes.append(ItemFailed(f"the model failed on it: {_describe(error)}"))
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


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
