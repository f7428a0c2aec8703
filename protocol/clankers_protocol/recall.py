"""Recall: context injected into a harness at session start and with each prompt."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from clankers_protocol.wire import MAX_INTEGER, Cursor, Id, Limit, Method, Time, Wire

RecallKind = Literal["start", "prompt"]


class HookOutput(Wire):
    """Output of a recall hook: the JSON that the harness expects on standard output, or null for no output."""

    output: dict[str, Any] | None = None


class RecallHook(Method[HookOutput]):
    """Return the context to inject at a hook event, in the format of the harness.

    `event` is the unchanged hook event. Injected items are recorded (`session.injections`) and are not injected again
    in the same session. The output is null for events without recall and for harnesses that accept no context.
    """

    method: ClassVar[str] = "recall.hook"
    harness: Annotated[str, Meta(min_length=1, max_length=64)]
    event: dict[str, Any]


class RecallCandidate(Wire):
    """A memory or passage that was considered for a prompt, and `why` it was chosen or dropped.

    `coverage` is the share of the prompt's words in it, weighted by their rarity, `cosine` the similarity of the two
    vectors. `strength` combines both; what is weaker than `needed` is dropped. `text` is its beginning as it is stored
    now; it is not recorded. `duplicates` counts passages with nearly the same words, which are left out.
    """

    id: str
    kind: Literal["memory", "passage"]
    chosen: bool
    why: str
    strength: float
    needed: float
    coverage: float
    cosine: float | None = None
    text: str | None = None
    duplicates: int = 0


class Recall(Wire):
    """Recalled context. If `text` is empty, `reason` says why; `ids` are the sessions, memories and chunks in it.

    `considered` lists what matched the prompt, best first, chosen or not. `degraded` states what is missing and why,
    also beside a text: the search failed, took too long, or could not compare vectors.
    """

    text: str
    ids: list[str]
    characters: int
    reason: str | None = None
    considered: list[RecallCandidate] = field(default_factory=list)
    degraded: str | None = None


class RecallPreview(Method[Recall]):
    """Preview the context injected at the `start` of a session in `project`, or for the `prompt` in `query`.

    With `sessionId`, items already injected into that session are omitted. Memories of the agent of `harness` count as
    well, by default of the session's. Nothing is recorded.
    """

    method: ClassVar[str] = "recall.preview"
    ends_with_client: ClassVar[bool] = True
    kind: RecallKind
    query: Annotated[str, Meta(max_length=1_000_000)] | None = None
    project: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    session_id: Id | None = None
    harness: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class Injection(Wire):
    """One injection into a session's context: time, kind, size and items."""

    at: int
    kind: RecallKind
    characters: int
    ids: list[str]
    text: str


class SessionInjections(Method[list[Injection]]):
    """List the injections into a session's context, oldest first."""

    method: ClassVar[str] = "session.injections"
    session_id: Id
    limit: Limit = 1000


class LedgerItem(Wire):
    """Something that was injected.

    `timesTold` counts the injections that contain it, up to this one. `outcome` is "used" if its id or several of its
    words that the prompt does not have appear in the answer or in the input of a tool call, "contradicted" if it was
    superseded or deleted later in that session, "ignored" if neither, and null if there is no answer, or if the item
    does not exist any more.
    """

    id: str
    kind: Literal["memory", "session", "passage", "unknown"]
    text: str | None
    times_told: int
    outcome: Literal["used", "contradicted", "ignored"] | None


class LedgerEntry(Wire):
    """One injection with its prompt, its items and what became of them.

    `considered` lists the candidates of the prompt; null if they were not recorded.
    """

    id: int
    at: int
    kind: RecallKind
    trigger: str
    session_id: str
    session_title: str | None
    prompt_id: str | None
    prompt: str | None
    characters: int
    text: str
    items: list[LedgerItem]
    considered: list[RecallCandidate] | None


class Ledger(Wire):
    """Injections, newest first; `total` counts all that match. `cursor` requests the next page."""

    entries: list[LedgerEntry]
    total: int
    cursor: str | None = None


class RecallLedger(Method[Ledger]):
    """List injections, newest first: of one session, of one memory, or all. Reading them counts as no use."""

    method: ClassVar[str] = "recall.ledger"
    ends_with_client: ClassVar[bool] = True
    session_id: Id | None = None
    memory_id: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    cursor: Cursor | None = None


class LedgerTotal(Wire):
    """Injections of one memory, session or passage, or into one session, and what became of them.

    `told` counts injections of the item, or items injected into the session; the outcomes are those of LedgerItem, and
    `open` are those without one. `characters` is the length of all injections into the session; 0 for an item.
    """

    id: str
    kind: Literal["memory", "session", "passage", "unknown"]
    text: str | None
    told: int
    used: int = 0
    contradicted: int = 0
    ignored: int = 0
    open: int = 0
    characters: int = 0


class LedgerTotals(Wire):
    """Totals of all injections since a time: by item, and by session; the most told first.

    `injections` counts the injections, `itemCount` and `sessionCount` the items and sessions; the lists may have fewer.
    """

    items: list[LedgerTotal]
    sessions: list[LedgerTotal]
    injections: int
    item_count: int
    session_count: int
    since: int | None


class RecallTotals(Method[LedgerTotals]):
    """Count what became of the injections since a time, or of all: for each item, and for each session.

    Counts as no use. The outcomes of injections are judged in the background; those that were not yet count as `open`.
    """

    method: ClassVar[str] = "recall.totals"
    ends_with_client: ClassVar[bool] = True
    session_id: Id | None = None
    memory_id: Id | None = None
    since: Time | None = None
    limit: Limit = 50


class FoundItem(Wire):
    """A hit of a recorded search; `text` is its beginning as it is stored now, null if it was deleted."""

    chunk_id: str
    source: str
    score: float
    components: dict[str, float]
    duplicates: int = 0
    session_id: str | None = None
    entry_id: str | None = None
    memory_id: str | None = None
    document_id: str | None = None
    text: str | None = None


class RecordedSearch(Wire):
    """A search of an agent or program. `hasMore` if further hits followed; `weak` if nothing was close.

    `sessionId` and `toolId` name the tool call that made it, if it was captured. Secrets in the query are redacted.
    """

    id: int
    at: int
    query: str
    project: str | None
    mode: str
    took_ms: float
    min_score: float
    limit: int
    weak: bool
    has_more: bool
    degraded: str | None
    hits: list[FoundItem]
    session_id: str | None = None
    session_title: str | None = None
    tool_id: str | None = None


class SilentPrompt(Wire):
    """A prompt with which nothing that matches it was injected, and the `reason`.

    `considered` is what matched; it is empty if the search failed.
    """

    id: int
    at: int
    session_id: str
    session_title: str | None
    prompt_id: str | None
    prompt: str | None
    reason: str
    considered: list[RecallCandidate]


class RecentRecall(Wire):
    """Searches and silent prompts, newest first; `since` is the time of the oldest that is stored."""

    searches: list[RecordedSearch]
    silent: list[SilentPrompt]
    search_count: int
    silent_count: int
    since: int | None


class RecallRecent(Method[RecentRecall]):
    """List the last searches with `search` and MCP, and the last prompts with which nothing was injected although
    something matched, or because the search failed or was incomplete: at most 2,000 of each, of the last 90 days. With
    `sessionId`, those of one session; `beforeId` lists those before one with this id."""

    method: ClassVar[str] = "recall.recent"
    session_id: Id | None = None
    before_id: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class FullText(Wire):
    """Part of the full text behind an id. `characters` is the length of the full text; `nextOffset` requests the next
    part and is null at the end."""

    id: str
    kind: Literal["session", "message", "tool", "chunk"]
    about: str
    session_id: str | None
    created_at: int
    text: str
    characters: int
    next_offset: int | None = None


class RecallGet(Method[FullText]):
    """Return the full text behind an id from recall or `search`: a message, a tool call or a chunk. For a session it is
    the summary, or the first prompt and the last answer. For memories use `memory.get`."""

    method: ClassVar[str] = "recall.get"
    id: Annotated[str, Meta(min_length=1, max_length=1024)]
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    characters: Annotated[int, Meta(ge=100, le=1_000_000)] = 10_000


class FileLines(Wire):
    """Lines of an indexed file. `lineCount` is that of the file; `nextLine` requests the next lines and is null at the
    end."""

    path: str
    start_line: int
    end_line: int
    text: str
    line_count: int
    next_line: int | None = None


class RecallLines(Method[FileLines]):
    """Return lines of a memory file, as the index has it: secrets are redacted, and no other file can be read."""

    method: ClassVar[str] = "recall.lines"
    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    start_line: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] = 1
    lines: Annotated[int, Meta(ge=1, le=10_000)] = 200
