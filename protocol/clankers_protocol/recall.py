"""Offering it back: what a harness is told at the start of a session and with a prompt, and what that cost."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from clankers_protocol.wire import MAX_INTEGER, Id, Limit, Method, Wire

RecallKind = Literal["start", "prompt"]


class HookOutput(Wire):
    """`output` is, as JSON, exactly what the harness expects on the hook's standard output; null is nothing to say."""

    output: dict[str, Any] | None = None


class RecallHook(Method[HookOutput]):
    """What to tell a harness at one of its hook events, as the harness wants it told.

    `event` is the hook's own event, unchanged. What is told is recorded (`session.injections`) and not told again in
    the same session. An event at which nothing is recalled, and a harness that takes nothing, get null.
    """

    method: ClassVar[str] = "recall.hook"
    harness: Annotated[str, Meta(min_length=1, max_length=64)]
    event: dict[str, Any]


class Recall(Wire):
    """`text` is empty when there is nothing to say, and `reason` says why; `ids` are the sessions, memories and
    chunks in it."""

    text: str
    ids: list[str]
    characters: int
    reason: str | None = None


class RecallPreview(Method[Recall]):
    """What would be told: at the `start` of a session in `project`, or with `query` as its `prompt`.

    With `sessionId` what that session was told already is left out. Nothing is recorded.
    """

    method: ClassVar[str] = "recall.preview"
    kind: RecallKind
    query: Annotated[str, Meta(max_length=1_000_000)] | None = None
    project: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    session_id: Id | None = None


class Injection(Wire):
    """Something that was put into a session's context: when, why, how much, and of what."""

    at: int
    kind: RecallKind
    characters: int
    ids: list[str]
    text: str


class SessionInjections(Method[list[Injection]]):
    """What was put into a session's context, oldest first."""

    method: ClassVar[str] = "session.injections"
    session_id: Id
    limit: Limit = 1000


class Whole(Wire):
    """A part of the whole text of something that was found: `characters` is how long all of it is, `nextOffset` asks
    for what follows and is null at the end."""

    id: str
    kind: Literal["session", "message", "tool", "chunk"]
    about: str
    session_id: str | None
    created_at: int
    text: str
    characters: int
    next_offset: int | None = None


class RecallGet(Method[Whole]):
    """The whole text behind an id that recall or `search` named: a message, a tool call, a chunk; of a session what
    it came to, or how it began and ended. Memories have `memory.get`."""

    method: ClassVar[str] = "recall.get"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    characters: Annotated[int, Meta(ge=100, le=1_000_000)] = 10_000
