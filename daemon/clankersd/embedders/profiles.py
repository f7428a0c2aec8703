"""What is known of models by their names: prefixes, pooling, and what their vectors deserve in fusion."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from clankersd.embedders.base import EmbedderSettings

Pooling = Literal["mean", "cls", "last"]


@dataclass(frozen=True)
class Model:
    """How a model wants to be used."""

    query_prefix: str = ""
    document_prefix: str = ""
    pooling: Pooling = "mean"
    weight: float = 0.5


_SEARCHING = "Represent this sentence for searching relevant passages: "
_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "

# The first pattern found in the name decides, so the narrower stands above the wider.
_KNOWN: list[tuple[str, Model]] = [
    (r"arctic-embed(2|-[ml]-v2)", Model("query: ", pooling="cls")),
    (r"arctic-embed|snowflake", Model(_SEARCHING, pooling="cls")),
    (r"bge-(micro|small|base|large)-en|mxbai-embed-large", Model(_SEARCHING, pooling="cls")),
    (r"bge-", Model(pooling="cls")),
    (r"e5-.*instruct", Model(_INSTRUCT)),
    (r"(^|[^a-z0-9])e5-", Model("query: ", "passage: ")),
    (r"nomic-embed-text", Model("search_query: ", "search_document: ")),
    (r"embeddinggemma|embedding-gemma", Model("task: search result | query: ", "title: none | text: ")),
    (r"qwen3-embedding", Model(_INSTRUCT, pooling="last")),
    (r"minilm", Model(weight=0.35)),
    (r"l2_supercat", Model(weight=0.25)),
]


def known(name: str) -> Model:
    """What is known of the model with this name, or what holds for most."""
    return next((model for pattern, model in _KNOWN if re.search(pattern, name.lower())), Model())


def configured(name: str, settings: EmbedderSettings) -> Model:
    """The same, with what the owner has said on top."""
    said = {
        key: value
        for key in ("query_prefix", "document_prefix", "weight")
        if (value := getattr(settings, key)) is not None
    }
    return replace(known(name), **said)
