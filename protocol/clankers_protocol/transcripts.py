"""Reading a long session: its turns, single entries in full, and the files that tool calls touched."""

from typing import Annotated, ClassVar

from msgspec import Meta

from clankers_protocol.sessions import TimelineEntry, Tool
from clankers_protocol.wire import Cursor, Id, Limit, Method, Wire


class Turn(Wire):
    """A prompt and everything up to the next one. What precedes the first prompt is a turn without `id`.

    `position` is that of the first entry in the timeline. `contextTokens` is the largest prompt of a request in the
    turn, `promptTokens` and `completionTokens` are sums; all of them are null if the harness reports none.
    """

    position: int
    entries: int
    id: str | None
    text: str | None
    at: int
    until: int
    messages: int
    tools: int
    failed_tools: int
    errors: int
    compactions: int
    context_tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None


class Turns(Wire):
    """Turns of a session in order, and the number of all turns and of all timeline entries."""

    turns: list[Turn]
    total: int
    entries: int


class SessionTurns(Method[Turns]):
    """List the turns of a session with their sizes, from the turn number `first` on."""

    method: ClassVar[str] = "session.turns"
    session_id: Id
    first: Annotated[int, Meta(ge=0, le=10**9)] = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class SessionEntry(Method[TimelineEntry]):
    """Return one entry of a timeline in full, by the id of the message, tool call, error or compaction."""

    method: ClassVar[str] = "session.entry"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]


class TouchedFile(Wire):
    """A file that tool calls named: how many calls, how many of them changed it, in how many sessions."""

    path: str
    calls: int
    edits: int
    failures: int
    sessions: int
    last_at: int


class TouchedFiles(Wire):
    """Files, the last touched first; `total` counts all that match."""

    files: list[TouchedFile]
    total: int


class FileList(Method[TouchedFiles]):
    """List the files that tool calls named, the last touched first. `query` matches a part of the path."""

    method: ClassVar[str] = "file.list"
    query: Annotated[str, Meta(max_length=1024)] | None = None
    project: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    offset: Annotated[int, Meta(ge=0, le=10**9)] = 0
    limit: Limit = 100


class FileTouch(Wire):
    """A tool call on a file, its session, and the beginning of the prompt that led to it."""

    tool: Tool
    session_title: str | None
    source: str | None
    prompt_id: str | None
    prompt: str | None


class FileTouches(Wire):
    """Tool calls on a file, newest first; `cursor` requests the next, older page."""

    touches: list[FileTouch]
    total: int
    cursor: str | None = None


class FileHistory(Method[FileTouches]):
    """List the tool calls on one file in all sessions, newest first, each with the prompt that led to it."""

    method: ClassVar[str] = "file.history"
    ends_with_client: ClassVar[bool] = True
    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    limit: Limit = 50
    cursor: Cursor | None = None
