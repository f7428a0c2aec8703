"""The plan of a search, as a feature describes it, and its outcome."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol

import msgspec

from clankers_protocol.errors import InvalidParams
from clankers_protocol.search import Embedding, Mode, Step
from clankersd.db.paging import decode_cursor
from clankersd.search.closeness import Calibration
from clankersd.search.filters import ChunkFilter
from clankersd.search.ranking import Candidate
from clankersd.search.rows import R, RowQuery
from clankersd.search.snippets import snippet

POOL_SIZE = 150
"""Candidates of keyword search and of vector search that are fused, and so the most that can be paged through."""

MAX_POOL_SIZE = 1000
MAX_NEIGHBOURS = 4096
"""The most neighbours that vec0 returns."""


class PagedRequest(Protocol):
    """A request with a page size and a cursor."""

    limit: int
    cursor: str | None


@dataclass(frozen=True)
class Page:
    """Part of the results: where it begins, its size, and the search that its cursor belongs to."""

    limit: int
    offset: int = 0
    fingerprint: str = ""

    @staticmethod
    def of(request: PagedRequest) -> "Page":
        """Read the cursor of a request; raises InvalidParams for the cursor of another search."""
        # Everything else in a request must stay the same from page to page.
        same: Any = msgspec.structs.replace(request, cursor=None, limit=1, explain=False)  # type: ignore[type-var]
        fingerprint = hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:16]
        if not request.cursor:
            return Page(request.limit, 0, fingerprint)
        offset, of_search = decode_cursor(request.cursor, int, str)
        if of_search != fingerprint or not 0 <= offset <= max(2 * MAX_POOL_SIZE, MAX_NEIGHBOURS):
            raise InvalidParams("invalid params: the cursor belongs to another search - at `$.cursor`")
        return Page(request.limit, int(offset), fingerprint)


@dataclass(frozen=True)
class ScoredPath:
    """A chunk reached from candidates through a graph: its score, and the edges that lead to it."""

    score: float
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchPlan(Generic[R]):
    """A search, for the engine to run.

    Exactly one of query and embedding is given. With an embedding or with `use_cosine`, a score is the exact cosine; of
    the other fields, only `page`, `min_score`, `collapses`, `diversity` and `group_of` apply then. Otherwise keyword
    and vector scores are fused, with `vector_weight` or one that fits. With `rerank`, the reranker judges the best
    candidates if one is configured. `adjust_score` changes the score of a memory's candidate, `expand` finds chunks
    related to the candidates. Of the candidates of one group (by `group_of`), only the best is returned. Without
    `reports_limits`, `degraded` leaves out that words of a long query and matches beyond a limit were dropped, and that
    stored texts wait to be indexed.
    """

    filter: ChunkFilter
    rows: RowQuery[R]
    page: Page
    query: str | None = None
    embedding: Embedding | None = None
    mode: Mode = "hybrid"
    use_cosine: bool = False
    prefer_named_speakers: bool = True
    pool_size: int = POOL_SIZE
    min_score: float = 0.0
    half_life_days: float | None = None
    diversity: float = 0.0
    vector_weight: float | None = None
    rerank: bool = False
    collapses: bool = False
    compare_elsewhere: bool = False
    reports_limits: bool = True
    adjust_score: Callable[[Candidate[R]], None] | None = None
    expand: Callable[[list[Candidate[R]]], Awaitable[dict[int, ScoredPath]]] | None = None
    group_of: Callable[[R], str | None] | None = None


@dataclass(frozen=True)
class SearchOutcome(Generic[R]):
    """One page of candidates, best first, and how they were found.

    `degraded` states what is missing and why; `weak` that nothing close to the query was found. `weights` are those of
    the query's stems; `rare_names` are those that hardly any chunk contains. With `compare_elsewhere`, `calibration`
    tells what cosines mean.
    """

    candidates: list[Candidate[R]]
    stems: frozenset[str]
    mode: Mode
    degraded: str | None
    pending: int
    took_ms: float
    cursor: str | None
    weak: bool = False
    weights: dict[str, float] = field(default_factory=dict)
    rare_names: frozenset[str] = frozenset()
    calibration: Calibration = field(default_factory=Calibration)

    def with_note(self, note: str | None) -> "SearchOutcome[R]":
        """Return the outcome with one more reason, if any, why something may be missing."""
        return replace(self, degraded="; ".join(filter(None, (self.degraded, note)))) if note else self

    def snippet(self, candidate: Candidate[R]) -> str:
        """Return the part of a candidate's text that matches the query best."""
        return snippet(candidate.row.text, self.stems)
