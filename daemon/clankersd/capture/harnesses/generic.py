"""Any other harness: its hooks send the events of `events.batch`."""

from clankers_protocol.ids import encode_id
from clankersd.capture.events import HookReading, parse_event
from clankersd.capture.harnesses.base import Harness, Occasion, Payload, string

NAME = "generic"
ID_FIELDS = ("id", "sessionId", "messageId", "chatId")


def read_hook(payload: Payload, _at: int) -> HookReading:
    """Read an event; raises InvalidParams. Its ids are encoded rather than rejected: a hook cannot show an error."""
    encoded: Payload = {}
    for kind, fields in payload.items():
        if isinstance(fields, dict):
            ids = {key: encode_id(fields[key]) for key in ID_FIELDS if isinstance(fields.get(key), str)}
            encoded[kind] = {**fields, **ids}
        else:
            encoded[kind] = fields
    event = parse_event(encoded)
    kind, fields = next(iter(encoded.items()))
    session_id = fields.get("id" if kind == "session" else "sessionId") if isinstance(fields, dict) else None
    return HookReading(kind, session_id if isinstance(session_id, str) else "", events=[event])


def find_occasion(payload: Payload) -> Occasion | None:
    """Read `kind`, `sessionId`, `project` and, for a prompt, `prompt`."""
    kind, session = payload.get("kind"), encode_id(string(payload, "sessionId"))
    if kind not in ("start", "prompt") or not session:
        return None
    trigger = "prompt"
    if kind == "start":
        trigger = "compact" if payload.get("compacted") else "startup"
    return Occasion(None, kind, session, string(payload, "project") or None, string(payload, "prompt"), trigger)


HARNESS = Harness(NAME, read_hook, find_occasion)
