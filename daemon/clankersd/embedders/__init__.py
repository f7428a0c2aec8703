"""Embedders: texts into vectors, here or on the network, behind one small interface."""

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
from clankersd.embedders.gemini import Gemini
from clankersd.embedders.ollama import Ollama
from clankersd.embedders.onnx import onnx_embedder
from clankersd.embedders.openai import OpenAI
from clankersd.embedders.provider import Api
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
_REMOTE: dict[str, Api] = {api.provider: api for api in (OpenAI(), Ollama(), Gemini())}


def make_embedder(settings: EmbedderSettings) -> Embedder | None:
    """The embedder the settings describe, None for "none"; raises EmbedderUnavailable if there is no such."""
    if settings.provider == "none":
        return None
    try:
        return _make(settings)
    except EmbedderUnavailable:
        raise
    except Exception as error:  # a path that the system refuses, a home folder nobody has: no reason not to start
        log.exception("embedder not made", provider=settings.provider)
        reason = f"the {settings.provider} embedder cannot be made: {str(error)[:200] or type(error).__name__}"
        raise EmbedderUnavailable(reason, permanent=True) from error


def _make(settings: EmbedderSettings) -> Embedder:
    if settings.provider in _LOCAL:
        return _LOCAL[settings.provider](settings)
    if settings.provider in _REMOTE:
        return RemoteEmbedder(_REMOTE[settings.provider], settings)
    known = ", ".join([*_LOCAL, *_REMOTE, "none"])
    raise EmbedderUnavailable(f"there is no embedder {settings.provider!r}: use one of {known}", permanent=True)
