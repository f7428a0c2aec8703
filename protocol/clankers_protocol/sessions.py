"""Reading back what was captured."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.wire import Cursor, Id, Limit, Method, Time, Wire


class SessionCounts(Wire):
    """What is stored of a session, counted."""

    messages: int = 0
    tools: int = 0
    failed_tools: int = 0
    errors: int = 0
    compactions: int = 0


class Session(Wire):
    """A session as stored. `messageCount`, `toolCallCount` and the tokens are the harness's own figures."""

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
    """Sessions, newest first; `cursor` asks for the next, older page and is null on the last one."""

    sessions: list[Session]
    cursor: str | None = None


class MessagePage(Wire):
    """The newest messages, oldest of them first; `cursor` asks for the page before."""

    messages: list[Message]
    cursor: str | None = None


class ToolPage(Wire):
    """The newest tool calls, oldest of them first; `cursor` asks for the page before."""

    tools: list[Tool]
    cursor: str | None = None


class TimelineEntry(Wire):
    """One thing that happened: the field that `kind` names holds it."""

    kind: Literal["message", "tool", "error", "compaction"]
    at: int
    message: Message | None = None
    tool: Tool | None = None
    error: SessionError | None = None
    compaction: Compaction | None = None


class Timeline(Wire):
    """What happened, oldest first; `cursor` asks for what came after."""

    entries: list[TimelineEntry]
    cursor: str | None = None


class SessionGet(Method[Session]):
    """One session with its counts. `id` may be a unique beginning of 8 characters or more."""

    method: ClassVar[str] = "session.get"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]


class SessionList(Method[SessionPage]):
    """Sessions, newest first. `project` is a path or a project's id; times bound when a session began."""

    method: ClassVar[str] = "session.list"
    project: str | None = None
    source: str | None = None
    status: str | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class Deleted(Wire):
    """What was deleted, or with `dryRun` would be."""

    id: str
    counts: SessionCounts
    dry_run: bool = False


class SessionDelete(Method[Deleted]):
    """Delete a session and everything captured of it. The whole id is needed."""

    method: ClassVar[str] = "session.delete"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]
    dry_run: bool = False


class MessageList(Method[MessagePage]):
    """The newest messages, oldest of them first: of a session (which is a thread), or of all threads of a chat."""

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
    """The newest tool calls, oldest of them first: of one session, or of all."""

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
    """What went wrong in a session, oldest first."""

    method: ClassVar[str] = "session.errors"
    session_id: Id
    limit: Limit = 100


class SessionCompactions(Method[list[Compaction]]):
    """The compactions of a session, oldest first."""

    method: ClassVar[str] = "session.compactions"
    session_id: Id
    limit: Limit = 100


class SessionTimeline(Method[Timeline]):
    """Everything of a session in the order it happened."""

    method: ClassVar[str] = "session.timeline"
    session_id: Id
    limit: Limit = 200
    cursor: Cursor | None = None


class Project(Wire):
    """A folder in which sessions ran."""

    id: str
    path: str
    name: str | None
    sessions: int
    created_at: int
    last_session_at: int | None


class ProjectList(Method[list[Project]]):
    """Every project, the one used last first."""

    method: ClassVar[str] = "project.list"
    limit: Limit = 1000


class Usage(Wire):
    """What one project, model, source or day used."""

    name: str | None
    sessions: int
    messages: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


class ToolUsage(Wire):
    """How often a tool was called, and how often it failed."""

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


class Statistics(Wire):
    totals: Totals
    by_project: list[Usage]
    by_model: list[Usage]
    by_source: list[Usage]
    by_day: list[Usage]
    tools: list[ToolUsage]


class Stats(Method[Statistics]):
    """Totals, and what each project, model, source and day used; each list has at most `limit` rows.

    Tokens are the larger of a session's own figure and the sum over its messages. Days are the machine's
    local days, newest first; the other lists have the heaviest user first.
    """

    method: ClassVar[str] = "stats"
    project: str | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 30
