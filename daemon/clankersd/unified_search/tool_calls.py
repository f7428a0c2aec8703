"""`tool.search`: find tool calls by any text of their input, output or error, newest first.

Whole outputs are not in the index, where they would crowd out messages. Reading the stored texts themselves costs about
3 milliseconds for a thousand calls, on a connection of its own, so there is no second index for them.
"""

import re
import time
from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import InvalidParams
from clankers_protocol.search import ToolHit, ToolHits, ToolSearch
from clankersd.clock import to_ms
from clankersd.db import Db
from clankersd.db.paging import decode_cursor, encode_cursor
from clankersd.projects import IN_PROJECT, find_project_id
from clankersd.search.snippets import SNIPPET_CHARACTERS, Excerpt
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

SCAN_SECONDS = 1.0
"""Time after which a search returns what it has found so far, with a cursor to go on."""

CALLS_PER_STATEMENT = 1_000
MAX_TERMS = 64
"""Distinct terms of a query; more are refused. An error message of several lines has fewer."""

LEAD_CHARACTERS = 60
TEXTS = ("tool_output", "error_message", "tool_input")
"""Columns that are searched, in the order in which a snippet is taken from them."""

_SLICE = """
    SELECT created_at, id, {found} FROM tools WHERE {conditions} ORDER BY created_at DESC, id DESC LIMIT :slice
"""
_CALL = """
    SELECT tools.id AS tool_id, session_id, sessions.title AS session_title, sessions.project_path, tool_name,
           file_path, success, tools.created_at, tool_output, error_message, tool_input
    FROM tools LEFT JOIN sessions ON sessions.id = session_id WHERE tools.id = :id
"""


@handles(ToolSearch)
async def search_tool_calls(daemon: "Daemon", request: ToolSearch) -> ToolHits:
    terms = list(dict.fromkeys(request.query.split()))
    if len(terms) > MAX_TERMS:
        problem = f"at most {MAX_TERMS} different terms can be searched for, not {len(terms):,}"
        raise InvalidParams(f"invalid params: {problem} - at `$.query`")
    return await daemon.store.snapshot_read(lambda db: _scan(db, request, terms))


def _scan(db: Db, request: ToolSearch, terms: list[str]) -> ToolHits:
    """Read calls slice by slice until there are enough hits, none are left, or the time is over."""
    started = time.perf_counter()
    conditions, params = _select(db, request)
    last = decode_cursor(request.cursor, int, str) if request.cursor else None
    hits: list[ToolHit] = []
    scanned, is_complete = 0, not terms
    while not is_complete and len(hits) < request.limit and time.perf_counter() - started < SCAN_SECONDS:
        slice_conditions = conditions
        if last is not None:
            slice_conditions = [*conditions, "(created_at, id) < (:at, :before)"]
            params |= {"at": last[0], "before": last[1]}
        sql = _SLICE.format(found=_contains(terms, params), conditions=" AND ".join(slice_conditions))
        rows = db.tuples(sql, params)
        is_complete = len(rows) < CALLS_PER_STATEMENT
        for position, (at, tool_id, is_found) in enumerate(rows):
            scanned, last = scanned + 1, (at, tool_id)
            if is_found:
                hits.append(_hit(db, tool_id, terms))
            if len(hits) == request.limit:
                is_complete = is_complete and position == len(rows) - 1
                break
    cursor = encode_cursor(*last) if last and not is_complete else None
    took_ms = round((time.perf_counter() - started) * 1000, 1)
    return ToolHits(hits, scanned, last[0] if last and cursor else None, took_ms, cursor)


def _select(db: Db, request: ToolSearch) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions on calls, other than the words, and their parameters."""
    conditions = ["true"]
    params: dict[str, Any] = {"slice": CALLS_PER_STATEMENT}
    if request.project is not None:
        conditions.append(f"session_id IN (SELECT id FROM sessions WHERE {IN_PROJECT})")
        params["project_id"] = find_project_id(db, request.project)
    if request.session_id is not None:
        conditions.append("session_id = :session_id")
        params["session_id"] = request.session_id
    for name, operator in (("since", ">="), ("until", "<")):
        if (at := to_ms(getattr(request, name))) is not None:
            conditions.append(f"created_at {operator} :{name}")
            params[name] = at
    return conditions, params


def _contains(terms: list[str], params: dict[str, Any]) -> str:
    """Return an SQL condition: each term is in one of the texts. Adds its parameters."""
    conditions = []
    for number, term in enumerate(terms):
        escaped = term.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        params[f"term_{number}"] = f"%{escaped}%"
        likes = " OR ".join(rf"coalesce({column}, '') LIKE :term_{number} ESCAPE '\'" for column in TEXTS)
        conditions.append(f"({likes})")
    return " AND ".join(conditions)


def _hit(db: Db, tool_id: str, terms: list[str]) -> ToolHit:
    """Describe a call that was found by the part of its text with most of the terms."""
    row = db.fetch_one(_CALL, {"id": tool_id})
    assert row
    texts = [row.pop(column) or "" for column in TEXTS]
    patterns = [re.compile(re.escape(term), re.IGNORECASE) for term in terms]
    text = max(texts, key=lambda one: sum(pattern.search(one) is not None for pattern in patterns))
    spans = sorted(match.span() for pattern in patterns for match in pattern.finditer(text))
    start = max(0, spans[0][0] - LEAD_CHARACTERS) if spans else 0
    end = min(start + SNIPPET_CHARACTERS, len(text))
    shown: list[tuple[int, int]] = []
    for span in spans:
        if span[1] <= end and (not shown or span[0] >= shown[-1][1]):
            shown.append(span)
    success = None if row["success"] is None else bool(row["success"])
    return ToolHit(**row | {"success": success}, snippet=Excerpt(text, start, end, shown).marked)
