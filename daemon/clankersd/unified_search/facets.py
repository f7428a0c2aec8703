"""`search.facets`: how many texts contain the words of a query, by source, role and project."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from clankers_protocol.search import FacetCount, Facets, Search, SearchFacets
from clankersd import clock
from clankersd.db import Db
from clankersd.index.tokenize import query_words
from clankersd.unified_search.search import find_visible_chunks
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_COUNTED = 50_000
MAX_WORDS = 16
MAX_VALUES = 12

_COUNTS = """
    SELECT chunks.source, chunks.role, (SELECT id FROM projects WHERE number = chunks.project), count(*)
    FROM (SELECT rowid FROM chunks_fts WHERE chunks_fts MATCH :words LIMIT :most) AS found
    CROSS JOIN chunks ON chunks.id = found.rowid
    WHERE {condition} GROUP BY 1, 2, chunks.project
"""
_MATCHES = "SELECT count(*) FROM (SELECT 1 FROM chunks_fts WHERE chunks_fts MATCH :words LIMIT :most)"


@handles(SearchFacets)
async def search_facets(daemon: "Daemon", request: SearchFacets) -> Facets:
    selection = Search(
        query=request.query,
        project=request.project,
        scopes=request.scopes,
        since=request.since,
        until=request.until,
    )
    chunk_filter = await find_visible_chunks(daemon, selection, clock.now())
    words = [f'"{word.replace(chr(34), "")}"' for word in query_words(request.query)[:MAX_WORDS]]

    def count(db: Db) -> Facets:
        match: Literal["all", "any"]
        for match in ("all", "any"):
            operator = " AND " if match == "all" else " OR "
            params: dict[str, Any] = {"words": operator.join(words), "most": MAX_COUNTED + 1}
            rows = db.tuples(_COUNTS.format(condition=chunk_filter.condition), chunk_filter.params | params)
            if rows:
                break
        return _add_up(match, rows, request, capped=db.value(_MATCHES, params) > MAX_COUNTED)

    if not words:
        return Facets("all", 0, False, [], [], [])
    return await daemon.store.read(count)


def _add_up(
    words: Literal["all", "any"],
    rows: list[tuple[str, str | None, str | None, int]],
    request: SearchFacets,
    capped: bool,
) -> Facets:
    sources, roles, projects = Counter[str](), Counter[str](), Counter[str]()
    total = 0
    for source, role, project, number in rows:
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
    facets = [
        [FacetCount(value, number) for value, number in counts.most_common(MAX_VALUES)]
        for counts in (sources, roles, projects)
    ]
    return Facets(words, total, capped, *facets)
