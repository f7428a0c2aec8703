"""Methods for sending each of the five kinds of event, for the blocking and the async client."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from clankers_protocol.events import (
    CompactionEvent,
    EventsBatch,
    MessageEvent,
    SessionErrorEvent,
    SessionEvent,
    ToolEvent,
    UpsertCompactionEvent,
    UpsertMessage,
    UpsertSession,
    UpsertSessionError,
    UpsertTool,
)
from clankers_protocol.wire import ClientInfo, Method

Fields = ParamSpec("Fields")
Event = TypeVar("Event")
Sent = TypeVar("Sent")
SentBatch = TypeVar("SentBatch")

AnyEvent = SessionEvent | MessageEvent | ToolEvent | SessionErrorEvent | CompactionEvent

SCHEMA_VERSION = "v1"

_BATCH_KEYS: dict[type[AnyEvent], str] = {
    SessionEvent: "session",
    MessageEvent: "message",
    ToolEvent: "tool",
    SessionErrorEvent: "sessionError",
    CompactionEvent: "compactionEvent",
}


class Events(Generic[Sent, SentBatch]):
    """One method per kind of event, which takes the fields of the event: `events.session("s1", title="x")`.

    `send` decides whether an event is sent with or without acknowledgement, blocking or awaited.
    """

    def __init__(self, send: Callable[[Method[Any]], Any], client: ClientInfo) -> None:
        self._send = send
        # Each method has the signature of its event's constructor, so that fields are declared once and typed.
        self.session = self._sender(SessionEvent, lambda event: UpsertSession(SCHEMA_VERSION, client, event))
        self.message = self._sender(MessageEvent, lambda event: UpsertMessage(SCHEMA_VERSION, client, event))
        self.tool = self._sender(ToolEvent, lambda event: UpsertTool(SCHEMA_VERSION, client, event))
        self.error = self._sender(SessionErrorEvent, lambda event: UpsertSessionError(SCHEMA_VERSION, client, event))
        self.compaction = self._sender(
            CompactionEvent, lambda event: UpsertCompactionEvent(SCHEMA_VERSION, client, event)
        )

    def batch(self, events: Iterable[AnyEvent]) -> SentBatch:
        """Send many events, stored in order in one transaction; an invalid event does not affect the others."""
        sent: SentBatch = self._send(EventsBatch([{_BATCH_KEYS[type(event)]: event} for event in events]))
        return sent

    def _sender(self, event: Callable[Fields, Event], upsert: Callable[[Event], Method[Any]]) -> Callable[Fields, Sent]:
        def send(*args: Fields.args, **fields: Fields.kwargs) -> Sent:
            sent: Sent = self._send(upsert(event(*args, **fields)))
            return sent

        return send
