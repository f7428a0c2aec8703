"""Fallback embedder: another service (or a local copy) of the same model takes over while the first does not answer.

Vectors of two models cannot be compared, and an index may hold only one kind. So the second embedder is used only while
it reproduces vectors that the first has made: a few stored ones are compared at the beginning of every outage. A second
embedder that fails this test is not used, and search is by keyword until the first one is back.
"""

from collections.abc import Awaitable, Callable

import anyio
import structlog

from clankersd.embedders.base import Embedder, EmbedderUnavailable, Identity, ItemFailed, Outcome, Vector

QUERY_SECONDS = 1.0
"""Time that the first embedder has for a query: a search waits, and the second one can answer."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 30.0, 300.0
"""Time in which an embedder that failed is not tried again; it doubles with each failure."""

MIN_SAME_COSINE = 0.97
"""Least cosine of two vectors of one text by the same model. Half precision gives 0.999 and more, other models less
than 0.8."""

Sample = tuple[str, Vector]
"""A text, and the vector that the first embedder has made of it."""

log = structlog.get_logger(component="embedder")


class FallbackEmbedder:
    """An embedder with a second one for its outages. `read_samples` returns texts with stored vectors."""

    def __init__(self, first: Embedder, second: Embedder) -> None:
        self.weight = first.weight
        self.agreed_weight = first.agreed_weight
        self.profile = first.profile
        self.read_samples: Callable[[], Awaitable[list[Sample]]] | None = None
        self.outage: str | None = None
        """The reason why the first embedder is not used now."""
        self._first = first
        self._second = second
        self._second_problem: str | None = None
        self._is_same_model = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._try_first_at = 0.0
        self._checking = anyio.Lock()

    @property
    def identity(self) -> Identity:
        """The identity of the first embedder, whose vectors the second one reproduces."""
        return self._first.identity

    @property
    def second_name(self) -> str:
        """Provider and model of the second embedder."""
        return f"{self._second.identity.provider} {self._second.identity.model}"

    def preflight(self) -> None:
        self._first.preflight()

    async def embed(self, texts: list[str]) -> list[Outcome]:
        if anyio.current_time() >= self._try_first_at:
            try:
                outcomes = await self._first.embed(texts)
            except EmbedderUnavailable as error:
                self._begin_outage(error)
            else:
                self._end_outage()
                return outcomes
        await self._check_second()
        try:
            return await self._second.embed(texts)
        except EmbedderUnavailable as error:
            raise self._unavailable(error.reason) from error

    async def embed_query(self, text: str) -> Vector:
        if anyio.current_time() >= self._try_first_at:
            late = f"it did not answer a query within {QUERY_SECONDS:g} seconds"
            try:
                with anyio.fail_after(QUERY_SECONDS):
                    vector = await self._first.embed_query(text)
            except TimeoutError:
                self._begin_outage(EmbedderUnavailable(late))
            except EmbedderUnavailable as error:
                self._begin_outage(error)
            else:
                self._end_outage()
                return vector
        await self._check_second()
        try:
            return await self._second.embed_query(text)
        except EmbedderUnavailable as error:
            raise self._unavailable(error.reason) from error

    async def close(self) -> None:
        await self._first.close()
        await self._second.close()

    def _begin_outage(self, error: EmbedderUnavailable) -> None:
        if self.outage is None:
            log.warning("embedder unavailable, fallback used", problem=error.reason, fallback=self.second_name)
            self._is_same_model, self._pause_seconds = False, FIRST_PAUSE_SECONDS
        else:
            self._pause_seconds = min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)
        self.outage, self._second_problem = error.reason, None
        pause = max(self._pause_seconds, min(error.retry_after or 0.0, MAX_PAUSE_SECONDS))
        self._try_first_at = anyio.current_time() + pause

    def _end_outage(self) -> None:
        if self.outage is not None:
            log.info("embedder recovered", fallback=self.second_name)
        self.outage = self._second_problem = None
        self._try_first_at = 0.0

    async def _check_second(self) -> None:
        """Raise EmbedderUnavailable unless the second embedder reproduces stored vectors; once in an outage."""
        async with self._checking:
            if self._is_same_model:
                return
            if self._second_problem is None:
                self._second_problem = await self._compare()
                self._is_same_model = self._second_problem is None
            if self._second_problem is not None:
                raise self._unavailable(self._second_problem)

    async def _compare(self) -> str | None:
        """Return the reason why the second embedder cannot be used; None if it can."""
        samples = await self.read_samples() if self.read_samples else []
        if not samples:
            return "it cannot be compared with the embedder before that has made a vector"
        try:
            self._second.preflight()
            outcomes = await self._second.embed([text for text, _ in samples])
        except EmbedderUnavailable as error:
            return error.reason
        for (_, stored), outcome in zip(samples, outcomes, strict=True):
            if isinstance(outcome, ItemFailed):
                return f"it makes no vector of a stored text: {outcome.reason}"
            if len(outcome) != len(stored):
                return f"its vectors have {len(outcome)} numbers, those of the index {len(stored)}"
            cosine = float(outcome @ stored)
            if cosine < MIN_SAME_COSINE:
                return f"it is another model: its vector of a stored text has a cosine of only {cosine:.2f}"
        return None

    def _unavailable(self, second_problem: str) -> EmbedderUnavailable:
        left = max(0.0, self._try_first_at - anyio.current_time())
        reason = f"{self.outage}; the fallback {self.second_name} cannot be used either: {second_problem}"
        return EmbedderUnavailable(reason, retry_after=left or None)
