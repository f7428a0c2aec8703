"""Ids as people type them: complete, or the first or last characters of one.

Ids that clankers makes are UUIDv7: they begin with the time, so ids of one minute begin alike, and only their ends tell
them apart.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from clankers_protocol.errors import Conflict, NotFound
from clankersd.db.connection import Db

MIN_PART_CHARACTERS = 8
LENGTHENING_CHARACTERS = 4
MAX_NAMED_IDS = 6

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def resolve_id(
    db: Db, part: str, table: str, noun: str, condition: str = "true", params: Mapping[str, Any] | None = None
) -> str:
    """Return the one id in `table` that equals, begins or ends with `part`, among rows that meet the condition.

    Raises NotFound, with `noun` as the name of what was not found, or Conflict if several ids match.
    """
    ids = find_ids(db, part, table, "id", condition, params)
    if not ids:
        raise NotFound(f"{noun} not found: {part}")
    if len(ids) > 1:
        raise Conflict(f"{part} is the beginning or end of several {table}: {', '.join(ids)}", {"ids": ids})
    return ids[0]


def find_ids(
    db: Db, part: str, table: str, column: str = "id", condition: str = "true", params: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the id that equals `part`; else those that begin with it; else those that end with it."""
    values = dict(params or {})
    select = f"SELECT {column} AS id FROM {table} WHERE {condition} AND"
    if db.value(f"{select} {column} = :part", values | {"part": part}) is not None:
        return [part]
    if len(part) < MIN_PART_CHARACTERS:
        return []
    tests = [f"{column} >= :part AND {column} < :part || char(1114111)", f"substr({column}, -length(:part)) = :part"]
    for test in tests:
        rows = db.fetch(f"{select} {test} ORDER BY 1 LIMIT {MAX_NAMED_IDS}", values | {"part": part})
        if rows:
            return [str(row["id"]) for row in rows]
    return []


def shorten_ids(db: Db, ids: Iterable[str], tables: Mapping[str, str]) -> list[str]:
    """Shorten ids to parts that `find_ids` finds in none of the tables but for the id itself.

    `tables` has the column of the ids by the name of each table.
    """
    wanted = list(ids)
    endings = {each[-MIN_PART_CHARACTERS:] for each in wanted if _UUID7.fullmatch(each)}
    rivals: set[str] = set()
    for table, column in tables.items():
        ending = f"substr({column}, -{MIN_PART_CHARACTERS})"
        sql = f"SELECT {column} FROM {table} WHERE {ending} IN (SELECT value FROM json_each(:endings))"
        if endings:
            rivals.update(row[0] for row in db.tuples(sql, {"endings": json.dumps(sorted(endings))}))
    return [_shorten(db, each, tables, rivals) for each in wanted]


def _shorten(db: Db, complete: str, tables: Mapping[str, str], rivals: set[str]) -> str:
    uses_end = _UUID7.fullmatch(complete) is not None
    for length in range(MIN_PART_CHARACTERS, len(complete), LENGTHENING_CHARACTERS):
        part = complete[-length:] if uses_end else complete[:length]
        if uses_end and any(rival != complete and rival.endswith(part) for rival in rivals):
            continue
        beginning = {
            row[0]
            for table, column in tables.items()
            for row in db.tuples(
                f"SELECT {column} FROM {table} WHERE {column} >= :part AND {column} < :part || char(1114111) LIMIT 2",
                {"part": part},
            )
        }
        if beginning <= {complete}:
            return part
    return complete
