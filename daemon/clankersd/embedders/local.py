"""Base of the embedders that compute on this machine: in worker threads, in small batches, loaded on first use."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import structlog
from anyio import CapacityLimiter, to_thread

from clankersd.embedders.base import (
    NO_TEXT,
    PROBE_TEXT,
    EmbedderUnavailable,
    Identity,
    ItemFailed,
    Outcome,
    Vector,
    to_valid_unicode,
)
from clankersd.embedders.profiles import ModelProfile
from clankersd.safe_files import UnsafeFile, open_regular

RETRY_SECONDS = 30.0
"""Pause before retrying a model that could not be loaded or used; changed settings end it."""

MAX_INSTANT_CHARACTERS = 1_000
"""Longest query that the event loop encodes itself if the model is instant."""

Encoder = Callable[[list[str]], list[Outcome]]

log = structlog.get_logger(component="embedder")


class LocalEmbedder:
    """Runs an encoder that `load` brings into memory.

    If `is_instant`, encoding a query of up to MAX_INSTANT_CHARACTERS takes less time than reaching a thread.
    """

    def __init__(
        self,
        identity: Identity,
        profile: ModelProfile,
        load: Callable[[], Encoder],
        batch_size: int,
        preflight: Callable[[], None] = lambda: None,
        is_instant: bool = False,
    ) -> None:
        self._is_instant = is_instant
        self.preflight = preflight
        self.identity = identity
        self.weight = profile.weight
        self.agreed_weight = profile.agreed_weight
        self.profile = profile
        self._load = load
        self._batch_size = batch_size
        self._encoder: Encoder | None = None
        self._loading = threading.Lock()
        # Separate limiters, so that a search never waits for the backlog.
        self._documents = CapacityLimiter(1)
        self._queries = CapacityLimiter(1)

    async def embed(self, texts: list[str]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(texts), self._batch_size):
            batch = texts[start : start + self._batch_size]
            outcomes += await self._encode_in_thread(self.profile.document_prefix, batch, self._documents)
        return outcomes

    async def embed_query(self, text: str) -> Vector:
        prefix = self.profile.query_prefix
        if self._is_instant and self._encoder is not None and len(text) <= MAX_INSTANT_CHARACTERS:
            [outcome] = self._encode(prefix, [text])
        else:  # a search has a deadline, and loading a model does not
            [outcome] = await self._encode_in_thread(prefix, [text], self._queries, abandon_on_cancel=True)
        if isinstance(outcome, ItemFailed):
            raise outcome
        return outcome

    async def close(self) -> None:
        self._encoder = None

    async def _encode_in_thread(
        self, prefix: str, texts: list[str], limiter: CapacityLimiter, *, abandon_on_cancel: bool = False
    ) -> list[Outcome]:
        try:
            return await to_thread.run_sync(
                self._encode, prefix, texts, limiter=limiter, abandon_on_cancel=abandon_on_cancel
            )
        except RuntimeError as error:  # "can't start new thread"; `_encode` raises EmbedderUnavailable only
            raise EmbedderUnavailable(f"no thread to embed in: {error}", retry_after=RETRY_SECONDS) from error

    def _encode(self, prefix: str, texts: list[str]) -> list[Outcome]:
        """Encode texts, in a worker thread if it may take long; raises EmbedderUnavailable and nothing else."""
        try:
            with self._loading:
                if self._encoder is None:
                    self._encoder = self._load()
                encoder = self._encoder
            not_blank = [prefix + to_valid_unicode(text) for text in texts if text.strip()]
            encoded = iter(_encode_each(encoder, not_blank))
            outcomes = [next(encoded) if text.strip() else ItemFailed(NO_TEXT) for text in texts]
            self._check_dims(outcomes)
        except EmbedderUnavailable as error:
            error.retry_after = error.retry_after or RETRY_SECONDS
            raise
        except MemoryError as error:
            self._encoder = None  # the model itself may be what takes the memory
            reason = f"too little memory for the model: {error}" if str(error) else "too little memory for the model"
            raise EmbedderUnavailable(reason, retry_after=RETRY_SECONDS) from error
        except BaseException as error:  # panics of native code are not subclasses of Exception
            self._encoder = None
            log.exception("embedder failed", model=self.identity.model)
            reason = f"the model cannot be used: {_describe(error)}"
            raise EmbedderUnavailable(reason, retry_after=RETRY_SECONDS) from error
        return outcomes

    def _check_dims(self, outcomes: list[Outcome]) -> None:
        for size in {len(outcome) for outcome in outcomes if not isinstance(outcome, ItemFailed)}:
            if self.identity.dims is None:
                self.identity = replace(self.identity, dims=size)
            if size != self.identity.dims:
                raise EmbedderUnavailable(
                    f"the model's vectors have {size} numbers, not {self.identity.dims}: unset dims",
                    permanent=True,
                )


def _encode_each(encoder: Encoder, texts: list[str]) -> list[Outcome]:
    """Encode texts together; if that fails, encode them one by one, so that only the text at fault fails."""
    try:
        return encoder(texts)
    except (EmbedderUnavailable, MemoryError):
        raise
    except BaseException:  # panics of native code are not subclasses of Exception
        encoder([PROBE_TEXT])  # raises if the texts are not at fault
    outcomes: list[Outcome] = []
    for text in texts:
        try:
            outcomes += encoder([text])
        except (EmbedderUnavailable, MemoryError):
            raise
        except BaseException as error:
            outcomes.append(ItemFailed(f"the model failed on it: {_describe(error)}"))
    return outcomes


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


@contextmanager
def open_model_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a model; raises EmbedderUnavailable when it is missing, unreadable or not a regular file."""
    try:
        # Caches of models link to their files, and `open_regular` does not follow links.
        with open_regular(os.path.realpath(path)) as file:
            yield file
    except UnsafeFile as error:
        raise EmbedderUnavailable(f"{path} cannot be read: {error}", permanent=True) from error
    except OSError as error:
        raise EmbedderUnavailable(f"{path} cannot be read: {error.strerror or error}", permanent=True) from error


def read_model_file(path: Path) -> bytes:
    """Read a file of a model; raises as `open_model_file` does."""
    with open_model_file(path) as file:
        return file.read()
