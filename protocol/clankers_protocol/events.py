"""What harness plugins send. The names and shapes are those of the original clankers daemon.

Unknown fields are ignored, and required fields default to empty: their absence has an error of its own
(4001, with the field), as the original's plugins expect.
"""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, field

from clankers_protocol.wire import ClientInfo, Count, Duration, Id, Method, Number, Ok, Time, Wire


class SessionEvent(Wire):
    """What is known of a session. Absent, null or empty fields leave what is stored as it is."""

    id: Id = ""
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
    chat_id: str | None = None
    metadata: dict[str, Any] | None = None


class MessageEvent(Wire):
    """One message of a session."""

    id: Id = ""
    session_id: Id = ""
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
    """One tool call of a session."""

    id: Id = ""
    session_id: Id = ""
    message_id: Id | None = None
    tool_name: str = ""
    tool_input: str | None = None
    tool_output: str | None = None
    file_path: str | None = None
    success: bool | None = None
    error_message: str | None = None
    duration_ms: Duration | None = None
    created_at: Time | None = None


class SessionErrorEvent(Wire):
    """Something that went wrong in a session."""

    id: Id = ""
    session_id: Id = ""
    error_type: str | None = None
    error_message: str | None = None
    created_at: Time | None = None


class CompactionEvent(Wire):
    """A session's context was compacted: by whom (`cause`: "manual" or "auto") and into what."""

    id: Id = ""
    session_id: Id = ""
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    messages_before: Count | None = None
    messages_after: Count | None = None
    cause: str | None = None
    summary: str | None = None
    created_at: Time | None = None


class Envelope(Method[Ok], forbid_unknown_fields=False):
    """An event with who sent it; the envelope may be left out."""

    schema_version: str | None = None
    client: ClientInfo | None = None


class UpsertSession(Envelope):
    """Store a session, or what is newly known of it."""

    method: ClassVar[str] = "upsertSession"
    session: SessionEvent = field(default_factory=SessionEvent)


class UpsertMessage(Envelope):
    """Store a message, or what is newly known of it."""

    method: ClassVar[str] = "upsertMessage"
    message: MessageEvent = field(default_factory=MessageEvent)


class UpsertTool(Envelope):
    """Store a tool call, or what is newly known of it."""

    method: ClassVar[str] = "upsertTool"
    tool: ToolEvent = field(default_factory=ToolEvent)


class UpsertSessionError(Envelope):
    """Store an error of a session."""

    method: ClassVar[str] = "upsertSessionError"
    session_error: SessionErrorEvent = field(default_factory=SessionErrorEvent)


class UpsertCompactionEvent(Envelope):
    """Store a compaction of a session."""

    method: ClassVar[str] = "upsertCompactionEvent"
    compaction_event: CompactionEvent = field(default_factory=CompactionEvent)


class Failure(Wire):
    """An error as it stands in a reply."""

    code: int
    message: str
    data: Any = None


class Outcome(Wire):
    """What became of one event of a batch."""

    ok: bool
    error: Failure | None = None


class BatchOutcome(Wire):
    """`ok` when every event was stored; `outcomes` has one entry for each, in their order."""

    ok: bool
    outcomes: list[Outcome]


class EventsBatch(Method[BatchOutcome]):
    """Store many events in order, in one transaction. A bad one is reported and fails alone.

    Each event is an object with one of the keys `session`, `message`, `tool`, `sessionError` and
    `compactionEvent`, holding what the upsert of that kind takes.
    """

    method: ClassVar[str] = "events.batch"
    events: Annotated[list[dict[str, Any]], Meta(max_length=10_000)]


class HookEvent(Method[Ok]):
    """One event as a harness's hook got it. `generic` events are those of `events.batch`.

    `at` is when the hook got it: harnesses do not say, and an event may have been kept for days.
    """

    method: ClassVar[str] = "hook.event"
    harness: str
    event: dict[str, Any]
    at: Time | None = None


class LogEntry(Wire):
    """A line for the daemon's log."""

    timestamp: str | int | float | None = None
    level: str | None = None
    component: str | None = None
    message: str = ""
    request_id: str | None = None
    context: dict[str, Any] | None = None


class LogWrite(Envelope):
    """Write a line into the daemon's log, if its level is not below the daemon's.

    The message and the context may have 64 KiB each.
    """

    method: ClassVar[str] = "log.write"
    entry: LogEntry = field(default_factory=LogEntry)
