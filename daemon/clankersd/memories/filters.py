"""SQL conditions for the memories that a request selects."""

from typing import Any

from clankers_protocol.memories import Selection, State
from clankersd import clock
from clankersd.db import Db
from clankersd.db.fts import quote_phrase
from clankersd.index.tokenize import CJK_CHARACTER, WORD
from clankersd.memories.scopes import ALL_SCOPES, IN_SCOPE, AllowedScopes, ScopedRequest, allowed_scopes
from clankersd.memories.store import AS_OF, CURRENT, SALIENCE, STATE, VALID_AT
from clankersd.projects import find_project_id
from clankersd.search.filters import Visibility

DELETED_NOTE = "deleted memories are not searched, only listed (memory.list)"

_TESTS = {
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
    """Return the SQL conditions of a request, and their parameters; query and state have conditions of their own."""
    params: dict[str, Any] = {"now": now} | allowed_scopes(db, request).params
    conditions = [IN_SCOPE]
    for name, test in _TESTS.items():
        value = getattr(request, name)
        if value is not None:
            conditions.append(test)
            params[name] = clock.to_ms(value) if name.startswith("created_") else value
    return [*conditions, *project_conditions(db, request, params)], params


def project_conditions(db: Db, request: ScopedRequest, params: dict[str, Any]) -> list[str]:
    """Return the condition on the project: it applies only if the request names scopes as well."""
    if request.scopes is None or not request.project:
        return []
    params["project_id"] = find_project_id(db, request.project)
    return ["memories.project_id = :project_id"]


def is_narrowed(request: Selection[Any]) -> bool:
    """Return True if the request selects fewer than all memories. A project without scopes only names the caller."""
    named = request.scopes is not None and ("*" not in request.scopes or request.project is not None)
    return named or any(getattr(request, name) is not None for name in (*_TESTS, "query"))


def query_condition(query: str, params: dict[str, Any]) -> str:
    """Return the condition that a memory contains every word of the query, or the query itself in a CJK script."""
    found = [word for word in WORD.findall(query) if word.strip("_")]
    if not found or CJK_CHARACTER.search(query):
        params["query"] = query
        return "instr(memories.content, :query) > 0"
    params["match"] = " AND ".join(map(quote_phrase, found))
    return "memories.number IN (SELECT rowid FROM memories_fts WHERE memories_fts MATCH :match)"


def state_condition(
    include: list[State],
    as_of: int | None,
    valid_at: int | None,
    params: dict[str, Any],
    only: list[State] | None = None,
) -> str:
    """Return the condition on the state: current and included states, some only, or known and true at given times."""
    if as_of is not None or valid_at is not None:
        return time_condition(as_of, valid_at, params)
    states = dict.fromkeys(only or ["current", *include])
    if states.keys() == {"current"}:
        return CURRENT
    return f"{STATE} IN ({', '.join(repr(state) for state in states)})"


def time_condition(as_of: int | None, valid_at: int | None, params: dict[str, Any]) -> str:
    """Memories that were known at one time and true at another; one of them is given.

    What was known at a time is asked about that same time by default, and what was true at a time by what is known now.
    """
    params["valid_at"] = as_of if valid_at is None else valid_at
    if as_of is None:
        return VALID_AT
    params["as_of"] = as_of
    return AS_OF


def describe_deleted(db: Db, condition: str, params: dict[str, Any]) -> str | None:
    """Return a note for a search if it asks for deleted memories: they have no chunks, and only a list has them."""
    sql = f"SELECT 1 FROM memories WHERE memories.is_deleted = 1 AND {IN_SCOPE} AND {condition} LIMIT 1"
    return DELETED_NOTE if db.value(sql, params) else None


def memory_visibility(permitted: AllowedScopes, condition: str, params: dict[str, Any]) -> Visibility:
    """Return the visibility for a search: memories in these scopes that meet the condition, and all other chunks."""
    in_scope = "(:every_scope OR chunks.scope IN (SELECT value FROM json_each(:scopes)))"
    matches = f"EXISTS (SELECT 1 FROM memories WHERE memories.id = chunks.memory_id AND {condition})"
    return Visibility(
        f"(chunks.memory_id IS NULL OR ({in_scope} AND {matches}))",
        permitted.params | params,
        None if ALL_SCOPES in permitted.scopes else frozenset(permitted.scopes),
    )
