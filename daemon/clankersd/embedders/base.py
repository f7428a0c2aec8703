"""The interface of every embedder, its settings and its errors."""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from clankersd.http.api_keys import KEY_VARIABLE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from clankersd.embedders.profiles import ModelProfile

    Vector: TypeAlias = npt.NDArray[np.float32]
else:
    Vector = Any  # float32, length 1, shape (dims,); numpy is imported only once an embedder is used


@dataclass(frozen=True)
class EmbedderSettings:
    """Configuration of one embedder; an empty model or url means the provider's default, and timeout is in seconds.

    `fallback` is an embedder of the same model for the time in which this one does not answer.
    """

    provider: str = "static"
    model: str = ""
    url: str = ""
    key_file: str = ""
    query_prefix: str | None = None
    document_prefix: str | None = None
    dims: int | None = None
    weight: float | None = None
    timeout: float = 30
    key_variable: str = KEY_VARIABLE
    fallback: "EmbedderSettings | None" = None


@dataclass(frozen=True)
class Identity:
    """The identity of a model: vectors can be compared when it is equal. `dims` is None until the first vector."""

    provider: str
    model: str
    provider_key: str
    dims: int | None


class EmbedderUnavailable(Exception):
    """There are no vectors now; `permanent` when waiting will not help until someone changes something."""

    def __init__(self, reason: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.permanent = permanent


class ItemFailed(Exception):
    """One text has no vector and will not get one; returned by `embed`, raised by `embed_query`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


NO_TEXT = "it has no text"

PROBE_TEXT = "ship it"
"""A harmless text: an embedder that fails on it is broken."""

Outcome: TypeAlias = Vector | ItemFailed


class Embedder(Protocol):
    """Turns texts into vectors without blocking the event loop."""

    weight: float
    agreed_weight: float
    profile: "ModelProfile"

    @property
    def identity(self) -> Identity: ...

    def preflight(self) -> None:
        """Raise EmbedderUnavailable when a requirement is obviously missing; loads nothing and sends no request."""
        ...

    async def embed(self, texts: list[str]) -> list[Outcome]:
        """Return one outcome per text, in order; raises EmbedderUnavailable when there can be none."""
        ...

    async def embed_query(self, text: str) -> Vector:
        """Return the vector to search with; raises ItemFailed for a text that has none."""
        ...

    async def close(self) -> None:
        """Release memory and connections."""
        ...


def provider_key(**properties: Any) -> str:
    """Return a short hash of the properties, for Identity; none of them may be a secret."""
    return hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:16]


def to_valid_unicode(text: str) -> str:
    """Replace unpaired surrogates, which can be neither sent nor tokenised."""
    return text.encode("utf-8", "replace").decode("utf-8")
