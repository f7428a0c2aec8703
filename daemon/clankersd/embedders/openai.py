"""OpenAI, and whatever speaks like it: LM Studio, llama.cpp, vLLM, OpenRouter …"""

from typing import Any

import msgspec

from clankersd.embedders.provider import Purpose
from clankersd.http.responses import Passing, decode


class _Item(msgspec.Struct):
    embedding: Any
    index: int | None = None


class _Reply(msgspec.Struct):
    data: list[_Item]


class OpenAI:
    """POST {url}/embeddings."""

    provider = "openai"
    title = "the OpenAI-compatible service"
    default_url = "https://api.openai.com/v1"
    default_model = "text-embedding-3-small"
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",)
    key_header = ("Authorization", "Bearer ")
    key_needed = True
    at_once = 4

    def path(self, model: str) -> str:
        return "/embeddings"

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> dict[str, Any]:
        return {"model": model, "input": texts} | ({"dimensions": dims} if dims else {})

    def embeddings(self, body: bytes) -> list[Any]:
        """In the order of the indexes; a service that leaves them all out keeps the order itself."""
        items = decode(body, _Reply).data
        indexes = [item.index for item in items]
        if any(index is not None for index in indexes):
            if {*indexes} != {*range(len(items))}:
                raise Passing("the provider's embeddings are numbered wrongly", suspect=True)
            items.sort(key=lambda item: item.index or 0)
        return [item.embedding for item in items]

    def missing_model(self, model: str, service: str) -> str:
        return f"{service} has no model {model}, or the url is wrong: set the embedder's model or url"
