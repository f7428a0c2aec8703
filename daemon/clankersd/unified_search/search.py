"""`search`: the search engine over all sources, with the columns, visibility and scores of each feature."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from clankers_protocol.recall import FoundItem, RecordedSearch
from clankers_protocol.search import Hit, Ref, Search, SearchResult, Source
from clankersd import clock
from clankersd.db import Db
from clankersd.memories.filters import describe_deleted, memory_visibility, state_condition
from clankersd.memories.scopes import AllowedScopes, allowed_scopes, needs_lookup, scopes_without_project
from clankersd.memories.scoring import MEMORY_COLUMNS, MEMORY_JOIN, MemoryChunkRow, ScoreWeights, weigh_memory
from clankersd.search.engine import SearchEngine
from clankersd.search.filters import NO_MEMORIES, ChunkFilter, Criteria, Visibility, resolve_projects
from clankersd.search.limiter import takes_search_slot
from clankersd.search.plan import POOL_SIZE, Page, SearchOutcome, SearchPlan
from clankersd.search.ranking import Candidate
from clankersd.search.rows import RowQuery
from clankersd.unified_search.graph import expand_through_graph
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

_COLUMNS = f"""
    {MEMORY_COLUMNS}, memories.category AS memory_category,
    files.path, sessions.title AS session_title, coalesce(sessions.project_path, projects.path) AS project_path,
    own.parent_id, own.document_id, documents.title AS document_title, documents.source AS document_source,
    parent.content AS parent_text, coalesce(parent.start_line, own.start_line) AS document_start_line,
    coalesce(parent.end_line, own.end_line) AS document_end_line
"""
_JOINS = f"""
    LEFT JOIN sessions ON sessions.id = chunks.session_id
    LEFT JOIN files ON files.id = chunks.file_id
    {MEMORY_JOIN}
    LEFT JOIN document_chunks AS own ON own.id = chunks.document_chunk_id
    LEFT JOIN document_chunks AS parent ON parent.id = own.parent_id
    LEFT JOIN documents ON documents.id = own.document_id
    LEFT JOIN projects ON projects.id = coalesce(files.project_id, memories.project_id, documents.project_id)
"""


@dataclass(slots=True)
class HitRow(MemoryChunkRow):
    """A chunk with the memory, file, session or document that it belongs to."""

    memory_category: str | None
    path: str | None
    session_title: str | None
    project_path: str | None
    parent_id: str | None
    document_id: str | None
    document_title: str | None
    document_source: str | None
    parent_text: str | None
    document_start_line: int | None
    document_end_line: int | None

    @property
    def shown_text(self) -> str:
        return self.parent_text or self.text


@handles(Search)
@takes_search_slot
async def search(daemon: "Daemon", request: Search) -> SearchResult:
    engine = daemon.search_engine
    now = clock.now()
    chunk_filter = await find_visible_chunks(daemon, request, now)
    plan = SearchPlan(
        query=request.query,
        filter=chunk_filter,
        rows=RowQuery(HitRow, _COLUMNS, _JOINS, {"now": now}),
        page=Page.of(request),
        mode=request.mode,
        min_score=request.min_score,
        half_life_days=request.half_life_days,
        diversity=request.diversity,
        vector_weight=request.vector_weight,
        rerank=request.rerank,
        pool_size=request.pool or POOL_SIZE,
        collapses=request.collapse,
        adjust_score=partial(weigh_memory, weights=ScoreWeights.of(daemon.config), now=now),
        expand=partial(expand_through_graph, daemon.store, request.graph, chunk_filter) if request.graph else None,
        group_of=lambda row: row.parent_id,  # the children of one parent all return its text
    )
    outcome = await engine.run(plan)
    outcome = outcome.with_note(await _describe_deleted(daemon, request, chunk_filter))
    outcome = outcome.with_note(await _describe_unknown_session(daemon, request))
    result = SearchResult(
        hits=[_hit(outcome, candidate, explain=request.explain) for candidate in outcome.candidates],
        mode=outcome.mode,
        pending=outcome.pending,
        degraded=outcome.degraded,
        took_ms=outcome.took_ms,
        cursor=outcome.cursor,
        weak=outcome.weak,
    )
    if request.recorded:
        daemon.recall_log.add_search(_record(request, result, outcome))
    return result


async def find_visible_chunks(daemon: "Daemon", request: Search, now: int) -> ChunkFilter:
    """Build the filter on the chunks that a request may find."""
    criteria = Criteria(
        sources=request.sources,
        session_id=request.session_id,
        since=request.since,
        until=request.until,
        project=request.project,
        filters=request.filters or (),
    )
    if request.project or request.filters or needs_lookup(request):
        given = criteria

        def look_up(db: Db) -> tuple[Criteria, AllowedScopes]:
            return resolve_projects(db, given), allowed_scopes(db, request)

        criteria, permitted = await daemon.store.read(look_up)
    else:
        permitted = scopes_without_project(request)
    params: dict[str, Any] = {"now": now}
    state = state_condition([], clock.to_ms(request.as_of), clock.to_ms(request.valid_at), params)
    visible = memory_visibility(permitted, state, params)
    if request.scopes is None and request.project and not request.session_id:
        # The project names the caller, whose memories are global as well; it narrows everything else.
        return _filter_for_caller(daemon.search_engine, criteria, visible)
    return daemon.search_engine.build_filter(criteria, visible)


async def _describe_deleted(daemon: "Daemon", request: Search, chunk_filter: ChunkFilter) -> str | None:
    if request.as_of is None or not chunk_filter.includes_source("memories"):
        return None
    params = dict(chunk_filter.params)
    state = state_condition([], clock.to_ms(request.as_of), clock.to_ms(request.valid_at), params)
    return await daemon.store.read(lambda db: describe_deleted(db, state, params))


async def _describe_unknown_session(daemon: "Daemon", request: Search) -> str | None:
    if request.session_id is None:
        return None
    is_known = "SELECT 1 FROM sessions WHERE id = :id"
    if await daemon.store.read(lambda db: db.value(is_known, {"id": request.session_id})):
        return None
    return f"there is no session {request.session_id!r}"


def _record(request: Search, result: SearchResult, outcome: SearchOutcome[HitRow]) -> RecordedSearch:
    """Describe a search by its query, and its hits by their ids and figures."""
    hits = [
        FoundItem(
            chunk_id=hit.chunk_id,
            source=hit.source,
            score=hit.score,
            components=candidate.rounded_components,
            duplicates=hit.duplicates,
            session_id=hit.ref.session_id,
            entry_id=hit.ref.message_id or hit.ref.tool_id,
            memory_id=hit.ref.memory_id,
            document_id=hit.ref.document_id,
        )
        for hit, candidate in zip(result.hits, outcome.candidates, strict=True)
    ]
    return RecordedSearch(
        id=0,  # the log gives it one
        at=clock.now(),
        query=request.query,
        project=request.project,
        mode=result.mode,
        took_ms=result.took_ms,
        min_score=request.min_score,
        limit=request.limit,
        weak=result.weak,
        has_more=result.cursor is not None,
        degraded=result.degraded,
        hits=hits,
    )


def _filter_for_caller(engine: SearchEngine, criteria: Criteria, visible: Visibility) -> ChunkFilter:
    """Build a filter on the memories that a caller may see, and on other texts of its project."""
    sources = criteria.sources or get_args(Source)
    others = [source for source in sources if source != "memories"]
    of_project = engine.build_filter(replace(criteria, sources=others), NO_MEMORIES)
    if "memories" not in sources:
        return of_project
    of_caller = engine.build_filter(replace(criteria, sources=["memories"], project=None), visible)
    return of_caller.union(of_project) if others else of_caller


def _hit(outcome: SearchOutcome[HitRow], candidate: Candidate[HitRow], *, explain: bool) -> Hit:
    row = candidate.row
    ref = Ref(
        session_id=row.session_id,
        session_title=row.session_title,
        message_id=row.message_id,
        tool_id=row.tool_id,
        skill_id=row.skill_id,
        role=row.role,
        path=row.path,
        memory_id=row.memory_id,
        memory_category=row.memory_category,
        project_path=row.project_path,
        document_id=row.document_id,
        document_title=row.document_title,
        document_source=row.document_source,
    )
    if row.path:
        ref.start_line, ref.end_line = row.start_line, row.end_line
    elif row.document_id:
        ref.start_line, ref.end_line = row.document_start_line, row.document_end_line
        ref.document_chunk_id = row.parent_id or row.document_chunk_id
        ref.matched_chunk_id = row.document_chunk_id if row.parent_id else None
    return Hit(
        chunk_id=row.chunk_id,
        source=row.source,
        score=candidate.wire_score,
        text=row.shown_text,
        snippet=outcome.snippet(candidate),
        created_at=row.created_at,
        ref=ref,
        components=candidate.rounded_components if explain else None,
        way=list(candidate.path) if candidate.path else None,
        duplicates=candidate.duplicates,
    )
