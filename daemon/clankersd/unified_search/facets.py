"""`search.facets`: how many texts contain the words of a query, by source, role and project."""

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from clankers_protocol.errors import StorageUnavailable
from clankers_protocol.search import FacetCount, Facets, Search, SearchFacets
from clankersd import clock
from clankersd.db import Store
from clankersd.index.tokenize import describe_dropped_words, query_words
from clankersd.search.filters import ChunkFilter
from clankersd.search.limiter import takes_search_slot
from clankersd.unified_search.search import find_visible_chunks
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_COUNTED = 50_000
MAX_VALUES = 12

# One reading tells both how many chunks have the words and which of them pass the filter.
_COUNTS = """
    SELECT source, role, (SELECT id FROM projects WHERE number = counted.project), passes, count(*)
    FROM (
        SELECT chunks.source, chunks.role, chunks.project, CASE WHEN {condition} THEN 1 ELSE 0 END AS passes
        FROM (SELECT rowid FROM chunks_fts WHERE chunks_fts MATCH :words LIMIT :most) AS found
        CROSS JOIN chunks ON chunks.id = found.rowid
    ) AS counted
    GROUP BY source, role, counted.project, passes
"""

_Count = tuple[str, str | None, str | None, int, int]
"""Source, role and project of chunks, whether they pass the filter, and their number."""


@handles(SearchFacets)
@takes_search_slot
async def search_facets(daemon: "Daemon", request: SearchFacets) -> Facets:
    selection = Search(
        query=request.query,
        project=request.project,
        scopes=request.scopes,
        since=request.since,
        until=request.until,
    )
    now = clock.now()
    if problem := await daemon.store.index_full_text():
        raise StorageUnavailable(problem)
    chunk_filter = await find_visible_chunks(daemon, selection, now)
    words = [f'"{word.replace(chr(34), "")}"' for word in query_words(request.query)]
    if not words:
        return Facets("all", 0, False, [], [], [])
    match: Literal["all", "any"]
    for match in ("all", "any"):
        expression = (" AND " if match == "all" else " OR ").join(words)
        rows = await _count(daemon.store, expression, chunk_filter)
        if any(passes for *_, passes, _ in rows):
            break
    everywhere = None
    if request.project is not None:
        chunks = await find_visible_chunks(daemon, structs.replace(selection, project=None), now)
        everywhere = await _count(daemon.store, expression, chunks)
    return _add_up(match, rows, everywhere, request)


async def _count(store: Store, expression: str, chunk_filter: ChunkFilter) -> list[_Count]:
    """Count the chunks that match an expression of FTS5."""
    sql = _COUNTS.format(condition=chunk_filter.condition)
    params = chunk_filter.params | {"words": expression, "most": MAX_COUNTED + 1}
    return await store.read(lambda db: db.tuples(sql, params))


def _add_up(
    words: Literal["all", "any"], rows: list[_Count], everywhere: list[_Count] | None, request: SearchFacets
) -> Facets:
    """Add up the counts of each facet; `everywhere` are those without the project, if one is given."""
    sources, roles, projects = Counter[str](), Counter[str](), Counter[str]()
    total = 0
    for source, role, project, passes, number in rows:
        if not passes:
            continue
        is_of_source = request.sources is None or source in request.sources
        is_of_role = request.role is None or role == request.role
        if is_of_role:
            sources[source] += number
        if is_of_source and role:
            roles[role] += number
        if is_of_source and is_of_role:
            total += number
            if project:
                projects[project] += number
    if everywhere is not None:
        others = _add_up(words, everywhere, None, request).projects
        projects.update({one.value: one.count for one in others if one.value not in projects})
    by_source, by_role, by_project = (
        [FacetCount(value, number) for value, number in counts.most_common(MAX_VALUES)]
        for counts in (sources, roles, projects)
    )
    capped = sum(number for *_, number in rows) > MAX_COUNTED
    return Facets(words, total, capped, by_source, by_role, by_project, describe_dropped_words(request.query))
