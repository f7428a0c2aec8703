"""Events from `clankers-hook`: what a harness tells becomes changes, and is counted."""

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from clankers_protocol.errors import InvalidParams, RpcError, StorageUnavailable
from clankers_protocol.events import HookEvent
from clankers_protocol.ids import encode_id
from clankers_protocol.wire import Ok
from clankersd import clock
from clankersd.capture import opt_out
from clankersd.capture.apply import Change, keep, read_event
from clankersd.capture.harnesses import READERS
from clankersd.capture.harnesses.payload import Told
from clankersd.capture.redaction import redact
from clankersd.capture.transcripts import wanted, wanted_again
from clankersd.db import Db
from clankersd.index.index import Index
from clankersd.wire.preparation import prepare
from clankersd.wire.rpc import handles

if TYPE_CHECKING:
    from clankersd.app import Daemon

GENERIC = "generic"
ID_FIELDS = ("id", "sessionId", "messageId", "chatId")
MAX_DIGESTS = 50_000

_REMEMBER = "INSERT INTO hook_events (digest) VALUES (:digest) ON CONFLICT DO NOTHING RETURNING position"
_FORGET_OLDEST = f"DELETE FROM hook_events WHERE position <= (SELECT max(position) FROM hook_events) - {MAX_DIGESTS}"

_COUNT = """
    INSERT INTO capture_counts (harness, events, ignored, opted_out, last_event, last_event_at, last_session_id)
    VALUES (:harness, 1, :ignored, :opted_out, :event, :at, :session_id)
    ON CONFLICT (harness) DO UPDATE SET
        events = events + 1, ignored = ignored + :ignored, opted_out = opted_out + :opted_out,
        last_event = CASE WHEN :at >= COALESCE(last_event_at, 0) THEN :event ELSE last_event END,
        last_session_id = CASE WHEN :at >= COALESCE(last_event_at, 0) THEN :session_id ELSE last_session_id END,
        last_event_at = MAX(COALESCE(last_event_at, 0), :at)
"""
_COUNT_REFUSAL = """
    INSERT INTO capture_counts (harness, refused, last_refusal, last_refused_at) VALUES (:harness, 1, :why, :now)
    ON CONFLICT (harness) DO UPDATE SET refused = refused + 1, last_refusal = :why, last_refused_at = :now
"""


@handles(HookEvent)
async def hook_event(daemon: "Daemon", request: HookEvent) -> Ok:
    await daemon.spool.catch_up()  # what was kept earlier happened earlier
    try:
        change = await prepare(partial(change_of, daemon.index, request))
    except RpcError as error:
        await _count_refusal(daemon, request.harness, error)
        raise
    await keep(daemon, change)
    daemon.index.wake()
    daemon.transcripts.wake()
    return Ok()


def change_of(index: Index, request: HookEvent) -> Change:
    """What a harness's event changes; raises RpcError for one that cannot be read."""
    at = clock.moment(request.at) or clock.now()
    if request.harness == GENERIC:
        event = _with_encoded_ids(request.event)
        return _all([read_event(index, event), _counted(request, _generic(event), at)])
    if request.harness not in READERS:
        raise InvalidParams(f"invalid params: there is no harness {request.harness!r} - at `$.harness`")
    told = READERS[request.harness](request.event, at)
    if told.project and told.session_id and opt_out.declines(told.project):
        return _all([Change(opt_out.decline(told.session_id, at)), _counted(request, told, at, opted_out=1)])
    changes = [fact(index) for fact in told.facts]
    if told.begins_or_ends:
        changes.append(wanted_again(told.session_id))
    changes += [wanted(request.harness, path, told.session_id) for path in told.transcripts]
    ignored = 0 if changes else 1
    return _all([*changes, _counted(request, told, at, ignored)])


def _all(changes: list[Change]) -> Change:
    def store(db: Db) -> None:
        for change in changes:
            change(db)

    return Change(store)


def _counted(request: HookEvent, told: Told, at: int, ignored: int = 0, opted_out: int = 0) -> Change:
    """Count an event once: a hook whose answer comes too late spools what is stored already."""
    digest = None if request.at is None else _digest(request)
    row = {
        "harness": request.harness,
        "event": redact(told.event[:100])[0] or None,
        "session_id": told.session_id[:1024] or None,
        "at": at,
        "ignored": ignored,
        "opted_out": opted_out,
    }

    def store(db: Db) -> None:
        if digest is not None and db.value(_REMEMBER, {"digest": digest}) is None:
            return
        db.execute(_FORGET_OLDEST)
        db.execute(_COUNT, row)

    return Change(store)


def _digest(request: HookEvent) -> bytes:
    encoded = msgspec.json.encode([request.harness, request.at, request.event], order="deterministic")
    return hashlib.sha256(encoded).digest()[:16]


def _with_encoded_ids(event: dict[str, Any]) -> dict[str, Any]:
    """Spell the ids of a generic event so that they can be stored: a hook has nobody to show an error to."""
    return {kind: _encode_ids(given) if isinstance(given, dict) else given for kind, given in event.items()}


def _encode_ids(given: dict[str, Any]) -> dict[str, Any]:
    ids = {key: encode_id(given[key]) for key in ID_FIELDS if isinstance(given.get(key), str)}
    return {**given, **ids}


def _generic(event: dict[str, Any]) -> Told:
    kind, given = next(iter(event.items()))
    session_id = given.get("id" if kind == "session" else "sessionId") if isinstance(given, dict) else None
    return Told(kind, session_id if isinstance(session_id, str) else "")


async def _count_refusal(daemon: "Daemon", harness: str, error: RpcError) -> None:
    row = {"harness": harness[:100], "why": redact(error.message[:500])[0], "now": clock.now()}
    try:
        await daemon.store.write(lambda db: db.execute(_COUNT_REFUSAL, row))
    except StorageUnavailable:
        return  # the refusal itself says enough
