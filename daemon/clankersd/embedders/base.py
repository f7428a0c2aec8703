"""What every embedder promises: vectors that can be compared, or a reason people can act on."""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector: TypeAlias = npt.NDArray[np.float32]
else:
    Vector = Any  # float32, length 1, shape (dims,); numpy is loaded only by an embedder that works


@dataclass(frozen=True)
class EmbedderSettings:
    """Which embedder, and how; an empty model or url is the provider's default."""

    provider: str = "static"
    model: str = ""
    url: str = ""
    key_file: str = ""
    query_prefix: str | None = None
    document_prefix: str | None = None
    dims: int | None = None
    weight: float | None = None
    timeout: float = 30


@dataclass(frozen=True)
class Identity:
    """What makes two vectors comparable; `dims` is None until the first one has come."""

    provider: str
    model: str
    provider_key: str
    dims: int | None


class EmbedderUnavailable(Exception):
    """No vectors now; `permanent` when waiting will not help until somebody changes something."""

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

Outcome: TypeAlias = Vector | ItemFailed


class Embedder(Protocol):
    """Turns texts into vectors, without ever holding up the event loop."""

    identity: Identity
    weight: float

    def preflight(self) -> None:
        """Raise EmbedderUnavailable when something it needs is plainly missing; loads nothing and asks nobody."""
        ...

    async def embed(self, texts: list[str]) -> list[Outcome]:
        """One outcome per text, in order; raises EmbedderUnavailable when there can be none."""
        ...

    async def embed_query(self, text: str) -> Vector:
        """The vector to search with; raises ItemFailed for a text that has none."""
        ...

    async def close(self) -> None:
        """Give back memory and connections."""
        ...


def provider_key(**facts: Any) -> str:
    """A short hash of the facts, for Identity; none of them may be a secret."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def clean(text: str) -> str:
    """The text as valid Unicode: half a surrogate pair cannot be sent or tokenised."""
    return text.encode("utf-8", "replace").decode("utf-8")
