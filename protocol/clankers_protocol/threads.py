"""Threads: sessions as agents see them that hold conversations in chats. A thread is a session."""

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType

from clankers_protocol.search import Embedding, Mode
from clankers_protocol.sessions import Deleted, Message
from clankers_protocol.wire import Cursor, Id, Limit, Method, Time, Wire

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Title = Annotated[str, Meta(max_length=10_000)]
"""A vector of the model the index was made with; its length does not matter, its direction does."""


class Thread(Wire):
    """A conversation in a chat. Sessions of harnesses are threads too, without a chat unless they name one."""

    id: str
    chat_id: str | None
    title: str | None
    project_path: str | None
    metadata: dict[str, Any] | None
    messages: int
    created_at: int
    updated_at: int


class ThreadPage(Wire):
    """Threads, the one changed last first; `cursor` asks for the next page and is null on the last one."""

    threads: list[Thread]
    cursor: str | None = None


class ThreadCreate(Method[Thread]):
    """Begin a thread in a chat. Without an `id` it gets one; an `id` that is taken is a conflict, unless only
    messages of the thread are known so far."""

    method: ClassVar[str] = "thread.create"
    chat_id: Name
    id: Name | None = None
    title: Title | None = None
    project: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: Time | None = None


class ThreadGet(Method[Thread]):
    """One thread. `id` may be a unique beginning of 8 characters or more."""

    method: ClassVar[str] = "thread.get"
    id: Name


class ThreadList(Method[ThreadPage]):
    """Threads, the one changed last first: of one chat, of one project (a path or its id), or all."""

    method: ClassVar[str] = "thread.list"
    chat_id: Name | None = None
    project: str | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ThreadUpdate(Method[Thread]):
    """Change a thread. What is left out stays as it is; null takes a title or metadata away."""

    method: ClassVar[str] = "thread.update"
    id: Name
    chat_id: Name | UnsetType = UNSET
    title: Annotated[str, Meta(min_length=1, max_length=10_000)] | UnsetType | None = UNSET
    metadata: Annotated[dict[str, Any], Meta(min_length=1)] | UnsetType | None = UNSET


class ThreadDelete(Method[Deleted]):
    """Delete a thread with its messages and everything else captured of it. The whole id is needed."""

    method: ClassVar[str] = "thread.delete"
    id: Name
    dry_run: bool = False


class MessageStore(Method[Message]):
    """Store a message of a thread, and make it searchable. A thread that is not known yet is begun with it.

    Without an `id` it gets one, and messages that come in the same millisecond keep their order. With the `id` of
    a stored message it brings that one up to date: what is absent or empty stays as it is.
    """

    method: ClassVar[str] = "message.store"
    thread_id: Name
    role: Annotated[str, Meta(min_length=1, max_length=256)]
    content: str
    id: Name | None = None
    metadata: dict[str, Any] | None = None
    created_at: Time | None = None


class ScoredMessage(Wire):
    """A message that was found. In `snippet` what matched stands between « and ».

    `score` is the cosine of the given embedding and the message's (-1 to 1); in a search by text it is between 0
    and 1 and only compares messages of that search.
    """

    message: Message
    score: float
    snippet: str
    chat_id: str | None
    project_path: str | None


class FoundMessages(Wire):
    """Messages, best first. `mode`, `pending` and `degraded` are as in `search`."""

    messages: list[ScoredMessage]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float


class MessageSearch(Method[FoundMessages]):
    """Find messages by a text, or by an embedding of the index's own model: one of `query` and `embedding`.

    All given conditions must hold. `project` is a path or a project's id; times bound when a message was made. Of
    long messages there may be fewer than `limit`: as many as one reply holds.
    """

    method: ClassVar[str] = "message.search"
    query: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    embedding: Embedding | None = None
    chat_id: Name | None = None
    thread_id: Id | None = None
    project: str | None = None
    role: str | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Mode = "hybrid"
