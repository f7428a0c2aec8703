"""Connections that read, each in a transaction of its own."""

from collections.abc import Callable
from typing import TypeVar

import psycopg

from clankersd.db.connection import Db
from clankersd.db.errors import ServerGone
from clankersd.db.postgres.connection import PostgresDb
from clankersd.db.postgres.pipeline import ServerConnection

T = TypeVar("T")

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class ReadPool:
    """Idle connections to one server, and those that run a query."""

    def __init__(self, connect: Callable[[], ServerConnection]) -> None:
        self._connect = connect
        self.idle: list[ServerConnection] = []
        self._reading: set[ServerConnection] = set()

    def run(self, query: Callable[[Db], T], seconds: float) -> T:
        """Run `query` in a read-only transaction; none of its statements may take longer than `seconds`."""
        while True:
            is_reused = bool(self.idle)
            raw = self.idle.pop() if is_reused else self._connect()
            self._reading.add(raw)
            try:
                raw.begin(_BEGIN)
                raw.send(f"SET LOCAL statement_timeout = {max(1, int(seconds * 1000))}")
                result = query(PostgresDb(raw))
                raw.end("ROLLBACK")
            except ServerGone:
                if not is_reused:  # otherwise it was closed while it was idle
                    raise
            except psycopg.Error as error:
                raise PostgresDb(raw).as_known(error) from error
            else:
                return result
            finally:
                self._reading.discard(raw)
                if not raw.closed:
                    raw.roll_back()
                    self.idle.append(raw)

    def cancel(self) -> None:
        """Cancel the queries that run."""
        for raw in list(self._reading):
            raw.cancel_safe(timeout=1)

    def close(self) -> None:
        """Close the idle connections."""
        while self.idle:
            self.idle.pop().close()
