"""The HNSW index of a table of vectors, built beside the daemon's reads and writes."""

import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import structlog

from clankersd.db.engine import HnswOptions
from clankersd.db.postgres.connection import PostgresDb
from clankersd.db.postgres.engine import index_cast
from clankersd.db.postgres.pipeline import ServerConnection

MIN_INDEXED_VECTORS = 10_000
"""Fewer are all compared by a search, in about 10 ms."""

MAX_WAITING_SHARE = 0.1
"""Chunks that may wait for their vectors when an index is built, as a share of the vectors that are stored."""

MIN_BUILD_MEMORY_MB, MAX_BUILD_MEMORY_MB = 64, 2048
"""Memory of the server for a build: where the graph does not fit, it takes several times as long."""

CANCEL_SECONDS = 1.0

_LOCK = "SELECT pg_try_advisory_lock(hashtext('clankersd vectors'), hashtext(current_schema() || :table))"
_STATE = """
    SELECT indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE relname = :index AND relnamespace = current_schema()::regnamespace
"""

log = structlog.get_logger(component="store")


class IndexBuild:
    """A build of the index on a connection of its own, which can be cancelled from another thread."""

    def __init__(self, connect: Callable[[], ServerConnection], table: str, dims: int, hnsw: HnswOptions) -> None:
        self._connect, self._table, self._dims, self._hnsw = connect, table, dims, hnsw
        self._server: ServerConnection | None = None
        self._is_cancelled = False

    def run(self) -> bool:
        """Build the index unless it is there; return False if another daemon builds it, or if this was cancelled."""
        server = self._server = self._connect()
        try:
            return not self._is_cancelled and self._build(PostgresDb(server))
        finally:
            server.close()

    def cancel(self) -> None:
        """Cancel the build, and return when it has ended."""
        self._is_cancelled = True
        while self._server is not None and not self._server.closed:
            with suppress(psycopg.Error):
                self._server.cancel_safe(timeout=CANCEL_SECONDS)
            time.sleep(CANCEL_SECONDS / 20)  # if it was between two statements, the next one is cancelled

    def _build(self, db: PostgresDb) -> bool:
        table, dims, hnsw = self._table, self._dims, self._hnsw
        if not db.value(_LOCK, {"table": table}):
            return False
        started = time.monotonic()
        index = f"{table}_nearest"
        is_valid = db.value(_STATE, {"index": index})
        if is_valid:
            return True
        if is_valid is not None:  # a build was interrupted
            db.execute(f"DROP INDEX CONCURRENTLY {index}")
        rows = db.value(f"SELECT count(*) FROM {table}_distinct")
        megabytes = rows * (4 * dims + 32 * hnsw.m + 256) // 1_000_000
        memory = min(max(megabytes, MIN_BUILD_MEMORY_MB), MAX_BUILD_MEMORY_MB)
        db.execute(f"SET maintenance_work_mem = '{memory}MB'")
        db.execute("SET max_parallel_maintenance_workers = 0")  # nobody waits for it, but searches need processors
        cast = index_cast(dims)
        indexed = f"(embedding{cast}) halfvec_cosine_ops" if cast else "embedding vector_cosine_ops"
        db.execute(f"ANALYZE {table}_distinct, {table}_rowids, chunks")  # or the first searches would be planned badly
        db.execute(
            f"CREATE INDEX CONCURRENTLY {index} ON {table}_distinct USING hnsw ({indexed}) "
            f"WITH (m = {hnsw.m}, ef_construction = {max(hnsw.ef_construction, 2 * hnsw.m)})"
        )
        log.info("vectors indexed", table=table, vectors=rows, seconds=round(time.monotonic() - started, 1))
        return True
