"""Embedders: turn texts into vectors, on this machine or through a service on the network."""

from collections.abc import Callable
from dataclasses import replace

import structlog

from clankersd.embedders.base import (
    Embedder,
    EmbedderSettings,
    EmbedderUnavailable,
    Identity,
    ItemFailed,
    Outcome,
    Vector,
)
from clankersd.embedders.fallback import FallbackEmbedder
from clankersd.embedders.onnx import onnx_embedder
from clankersd.embedders.providers import PROVIDERS
from clankersd.embedders.remote import RemoteEmbedder
from clankersd.embedders.static import static_embedder

__all__ = [
    "Embedder",
    "EmbedderSettings",
    "EmbedderUnavailable",
    "Identity",
    "ItemFailed",
    "Outcome",
    "Vector",
    "make_embedder",
]

log = structlog.get_logger(component="embedder")

_LOCAL: dict[str, Callable[[EmbedderSettings], Embedder]] = {"static": static_embedder, "onnx": onnx_embedder}


def make_embedder(settings: EmbedderSettings) -> Embedder | None:
    """Make the embedder that the settings describe, None for "none"; raises EmbedderUnavailable if it cannot."""
    embedder = _make_one(settings)
    if embedder is None or settings.fallback is None:
        return embedder
    # The same model needs the same prefixes, whatever it is called there.
    query_prefix, document_prefix = embedder.profile.query_prefix, embedder.profile.document_prefix
    fallback = replace(settings.fallback, query_prefix=query_prefix, document_prefix=document_prefix)
    try:
        second = _make_one(fallback)
    except EmbedderUnavailable as error:
        reason = f"the fallback embedder cannot be used: {error.reason}"
        raise EmbedderUnavailable(reason, retry_after=error.retry_after, permanent=error.permanent) from error
    return embedder if second is None else FallbackEmbedder(embedder, second)


def _make_one(settings: EmbedderSettings) -> Embedder | None:
    provider = settings.provider
    if provider == "none":
        return None
    try:
        if provider in _LOCAL:
            return _LOCAL[provider](settings)
        if provider in PROVIDERS:
            return RemoteEmbedder(PROVIDERS[provider], settings)
    except EmbedderUnavailable:
        raise
    except Exception as error:  # such as a path that the system refuses: the daemon starts all the same
        log.exception("embedder creation failed", provider=provider)
        reason = f"the {provider} embedder cannot be made: {str(error)[:200] or type(error).__name__}"
        raise EmbedderUnavailable(reason, permanent=True) from error
    valid = ", ".join([*_LOCAL, *PROVIDERS, "none"])
    raise EmbedderUnavailable(f"there is no embedder {provider!r}: use one of {valid}", permanent=True)
