"""Google's Gemini API."""

from typing import Any
from urllib.parse import quote

import msgspec

from clankersd.embedders.provider import Purpose
from clankersd.http.responses import decode

_TASKS: dict[Purpose, str] = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}


class _Item(msgspec.Struct):
    values: Any = None


class _Reply(msgspec.Struct):
    embeddings: list[_Item]


class Gemini:
    """POST {url}/models/{model}:batchEmbedContents."""

    provider = "gemini"
    title = "Gemini"
    default_url = "https://generativelanguage.googleapis.com/v1beta"
    default_model = "gemini-embedding-001"
    key_variables: tuple[str, ...] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    key_header = ("x-goog-api-key", "")
    key_needed = True
    at_once = 4

    def path(self, model: str) -> str:
        return f"/models/{quote(model.removeprefix('models/'), safe='')}:batchEmbedContents"

    def payload(self, model: str, texts: list[str], purpose: Purpose, dims: int | None) -> dict[str, Any]:
        common: dict[str, Any] = {"model": f"models/{model.removeprefix('models/')}", "taskType": _TASKS[purpose]}
        if dims:
            common["outputDimensionality"] = dims
        return {"requests": [{**common, "content": {"parts": [{"text": text}]}} for text in texts]}

    def embeddings(self, body: bytes) -> list[Any]:
        return [item.values for item in decode(body, _Reply).embeddings]

    def missing_model(self, model: str, service: str) -> str:
        return f"{service} has no model {model}: set the embedder's model"
