"""Run one SQL statement that only reads, within limits. SQLite itself enforces that nothing is written.

This runs in a process of its own (query_process.py), since a single SQL function can take any amount of time and
cannot be interrupted.
"""

import difflib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import apsw.ext

from clankers_protocol.admin import Rows
from clankers_protocol.errors import QueryRefused
from clankersd.db.connection import BUSY_TIMEOUT_MS, Db, load_vec

MAX_RESULT_BYTES = 8 * 1024 * 1024
MAX_VALUE_BYTES = 64 * 1024 * 1024
"""Twice the largest frame, so that every stored value can be read."""

_ALLOWED = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}
_PRAGMAS = {
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "foreign_key_list",
    "compile_options",
    "data_version",  # FTS5 asks for it when one of its tables is read
}
_READ_KEYWORDS = {"SELECT", "WITH", "EXPLAIN", "VALUES"}
_KEYWORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "WITH",
    "GROUP",
    "ORDER",
    "LIMIT",
    "JOIN",
    "HAVING",
    "OFFSET",
    "DISTINCT",
]


@dataclass
class _Guard:
    """Authorizer: allow what reading needs, deny the rest, and remember the first action denied."""

    refused: str = field(default="")

    def __call__(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        if action in _ALLOWED or (action == apsw.SQLITE_PRAGMA and first in _PRAGMAS):
            return apsw.SQLITE_OK
        name = str(apsw.mapping_authorizer_function[action]).removeprefix("SQLITE_").replace("_", " ")
        self.refused = self.refused or f"{name} {first or second or ''}".strip()
        return apsw.SQLITE_DENY


def query_file(path: Path, sql: str, limit: int, seconds: float) -> Rows:
    """Run `sql` on a read-only connection of its own; raises apsw.InterruptError after `seconds`."""
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        db = Db(raw)
        load_vec(db)
        raw.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        raw.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        raw.pragma("query_only", True)
        deadline = time.monotonic() + seconds
        db.interrupt_when(lambda: time.monotonic() > deadline)
        return run_query(db, sql, limit)
    finally:
        raw.close()


def run_query(db: Db, sql: str, limit: int) -> Rows:
    """Return at most `limit` rows of one statement that only reads; raises QueryRefused for any other."""
    guard = _Guard()
    started = time.perf_counter()
    db.raw.authorizer = guard
    try:
        columns = _column_names(db, sql)
        rows, truncated = _fetch(db, sql, limit)
    except apsw.InterruptError:
        raise
    except (apsw.AuthError, apsw.ReadOnlyError) as error:
        action = _first_word(sql)
        if guard.refused and action in _READ_KEYWORDS | {"PRAGMA"}:
            action = guard.refused
        hint = f"; these are allowed: {', '.join(sorted(_PRAGMAS))}" if action.startswith("PRAGMA") else ""
        raise QueryRefused(f"{action} is refused: query only reads; begin with SELECT or WITH{hint}") from error
    except apsw.TooBigError as error:
        raise QueryRefused(f"a value is larger than {MAX_VALUE_BYTES // 1024 // 1024} MiB") from error
    except (apsw.NoMemError, MemoryError) as error:
        raise QueryRefused("the statement needs more memory than a query may use: ask for less") from error
    except apsw.FullError as error:
        raise QueryRefused("the statement needs more temporary space than a query may use: ask for less") from error
    except (apsw.SQLError, apsw.BindingsError, UnicodeDecodeError, ValueError) as error:
        problem = str(error)
    else:
        return Rows(columns, rows, truncated, round((time.perf_counter() - started) * 1000, 2))
    finally:
        db.raw.authorizer = None
    raise _explain(db, problem)


def _first_word(sql: str) -> str:
    return sql.strip().partition(" ")[0].upper()


def _column_names(db: Db, sql: str) -> list[str]:
    """Return the names of the result columns; raises ValueError unless it is one statement that returns rows."""
    info = apsw.ext.query_info(db.raw, sql)
    if info.bindings_count:
        raise ValueError("write the values into the statement: parameters are not supported")
    if (info.query_remaining or "").strip():
        raise ValueError("only one statement is allowed")
    if not info.description:
        raise ValueError(f"{_first_word(sql)} returns no rows: begin with SELECT or WITH")
    return [column[0] for column in info.description]


def _fetch(db: Db, sql: str, limit: int) -> tuple[list[list[Any]], bool]:
    rows: list[list[Any]] = []
    size = 0
    for row in db.raw.execute(sql, can_cache=False):
        if len(rows) == limit:
            return rows, True
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if size > MAX_RESULT_BYTES:
            if not rows:
                mebibytes = MAX_RESULT_BYTES // 1024 // 1024
                raise ValueError(f"the first row is larger than {mebibytes} MiB: select fewer columns, or use substr()")
            return rows, True
        rows.append([_to_json(value) for value in row])
    return rows, False


def _to_json(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"X'{value.hex()}'"


def _explain(db: Db, problem: str) -> QueryRefused:
    """Return the error with suggestions for a misspelled name."""
    message = problem.removeprefix("SQLError: ")
    if missing := re.search(r"no such column: (?:\w+\.)?(\w+)", problem):
        rows = db.fetch(
            "SELECT DISTINCT columns.name "
            "FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
            "WHERE tables.type = 'table' ORDER BY 1"
        )
        return _with_suggestions(message, missing[1], [row["name"] for row in rows])
    if missing := re.search(r"no such table: (?:\w+\.)?(\w+)", problem):
        return _with_suggestions(f"{message}; there are {', '.join(_tables(db))}", missing[1], _tables(db))
    if near := re.search(r'near "(\w+)": syntax error', problem):
        return _with_suggestions(message, near[1].upper(), _KEYWORDS)
    return QueryRefused(message)


def _with_suggestions(message: str, name: str, names: list[str]) -> QueryRefused:
    contained = [known for known in names if name.lower() in known.lower()]
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.6)
    suggestions = list(dict.fromkeys(contained + close))[:8]
    if not suggestions:
        return QueryRefused(message)
    return QueryRefused(f"{message}; did you mean {', '.join(suggestions)}?", {"suggestions": suggestions})


def _tables(db: Db) -> list[str]:
    rows = db.fetch("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
    return [row["name"] for row in rows if not row["name"].startswith("sqlite_")]
