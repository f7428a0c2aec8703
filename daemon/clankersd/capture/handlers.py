"""Methods that plugins call: store events, write to the log."""

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
from clankersd.capture.apply import store_event, store_events
from clankersd.capture.events import (
    CompactionReported,
    ErrorReported,
    MessageReported,
    SessionReported,
    ToolReported,
    parse_event,
)
from clankersd.capture.prepared import PreparedEvent, prepare_event
from clankersd.log import LEVELS
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_LOG_BYTES = 64 * 1024
"""Longest message and context of a line that a client writes to the log."""


@handles(UpsertSession)
async def upsert_session(daemon: "Daemon", request: UpsertSession) -> Ok:
    paused = await store_event(daemon.store, daemon.index, SessionReported(request.session), daemon.pauses)
    if paused is None:
        daemon.files.add_project(request.session.project_path)
    return _ok(paused)


@handles(UpsertMessage)
async def upsert_message(daemon: "Daemon", request: UpsertMessage) -> Ok:
    paused = await store_event(daemon.store, daemon.index, MessageReported(request.message), daemon.pauses)
    daemon.index.wake()
    return _ok(paused)


@handles(UpsertTool)
async def upsert_tool(daemon: "Daemon", request: UpsertTool) -> Ok:
    paused = await store_event(daemon.store, daemon.index, ToolReported(request.tool), daemon.pauses)
    return _ok(paused)


@handles(UpsertSessionError)
async def upsert_session_error(daemon: "Daemon", request: UpsertSessionError) -> Ok:
    paused = await store_event(daemon.store, daemon.index, ErrorReported(request.session_error), daemon.pauses)
    return _ok(paused)


@handles(UpsertCompactionEvent)
async def upsert_compaction_event(daemon: "Daemon", request: UpsertCompactionEvent) -> Ok:
    paused = await store_event(daemon.store, daemon.index, CompactionReported(request.compaction_event), daemon.pauses)
    return _ok(paused)


@handles(EventsBatch)
async def events_batch(daemon: "Daemon", request: EventsBatch) -> BatchOutcome:
    def prepare_all() -> list[PreparedEvent | RpcError]:
        prepared: list[PreparedEvent | RpcError] = []
        for event in request.events:
            try:
                prepared.append(prepare_event(daemon.index, parse_event(event)))
            except RpcError as error:
                prepared.append(error)
        return prepared

    prepared = await prepare(prepare_all)
    events = [each for each in prepared if not isinstance(each, RpcError)]
    stored = iter(await store_events(daemon.store, events, daemon.pauses) if events else [])
    outcomes = []
    for each in prepared:
        if isinstance(each, RpcError):
            outcomes.append(Outcome(ok=False, error=Failure(each.code, each.message, each.data)))
            continue
        result = next(stored)
        if result.error is not None:
            raise result.error
        outcomes.append(Outcome(ok=True) if result.value is None else Outcome(ok=True, paused=result.value))
    if events:
        daemon.index.wake()
    return BatchOutcome(ok=len(events) == len(prepared), outcomes=outcomes)


def _ok(paused: str | None) -> Ok:
    return Ok() if paused is None else Ok(paused=paused)


@handles(LogWrite)
async def log_write(daemon: "Daemon", request: LogWrite) -> Ok:  # every handler takes the daemon
    entry = request.entry
    component = entry.component or (request.client and request.client.name) or "client"
    for name, size in (("message", len(entry.message)), ("context", len(msgspec.json.encode(entry.context)))):
        if size > MAX_LOG_BYTES:
            raise InvalidParams(f"invalid params: {name} may have {MAX_LOG_BYTES} bytes - at `$.entry.{name}`")
    fields: dict[str, Any] = {
        "requestId": entry.request_id,
        "context": entry.context,
        "sent_at": entry.timestamp,
    }
    level = LEVELS.get((entry.level or "info").lower(), LEVELS["info"])
    present = {key: value for key, value in fields.items() if value is not None}
    structlog.get_logger(component=component).log(level, entry.message, **present)
    return Ok()
