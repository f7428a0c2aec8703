"""Reranking: a reranker judges the best candidates of a search, within a deadline, and its judgement is mixed in."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import anyio
import structlog

from clankersd.embedders.base import PROBE_TEXT
from clankersd.rerankers import Reranker, RerankerSettings, RerankerUnavailable, make_reranker
from clankersd.search.ranking import Candidate
from clankersd.search.rows import R

MAX_TEXT_CHARACTERS = 2_000
MAX_QUERY_CHARACTERS = 1_000
"""Beginning of a text and of a query that the reranker reads: rerankers read a few hundred words."""

GRACE_SECONDS = 0.25
"""Time beyond the deadline in which a local model finishes the text that it is reading."""

PAUSE_SECONDS = 30.0
"""Time without reranking after an error: a search does not wait for a service that has just failed."""

MAX_PAUSE_SECONDS = 600.0

PROBE_SECONDS = 10.0
"""Time that a reranker has when it is only tried: a local one may have to load its model."""

log = structlog.get_logger(component="reranker")


class Reranking:
    """The configured reranker, used by one search at a time."""

    def __init__(self, settings: RerankerSettings, pause_turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self.problem: str | None = None
        """The reason why the last reranking failed, or why there is no reranker although one is configured."""
        self._pause_turn = pause_turn
        self._use_settings(settings)

    @property
    def name(self) -> str | None:
        """Kind and model of the reranker; None if none is configured or it cannot be used."""
        return self._reranker.name if self._reranker else None

    @property
    def is_configured(self) -> bool:
        return self.settings.provider != "none"

    async def apply_settings(self, settings: RerankerSettings) -> None:
        """Use changed settings from now on."""
        old = self._reranker
        self._use_settings(settings)
        if old is not None:
            await old.close()

    async def apply(self, query: str, judged: list[Candidate[R]], candidates: list[Candidate[R]]) -> str | None:
        """Mix the reranker's judgement of the best candidates into the scores of all, and sort them; return a note.

        The note states why there is none, or only part of it. Other searches may run meanwhile.
        """
        texts = list(dict.fromkeys(candidate.row.text[:MAX_TEXT_CHARACTERS] for candidate in judged))
        if not self.is_configured or len(texts) < 2:
            return None
        reranker = self._reranker
        if reranker is None or anyio.current_time() < self._paused_until:
            return f"not reranked: {self.problem}"
        try:
            async with self._pause_turn():
                scores = await self._score(reranker, query[:MAX_QUERY_CHARACTERS], texts, self.settings.seconds)
        except RerankerUnavailable as error:
            self._report(error)
            return f"not reranked: {error.reason}"
        self.problem = None
        by_text = dict(zip(texts, scores, strict=True))
        judgements = {one.row.id: by_text[one.row.text[:MAX_TEXT_CHARACTERS]] for one in judged}
        mix(candidates, judgements, self.settings.weight)
        return _describe_omissions(scores, reranker.omission_reason)

    async def probe(self) -> None:
        """Try the reranker with a harmless text, and set or clear `problem`."""
        if self._reranker is None:
            return
        try:
            await self._score(self._reranker, PROBE_TEXT, [PROBE_TEXT], max(PROBE_SECONDS, self.settings.seconds))
            self.problem, self._paused_until = None, 0.0
        except RerankerUnavailable as error:
            self._report(error)

    async def _score(
        self, reranker: Reranker, query: str, texts: list[str], seconds: float
    ) -> list[float | None]:  # fmt: skip
        began = anyio.current_time()
        with anyio.move_on_after(seconds + GRACE_SECONDS):
            async with self._only_one:
                left = seconds - (anyio.current_time() - began)
                if left > 0:
                    return await reranker.score(query, texts, left)
        raise RerankerUnavailable(f"{reranker.name} was not ready within {seconds:g} seconds", retry_after=0.0)

    def _use_settings(self, settings: RerankerSettings) -> None:
        self.settings = settings
        self.problem, self._paused_until = None, 0.0
        self._only_one = anyio.Lock()
        self._reranker: Reranker | None = None
        try:
            self._reranker = make_reranker(settings)
        except RerankerUnavailable as error:
            self.problem = error.reason
            log.warning("reranker unavailable", problem=error.reason)

    def _report(self, error: RerankerUnavailable) -> None:
        if error.reason != self.problem:
            log.warning("reranking failed", problem=error.reason)
        self.problem = error.reason
        pause = PAUSE_SECONDS if error.retry_after is None else error.retry_after
        if error.permanent:
            pause = MAX_PAUSE_SECONDS
        self._paused_until = anyio.current_time() + min(pause, MAX_PAUSE_SECONDS)


def _describe_omissions(scores: list[float | None], reason: str) -> str | None:
    """Return a note on texts without a score, or on scores that say nothing about the order."""
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return f"not reranked: {len(known)} of {len(scores)} candidates got a judgement ({reason})"
    if len(set(known)) == 1:
        return f"not reranked: all {len(known)} judgements are equal"
    if len(known) < len(scores):
        return f"only {len(known)} of {len(scores)} candidates were reranked ({reason})"
    return None


def mix(candidates: list[Candidate[R]], judgements: Mapping[int, float | None], weight: float) -> None:
    """Make each score `(1 - weight) * score + weight * judgement`, and sort the candidates, best first.

    Judgements, by chunk, are scaled between the lowest and the highest, as similarities are. A candidate without one
    counts as the worst, so that it stays behind those that were better before. A single judgement, or equal ones,
    compare nothing: they change neither scores nor order.
    """
    known = [judgement for judgement in judgements.values() if judgement is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if low == high:
        return
    for candidate in candidates:
        judgement = judgements.get(candidate.row.id)
        candidate.score *= 1 - weight
        if judgement is not None:
            candidate.components["rerank"] = (judgement - low) / (high - low)
            candidate.score += weight * candidate.components["rerank"]
    candidates.sort(key=lambda candidate: candidate.sort_key)
