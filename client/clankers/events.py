"""The five kinds of event, said in one call each; blocking, awaited or fired depends on what sends them."""

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

_KEYS: dict[type[AnyEvent], str] = {
    SessionEvent: "session",
    MessageEvent: "message",
    ToolEvent: "tool",
    SessionErrorEvent: "sessionError",
    CompactionEvent: "compactionEvent",
}


class Events(Generic[Sent, SentBatch]):
    """Each takes the fields of its event, `id` and `session_id` first: `events.session("s1", title="x")`."""

    def __init__(self, send: Callable[[Method[Any]], Any], client: ClientInfo) -> None:
        self._send = send
        # Built from the events' own constructors, so that no field is named twice and all are typed.
        self.session = self._sender(SessionEvent, lambda event: UpsertSession(SCHEMA_VERSION, client, event))
        self.message = self._sender(MessageEvent, lambda event: UpsertMessage(SCHEMA_VERSION, client, event))
        self.tool = self._sender(ToolEvent, lambda event: UpsertTool(SCHEMA_VERSION, client, event))
        self.error = self._sender(SessionErrorEvent, lambda event: UpsertSessionError(SCHEMA_VERSION, client, event))
        self.compaction = self._sender(
            CompactionEvent, lambda event: UpsertCompactionEvent(SCHEMA_VERSION, client, event)
        )

    def batch(self, events: Iterable[AnyEvent]) -> SentBatch:
        """Many events in one transaction, stored in their order; a bad one fails alone."""
        sent: SentBatch = self._send(EventsBatch([{_KEYS[type(event)]: event} for event in events]))
        return sent

    def _sender(self, event: Callable[Fields, Event], upsert: Callable[[Event], Method[Any]]) -> Callable[Fields, Sent]:
        def send(*args: Fields.args, **fields: Fields.kwargs) -> Sent:
            sent: Sent = self._send(upsert(event(*args, **fields)))
            return sent

        return send
