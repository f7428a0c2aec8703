"""Hook events from `clankers-hook`: read by the harness's module, stored with the count of its events."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import InvalidParams, RpcError, StorageUnavailable
from clankers_protocol.events import HookEvent
from clankers_protocol.wire import Ok
from clankersd import clock
from clankersd.capture import opt_out, transcripts
from clankersd.capture.apply import apply_event
from clankersd.capture.events import HookReading, SessionOptedOut
from clankersd.capture.harnesses import HARNESSES
from clankersd.capture.pause import Pauses, describe
from clankersd.capture.prepared import PreparedEvent, prepare_event
from clankersd.db import Db
from clankersd.index.index import Index
from clankersd.redaction.engine import redact
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

MAX_DIGESTS = 50_000
"""Newest hook events that are remembered, so that a repeated one is not counted again."""

_REMEMBER = "INSERT INTO hook_events (digest) VALUES (:digest) ON CONFLICT DO NOTHING RETURNING position"
_FORGET_OLDEST = f"DELETE FROM hook_events WHERE position <= (SELECT max(position) FROM hook_events) - {MAX_DIGESTS}"

_COUNT = """
    INSERT INTO capture_counts AS counted
        (harness, events, ignored, opted_out, last_event, last_event_at, last_session_id)
    VALUES (:harness, 1, :ignored, :opted_out, :event, :at, :session_id)
    ON CONFLICT (harness) DO UPDATE SET
        events = counted.events + 1, ignored = counted.ignored + :ignored,
        opted_out = counted.opted_out + :opted_out,
        last_event = CASE WHEN :at >= COALESCE(counted.last_event_at, 0) THEN :event ELSE counted.last_event END,
        last_session_id = CASE WHEN :at >= COALESCE(counted.last_event_at, 0) THEN :session_id
                               ELSE counted.last_session_id END,
        last_event_at = MAX(COALESCE(counted.last_event_at, 0), :at)
"""
_COUNT_REFUSAL = """
    INSERT INTO capture_counts (harness, refused, last_refusal, last_refused_at) VALUES (:harness, 1, :why, :now)
    ON CONFLICT (harness) DO UPDATE SET
        refused = capture_counts.refused + 1, last_refusal = :why, last_refused_at = :now
"""


@dataclass(frozen=True)
class PreparedHook:
    """A hook event that is ready to be stored.

    `count` holds the parameters of its harness's count. `digest` identifies an event with a time: a hook whose reply
    came too late spools an event that is stored already.
    """

    harness: str
    reading: HookReading
    events: list[PreparedEvent]
    count: dict[str, Any]
    digest: bytes | None


@handles(HookEvent)
async def hook_event(daemon: "Daemon", request: HookEvent) -> Ok:
    await daemon.spool.catch_up()  # spooled events are older
    try:
        hook = await prepare(partial(prepare_hook, daemon.index, request))
    except RpcError as error:
        row = {"harness": request.harness[:100], "why": redact(error.message[:500])[0], "now": clock.now()}
        with suppress(StorageUnavailable):  # the error below says enough
            await daemon.store.write(lambda db: db.execute(_COUNT_REFUSAL, row))
        raise
    paused = await daemon.store.write(partial(apply_hook, hook=hook, pauses=daemon.pauses))
    if paused is not None:
        return Ok(paused=paused)
    daemon.index.wake()
    daemon.transcripts.wake()
    daemon.files.add_project(hook.reading.project)
    return Ok()


def prepare_hook(index: Index, request: HookEvent) -> PreparedHook:
    """Read and prepare a hook event; raises RpcError for one that cannot be read."""
    harness = HARNESSES.get(request.harness)
    if harness is None:
        raise InvalidParams(f"invalid params: there is no harness {request.harness!r} - at `$.harness`")
    at = clock.to_ms(request.at) or clock.now()
    reading = harness.read_hook(request.event, at)
    is_opted_out = bool(reading.project and reading.session_id and opt_out.is_opted_out(reading.project))
    if is_opted_out:
        reading = HookReading(reading.name, reading.session_id, events=[SessionOptedOut(reading.session_id, at)])
    is_ignored = not (reading.events or reading.transcripts or reading.opens_or_closes)
    count = {
        "harness": request.harness,
        "event": redact(reading.name[:100])[0] or None,
        "session_id": reading.session_id[:1024] or None,
        "at": at,
        "ignored": int(is_ignored),
        "opted_out": int(is_opted_out),
    }
    digest = None
    if request.at is not None:
        encoded = msgspec.json.encode([request.harness, request.at, request.event], order="deterministic")
        digest = hashlib.sha256(encoded).digest()[:16]
    events = [prepare_event(index, event, at) for event in reading.events]
    return PreparedHook(request.harness, reading, events, count, digest)


def apply_hook(db: Db, hook: PreparedHook, pauses: Pauses) -> str | None:
    """Store the events of a hook, ask for its transcripts to be read, and count it once.

    If capture was paused when the hook ran, it is only counted, and the reason is returned.
    """
    reading = hook.reading
    pause = None
    if not pauses.is_empty:
        session = {"id": reading.session_id}
        named = next((path for event in hook.events if (path := event.row.get("project_path"))), None)
        project = reading.project or named or db.value("SELECT project_path FROM sessions WHERE id = :id", session)
        pause = pauses.find(db, hook.count["at"], reading.session_id, project)
    if pause:
        hook.count["ignored"] = 1
    else:
        for event in hook.events:
            apply_event(db, event)
        if reading.opens_or_closes:
            transcripts.request_session(db, reading.session_id)
        for path in reading.transcripts:
            transcripts.request_read(db, hook.harness, path, reading.session_id)
    if hook.digest is None or db.value(_REMEMBER, {"digest": hook.digest}) is not None:
        db.execute(_FORGET_OLDEST)
        db.execute(_COUNT, hook.count)
    return describe(pause) if pause else None
