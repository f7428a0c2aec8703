"""Ids as people give them: whole, or the first characters of one."""

from collections.abc import Mapping
from typing import Any

from clankers_protocol.errors import Conflict, NotFound
from clankersd.db.connection import Db

SHORTEST_PREFIX = 8


def resolve_id(
    db: Db, given: str, table: str, what: str, condition: str = "1", params: Mapping[str, Any] | None = None
) -> str:
    """The id in `table` that is or uniquely begins with `given`, among the rows that meet the condition."""
    known = dict(params or {})
    if db.value(f"SELECT 1 FROM {table} WHERE id = :id AND {condition}", known | {"id": given}):
        return given
    bounds = {"first": given, "last": given + "\U0010ffff"}
    sql = f"SELECT id FROM {table} WHERE id >= :first AND id < :last AND {condition} ORDER BY id LIMIT 6"
    ids = [row["id"] for row in db.fetch(sql, known | bounds)] if len(given) >= SHORTEST_PREFIX else []
    if not ids:
        raise NotFound(f"{what} not found: {given}")
    if len(ids) > 1:
        raise Conflict(f"{given} is the beginning of several {table}: {', '.join(ids)}", {"ids": ids})
    return str(ids[0])
