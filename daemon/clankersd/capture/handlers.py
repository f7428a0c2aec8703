"""Capture: what plugins send, stored and let be known. What each event changes is in changes.py."""

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from clankers_protocol.errors import InvalidParams, RpcError
from clankers_protocol.events import (
    BatchOutcome,
    EventsBatch,
    Failure,
    LogWrite,
    Outcome,
    UpsertCompactionEvent,
    UpsertMessage,
    UpsertSession,
    UpsertSessionError,
    UpsertTool,
)
from clankers_protocol.wire import Ok
from clankersd.capture.apply import (
    Change,
    compaction_change,
    error_change,
    keep,
    message_change,
    read_event,
    session_change,
    tool_change,
)
from clankersd.index.index import Index
from clankersd.log import LEVELS
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon


MAX_LOG_BYTES = 64 * 1024
"""Longest message and context of a line that a client writes into the log."""


@handles(UpsertSession)
async def upsert_session(daemon: "Daemon", request: UpsertSession) -> Ok:
    await keep(daemon, await prepare(partial(session_change, daemon.index, request.session)))
    return Ok()


@handles(UpsertMessage)
async def upsert_message(daemon: "Daemon", request: UpsertMessage) -> Ok:
    await keep(daemon, await prepare(partial(message_change, daemon.index, request.message)))
    daemon.index.wake()
    return Ok()


@handles(UpsertTool)
async def upsert_tool(daemon: "Daemon", request: UpsertTool) -> Ok:
    await keep(daemon, await prepare(partial(tool_change, daemon.index, request.tool)))
    return Ok()


@handles(UpsertSessionError)
async def upsert_session_error(daemon: "Daemon", request: UpsertSessionError) -> Ok:
    await keep(daemon, await prepare(partial(error_change, daemon.index, request.session_error)))
    return Ok()


@handles(UpsertCompactionEvent)
async def upsert_compaction_event(daemon: "Daemon", request: UpsertCompactionEvent) -> Ok:
    await keep(daemon, await prepare(partial(compaction_change, daemon.index, request.compaction_event)))
    return Ok()


@handles(EventsBatch)
async def events_batch(daemon: "Daemon", request: EventsBatch) -> BatchOutcome:
    read = await prepare(lambda: [_try(daemon.index, event) for event in request.events])
    changes = [change for change in read if not isinstance(change, RpcError)]
    if changes:
        for stored in await daemon.store.write_all(changes):
            if stored.error is not None:
                raise stored.error
        daemon.index.wake()
    return BatchOutcome(ok=len(changes) == len(read), outcomes=[_outcome(change) for change in read])


@handles(LogWrite)
async def log_write(daemon: "Daemon", request: LogWrite) -> Ok:  # every handler has it
    entry = request.entry
    component = entry.component or (request.client and request.client.name) or "client"
    facts: dict[str, Any] = {
        "requestId": entry.request_id,
        "context": entry.context,
        "sent_at": entry.timestamp,
    }
    given = {key: value for key, value in facts.items() if value is not None}
    for name, size in (("message", len(entry.message)), ("context", len(msgspec.json.encode(entry.context)))):
        if size > MAX_LOG_BYTES:
            raise InvalidParams(f"invalid params: {name} may have {MAX_LOG_BYTES} bytes - at `$.entry.{name}`")
    level = LEVELS.get((entry.level or "info").lower(), LEVELS["info"])
    structlog.get_logger(component=component).log(level, entry.message, **given)
    return Ok()


def _try(index: Index, event: dict[str, Any]) -> Change | RpcError:
    try:
        return read_event(index, event)
    except RpcError as error:
        return error


def _outcome(change: Change | RpcError) -> Outcome:
    if isinstance(change, RpcError):
        return Outcome(ok=False, error=Failure(change.code, change.message, change.data))
    return Outcome(ok=True)
