"""The PostgreSQL driver: psycopg, in the thread that owns the connection.

Values come back as SQLite returns them: booleans as 0 and 1, JSON as text, vectors as the bytes of 32-bit floats.
"""

import os
import re
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import apsw
import msgspec
import psycopg
from psycopg import RawCursor, errors
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import TransactionStatus
from psycopg.raw_cursor import RawServerCursor
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from clankers_protocol.errors import Conflict
from clankersd.db.commit_priority import begin_disk_write
from clankersd.db.connection import Connection, Db
from clankersd.db.errors import RightMissing, SchemaRefused, ServerGone
from clankersd.db.postgres.dialect import translate
from clankersd.db.postgres.engine import PostgresEngine
from clankersd.db.postgres.words import to_tsquery
from clankersd.metrics import metrics

CONNECT_SECONDS = 5
STREAMED_ROWS = 500
MIN_SERVER_VERSION = 150000
HNSW_SEARCH = 100
"""Candidates that a search of the HNSW index keeps: recall@10 is 0.99 (docs/scaling.md)."""

_NOTHING: Mapping[str, Any] = {}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_VECTOR_TYPE = """
    SELECT pg_type.oid, nspname FROM pg_type JOIN pg_namespace ON pg_namespace.oid = typnamespace
    JOIN pg_extension ON extname = 'vector' AND extnamespace = typnamespace WHERE typname = 'vector'
"""

_ERRORS: list[tuple[type[Exception], type[Exception]]] = [
    (errors.QueryCanceled, apsw.InterruptError),
    (errors.IntegrityError, apsw.ConstraintError),
    (errors.ReadOnlySqlTransaction, apsw.ReadOnlyError),
    (errors.DiskFull, apsw.FullError),
    (errors.DeadlockDetected, apsw.BusyError),
    (errors.SerializationFailure, apsw.BusyError),
    (errors.LockNotAvailable, apsw.BusyError),
    (errors.OutOfMemory, apsw.NoMemError),
]
"""Errors of the server as the errors of SQLite that features and the store know."""


class _TextDumper(StrDumper):
    """A text; PostgreSQL stores no U+0000, which becomes the replacement character."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class _BooleanLoader(Loader):
    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _NumericLoader(Loader):
    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text or b"N" in text else int(text)


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class _VectorLoader(Loader):
    def load(self, data: Buffer) -> bytes:
        return array("f", msgspec.json.decode(bytes(data), type=list[float])).tobytes()


def connect(url: str, schema: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect to the server; the tables and functions of `schema` are found first."""
    raw = _connect(url)
    _configure(raw, schema)
    return raw


def create_schema(url: str, schema: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect to the server, and create the schema and the extension for vectors unless they are there."""
    if not _SCHEMA.fullmatch(schema):
        raise SchemaRefused(f"{schema!r} is no name for a schema: use small letters, digits and _")
    raw = _connect(url)
    if raw.info.server_version < MIN_SERVER_VERSION:
        raise SchemaRefused(f"the server is PostgreSQL {raw.info.server_version // 10000}, 15 is needed")
    try:
        if raw.execute("SELECT 1 FROM pg_namespace WHERE nspname = $1", [schema]).fetchone() is None:
            raw.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    except errors.InsufficientPrivilege as error:
        user = raw.info.user
        raise SchemaRefused(
            f"the role {user} may not create the schema {schema}: as superuser, run "
            f'CREATE SCHEMA "{schema}" AUTHORIZATION "{user}"'
        ) from error
    with suppress(
        errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile, errors.InvalidSchemaName
    ):  # not into our schema, which a restore replaces
        raw.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    _configure(raw, schema)
    return raw


def _connect(url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    try:
        return psycopg.connect(
            url,
            autocommit=True,
            cursor_factory=RawCursor,
            connect_timeout=CONNECT_SECONDS,
            application_name="clankersd",
            keepalives_idle=30,
        )
    except psycopg.ProgrammingError as error:  # its text may quote the password
        raise SchemaRefused("database_url is no URL that PostgreSQL understands: see docs/scaling.md") from error
    except psycopg.Error as error:
        raise ServerGone(f"the database server cannot be reached: {_first_line(error)}") from error


def _configure(raw: "psycopg.Connection[tuple[Any, ...]]", schema: str) -> None:
    adapters = raw.adapters
    dumpers: dict[type, type[Dumper]] = {str: _TextDumper, int: Int8Dumper}
    for kind, dumper in dumpers.items():
        adapters.register_dumper(kind, dumper)
    adapters.register_loader("bool", _BooleanLoader)
    adapters.register_loader("numeric", _NumericLoader)
    for name in ("json", "jsonb"):
        adapters.register_loader(name, _TextLoader)
    vector = raw.execute(_VECTOR_TYPE).fetchone()
    path = [f'"{schema}"', "pg_catalog"]
    if vector is not None:
        adapters.register_loader(vector[0], _VectorLoader)
        path.append(f'"{vector[1]}"')
    settings = {
        "search_path": ", ".join(path),
        "client_min_messages": "warning",
        "TimeZone": _time_zone(),
        "hnsw.ef_search": str(HNSW_SEARCH),
        "hnsw.iterative_scan": "relaxed_order",  # or a filter that few vectors pass would leave results out
    }
    for name, value in settings.items():
        raw.execute("SELECT set_config($1, $2, false)", [name, value])


class PostgresDb(Db):
    """The database as features see it, on PostgreSQL."""

    engine = PostgresEngine()

    def __init__(self, raw: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._prepare()
        self.server = raw
        self._changes = 0
        self._has_new_words = False

    def execute(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> None:
        cursor = self._run(sql, params)
        if cursor.rowcount > 0 and cursor.description is None:
            self._changes += cursor.rowcount

    def fetch(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[dict[str, Any]]:
        cursor = self._run(sql, params)
        if cursor.description is None:
            return []
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in self._rows(cursor)]
        if "rowid" in names and "rowid" not in sql:  # a column of ours, which SELECT * must not show
            for row in rows:
                del row["rowid"]
        return rows

    def tuples(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[tuple[Any, ...]]:
        cursor = self._run(sql, params)
        return self._rows(cursor) if cursor.description is not None else []

    def value(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Any:
        rows = self.tuples(sql, params)
        return rows[0][0] if rows else None

    def stream(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Iterator[tuple[list[str], tuple[Any, ...]]]:
        statement = translate(sql, params)
        try:
            with RawServerCursor(self.server, f"stream_{id(statement)}") as cursor:
                cursor.itersize = STREAMED_ROWS
                cursor.execute(statement.sql, self._values(statement.parameters, params))
                names = [column.name for column in cursor.description or ()]
                for row in cursor:
                    yield names, row
        except psycopg.Error as error:
            raise self._as_known(error) from error

    def run_cursor(self, sql: str, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return column names and the first rows of one statement of PostgreSQL's own dialect that reads."""
        try:
            with RawServerCursor(self.server, "query") as cursor:
                cursor.execute(sql)
                return [column.name for column in cursor.description or ()], cursor.fetchmany(count)
        except psycopg.Error as error:
            raise self._as_known(error) from error

    def run_many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a statement of PostgreSQL's own dialect for each row."""
        try:
            with self.server.cursor() as cursor:
                cursor.executemany(sql, rows)
        except psycopg.Error as error:
            raise self._as_known(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._run("BEGIN", _NOTHING)
        try:
            yield
            for finish in self._finishing:
                finish(self)
            if self._has_new_words:
                self.engine.index_words(self)
            if self.server.info.transaction_status != TransactionStatus.INTRANS:
                raise apsw.SQLError("the transaction was aborted by an error that a change ignored")
            begin_disk_write()
            started = time.perf_counter()
            self._run("COMMIT", _NOTHING)
            metrics.sync_seconds.observe(time.perf_counter() - started)
        except BaseException:
            if not self.server.closed and self.server.info.transaction_status != TransactionStatus.IDLE:
                self._run("ROLLBACK", _NOTHING)
            raise
        finally:
            self._finishing.clear()
            self._notifications.clear()
            self._has_new_words = False

    def total_changes(self) -> int:
        return self._changes

    def interrupt_when(self, is_due: Callable[[], bool] | None) -> None:
        """Do nothing: the time of a statement is limited by the server."""

    def _run(self, sql: str, params: Mapping[str, Any]) -> "psycopg.Cursor[tuple[Any, ...]]":
        try:
            if not params and ("$$" in sql or ";" in sql):  # a migration
                self._has_new_words |= "INTO unindexed_chunks" in sql
                return self.server.execute(sql)
            statement = translate(sql, params)
            values: list[Any] | None = self._values(statement.parameters, params)
            for place, name in enumerate(statement.parameters):
                if name in statement.queries and values:
                    values[place] = to_tsquery(values[place])
            self._has_new_words |= statement.stores_texts
            return self.server.execute(statement.sql, values or None)
        except psycopg.Error as error:
            raise self._as_known(error) from error

    def _values(self, names: tuple[str, ...], params: Mapping[str, Any]) -> list[Any]:
        return [params[name] for name in names]

    def _rows(self, cursor: "psycopg.Cursor[tuple[Any, ...]]") -> list[tuple[Any, ...]]:
        try:
            if cursor.rowcount > 0 and (cursor.statusmessage or "").partition(" ")[0] != "SELECT":
                self._changes += cursor.rowcount
            return cursor.fetchall()
        except psycopg.Error as error:
            raise self._as_known(error) from error

    def _as_known(self, error: psycopg.Error) -> Exception:
        if self.server.closed or self.server.broken:
            return ServerGone("the connection to the database server was lost: check that the server runs")
        if isinstance(error, errors.InsufficientPrivilege):
            if "row-level security" in str(error):  # of this change alone
                return Conflict("this belongs to other members of the team: see docs/scaling.md")
            return RightMissing(f"the database server refuses: {_first_line(error)}")
        for kind, known in _ERRORS:
            if isinstance(error, kind):
                return known(_first_line(error))
        return apsw.SQLError(_first_line(error))


class PostgresConnection(Connection):
    """A connection with its own thread."""

    def make_db(self) -> Db:
        return PostgresDb(self._conn)  # type: ignore[arg-type]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _time_zone() -> str:
    """Return the name of this machine's zone, in which days begin and end."""
    if name := os.environ.get("TZ", "").lstrip(":"):
        return name
    _, found, zone = os.path.realpath("/etc/localtime").partition("/zoneinfo/")
    return zone if found else "UTC"
