"""Ollama's own interface."""

from typing import Any

import msgspec

from clankersd.embedders.provider import Purpose
from clankersd.http.responses import decode


class _Reply(msgspec.Struct):
    embeddings: list[Any]


class Ollama:
    """POST {url}/api/embed."""

    provider = "ollama"
    title = "Ollama"
    default_url = "http://127.0.0.1:11434"
    default_model = "nomic-embed-text"
    key_variables: tuple[str, ...] = ()
    key_header = ("Authorization", "Bearer ")
    key_needed = False
    at_once = 1  # it computes on this machine, one request after the other

    def path(self, model: str) -> str:
        return "/api/embed"

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> dict[str, Any]:
        return {"model": model, "input": texts, "truncate": True} | ({"dimensions": dims} if dims else {})

    def embeddings(self, body: bytes) -> list[Any]:
        return decode(body, _Reply).embeddings

    def missing_model(self, model: str, service: str) -> str:
        return f"{service} has no model {model}; run: ollama pull {model}"
