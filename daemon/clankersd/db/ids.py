"""Ids as people type them: complete, or the first characters of one."""

from collections.abc import Mapping
from typing import Any

from clankers_protocol.errors import Conflict, NotFound
from clankersd.db.connection import Db

MIN_PREFIX_CHARACTERS = 8


def resolve_id(
    db: Db, prefix: str, table: str, noun: str, condition: str = "1", params: Mapping[str, Any] | None = None
) -> str:
    """Return the id in `table` that equals or uniquely begins with `prefix`, among the rows that meet the condition.

    Raises NotFound, with `noun` as the name of what was not found, or Conflict if several ids match.
    """
    values = dict(params or {})
    if db.value(f"SELECT 1 FROM {table} WHERE id = :id AND {condition}", values | {"id": prefix}):
        return prefix
    ids: list[str] = []
    if len(prefix) >= MIN_PREFIX_CHARACTERS:
        sql = f"SELECT id FROM {table} WHERE id >= :first AND id < :last AND {condition} ORDER BY id LIMIT 6"
        bounds = {"first": prefix, "last": prefix + "\U0010ffff"}
        ids = [row["id"] for row in db.fetch(sql, values | bounds)]
    if not ids:
        raise NotFound(f"{noun} not found: {prefix}")
    if len(ids) > 1:
        raise Conflict(f"{prefix} is the beginning of several {table}: {', '.join(ids)}", {"ids": ids})
    return ids[0]
