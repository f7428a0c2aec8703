"""Events from `clankers-hook`: what a harness tells becomes changes, and is counted."""

from typing import TYPE_CHECKING, Any

from clankers_protocol.errors import InvalidParams, RpcError, StorageUnavailable
from clankers_protocol.events import HookEvent
from clankers_protocol.wire import Ok
from clankersd import clock, privacy
from clankersd.changes import Change, keep, read_event
from clankersd.db import Db
from clankersd.harnesses import READERS
from clankersd.harnesses.told import Told
from clankersd.index.index import Index
from clankersd.redaction import redact
from clankersd.rpc import handles
from clankersd.transcripts import wanted, wanted_again

if TYPE_CHECKING:
    from clankersd.app import Daemon

GENERIC = "generic"

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
        change = change_of(daemon.index, request)
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
        return _all([read_event(index, request.event), _counted(GENERIC, _generic(request.event), at)])
    if request.harness not in READERS:
        raise InvalidParams(f"invalid params: there is no harness {request.harness!r} - at `$.harness`")
    told = READERS[request.harness](request.event, at)
    if told.project and told.session_id and privacy.declines(told.project):
        return _all([Change(privacy.decline(told.session_id, at)), _counted(request.harness, told, at, opted_out=1)])
    changes = [fact(index) for fact in told.facts]
    if told.begins_or_ends:
        changes.append(wanted_again(told.session_id))
    changes += [wanted(request.harness, path, told.session_id) for path in told.transcripts]
    ignored = 0 if changes else 1
    return _all([*changes, _counted(request.harness, told, at, ignored)])


def _all(changes: list[Change]) -> Change:
    def store(db: Db) -> None:
        for change in changes:
            change(db)

    return Change(store, tuple(news for change in changes for news in change.news))


def _counted(harness: str, told: Told, at: int, ignored: int = 0, opted_out: int = 0) -> Change:
    row = {
        "harness": harness,
        "event": redact(told.event[:100])[0] or None,
        "session_id": told.session_id[:1024] or None,
        "at": at,
    }
    return Change(lambda db: db.execute(_COUNT, {**row, "ignored": ignored, "opted_out": opted_out}))


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
