"""Events that harness plugins send. Names and shapes are those of the original clankers daemon.

Unknown fields are ignored. Required fields default to empty because a missing one has its own error (4001, naming the
field), as the original plugins expect.
For the characters allowed in ids see ids.py.
"""

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType, field

from clankers_protocol.ids import NewId
from clankers_protocol.wire import ClientInfo, Count, Duration, Method, Number, Ok, Time, Wire


class SessionEvent(Wire):
    """Fields of a session. An absent, null or empty field leaves the stored value unchanged."""

    id: NewId = ""
    title: str | None = None
    project_path: str | None = None
    project_name: str | None = None
    model: str | None = None
    provider: str | None = None
    source: str | None = None
    status: str | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cost: Number | None = None
    message_count: Count | None = None
    tool_call_count: Count | None = None
    permission_mode: str | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    ended_at: Time | None = None
    summary: str | None = None
    user_prompt: str | None = None
    context: dict[str, Any] | None = None
    chat_id: NewId | None = None
    metadata: dict[str, Any] | None = None


class MessageEvent(Wire):
    """A message of a session."""

    id: NewId = ""
    session_id: NewId = ""
    role: str | None = None
    text_content: str | None = None
    model: str | None = None
    source: str | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    duration_ms: Duration | None = None
    created_at: Time | None = None
    completed_at: Time | None = None
    metadata: dict[str, Any] | None = None


class ToolEvent(Wire):
    """A tool call of a session."""

    id: NewId = ""
    session_id: NewId = ""
    message_id: NewId | None = None
    tool_name: str = ""
    tool_input: str | None = None
    tool_output: str | None = None
    file_path: str | None = None
    success: bool | None = None
    error_message: str | None = None
    duration_ms: Duration | None = None
    created_at: Time | None = None


class SessionErrorEvent(Wire):
    """An error that occurred in a session."""

    id: NewId = ""
    session_id: NewId = ""
    error_type: str | None = None
    error_message: str | None = None
    created_at: Time | None = None


class CompactionEvent(Wire):
    """A compaction of a session's context; `cause` is "manual" or "auto"."""

    id: NewId = ""
    session_id: NewId = ""
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    messages_before: Count | None = None
    messages_after: Count | None = None
    cause: str | None = None
    summary: str | None = None
    created_at: Time | None = None


class Envelope(Method[Ok], forbid_unknown_fields=False):
    """An event with its sender. The envelope is optional."""

    is_event: ClassVar[bool] = True
    schema_version: str | None = None
    client: ClientInfo | None = None


class UpsertSession(Envelope):
    """Create or update a session."""

    method: ClassVar[str] = "upsertSession"
    session: SessionEvent = field(default_factory=SessionEvent)


class UpsertMessage(Envelope):
    """Create or update a message."""

    method: ClassVar[str] = "upsertMessage"
    message: MessageEvent = field(default_factory=MessageEvent)


class UpsertTool(Envelope):
    """Create or update a tool call."""

    method: ClassVar[str] = "upsertTool"
    tool: ToolEvent = field(default_factory=ToolEvent)


class UpsertSessionError(Envelope):
    """Create or update an error of a session."""

    method: ClassVar[str] = "upsertSessionError"
    session_error: SessionErrorEvent = field(default_factory=SessionErrorEvent)


class UpsertCompactionEvent(Envelope):
    """Create or update a compaction of a session."""

    method: ClassVar[str] = "upsertCompactionEvent"
    compaction_event: CompactionEvent = field(default_factory=CompactionEvent)


class Failure(Wire):
    """Error of one event in a batch reply."""

    code: int
    message: str
    data: Any = None


class Outcome(Wire):
    """Outcome of one event of a batch. `paused` as in the reply of a single upsert."""

    ok: bool
    error: Failure | None = None
    paused: str | UnsetType = UNSET


class BatchOutcome(Wire):
    """Outcome of a batch. `ok` is true when every event was stored; `outcomes` has one entry per event, in order."""

    ok: bool
    outcomes: list[Outcome]


class EventsBatch(Method[BatchOutcome]):
    """Store many events in order. An invalid event is reported and does not affect the others.

    The reply follows once all of them are stored. A large batch takes several transactions, with other events
    in between. After an error or a lost connection, send it again: stored events do not change.

    Each event is an object with exactly one of the keys `session`, `message`, `tool`, `sessionError` and
    `compactionEvent`. Its value has the same fields as in the upsert of that kind.
    """

    method: ClassVar[str] = "events.batch"
    is_event: ClassVar[bool] = True
    events: Annotated[list[dict[str, Any]], Meta(max_length=10_000)]


class HookEvent(Method[Ok]):
    """Store one hook event of a harness, unchanged. The harness `generic` takes the events of `events.batch`.

    `at` is when the hook received the event: harnesses do not report it, and a spooled event may arrive days later.
    """

    method: ClassVar[str] = "hook.event"
    is_event: ClassVar[bool] = True
    harness: str
    event: dict[str, Any]
    at: Time | None = None


class LogEntry(Wire):
    """One log entry of a client."""

    timestamp: str | int | float | None = None
    level: str | None = None
    component: str | None = None
    message: str = ""
    request_id: str | None = None
    context: dict[str, Any] | None = None


class LogWrite(Envelope):
    """Write an entry to the daemon's log, unless its level is below the daemon's log level.

    The message and the context may have 64 KiB each.
    """

    method: ClassVar[str] = "log.write"
    entry: LogEntry = field(default_factory=LogEntry)
