"""`search.facets`: how many texts contain the words of a query, by source, role and project."""

from collections import Counter
from typing import TYPE_CHECKING, Literal

from clankers_protocol.search import FacetCount, Facets, Search, SearchFacets
from clankersd import clock
from clankersd.index.tokenize import describe_dropped_words, query_words
from clankersd.search.limiter import takes_search_turn
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


@handles(SearchFacets)
@takes_search_turn
async def search_facets(daemon: "Daemon", request: SearchFacets) -> Facets:
    selection = Search(
        query=request.query,
        project=request.project,
        scopes=request.scopes,
        since=request.since,
        until=request.until,
    )
    chunk_filter = await find_visible_chunks(daemon, selection, clock.now())
    words = [f'"{word.replace(chr(34), "")}"' for word in query_words(request.query)]
    if not words:
        return Facets("all", 0, False, [], [], [])
    sql = _COUNTS.format(condition=chunk_filter.condition)
    match: Literal["all", "any"]
    for match in ("all", "any"):
        operator = " AND " if match == "all" else " OR "
        params = chunk_filter.params | {"words": operator.join(words), "most": MAX_COUNTED + 1}
        rows = await daemon.store.read(lambda db, params=params: db.tuples(sql, params))  # type: ignore[misc]
        if any(passes for *_, passes, _ in rows):
            break
    return _add_up(match, rows, request)


def _add_up(
    words: Literal["all", "any"], rows: list[tuple[str, str | None, str | None, int, int]], request: SearchFacets
) -> Facets:
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
    by_source, by_role, by_project = (
        [FacetCount(value, number) for value, number in counts.most_common(MAX_VALUES)]
        for counts in (sources, roles, projects)
    )
    capped = sum(number for *_, number in rows) > MAX_COUNTED
    return Facets(words, total, capped, by_source, by_role, by_project, describe_dropped_words(request.query))
