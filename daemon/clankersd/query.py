"""Read-only SQL for the owner. SQLite itself enforces that nothing is written."""

import difflib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apsw

from clankers_protocol.admin import Query, Rows
from clankers_protocol.errors import QueryRefused
from clankersd.db import Db
from clankersd.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MOST_BYTES = 8 * 1024 * 1024

_ALLOWED = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}
_PRAGMAS = {
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "foreign_key_list",
    "compile_options",
}
_READING = {"SELECT", "WITH", "EXPLAIN", "VALUES"}
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
    """SQLite asks it about everything a statement would do; it remembers the first thing it refused."""

    refused: str = field(default="")

    def __call__(self, action: int, first: str | None, _second: str | None, *_: Any) -> int:
        if action in _ALLOWED or (action == apsw.SQLITE_PRAGMA and first in _PRAGMAS):
            return apsw.SQLITE_OK
        self.refused = self.refused or _words(action)
        return apsw.SQLITE_DENY


def _words(action: int) -> str:
    return str(apsw.mapping_authorizer_function[action]).removeprefix("SQLITE_").replace("_", " ")


@handles(Query)
async def query(daemon: "Daemon", request: Query) -> Rows:
    limit = request.limit or daemon.config.query_rows
    return await daemon.store.read(lambda db: run_query(db, request.sql, limit), daemon.config.query_seconds)


def run_query(db: Db, sql: str, limit: int) -> Rows:
    """At most `limit` rows of one statement that only reads."""
    guard = _Guard()
    started = time.perf_counter()
    with _reading_only(db, guard):
        try:
            columns = _columns_given(db, sql)
            rows, truncated = _fetch(db, sql, limit)
        except apsw.InterruptError:
            raise
        except (apsw.AuthError, apsw.ReadOnlyError) as error:
            what = _first_word(sql) if _first_word(sql) not in _READING else guard.refused
            raise QueryRefused(f"{what} is refused: query only reads; begin with SELECT or WITH") from error
        except (apsw.SQLError, apsw.BindingsError, UnicodeDecodeError, ValueError) as error:
            problem = str(error)
        else:
            return Rows(columns, rows, truncated, round((time.perf_counter() - started) * 1000, 2))
    raise _explained(db, problem)


def _first_word(sql: str) -> str:
    return sql.strip().partition(" ")[0].upper()


@contextmanager
def _reading_only(db: Db, guard: _Guard) -> Iterator[None]:
    db.raw.pragma("query_only", True)
    db.raw.authorizer = guard
    try:
        yield
    finally:
        db.raw.authorizer = None
        db.raw.pragma("query_only", False)


def _columns_given(db: Db, sql: str) -> list[str]:
    """The names of what it gives; raises ValueError unless it is one statement that gives rows."""
    import apsw.ext  # needed by nobody else, and not at the start

    info = apsw.ext.query_info(db.raw, sql)
    if info.bindings_count:
        raise ValueError("write the values into the statement: there is nothing to bind here")
    if (info.query_remaining or "").strip():
        raise ValueError("one statement at a time, please")
    if not info.description:
        raise ValueError(f"{_first_word(sql)} gives no rows: begin with SELECT or WITH")
    return [column[0] for column in info.description]


def _fetch(db: Db, sql: str, limit: int) -> tuple[list[list[Any]], bool]:
    rows: list[list[Any]] = []
    size = 0
    for row in db.raw.execute(sql, can_cache=False):
        if len(rows) == limit or size > MOST_BYTES:
            return rows, True
        rows.append([_shown(value) for value in row])
        size += sum(len(value) for value in rows[-1] if isinstance(value, str))
    return rows, False


def _shown(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"X'{value.hex()}'"


def _explained(db: Db, problem: str) -> QueryRefused:
    """The error with names that were perhaps meant."""
    message = problem.removeprefix("SQLError: ")
    if missing := re.search(r"no such column: (?:\w+\.)?(\w+)", problem):
        return _with_suggestions(message, missing[1], _columns(db))
    if missing := re.search(r"no such table: (?:\w+\.)?(\w+)", problem):
        return _with_suggestions(f"{message}; there are {', '.join(_tables(db))}", missing[1], _tables(db))
    if near := re.search(r'near "(\w+)": syntax error', problem):
        return _with_suggestions(message, near[1].upper(), _KEYWORDS)
    return QueryRefused(message)


def _with_suggestions(message: str, given: str, names: list[str]) -> QueryRefused:
    contained = [name for name in names if given.lower() in name.lower()]
    close = difflib.get_close_matches(given, names, n=5, cutoff=0.6)
    suggestions = list(dict.fromkeys(contained + close))[:8]
    if not suggestions:
        return QueryRefused(message)
    return QueryRefused(f"{message}; did you mean {', '.join(suggestions)}?", {"suggestions": suggestions})


def _tables(db: Db) -> list[str]:
    rows = db.fetch("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
    return [row["name"] for row in rows if not row["name"].startswith("sqlite_")]


def _columns(db: Db) -> list[str]:
    found = db.fetch(
        "SELECT DISTINCT columns.name "
        "FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' ORDER BY 1"
    )
    return [row["name"] for row in found]
