"""Search engine: one entry for every kind of search.

A feature describes a search as a `SearchPlan` (what may be found, which columns it needs, how it adjusts scores) and
gets a `SearchOutcome`. The engine knows nothing of the features.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import anyio
import structlog

from clankers_protocol.errors import DeadlineExceeded, InvalidParams, RpcError, StorageUnavailable
from clankers_protocol.search import Mode
from clankersd import clock
from clankersd.db import Db, Store
from clankersd.db.paging import encode_cursor
from clankersd.embedders.base import Vector
from clankersd.embedders.memory_headroom import numpy_if_available
from clankersd.index.backlog import describe_backlog
from clankersd.index.chunks import HAS_SPEAKER
from clankersd.index.files.sync import FileSync
from clankersd.index.index import Index
from clankersd.index.queue import EmbeddingQueue
from clankersd.index.tokenize import describe_dropped_words
from clankersd.search.closeness import MAX_EXAMINED, Calibration, Closeness, is_weak, measure
from clankersd.search.column_ranking import ColumnRanking
from clankersd.search.diversity import diversify
from clankersd.search.filters import ChunkFilter, Criteria, Visibility, build_filter
from clankersd.search.fusion import Fusion
from clankersd.search.keyword import TIMEOUT_NOTE, KeywordLookup
from clankersd.search.keyword_matches import KeywordMatches
from clankersd.search.near_duplicates import collapse_near_duplicates
from clankersd.search.nearest import LabelLookup, in_thread_if
from clankersd.search.phrases import find_phrases, raise_phrases
from clankersd.search.plan import MAX_NEIGHBOURS, ScoredPath, SearchOutcome, SearchPlan
from clankersd.search.ranking import Candidate, apply_recency, best_per_group, collapse_duplicates
from clankersd.search.reranking import Reranking
from clankersd.search.rows import R, RankingRow, fetch_ranking_rows
from clankersd.search.small_talk import is_small_talk
from clankersd.search.speakers import NO_SPEAKERS, Speakers, find_speakers, possible_names, without_names
from clankersd.search.term_index import TermIndex
from clankersd.search.turn_scoring import score_turns
from clankersd.search.vector_search import PENDING_SECONDS, QueryVector, VectorMatches, VectorSearch

MIN_LOADED_CANDIDATES = 32
"""Candidates whose full rows are fetched at least; the duplicates of a hit are counted among them. More of the ranking
become candidates only if they are needed."""

MAX_CELLS_SCORED_INLINE = 16_000
"""Terms times chunks up to which turns are scored on the event loop, in about a millisecond; more in a thread."""

MAX_DEDUPLICATED_INLINE = 40
"""Candidates up to which duplicates and diversity are computed on the event loop, in less than a millisecond; more in a
thread."""

INDEXING_SECONDS = 2.0
"""Time that a search waits for the words of texts that were stored a moment before it."""

CHUNKS_PER_GROUP = 4
"""Chunks fetched for each wanted result of a cosine search, since several may belong to one group."""

VECTOR_TIMEOUT_NOTE = "time ran out before vectors were compared"
CALIBRATION_TIMEOUT_NOTE = "time ran out before it was measured how close the hits are"

_SPEAKS = f"SELECT 1 FROM chunks WHERE chunks.role = :speaker AND {HAS_SPEAKER} AND {{condition}} LIMIT 1"

log = structlog.get_logger(component="search")


@dataclass
class _Run(Generic[R]):
    """A plan while it runs."""

    plan: SearchPlan[R]
    query: str
    deadline: float
    lookup: KeywordLookup
    speakers: Speakers = NO_SPEAKERS
    keywords: KeywordMatches = field(default_factory=KeywordMatches)
    vectors: VectorMatches = field(default_factory=VectorMatches)
    match_count: int = 0
    backlog_note: str | None = None
    rerank_note: str | None = None


class SearchEngine:
    """Runs searches over the chunks of the live index."""

    def __init__(
        self,
        store: Store,
        index: Index,
        queue: EmbeddingQueue,
        files: FileSync,
        start_task: Callable[..., Any],
        seconds: float,
        reranking: Reranking,
    ) -> None:
        self.reranking = reranking
        self._terms = TermIndex()
        self.vectors = VectorSearch(store, index, queue, self._terms.chunks, start_task)
        self.timeout_seconds = seconds
        self._store = store
        self._index = index
        self._queue = queue
        self._files = files
        self._start_task = start_task
        self._is_loading_chunks = False
        store.on_open += [self._terms.chunks.on_database_opened, self.vectors.on_database_opened]

    def build_filter(
        self, criteria: Criteria, visibility: Visibility, id_query: str | None = None
    ) -> ChunkFilter:  # fmt: skip
        """Build a filter on chunks of the live index; `id_query` as in ChunkFilter."""
        live = self._index.live
        return build_filter(criteria, live.chunking.number if live else 0, visibility, id_query)

    async def run(self, plan: SearchPlan[R]) -> SearchOutcome[R]:
        """Run a search; raises InvalidParams unless it has either a query or an embedding."""
        started = time.perf_counter()
        if (plan.query is None) == (plan.embedding is None):
            raise InvalidParams("invalid params: exactly one of query and embedding is needed - at `$.query`")
        if plan.embedding is not None and plan.mode == "keyword":
            raise InvalidParams("invalid params: an embedding has no words to search for - at `$.mode`")
        mode: Mode = "vector"
        keywords = KeywordMatches()
        if plan.use_cosine or plan.query is None:
            candidates, query = await self._search_by_cosine(plan)
            vectors = VectorMatches(query=query)
            notes = [query.problem]
        else:
            if "numpy" not in sys.modules:  # its import may take seconds, which the search is not charged for
                await anyio.to_thread.run_sync(numpy_if_available)
            run = _Run(
                plan,
                plan.query,
                anyio.current_time() + self.timeout_seconds,
                KeywordLookup(plan.query, self._terms, plan.filter),
            )
            index_note = await self._index_newest(run)
            if plan.prefer_named_speakers:
                await self._find_speakers(run)
            await self._search_both(run)
            candidates = await self._rank(run)
            keywords, vectors = run.keywords, run.vectors
            notes = [index_note, keywords.problem, vectors.query.problem, vectors.note, run.rerank_note]
            if plan.reports_limits:
                notes += _describe_limits(run, len(candidates))
                if self._index.building is None:  # a rebuild has the backlog chunk texts that are searchable already
                    notes.append(run.backlog_note)
            mode = "keyword" if plan.mode == "hybrid" and run.vectors.query.problem else plan.mode
        if not any(notes):
            notes.append(self._index.rebuild_note)
        notes.append(self._store.search_note)
        if self._files.dirty and plan.filter.includes_source("memory"):
            notes.append("files changed that are not indexed yet")
        calibration, calibration_note = await self._calibrate(plan, vectors)
        notes.append(calibration_note)
        end = plan.page.offset + plan.page.limit
        return SearchOutcome(
            candidates=candidates[plan.page.offset : end],
            stems=frozenset(keywords.stems),
            mode=mode,
            degraded="; ".join(note for note in notes if note) or None,
            pending=await self._queue.count_pending(self._index.live),
            took_ms=round((time.perf_counter() - started) * 1000, 2),
            cursor=encode_cursor(end, plan.page.fingerprint) if len(candidates) > end else None,
            weights=keywords.weights,
            rare_names=frozenset(keywords.rare_names),
            calibration=calibration,
            weak=_is_weak(keywords, calibration, candidates[:MAX_EXAMINED]),
        )

    async def _calibrate(self, plan: SearchPlan[R], vectors: VectorMatches) -> tuple[Calibration, str | None]:
        """Measure what is close to the query; if that takes too long, what was found is returned without it."""
        try:
            return await self.vectors.calibrate(plan.query, vectors, plan.filter, plan.compare_elsewhere), None
        except DeadlineExceeded:
            return Calibration(), CALIBRATION_TIMEOUT_NOTE

    async def _index_newest(self, run: _Run[R]) -> str | None:
        """Have the words of the newest texts indexed; return a note if they are not."""
        with anyio.move_on_after(min(INDEXING_SECONDS, run.deadline - anyio.current_time())):
            if run.plan.mode != "keyword" and self._queue.is_quick:
                await self._queue.finish_pending(PENDING_SECONDS)  # the commit of the vectors indexes the words as well
            return await self._store.index_full_text()
        return "the newest texts are not indexed yet"

    async def _find_speakers(self, run: _Run[R]) -> None:
        """Find the people whom the query names and who speak in the sessions that are searched."""
        by_role, names = find_speakers(run.query, self._index.speakers), possible_names(run.query)
        if not by_role and not names:
            return
        sql, params = _SPEAKS.format(condition=run.plan.filter.condition), run.plan.filter.params

        def find(db: Db) -> Speakers:
            speaking = [role for role in by_role if db.value(sql, params | {"speaker": role})]
            prefixes = run.lookup.find_prefixes(db, names)
            found = frozenset(prefixes).union(*(by_role[role] for role in speaking))
            return Speakers(found, [chunk for chunks in prefixes.values() for chunk in chunks.tolist()])

        with suppress(DeadlineExceeded):  # the lookup of the words says that time ran out
            run.speakers = await self._store.read_for_search(find, run.deadline - anyio.current_time())
        run.lookup.names = run.speakers.names

    async def _search_by_cosine(self, plan: SearchPlan[R]) -> tuple[list[Candidate[R]], QueryVector]:
        """Return the candidates up to the end of the page, and one more if there is one."""
        query = QueryVector()
        with anyio.CancelScope(deadline=anyio.current_time() + self.timeout_seconds) as scope:
            if plan.embedding is not None:
                query = QueryVector(self.vectors.parse_embedding(plan.embedding), self._index.vector_problem)
                await self._queue.finish_pending(PENDING_SECONDS)
            else:
                query = await self.vectors.embed_query(plan.query or "")
            if query.vector is None:
                return [], query
            candidates, note = await self._nearest_groups(plan, query.vector)
            return candidates, replace(query, problem=query.problem or note)
        assert scope.cancelled_caught
        return [], replace(query, problem=VECTOR_TIMEOUT_NOTE)

    async def _nearest_groups(self, plan: SearchPlan[R], vector: Vector) -> tuple[list[Candidate[R]], str | None]:
        """Fetch more and more chunks, until there are enough groups or no chunks left; return also a note."""
        wanted = plan.page.offset + plan.page.limit + 1
        k = min(wanted * CHUNKS_PER_GROUP, MAX_NEIGHBOURS)
        while True:
            nearest = await self.vectors.nearest_exact(vector, plan.filter, k)
            rows = await self._store.read_for_search(
                lambda db, nearest=nearest: plan.rows.fetch(db, dict(nearest), plan.filter)  # type: ignore[misc]
            )
            found = [Candidate(rows[chunk], cosine, cosine=cosine) for chunk, cosine in nearest if chunk in rows]
            candidates = await self._select(plan, found)
            if len(candidates) >= wanted or len(nearest) < k or nearest[-1][1] < plan.min_score:
                return candidates[:wanted], None
            if k == MAX_NEIGHBOURS:
                return candidates, f"only the nearest {k:,} chunks were compared"
            k = min(k * CHUNKS_PER_GROUP, MAX_NEIGHBOURS)

    async def _search_both(self, run: _Run[R]) -> None:
        """Run keyword and vector search at the same time; each may come back empty with a reason."""
        plan = run.plan
        failures: list[RpcError] = []  # a task group would wrap exceptions

        labels = LabelLookup(plan.filter, self._index.mirror)

        def read_first(db: Db) -> None:
            labels.read(db)
            if plan.reports_limits:
                run.backlog_note = describe_backlog(db, plan.filter.includes_source)

        async def by_keyword() -> None:
            try:
                await run.lookup.run(self._store, run.deadline, read_first, labels.done)
                run.keywords = run.lookup.matches
            except DeadlineExceeded:
                run.keywords.problem = TIMEOUT_NOTE
            except StorageUnavailable as error:
                failures.append(error)
            finally:
                labels.done.set()

        async def by_vector() -> None:
            query = without_names(run.query, run.speakers.names)
            with anyio.CancelScope(deadline=run.deadline) as scope:
                try:
                    run.vectors = await self.vectors.search(query, plan.filter, plan.pool_size, labels)
                except StorageUnavailable as error:
                    failures.append(error)
                except DeadlineExceeded:
                    run.vectors = VectorMatches(query=QueryVector(problem=VECTOR_TIMEOUT_NOTE))
            if scope.cancelled_caught:
                run.vectors = VectorMatches(query=QueryVector(problem=VECTOR_TIMEOUT_NOTE))

        def catch_up(db: Db) -> None:
            read_first(db)
            self._terms.chunks.catch_up(db)

        async with anyio.create_task_group() as tasks:
            if plan.mode != "vector":
                tasks.start_soon(by_keyword)
            else:
                with suppress(DeadlineExceeded):  # without its columns, the database is asked for each chunk
                    await self._store.read_for_search(catch_up)
                labels.done.set()
            if plan.mode != "keyword":
                tasks.start_soon(by_vector)
        if failures:
            raise failures[0]
        chunks = self._terms.chunks
        if chunks.can_follow and (chunks.is_behind or not chunks.is_loaded) and not self._is_loading_chunks:
            self._is_loading_chunks = True
            self._start_task(self._load_chunks)

    async def _load_chunks(self) -> None:
        """Load the columns of chunks that are not in memory, in several reads, so that events are stored meanwhile."""
        try:
            while await self._store.read_for_search(self._terms.chunks.extend):
                pass
        except (StorageUnavailable, DeadlineExceeded) as error:
            self._terms.chunks.problem = error.message
        except MemoryError as error:
            self._terms.chunks.problem = f"too little memory: {error}"
        finally:
            self._is_loading_chunks = False
            if problem := self._terms.chunks.problem:
                log.warning("chunks not loaded into memory", problem=problem)

    async def _rank(self, run: _Run[R]) -> list[Candidate[R]]:
        """Order everything that was found, best first."""
        plan = run.plan
        # Each step takes up to a millisecond, and events wait for no more than one.
        await self._store.let_events_pass()
        cells = len(run.keywords.terms) * len(run.keywords.places.chunks)
        is_large = cells > MAX_CELLS_SCORED_INLINE or numpy_if_available() is None
        turn_scores = await in_thread_if(is_large, score_turns, run.keywords, 2 * plan.pool_size)
        await self._store.let_events_pass()
        if turn_scores:
            run.match_count = len(turn_scores.chunks)
        fusion = Fusion(
            store=self._store,
            table=self._terms.chunks,
            vectors=self.vectors,
            filter=plan.filter,
            vector_matches=run.vectors,
            turn_scores=turn_scores,
            pool_size=plan.pool_size,
            mode=plan.mode,
            vector_weight=plan.vector_weight,
            speakers=run.speakers,
        )
        ranking = await fusion.rank()
        await self._store.let_events_pass()
        phrases = await find_phrases(self._store, run.query, run.keywords, turn_scores, _keyword_matches(ranking))
        if isinstance(ranking, ColumnRanking):
            by_column = ranking.with_phrases(phrases) if phrases.weights else ranking
            candidates: list[Candidate[Any]] = by_column.candidates(0, MIN_LOADED_CANDIDATES)
            remaining: ColumnRanking | None = by_column
        else:
            candidates, remaining = list(ranking), None
            if phrases.weights:
                raise_phrases(phrases.weights, candidates)
                candidates.sort(key=lambda candidate: candidate.sort_key)
                await self._show_phrases(run, candidates, phrases.shown)
        reranks = plan.rerank and self.reranking.is_configured
        has_memories = plan.adjust_score is not None and remaining is not None and remaining.has_memories
        if remaining and (reranks or plan.half_life_days or plan.expand or plan.diversity or has_memories):
            candidates += remaining.candidates(MIN_LOADED_CANDIDATES)
            remaining = None
        if reranks:
            judged = await self._load(plan, candidates[: self.reranking.settings.candidates])
            run.rerank_note = await self.reranking.apply(run.query, judged, candidates)
            candidates.sort(key=lambda candidate: candidate.sort_key)
        if plan.half_life_days:
            apply_recency(candidates, clock.now(), plan.half_life_days)
            candidates.sort(key=lambda candidate: candidate.sort_key)
        return await self._load_best(plan, candidates, remaining)

    async def _show_phrases(self, run: _Run[R], candidates: list[Candidate[Any]], shown: dict[int, int]) -> None:
        """Put the rows of the chunks with a phrase in the place of those that represent their messages."""
        if shown:
            rows = await self._store.read_for_search(lambda db: fetch_ranking_rows(db, shown.values(), run.plan.filter))
            for candidate in candidates:
                candidate.row = rows.get(shown.get(candidate.row.id, 0), candidate.row)

    async def _load_best(
        self, plan: SearchPlan[R], ranked: list[Candidate[RankingRow]], remaining: ColumnRanking | None
    ) -> list[Candidate[R]]:
        """Fetch the full rows of the best candidates, as many as the page takes and one more if there is one.

        `remaining` has the candidates after those that are ranked, if there are more.
        """
        scored: list[Candidate[Any]] = list(ranked)
        if plan.adjust_score:
            memories = await self._load(plan, [one for one in ranked if one.row.source == "memories"])
            for candidate in memories:
                plan.adjust_score(candidate)
            if memories:
                scored = sorted(
                    [*memories, *(one for one in ranked if one.row.source != "memories")],
                    key=lambda candidate: candidate.sort_key,
                )
        if plan.expand or plan.diversity:  # they compare all candidates
            return await self._select(plan, await self._load(plan, scored))
        end = plan.page.offset + plan.page.limit
        count = max(MIN_LOADED_CANDIDATES, 2 * end)
        loaded: list[Candidate[R]] = []
        while True:
            if remaining and len(scored) < count:
                scored += remaining.candidates(MIN_LOADED_CANDIDATES)
                remaining = None
            loaded += await self._load(plan, scored[:count])
            scored = scored[count:]
            selected = await self._select(plan, loaded)
            if len(selected) > end or not (scored or remaining):
                return selected
            count *= 2  # all that are loaded are compared again

    async def _load(self, plan: SearchPlan[R], candidates: "list[Candidate[Any]]") -> list[Candidate[R]]:
        """Fetch the full rows of candidates; drop those deleted or hidden by now."""
        missing = [one.row.id for one in candidates if not isinstance(one.row, plan.rows.row_type)]
        if missing:
            rows = await self._store.read_for_search(lambda db: plan.rows.fetch(db, missing, plan.filter))
            for one in candidates:
                one.row = rows.get(one.row.id, one.row)
        return [one for one in candidates if isinstance(one.row, plan.rows.row_type)]

    async def _select(self, plan: SearchPlan[R], candidates: list[Candidate[R]]) -> list[Candidate[R]]:
        """Apply what the plan says about related, weak, grouped and duplicate candidates, and drop small talk."""
        if plan.expand:
            candidates = await self._expand(plan, candidates, await plan.expand(candidates))
        if plan.query is not None and not plan.use_cosine:
            candidates = [one for one in candidates if not _is_empty(one)]
        candidates = [one for one in candidates if one.is_keyword_match or one.wire_score >= plan.min_score]
        if plan.group_of:
            candidates = best_per_group(candidates, plan.group_of)
        if not (plan.collapses or plan.diversity):
            return candidates
        await self._store.let_events_pass()
        return await in_thread_if(len(candidates) > MAX_DEDUPLICATED_INLINE, _compare_texts, plan, candidates)

    async def _expand(
        self, plan: SearchPlan[R], candidates: list[Candidate[R]], paths: dict[int, ScoredPath]
    ) -> list[Candidate[R]]:  # fmt: skip
        """Add chunks that were reached through a graph; for a chunk that was found as well, the better score counts."""
        by_id = {candidate.row.id: candidate for candidate in candidates}
        missing = paths.keys() - by_id.keys()
        if missing:
            rows = await self._store.read_for_search(lambda db: plan.rows.fetch(db, missing, plan.filter))
            by_id |= {chunk: Candidate(rows[chunk]) for chunk in paths if chunk in rows}
        for chunk, path in paths.items():
            candidate = by_id.get(chunk)
            if candidate is not None and path.score > candidate.score:
                candidate.score, candidate.path = path.score, path.steps
                candidate.components["graph"] = path.score
        return sorted(by_id.values(), key=lambda candidate: candidate.sort_key)


def _keyword_matches(ranking: list[Candidate[RankingRow]] | ColumnRanking) -> Any:
    """Return the chunks with a term of the query, best first, as an array or a list."""
    if isinstance(ranking, ColumnRanking):
        return ranking.keyword_matches()
    return [one.row.id for one in ranking if one.is_keyword_match]


def _is_empty(candidate: Candidate[R]) -> bool:
    """Return whether a candidate is small talk without a word of the query, which only its neighbours have."""
    row = candidate.row
    return row.message_id is not None and not candidate.is_keyword_match and is_small_talk(row.text)


def _compare_texts(plan: SearchPlan[R], candidates: list[Candidate[R]]) -> list[Candidate[R]]:
    """Collapse duplicates and put different texts first, as the plan says."""
    end = plan.page.offset + plan.page.limit
    if plan.collapses:
        # Diversity chooses among all candidates, for each page among the same ones.
        wanted = len(candidates) if plan.diversity else end
        candidates = collapse_near_duplicates(collapse_duplicates(candidates), wanted)
    return diversify(candidates, plan.diversity, end) if plan.diversity else candidates


def _describe_limits(run: _Run[R], candidate_count: int) -> list[str | None]:
    """Return notes on words and matches that were left out because there are so many."""
    plan = run.plan
    notes = [None if plan.mode == "vector" else describe_dropped_words(run.query), *run.keywords.limits]
    if candidate_count > plan.page.offset + plan.page.limit:  # there are more pages
        return notes
    if run.match_count > plan.pool_size:
        notes.append(f"of {run.match_count:,} matches the best {plan.pool_size:,} were ranked")
    if plan.mode == "vector" and not plan.min_score and len(run.vectors.nearest) >= plan.pool_size:
        notes.append(f"only the nearest {plan.pool_size:,} chunks were ranked")
    return notes


def _is_weak(keywords: KeywordMatches, calibration: Calibration, candidates: list[Candidate[R]]) -> bool:
    """Return True if there are hits, and none of them is close to the query. Cosines often tell, and cost nothing."""
    if not is_weak(calibration.strength(Closeness(0.0, one.cosine)) for one in candidates):
        return False
    return is_weak(calibration.strength(_closeness(keywords, one)) for one in candidates)


def _closeness(keywords: KeywordMatches, candidate: Candidate[R]) -> Closeness:
    """Measure a candidate. A skill is also close by its tags and instructions, which its text does not have."""
    closeness = measure(candidate.row.text, keywords.weights, candidate.cosine)
    if candidate.row.skill_id is None or not candidate.is_keyword_match:
        return closeness
    return replace(closeness, coverage=max(closeness.coverage, keywords.indexed_coverage(candidate.row.id)))
