"""Profiles of known models: their prefixes, their pooling and the weight of their vectors in rank fusion."""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from clankersd.embedders.base import EmbedderSettings

Pooling = Literal["mean", "cls", "last"]


@dataclass(frozen=True)
class ModelProfile:
    """The prefixes, pooling and fusion weights that a model works best with.

    `weight` is that of its vectors where keyword search contradicts them, `agreed_weight` where it agrees, or where a
    text does not depend on a conversation around it.
    """

    query_prefix: str = ""
    document_prefix: str = ""
    pooling: Pooling = "mean"
    weight: float = 0.4
    agreed_weight: float = 0.85


_SEARCH_PREFIX = "Represent this sentence for searching relevant passages: "
_INSTRUCT_PREFIX = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "

# The first pattern that matches the name decides, so specific patterns come before general ones.
_PROFILES: list[tuple[str, ModelProfile]] = [
    (r"arctic-embed(2|-[ml]-v2)", ModelProfile("query: ", pooling="cls")),
    (r"arctic-embed|snowflake", ModelProfile(_SEARCH_PREFIX, pooling="cls")),
    (r"bge-(micro|small|base|large)-en|mxbai-embed-large", ModelProfile(_SEARCH_PREFIX, pooling="cls")),
    (r"bge-", ModelProfile(pooling="cls")),
    (r"e5-.*instruct", ModelProfile(_INSTRUCT_PREFIX)),
    (r"(^|[^a-z0-9])e5-", ModelProfile("query: ", "passage: ")),
    (r"nomic-embed-text", ModelProfile("search_query: ", "search_document: ")),
    (r"embeddinggemma|embedding-gemma", ModelProfile("task: search result | query: ", "title: none | text: ")),
    (r"qwen3-embedding", ModelProfile(_INSTRUCT_PREFIX, pooling="last")),
    # Below a half, so that an exact word wins against a similar text where there are only two candidates.
    (r"l2_supercat", ModelProfile(weight=0.48, agreed_weight=0.48)),
]


def find_profile(name: str) -> ModelProfile:
    """Return the profile of the model with this name, or the default profile."""
    for pattern, profile in _PROFILES:
        if re.search(pattern, name.lower()):
            return profile
    return ModelProfile()


def configured_profile(name: str, settings: EmbedderSettings) -> ModelProfile:
    """Return the model's profile, with the values that the settings override."""
    overrides: dict[str, Any] = {
        "query_prefix": settings.query_prefix,
        "document_prefix": settings.document_prefix,
        "weight": settings.weight,
        "agreed_weight": settings.weight,
    }
    return replace(find_profile(name), **{key: value for key, value in overrides.items() if value is not None})
