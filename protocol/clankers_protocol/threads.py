"""Threads: chat conversations. A thread is a session."""

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType

from clankers_protocol.projects import ProjectReference
from clankers_protocol.search import Embedding, Mode
from clankers_protocol.sessions import Deleted, Message
from clankers_protocol.wire import Cursor, Id, Limit, Method, Time, Wire

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Title = Annotated[str, Meta(max_length=10_000)]


class Thread(Wire):
    """A conversation in a chat. Harness sessions are threads too, usually without a chat."""

    id: str
    chat_id: str | None
    title: str | None
    project_path: str | None
    metadata: dict[str, Any] | None
    messages: int
    created_at: int
    updated_at: int


class ThreadPage(Wire):
    """Threads, the most recently changed first; `cursor` requests the next page and is null on the last one."""

    threads: list[Thread]
    cursor: str | None = None


class ThreadCreate(Method[Thread]):
    """Create a thread in a chat. An `id` is generated if none is given. A used `id` is a conflict, unless only messages
    of that thread have arrived so far."""

    method: ClassVar[str] = "thread.create"
    chat_id: Name
    id: Name | None = None
    title: Title | None = None
    project: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: Time | None = None


class ThreadGet(Method[Thread]):
    """Return one thread. `id` may be a unique prefix of at least 8 characters."""

    method: ClassVar[str] = "thread.get"
    id: Name


class ThreadList(Method[ThreadPage]):
    """List threads of one chat, of one project (folder, name or id) or all, the most recently changed first."""

    method: ClassVar[str] = "thread.list"
    chat_id: Name | None = None
    project: str | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ThreadUpdate(Method[Thread]):
    """Change a thread. Omitted fields stay unchanged; null clears the title or the metadata."""

    method: ClassVar[str] = "thread.update"
    id: Name
    chat_id: Name | UnsetType = UNSET
    title: Annotated[str, Meta(min_length=1, max_length=10_000)] | UnsetType | None = UNSET
    metadata: Annotated[dict[str, Any], Meta(min_length=1)] | UnsetType | None = UNSET


class ThreadDelete(Method[Deleted]):
    """Delete a thread with all its captured data. Requires the complete id."""

    method: ClassVar[str] = "thread.delete"
    id: Name
    dry_run: bool = False


class MessageStore(Method[Message]):
    """Store a message of a thread and make it searchable. A missing thread is created.

    An `id` is generated if none is given; messages of the same millisecond stay in order. With the `id` of a stored
    message, that message is updated: absent or empty fields stay unchanged.
    """

    method: ClassVar[str] = "message.store"
    thread_id: Name
    role: Annotated[str, Meta(min_length=1, max_length=256)]
    content: str
    id: Name | None = None
    metadata: dict[str, Any] | None = None
    created_at: Time | None = None


class ScoredMessage(Wire):
    """A message found by a search. Matches in `snippet` are enclosed in « and ».

    For a given embedding, `score` is the cosine similarity, 0 if it is negative. For a text query it is between 0 and 1
    and only comparable within one search. `duplicates` counts further messages with the same or nearly the same words,
    which are not listed.
    """

    message: Message
    score: float
    snippet: str
    chat_id: str | None
    project_path: str | None
    duplicates: int = 0


class FoundMessages(Wire):
    """Messages, best first. For `mode`, `pending`, `degraded` and `weak` see `search`."""

    messages: list[ScoredMessage]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float
    weak: bool = False


class MessageSearch(Method[FoundMessages]):
    """Find messages by text or by an embedding of the index's model: exactly one of `query` and `embedding`.

    All given conditions must hold. `project` is a folder, name or id; `since` and `until` limit the creation time. If
    messages are long, the result may hold fewer than `limit`, as many as fit into one reply. An embedding cannot be
    combined with `mode` "keyword". Messages with the same or nearly the same words are one, unless `collapse` is false.
    """

    method: ClassVar[str] = "message.search"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    embedding: Embedding | None = None
    chat_id: Name | None = None
    thread_id: Id | None = None
    project: ProjectReference | None = None
    role: str | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Mode = "hybrid"
    collapse: bool = True
