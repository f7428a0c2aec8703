"""Long-term memories: what is known, since when, how strongly, and who may see it."""

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from clankers_protocol.ids import NewId
from clankers_protocol.search import Mode
from clankers_protocol.wire import Cursor, Id, Limit, Method, Name, Reach, Scope, Time, Wire

Result = TypeVar("Result")

MAX_CONTENT = 100_000

Sector = Literal["episodic", "semantic", "procedural", "emotional", "reflective"]
Tier = Literal["session", "project", "global"]
Usage = Literal["created", "recalled", "updated", "reinforced"]
State = Literal["current", "upcoming", "superseded", "expired", "archived", "deleted"]
Content = Annotated[str, Meta(min_length=1, max_length=MAX_CONTENT)]
Share = Annotated[float, Meta(ge=0, le=1)]
Category = Annotated[str, Meta(max_length=64, pattern=r"^[a-z][a-z0-9_-]{0,63}\Z")]
MemoryId = Annotated[str, Meta(min_length=1, max_length=128)]
"""An id, or the first 8 or more characters of one, when only one memory's id begins so."""

Words = Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=100)]
Paths = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(max_length=100)]


class Memory(Wire):
    """A memory as stored. `salience` is what it is now: it fades with time, faster in some sectors, slower for what
    is important; `state` says why it is not found, when it is not `current`."""

    id: str
    content: str
    summary: str | None
    sector: Sector
    tier: Tier
    category: str
    scope: str
    project_id: str | None
    project_path: str | None
    importance: float
    confidence: float
    salience: float
    access_count: int
    pinned: bool
    tags: list[str]
    concepts: list[str]
    files: list[str]
    metadata: dict[str, Any] | None
    state: State
    superseded_by: str | None
    created_at: int
    updated_at: int
    last_accessed: int
    valid_from: int
    valid_until: int | None
    expires_at: int | None
    archived_at: int | None
    deleted_at: int | None
    source_session_id: str | None
    source_message_id: str | None


class Scoped(Method[Result], Generic[Result], kw_only=True):
    """What every method on memories takes: who asks.

    `scopes` are the scopes the caller may touch, and an empty list is none of them; a `project` beside it then narrows
    what is selected. Without `scopes` they are `global`, `agent:<agent>` and the project's own (`project` is a path or
    an id). A memory outside of them does not exist for this call.
    """

    scopes: Annotated[list[Reach], Meta(max_length=100)] | None = None
    agent: Name | None = None
    project: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class Added(Wire):
    """`outcome` is `created`; `duplicate` when it was known, and is now known better; or `superseded` when it took
    the place of `replaced`. `note` says what could not be checked."""

    memory: Memory
    outcome: Literal["created", "duplicate", "superseded"]
    replaced: str | None = None
    note: str | None = None


class MemoryAdd(Scoped[Added]):
    """Remember something.

    What is known already is made stronger instead; what nearly says the same, in the same category and scope, takes
    the older one's place. `force` stores it whatever is known. `supersedes` names a memory that is no longer true.
    Without `sector` it is found from the text; without `scope` it is the project's, else the agent's, else `global`.
    """

    method: ClassVar[str] = "memory.add"
    content: Content
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    scope: Scope | None = None
    importance: Share = 0.5
    confidence: Share = 0.5
    pinned: bool = False
    tags: Words = msgspec.field(default_factory=list)
    concepts: Words | None = None
    files: Paths = msgspec.field(default_factory=list)
    metadata: dict[str, Any] | None = None
    valid_from: Time | None = None
    valid_until: Time | None = None
    expires_at: Time | None = None
    session_id: NewId | None = None
    message_id: NewId | None = None
    supersedes: MemoryId | None = None
    force: bool = False


class MemoryGet(Scoped[Memory]):
    """One memory, in whatever state. With `asOf` as it was then."""

    method: ClassVar[str] = "memory.get"
    id: MemoryId
    as_of: Time | None = None


class MemoryPage(Wire):
    """Memories in the order asked for; `cursor` asks for the next page and is null on the last one."""

    memories: list[Memory]
    cursor: str | None = None


class Selection(Scoped[Result], Generic[Result], kw_only=True):
    """Which memories: all given conditions must hold. `query` is words that must all stand in it."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    tag: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    entity: Id | None = None
    session_id: Id | None = None
    pinned: bool | None = None
    min_salience: Share | None = None
    created_after: Time | None = None
    created_before: Time | None = None


class MemoryList(Selection[MemoryPage]):
    """Memories without a question: the newest first, or sorted otherwise. With `asOf` those that were known and
    true then; `include` adds states beside `current`."""

    method: ClassVar[str] = "memory.list"
    include: Annotated[list[State], Meta(max_length=6)] = msgspec.field(default_factory=list)
    as_of: Time | None = None
    sort: Literal["created", "updated", "salience", "importance", "accessed"] = "created"
    limit: Limit = 50
    cursor: Cursor | None = None


class MemoryHit(Wire):
    """A memory that was found, and why. In `snippet` what matched stands between « and »."""

    memory: Memory
    score: float
    snippet: str
    components: dict[str, float] | None = None


class MemoryHits(Wire):
    """As the answer of `search`, with whole memories."""

    hits: list[MemoryHit]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float
    cursor: str | None = None


class MemorySearch(Selection[MemoryHits], kw_only=True):
    """Find memories by words and by meaning, best first, ranked by how well they fit and by how strong, important
    and recent they are. Reading does not strengthen: `memory.touch` does."""

    method: ClassVar[str] = "memory.search"
    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    include: Annotated[list[State], Meta(max_length=6)] = msgspec.field(default_factory=list)
    as_of: Time | None = None
    mode: Mode = "hybrid"
    min_score: Share = 0.0
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    explain: bool = False
    cursor: Cursor | None = None


class MemoryStats(Wire):
    """Memories counted; `salience` is the mean of what is current."""

    total: int
    current: int
    upcoming: int
    superseded: int
    expired: int
    archived: int
    deleted: int
    pinned: int
    by_sector: dict[str, int]
    by_tier: dict[str, int]
    by_category: dict[str, int]
    by_scope: dict[str, int]
    entities: int
    relations: int
    salience: float | None
    oldest: int | None
    newest: int | None


class MemoryStatsOf(Scoped[MemoryStats]):
    """How much is remembered, and of what kind."""

    method: ClassVar[str] = "memory.stats"


class Has(Wire):
    has: bool
    id: str | None = None


class MemoryHas(Scoped[Has]):
    """Whether there is a memory with this id, or one that says exactly this."""

    method: ClassVar[str] = "memory.has"
    id: MemoryId | None = None
    content: Content | None = None


class LogEntry(Wire):
    """What happened to a memory, by whom and why; `before` is what it replaced."""

    memory_id: str
    at: int
    action: str
    by: str
    reason: str | None
    before: dict[str, Any] | None


class History(Wire):
    """The versions of a memory from the oldest to the one that holds now, and what happened to all of them."""

    versions: list[Memory]
    log: list[LogEntry]


class MemoryHistory(Scoped[History]):
    """How a memory came to say what it says."""

    method: ClassVar[str] = "memory.history"
    id: MemoryId


class MemoryTimeline(Scoped[MemoryPage]):
    """What was learnt shortly before and after a memory or a moment, oldest first."""

    method: ClassVar[str] = "memory.timeline"
    id: MemoryId | None = None
    at: Time | None = None
    before: Annotated[int, Meta(ge=0, le=100)] = 5
    after: Annotated[int, Meta(ge=0, le=100)] = 5


class Related(Wire):
    """A memory near another one: `via` a relation, an entity they share, or their meaning."""

    memory: Memory
    via: Literal["relation", "entity", "similarity"]
    detail: str
    score: float


class MemoryRelated(Scoped[list[Related]]):
    """What belongs to a memory, strongest first."""

    method: ClassVar[str] = "memory.related"
    id: MemoryId
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class Context(Wire):
    """`text` is ready to be put into a prompt, empty when there is nothing to say; `ids` are the memories in it."""

    text: str
    ids: list[str]
    left_out: int
    degraded: str | None


class MemoryContext(Scoped[Context]):
    """A bounded block for a prompt: the memories that fit `query` best, or without one the pinned and strongest,
    each said once. It is labelled as recalled data, not instructions."""

    method: ClassVar[str] = "memory.context"
    query: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    max_characters: Annotated[int, Meta(ge=200, le=100_000)] = 4000
    limit: Annotated[int, Meta(ge=1, le=100)] = 15
    exclude: Annotated[list[MemoryId], Meta(max_length=1000)] = msgspec.field(default_factory=list)
