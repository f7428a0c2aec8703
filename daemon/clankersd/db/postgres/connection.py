"""The PostgreSQL driver: psycopg, in the thread that owns the connection.

Values come back as SQLite returns them: booleans as 0 and 1, JSON as text, vectors as the bytes of 32-bit floats.
"""

import os
import re
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import psycopg
from psycopg import RawCursor, errors
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.raw_cursor import RawServerCursor
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from clankers_protocol.errors import Conflict
from clankersd.db.commit_priority import release_bulk_work
from clankersd.db.connection import Connection, Db
from clankersd.db.engine import DEFAULT_HNSW, HnswOptions
from clankersd.db.errors import RightMissing, SchemaRefused, ServerBusy, ServerGone
from clankersd.db.postgres.dialect import translate
from clankersd.db.postgres.engine import PostgresEngine, StoredVector
from clankersd.db.postgres.pipeline import ServerConnection
from clankersd.db.postgres.words import to_tsquery
from clankersd.metrics import metrics

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

CONNECT_SECONDS = 5
STREAMED_ROWS = 500
MIN_SERVER_VERSION = 150000
_NOTHING: Mapping[str, Any] = {}
_CREATION_KEY = "hashtext('clankersd schema')"
_TAKE_TURN = "SELECT pg_advisory_xact_lock(hashtext('clankersd writer'), hashtext(current_schema()))"
"""Daemons that share a schema write one after another: so numbers of rows grow in the order of the commits."""

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


class _VectorDumper(Dumper):
    """A vector as pgvector receives it: number of dimensions, 0, and 32-bit floats, highest byte first."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> Buffer:
        floats = array("f", obj)
        floats.byteswap()
        return struct.pack("!hh", len(floats), 0) + floats.tobytes()


class _VectorLoader(Loader):
    def load(self, data: Buffer) -> bytes:
        return array("f", msgspec.json.decode(bytes(data), type=list[float])).tobytes()


def connect(url: str, schema: str, hnsw: HnswOptions = DEFAULT_HNSW) -> ServerConnection:
    """Connect to the server; the tables and functions of `schema` are found first."""
    raw = _connect(url)
    _configure(raw, schema, hnsw)
    return raw


def describe_server(url: str, schema: str) -> str:
    """Return what a URL says of the server, without secrets."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        given = {}
    shown = {name: str(given[name]) for name in ("service", "user", "host", "port", "dbname") if given.get(name)}
    return f"PostgreSQL, {', '.join(f'{name} {value}' for name, value in (shown | {'schema': schema}).items())}"


def create_schema(url: str, schema: str, hnsw: HnswOptions = DEFAULT_HNSW) -> ServerConnection:
    """Connect to the server, and create the schema and the extension for vectors unless they are there."""
    if not _SCHEMA.fullmatch(schema):
        raise SchemaRefused(f"{schema!r} is no name for a schema: use small letters, digits and _")
    raw = _connect(url)
    try:
        _check_server(raw)
        # IF NOT EXISTS fails where two daemons create the same thing at the same moment.
        raw.execute(f"SELECT pg_advisory_lock({_CREATION_KEY})")
        _create_schema(raw, schema)
        raw.execute(f"SELECT pg_advisory_unlock({_CREATION_KEY})")
        _configure(raw, schema, hnsw)
    except BaseException:
        raw.close()
        raise
    return raw


def _check_server(raw: ServerConnection) -> None:
    """Raise SchemaRefused if the server or the database cannot hold what we store."""
    if raw.info.server_version < MIN_SERVER_VERSION:
        raise SchemaRefused(f"the server is PostgreSQL {raw.info.server_version // 10000}, 15 is needed: upgrade it")
    if (encoding := raw.info.parameter_status("server_encoding")) != "UTF8":
        raise SchemaRefused(
            f"the database has the encoding {encoding}, which cannot store every text: "
            "use one that was created with ENCODING 'UTF8' TEMPLATE template0"
        )


def _create_schema(raw: ServerConnection, schema: str) -> None:
    """Create the schema and the extension unless they are there; raises SchemaRefused if the role may not."""
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


def _connect(url: str) -> ServerConnection:
    try:
        return ServerConnection.connect(
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
        raise ServerGone(_describe_refusal(_first_line(error))) from error


def _describe_refusal(text: str) -> str:
    """Describe why there is no connection, from libpq's error: `… failed: FATAL:  reason` is the server's own."""
    reason = text.rpartition(" failed: ")[2]
    if reason.startswith("FATAL:") or "no password supplied" in reason:
        reason = reason.removeprefix("FATAL:").removeprefix("fe_sendauth:").strip()
        return (
            f"the database server refuses the connection ({reason}): check user, password and database of database_url"
        )
    return f"the database server cannot be reached ({reason}): check that it runs, and the host in database_url"


def _configure(raw: ServerConnection, schema: str, hnsw: HnswOptions) -> None:
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
        adapters.register_dumper(StoredVector, type("VectorDumper", (_VectorDumper,), {"oid": vector[0]}))
        path.append(f'"{vector[1]}"')
    settings = {
        "search_path": ", ".join(path),
        "client_min_messages": "warning",
        "TimeZone": _time_zone(),
        "hnsw.ef_search": str(hnsw.ef_search),
        "hnsw.iterative_scan": "relaxed_order",  # or a filter that few vectors pass would leave results out
    }
    for name, value in settings.items():
        raw.execute("SELECT set_config($1, $2, false)", [name, value])


class PostgresDb(Db):
    """The database as features see it, on PostgreSQL."""

    engine = PostgresEngine()

    def __init__(self, raw: ServerConnection) -> None:
        self._prepare()
        self.server = raw
        self.is_shared = raw.is_shared
        self.has_new_words: set[str] = set()
        """Tables with texts, of which the running transaction may have stored some."""

    def execute(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> None:
        """Send a statement. In a transaction its error is raised by a later one, or by the commit."""
        try:
            if not params and ("$$" in sql or ";" in sql):  # a migration
                self.server.leave_pipeline()
                self.server.execute(sql)
                self.has_new_words |= {table for table in ("chunks", "memories") if f"INTO unindexed_{table}" in sql}
            else:
                self.server.send(*self._bind(sql, params))
        except psycopg.Error as error:
            raise self.as_known(error) from error

    def fetch(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[dict[str, Any]]:
        result, rows = self._query(sql, params)
        names = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
        found = [dict(zip(names, row, strict=True)) for row in rows]
        if "rowid" in names and "rowid" not in sql:  # a column of ours, which SELECT * must not show
            for row in found:
                del row["rowid"]
        return found

    def tuples(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> list[tuple[Any, ...]]:
        return self._query(sql, params)[1]

    def value(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Any:
        rows = self.tuples(sql, params)
        return rows[0][0] if rows else None

    def confirm(self) -> None:
        try:
            self.server.confirm()
        except psycopg.Error as error:
            raise self.as_known(error) from error

    def stream(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> Iterator[tuple[list[str], tuple[Any, ...]]]:
        statement, values = self._bind(sql, params)
        try:
            self.server.leave_pipeline()
            with RawServerCursor(self.server, f"stream_{id(values)}") as cursor:
                cursor.itersize = STREAMED_ROWS
                cursor.execute(statement, values)
                names = [column.name for column in cursor.description or ()]
                for row in cursor:
                    yield names, row
        except psycopg.Error as error:
            raise self.as_known(error) from error

    def run_cursor(self, sql: str, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return column names and the first rows of one statement of PostgreSQL's own dialect that reads."""
        try:
            self.server.leave_pipeline()
            with RawServerCursor(self.server, "query") as cursor:
                cursor.execute(sql)
                return [column.name for column in cursor.description or ()], cursor.fetchmany(count)
        except psycopg.Error as error:
            raise self.as_known(error) from error

    def run_many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a statement of PostgreSQL's own dialect for each row."""
        try:
            for row in rows:
                self.server.send(sql, row)
        except psycopg.Error as error:
            raise self.as_known(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            self.server.begin()
            if self.is_shared:
                self.server.send(_TAKE_TURN)
            yield
            for finish in self._finishing:
                finish(self)
            if self.has_new_words:
                self.engine.index_full_text(self)
            release_bulk_work()
            started = time.perf_counter()
            self.server.end("COMMIT")
            metrics.sync_seconds.observe(time.perf_counter() - started)
        except BaseException as error:
            try:
                if not self.server.closed:
                    self.server.roll_back()
            except psycopg.Error as failure:
                raise self.as_known(failure) from error
            if isinstance(error, psycopg.Error):
                raise self.as_known(error) from error
            raise
        finally:
            self._finishing.clear()
            self._notifications.clear()
            self.change_cache.clear()
            self.has_new_words.clear()
            self.unindexed_chunks = 0  # there are none: words are indexed at once

    def modify(self, sql: str, params: Mapping[str, Any] = _NOTHING) -> int:
        before = self.total_changes()
        self.execute(sql, params)
        return self.total_changes() - before

    def total_changes(self) -> int:
        self.confirm()
        return self.server.changes

    def interrupt_when(self, is_due: Callable[[], bool] | None) -> None:
        """Do nothing: the time of a statement is limited by the server."""

    def _query(self, sql: str, params: Mapping[str, Any]) -> "tuple[PGresult, list[tuple[Any, ...]]]":
        try:
            result = self.server.query(*self._bind(sql, params))
            return result, self.server.rows(result) if result.nfields else []
        except psycopg.Error as error:
            raise self.as_known(error) from error

    def _bind(self, sql: str, params: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Return a statement for PostgreSQL and its values."""
        statement = translate(sql, params)
        values = [
            to_tsquery(params[name]) if name in statement.queries else params[name] for name in statement.parameters
        ]
        if statement.texts:
            self.has_new_words.add(statement.texts)
        return statement.sql, values

    def as_known(self, error: psycopg.Error) -> Exception:
        if self.server.closed or self.server.broken:
            return ServerGone("the connection to the database server was lost: check that the server runs")
        if isinstance(error, errors.InsufficientPrivilege):
            if "row-level security" in str(error):  # of this change alone
                return Conflict("this belongs to other members of the team: see docs/scaling.md")
            return RightMissing(f"the database server refuses: {_first_line(error)}")
        if isinstance(error, errors.LockNotAvailable):
            return ServerBusy("another session of the database server holds a lock on a table: see pg_locks there")
        for kind, known in _ERRORS:
            if isinstance(error, kind):
                return known(_first_line(error))
        return apsw.SQLError(_first_line(error))


def owns_schema(db: Db) -> bool:
    """Return True if the role of a connection owns the schema, or belongs to the role that does."""
    sql = "SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = current_schema()"
    return bool(db.value(sql))


class WriterDb(PostgresDb):
    """The database on the connection that writes, where the server limits the time of a statement."""

    def as_known(self, error: psycopg.Error) -> Exception:
        if isinstance(error, errors.QueryCanceled):
            return ServerBusy(
                "the database server ended a statement that took too long: check its load, "
                "or raise database_write_seconds"
            )
        return super().as_known(error)


class PostgresConnection(Connection):
    """A connection that writes, with its own thread."""

    def make_db(self) -> Db:
        return WriterDb(self._conn)  # type: ignore[arg-type]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _time_zone() -> str:
    """Return the name of this machine's zone, in which days begin and end."""
    if name := os.environ.get("TZ", "").lstrip(":"):
        return name
    _, found, zone = os.path.realpath("/etc/localtime").partition("/zoneinfo/")
    return zone if found else "UTC"
