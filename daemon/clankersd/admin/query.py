"""`query`: read-only SQL for the owner, run in a process of its own."""

from typing import TYPE_CHECKING, cast

from clankers_protocol.admin import Query, Rows
from clankersd.admin.query_process import Task
from clankersd.wire.rpc import current_connection, handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


@handles(Query)
async def query(daemon: "Daemon", request: Query) -> Rows:
    await daemon.store.check_readable()
    await daemon.store.index_full_text()  # which the statement may read
    limit = request.limit or daemon.config.query_rows
    if (rows := await daemon.store.query(request.sql, limit, daemon.config.query_seconds)) is not None:
        return rows
    task = Task(str(daemon.store.path), request.sql, limit, daemon.config.query_seconds)
    return cast(Rows, await daemon.queries.query(task, current_connection.get()))  # encoded already, by the process
