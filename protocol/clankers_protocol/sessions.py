"""Captured sessions, messages, tool calls, projects and statistics."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from clankers_protocol.wire import Cursor, Id, Limit, Method, Time, Wire


class SessionCounts(Wire):
    """Row counts of a session."""

    messages: int = 0
    tools: int = 0
    failed_tools: int = 0
    errors: int = 0
    compactions: int = 0


class Session(Wire):
    """A stored session. `messageCount`, `toolCallCount` and the token counts are figures of the harness.

    `subagents` counts the sessions whose `metadata.parentId` is this one. `automated` is "reported" if the harness says
    that no person started it (`metadata.entrypoint`: `claude -p` and SDKs, `codex exec`, a cron job), and "likely", in
    `session.list` only, if the harness does not say and three or more sessions have the same first prompt.
    """

    id: str
    title: str | None = None
    project_id: str | None = None
    project_path: str | None = None
    project_name: str | None = None
    model: str | None = None
    provider: str | None = None
    source: str | None = None
    status: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    message_count: int | None = None
    tool_call_count: int | None = None
    permission_mode: str | None = None
    created_at: int | None = None
    updated_at: int | None = None
    ended_at: int | None = None
    summary: str | None = None
    user_prompt: str | None = None
    context: dict[str, Any] | None = None
    chat_id: str | None = None
    metadata: dict[str, Any] | None = None
    counts: SessionCounts | None = None
    subagents: int | None = None
    automated: Literal["reported", "likely"] | None = None


class Message(Wire):
    id: str
    session_id: str
    role: str | None = None
    text_content: str | None = None
    model: str | None = None
    source: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    duration_ms: int | None = None
    created_at: int | None = None
    completed_at: int | None = None
    metadata: dict[str, Any] | None = None


class Tool(Wire):
    id: str
    session_id: str
    message_id: str | None = None
    tool_name: str = ""
    tool_input: str | None = None
    tool_output: str | None = None
    file_path: str | None = None
    success: bool | None = None
    error_message: str | None = None
    duration_ms: int | None = None
    created_at: int | None = None


class SessionError(Wire):
    id: str
    session_id: str
    error_type: str | None = None
    error_message: str | None = None
    created_at: int | None = None


class Compaction(Wire):
    id: str
    session_id: str
    tokens_before: int | None = None
    tokens_after: int | None = None
    messages_before: int | None = None
    messages_after: int | None = None
    cause: str | None = None
    summary: str | None = None
    created_at: int | None = None


class SessionPage(Wire):
    """Sessions, newest first; `cursor` requests the next, older page and is null on the last one.

    `total` is the number of all that match, if `count` asked for it.
    """

    sessions: list[Session]
    cursor: str | None = None
    total: int | None = None


class MessagePage(Wire):
    """The newest messages in chronological order; `cursor` requests the page before."""

    messages: list[Message]
    cursor: str | None = None


class ToolPage(Wire):
    """The newest tool calls in chronological order; `cursor` requests the page before."""

    tools: list[Tool]
    cursor: str | None = None


class TimelineEntry(Wire):
    """One entry of a timeline, stored in the field named by `kind`.

    `cut` gives the full length of each text that `maxCharacters` shortened, by its field.
    """

    kind: Literal["message", "tool", "error", "compaction"]
    at: int
    message: Message | None = None
    tool: Tool | None = None
    error: SessionError | None = None
    compaction: Compaction | None = None
    cut: dict[str, int] | None = None


class Timeline(Wire):
    """Timeline entries, oldest first; `cursor` requests the entries after them.

    `position` is that of the first entry, if `position` or `around` was given.
    """

    entries: list[TimelineEntry]
    cursor: str | None = None
    position: int | None = None


class SessionGet(Method[Session]):
    """Return one session with its counts. `id` may be a unique prefix of at least 8 characters."""

    method: ClassVar[str] = "session.get"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]


class SessionList(Method[SessionPage]):
    """List sessions, newest first. `project` is a folder, name or id; `since` and `until` limit the start time.

    `query` matches a part of the title or of the first prompt. `parentId` lists the sub-agents of a session, `topLevel`
    leaves all sub-agents out, `skipShort` sessions with at most one prompt and one answer, and `skipAutomated` those
    that are automated, or likely so.
    """

    method: ClassVar[str] = "session.list"
    project: str | None = None
    source: str | None = None
    status: str | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None
    query: Annotated[str, Meta(max_length=1024)] | None = None
    parent_id: Id | None = None
    top_level: bool = False
    skip_short: bool = False
    count: bool = False
    skip_automated: bool = False


class Deleted(Wire):
    """Deleted rows, or with `dryRun` the rows that would be deleted."""

    id: str
    counts: SessionCounts
    dry_run: bool = False


class SessionDelete(Method[Deleted]):
    """Delete a session with all its captured data. Requires the complete id."""

    method: ClassVar[str] = "session.delete"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]
    dry_run: bool = False


class MessageList(Method[MessagePage]):
    """List the newest messages of a session (thread) or of all threads of a chat, in chronological order."""

    method: ClassVar[str] = "message.list"
    session_id: Id | None = None
    role: str | None = None
    limit: Limit = 100
    cursor: Cursor | None = None
    thread_id: Id | None = None
    chat_id: Id | None = None
    since: Time | None = None
    until: Time | None = None


class ToolList(Method[ToolPage]):
    """List the newest tool calls of one session or of all sessions, in chronological order."""

    method: ClassVar[str] = "tool.list"
    session_id: Id | None = None
    tool_name: str | None = None
    file_path: str | None = None
    success: bool | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class SessionErrors(Method[list[SessionError]]):
    """List the errors of a session, oldest first."""

    method: ClassVar[str] = "session.errors"
    session_id: Id
    limit: Limit = 100


class SessionCompactions(Method[list[Compaction]]):
    """List the compactions of a session, oldest first."""

    method: ClassVar[str] = "session.compactions"
    session_id: Id
    limit: Limit = 100


class SessionTimeline(Method[Timeline]):
    """List everything captured in a session in chronological order.

    Instead of a cursor, `position` starts at an entry by its number, and `around` puts the entry with this id in the
    middle. `maxCharacters` shortens longer texts; `session.entry` returns one in full.
    """

    method: ClassVar[str] = "session.timeline"
    session_id: Id
    limit: Limit = 200
    cursor: Cursor | None = None
    position: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    around: Id | None = None
    max_characters: Annotated[int, Meta(ge=100, le=1_000_000)] | None = None


class Usage(Wire):
    """Usage of one project, model, source or day."""

    name: str | None
    sessions: int
    messages: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


class ToolUsage(Wire):
    """Calls and failures of one tool."""

    name: str
    calls: int
    failures: int
    failure_rate: float
    mean_duration_ms: float | None


class Totals(Wire):
    sessions: int
    messages: int
    tools: int
    failed_tools: int
    errors: int
    compactions: int
    projects: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


class DayActivity(Wire):
    """Messages on one local day."""

    day: str
    messages: int


class Statistics(Wire):
    totals: Totals
    by_project: list[Usage]
    by_model: list[Usage]
    by_source: list[Usage]
    by_day: list[Usage]
    tools: list[ToolUsage]
    calendar: list[DayActivity] = field(default_factory=list)


class Stats(Method[Statistics]):
    """Return totals and usage by project, model, source and day; each list has at most `limit` rows.

    Token counts are the larger of the session's own figure and the sum over its messages. Days are local days, newest
    first; the other lists start with the highest usage. With `calendarDays`, `calendar` has the messages of each of the
    last so many days, oldest first, whatever `since` is; days without any are left out.
    """

    method: ClassVar[str] = "stats"
    ends_with_client: ClassVar[bool] = True
    project: str | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 30
    calendar_days: Annotated[int, Meta(ge=0, le=3660)] = 0
