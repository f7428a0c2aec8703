"""Embedders: turn texts into vectors, on this machine or through a service on the network."""

from collections.abc import Callable

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
