"""SQL conditions for the memories that a request selects."""

import re
from typing import Any

from clankers_protocol.memories import Selection, State
from clankersd import clock
from clankersd.db import Db
from clankersd.index.chunker import CJK
from clankersd.memories.scopes import IN_SCOPE, ScopedRequest, allowed_scopes
from clankersd.memories.store import AS_OF, CURRENT, SALIENCE, STATE
from clankersd.projects import project_id

_WORD = re.compile(r"\w+")
_CJK = re.compile(f"[{CJK}]")

_CONDITIONS = {
    "sector": "memories.sector = :sector",
    "tier": "memories.tier = :tier",
    "category": "memories.category = :category",
    "tag": "EXISTS (SELECT 1 FROM json_each(memories.tags_json) WHERE value = :tag)",
    "entity": "memories.id IN (SELECT memory_id FROM memory_entities WHERE entity_id = :entity)",
    "session_id": "(memories.source_session_id = :session_id "
    "OR memories.id IN (SELECT memory_id FROM session_memories WHERE session_id = :session_id))",
    "pinned": "memories.pinned = :pinned",
    "min_salience": f"{SALIENCE} >= :min_salience",
    "created_after": "memories.created_at > :created_after",
    "created_before": "memories.created_at < :created_before",
}


def selection_conditions(db: Db, request: Selection[Any], now: int) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions of a request and their parameters, except for its query and the states.

    The first condition is that of the scopes.
    """
    params: dict[str, Any] = {"now": now} | allowed_scopes(db, request).params
    conditions = [IN_SCOPE]
    for name, condition in _CONDITIONS.items():
        value = getattr(request, name)
        if value is not None:
            conditions.append(condition)
            params[name] = clock.moment(value) if name.startswith("created_") else value
    return [*conditions, *project_conditions(db, request, params)], params


def project_conditions(db: Db, request: ScopedRequest, params: dict[str, Any]) -> list[str]:
    """Return a condition on the project when the request names scopes too; a project alone only names the caller."""
    if request.scopes is None or not request.project:
        return []
    params["project_id"] = project_id(db, request.project)
    return ["memories.project_id = :project_id"]


def is_narrowed(request: Selection[Any]) -> bool:
    """Check whether the request selects less than all memories. A project without scopes only names the caller."""
    if request.scopes is not None and ("*" not in request.scopes or request.project is not None):
        return True
    return any(getattr(request, name) is not None for name in (*_CONDITIONS, "query"))


def query_condition(query: str, params: dict[str, Any]) -> str:
    """Return a condition: the memory contains all words of the query, or the query itself in scripts without spaces."""
    words = [word for word in _WORD.findall(query) if word.strip("_")]
    if not words or _CJK.search(query):
        params["query"] = query
        return "instr(memories.content, :query) > 0"
    params["match"] = " AND ".join(f'"{word}"' for word in words)
    return "memories.number IN (SELECT rowid FROM memories_fts WHERE memories_fts MATCH :match)"


def state_condition(include: list[State], as_of: int | None, params: dict[str, Any]) -> str:
    """Return a condition: current or in one of the other states, or with `as_of` known and valid at that time."""
    if as_of is not None:
        params["as_of"] = as_of
        return AS_OF
    if not include:
        return CURRENT
    states = dict.fromkeys(["current", *include])
    return f"{STATE} IN ({', '.join(repr(state) for state in states)})"
