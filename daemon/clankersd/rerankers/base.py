"""The interface of every reranker, its settings and its error."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RerankerSettings:
    """Configuration of a reranker and of its use.

    `candidates` is the number of texts that it judges for a query, `seconds` its deadline, and `weight` the share of
    its judgement in a score.
    """

    provider: str = "none"
    model: str = ""
    url: str = ""
    key_file: str = ""
    candidates: int = 20
    seconds: float = 1.0
    weight: float = 0.6


class RerankerUnavailable(Exception):
    """There are no scores now; `retry_after` is the number of seconds in which asking again is of no use."""

    def __init__(self, reason: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.permanent = permanent


class Reranker(Protocol):
    """Scores texts by how well they answer a query, without blocking the event loop."""

    name: str

    omission_reason: str
    """The reason why `score` gives some texts no score, as part of a note."""

    async def score(self, query: str, texts: list[str], seconds: float) -> list[float | None]:
        """Return a score between 0 and 1 for each text, None for one that was left out.

        Raises RerankerUnavailable when there can be none. One call at a time.
        """
        ...

    async def close(self) -> None:
        """Release memory and connections."""
        ...
