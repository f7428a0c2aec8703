"""Statements on one connection to the server: prepared, and sent without waiting for a result that nobody needs yet.

In a transaction, statements that are run for their effect are only sent. The next one that returns rows, or the commit,
waits for all of them in one round trip and raises the first error. It stands on libpq, because the cursors of psycopg
take three times the CPU for each statement (docs/decisions/0028).
"""

import select
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import abc, errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

MIN_USES = 3
"""Uses of a statement before it is prepared."""

MAX_PREPARED = 500
"""Statements that a connection prepares; the oldest is forgotten for a new one."""

MAX_COUNTED = 2_000
"""Statements whose uses are counted."""

MAX_UNANSWERED = 200
"""Statements that are sent before their results are read: both sides buffer them."""

_READABLE, _WRITABLE = select.POLLIN, select.POLLOUT
_PREPARABLE = ("SELECT", "INSERT", "UPDATE", "DELETE")
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY)

Key = tuple[str, tuple[int, ...]]
"""A statement and the types of its parameters."""


@dataclass(frozen=True)
class _Sent:
    """A message to the server whose result is still to come. `prepared` is the statement that it prepares.

    A sync makes the server continue after an error, and says in which state the transaction is.
    """

    prepared: Key | None = None
    is_sync: bool = False


_IGNORED_ERROR = "the transaction was aborted by an error that a change ignored"
_STATEMENT, _SYNC = _Sent(), _Sent(is_sync=True)


class ServerConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of psycopg, with the statements that it has prepared and those without a result yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_shared = False
        """True if other daemons write to the same tables."""
        self.changes = 0
        """Rows that were inserted, updated or deleted."""
        self._uses: dict[Key, int] = {}
        self._statement_names: dict[Key, bytes] = {}
        self._named = 0
        self._unanswered: deque[_Sent] = deque()
        self._is_aborted = False
        """True after an error, until the transaction is rolled back, or to a savepoint."""
        self._transformer: abc.Transformer = Transformer(self)

    def begin(self, sql: str = "BEGIN") -> None:
        """Send the statement that begins a transaction; until it ends, statements are sent without waiting."""
        self.pgconn.enter_pipeline_mode()
        self._send(sql, ())

    def send(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Send a statement. In a transaction its result is read later, otherwise now."""
        if self.pgconn.pipeline_status == PipelineStatus.OFF:
            self.query(sql, values)
            return
        self._send(sql, values)
        if len(self._unanswered) > MAX_UNANSWERED:
            self.confirm()

    def query(self, sql: str, values: Sequence[Any] = (), is_last: bool = False) -> "PGresult":
        """Run a statement and return its result; the last one of a transaction ends the pipeline."""
        if self.pgconn.pipeline_status == PipelineStatus.OFF:
            self.pgconn.enter_pipeline_mode()
            is_last = True
        self._send(sql, values)
        if not is_last:
            return self._receive_all()
        try:
            return self._receive_all(is_last=True)
        finally:
            if not self.closed:
                self.pgconn.exit_pipeline_mode()
            self._is_aborted &= self.in_transaction

    def confirm(self) -> None:
        """Wait for the results of all statements that were sent; raise the first error."""
        if self._unanswered:
            self._receive_all()
        if self._is_aborted:
            raise errors.InFailedSqlTransaction(_IGNORED_ERROR)

    def end(self, sql: str) -> None:
        """Send COMMIT or ROLLBACK, wait for it, and raise the first error of the transaction's statements."""
        result = self.query(sql, is_last=True)
        if sql == "COMMIT" and result.command_status == b"ROLLBACK":
            raise errors.InFailedSqlTransaction(_IGNORED_ERROR)

    def roll_back(self) -> None:
        """Roll the transaction back after an error, whatever became of its statements."""
        with suppress(psycopg.Error):
            self.leave_pipeline()
        if not self.closed and self.in_transaction:
            self.query("ROLLBACK")

    def leave_pipeline(self) -> None:
        """Read all results, so that psycopg can use the connection by itself."""
        if self.pgconn.pipeline_status == PipelineStatus.OFF:
            return
        self.query("SELECT 1", is_last=True)

    @property
    def in_transaction(self) -> bool:
        """True between the statements that begin and end a transaction."""
        is_open = self.pgconn.pipeline_status != PipelineStatus.OFF
        return is_open or self.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def rows(self, result: "PGresult") -> list[tuple[Any, ...]]:
        """Return the rows of a result."""
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _send(self, sql: str, values: Sequence[Any]) -> None:
        transformer = self._transformer
        if sql.startswith(("BEGIN", "ROLLBACK")):
            self._is_aborted = False
        parameters = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        key = (sql, tuple(transformer.types or ()))
        name = self._statement_names.get(key)
        if name is None and sql.lstrip()[:6].upper() in _PREPARABLE:
            uses = self._uses[key] = self._uses.get(key, 0) + 1
            if uses >= MIN_USES:
                name = self._prepare(key)
        if name is not None:
            self.pgconn.send_query_prepared(name, parameters, transformer.formats)
        else:
            self.pgconn.send_query_params(sql.encode(), parameters, key[1], transformer.formats)
        self._unanswered.append(_STATEMENT)

    def _prepare(self, key: Key) -> bytes:
        if len(self._statement_names) >= MAX_PREPARED:
            oldest = next(iter(self._statement_names))
            self.pgconn.send_query_params(b"DEALLOCATE " + self._statement_names.pop(oldest), None)
            self._unanswered.append(_STATEMENT)
        if len(self._uses) > MAX_COUNTED:
            self._uses.clear()
        self._named += 1
        name = b"clankers_%d" % self._named
        self.pgconn.send_prepare(name, key[0].encode(), key[1])
        self._unanswered.append(_Sent(prepared=key))
        self._statement_names[key] = name
        return name

    def _receive_all(self, is_last: bool = False) -> "PGresult":
        """Read the results of all statements that were sent, and return the last; raise the first error.

        After an error the server skips statements up to a sync, which is sent then. It also follows the last statement.
        """
        if is_last:
            self.pgconn.pipeline_sync()
            self._unanswered.append(_SYNC)
        else:
            self.pgconn.send_flush_request()
        failed: PGresult | None = None
        while self._unanswered:
            sent = self._unanswered.popleft()
            result = self._receive(sent)
            if sent.is_sync:
                continue
            if result.status in _DONE:
                last = result
                if (result.command_status or b"")[:6] != b"SELECT":
                    self.changes += result.command_tuples or 0
                continue
            if sent.prepared is not None:
                self._statement_names.pop(sent.prepared, None)
            if failed is None and result.status != ExecStatus.PIPELINE_ABORTED:
                failed = result
                self._is_aborted = True
                if not is_last:
                    self.pgconn.pipeline_sync()
                    self._unanswered.append(_SYNC)
        if failed is not None:
            raise errors.error_from_result(failed)
        return last

    def _receive(self, sent: _Sent) -> "PGresult":
        """Read the result of one statement, and the mark that follows it."""
        result = self._next_result()
        if result is None:
            raise psycopg.OperationalError("the server sent no result")
        if not sent.is_sync:
            while self._next_result() is not None:
                pass
        return result

    def _next_result(self) -> "PGresult | None":
        pgconn = self.pgconn
        while (unsent := pgconn.flush()) or pgconn.is_busy():
            poll = select.poll()
            poll.register(pgconn.socket, _READABLE | (_WRITABLE if unsent else 0))
            poll.poll()
            pgconn.consume_input()
        return pgconn.get_result()
