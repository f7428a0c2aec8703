"""Long-term memories: adding, reading and searching them."""

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from clankers_protocol.ids import NewId
from clankers_protocol.search import Embedding, Mode
from clankers_protocol.wire import Cursor, Id, Limit, Method, Name, Scope, ScopeSelector, Time, Wire

Result = TypeVar("Result")

MAX_CONTENT = 100_000

Sector = Literal["episodic", "semantic", "procedural", "emotional", "reflective"]
Tier = Literal["session", "project", "global"]
Usage = Literal["created", "recalled", "updated", "reinforced"]
State = Literal["current", "upcoming", "superseded", "expired", "archived", "deleted"]
Content = Annotated[str, Meta(min_length=1, max_length=MAX_CONTENT)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Category = Annotated[str, Meta(max_length=64, pattern=r"^[a-z][a-z0-9_-]{0,63}\Z")]
MemoryId = Annotated[str, Meta(min_length=1, max_length=128)]
"""A memory id, or a prefix of at least 8 characters that is unique."""

Words = Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=100)]
Paths = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(max_length=100)]


class Memory(Wire):
    """A stored memory. `salience` is its current strength, which decays with time: faster in some sectors, slower for
    important memories. A `state` other than `current` is the reason why searches do not return it. `scope_label` is the
    scope with the project's name instead of its id; it is accepted wherever a scope is."""

    id: str
    content: str
    summary: str | None
    sector: Sector
    tier: Tier
    category: str
    scope: str
    scope_label: str
    project_id: str | None
    project_path: str | None
    project_name: str | None
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
    """Visibility parameters of every memory method.

    `scopes` lists the scopes that the caller may read and write; an empty list permits none. `project` then narrows the
    selection further. Without `scopes` the caller has `global`, `agent:<agent>` and the scope of its project (`project`
    is a folder, name or id). For this call, memories in other scopes do not exist.
    """

    scopes: Annotated[list[ScopeSelector], Meta(max_length=100)] | None = None
    agent: Name | None = None
    project: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class Added(Wire):
    """Result of adding a memory. `outcome` is `created`; `duplicate` if an existing memory was reinforced instead; or
    `superseded` if it replaced the memory `replaced`. `note` states which checks could not be made."""

    memory: Memory
    outcome: Literal["created", "duplicate", "superseded"]
    replaced: str | None = None
    note: str | None = None


class MemoryAdd(Scoped[Added]):
    """Add a memory.

    A duplicate reinforces the existing memory instead. A near-duplicate in the same category and scope supersedes the
    existing one. `force` skips these checks. `supersedes` names a memory that is no longer true. `sector` defaults to a
    classification of the text; `scope` defaults to the project's scope, then the agent's, then `global`.
    """

    method: ClassVar[str] = "memory.add"
    content: Content
    summary: Annotated[str, Meta(max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    scope: Scope | None = None
    importance: Fraction = 0.5
    confidence: Fraction = 0.5
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
    """Return one memory in any state, or with `asOf` as it was known at that time. `validAt` requires that it was true
    at that time."""

    method: ClassVar[str] = "memory.get"
    id: MemoryId
    as_of: Time | None = None
    valid_at: Time | None = None


class MemoryPage(Wire):
    """Memories in the requested order; `cursor` requests the next page and is null on the last one."""

    memories: list[Memory]
    cursor: str | None = None


class Selection(Scoped[Result], Generic[Result], kw_only=True):
    """Selection of memories: all given conditions must hold. A memory must contain every word of `query`."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    sector: Sector | None = None
    tier: Tier | None = None
    category: Category | None = None
    tag: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    entity: Id | None = None
    session_id: Id | None = None
    pinned: bool | None = None
    min_salience: Fraction | None = None
    created_after: Time | None = None
    created_before: Time | None = None


class MemoryList(Selection[MemoryPage]):
    """List memories, newest first by default. `include` adds states other than `current`; `states` lists these alone.

    Two times can be asked about. `asOf`: what was known at that time, with the values of that time. `validAt`: what was
    true at that time, by what is known now. With both: what was known at `asOf` about `validAt`. `asOf` alone asks
    about that same time.
    """

    method: ClassVar[str] = "memory.list"
    include: Annotated[list[State], Meta(max_length=6)] = msgspec.field(default_factory=list)
    states: Annotated[list[State], Meta(min_length=1, max_length=6)] | None = None
    as_of: Time | None = None
    valid_at: Time | None = None
    sort: Literal["created", "updated", "salience", "importance", "accessed"] = "created"
    limit: Limit = 50
    cursor: Cursor | None = None


class MemoryChange(Wire):
    """A memory whose text is another one at the later time."""

    before: Memory
    after: Memory


class MemoryComparison(Wire):
    """Memories that became known, changed and ended between two times. The counts are of all memories; the lists,
    newest first, have at most `limit` of them. `before` and `after` count what was known at each time."""

    earlier: int
    later: int
    before: int
    after: int
    added_count: int
    changed_count: int
    ended_count: int
    added: list[Memory]
    changed: list[MemoryChange]
    ended: list[Memory]


class MemoryCompare(Selection[MemoryComparison], kw_only=True):
    """Compare what was known at two times; `later` defaults to now. A memory has ended if it was superseded, deleted or
    no longer valid at the later time."""

    method: ClassVar[str] = "memory.compare"
    earlier: Time
    later: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class MemoryHit(Wire):
    """A memory found by a search. Matches in `snippet` are enclosed in « and »."""

    memory: Memory
    score: float
    snippet: str
    components: dict[str, float] | None = None


class MemoryHits(Wire):
    """Search result with complete memories; the other fields are those of `search`."""

    hits: list[MemoryHit]
    mode: Mode
    pending: int
    degraded: str | None
    took_ms: float
    cursor: str | None = None
    weak: bool = False


class MemorySearch(Selection[MemoryHits], kw_only=True):
    """Find memories by keyword and vector search, best first. The ranking combines relevance with salience, importance
    and recency. Searching does not reinforce a memory; `memory.touch` does. `asOf` and `validAt` are those of
    `memory.list`.

    Instead of a `query`, an `embedding` of the model of the index may be given: a score is then the cosine, at least 0.
    It cannot be combined with `mode` "keyword", `vectorWeight` and `pool`, and nothing is reranked. `vectorWeight`,
    `pool` and `rerank` are those of `search`.
    """

    method: ClassVar[str] = "memory.search"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    embedding: Embedding | None = None
    vector_weight: Fraction | None = None
    pool: Annotated[int, Meta(ge=10, le=1000)] | None = None
    rerank: bool = True
    include: Annotated[list[State], Meta(max_length=6)] = msgspec.field(default_factory=list)
    as_of: Time | None = None
    valid_at: Time | None = None
    mode: Mode = "hybrid"
    min_score: Fraction = 0.0
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    explain: bool = False
    cursor: Cursor | None = None


class MemoryStats(Wire):
    """Counts of memories; `salience` is the mean over current memories."""

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
    """Count memories by state, sector, tier, category and scope."""

    method: ClassVar[str] = "memory.stats"


class Has(Wire):
    has: bool
    id: str | None = None


class MemoryHas(Scoped[Has]):
    """Check whether a memory with this id or with exactly this content exists."""

    method: ClassVar[str] = "memory.has"
    id: MemoryId | None = None
    content: Content | None = None


class LogEntry(Wire):
    """One change of a memory: action, author and reason. `before` holds the previous values."""

    memory_id: str
    at: int
    action: str
    by: str
    reason: str | None
    before: dict[str, Any] | None


class History(Wire):
    """Versions of a memory, oldest first, and the change log of all of them."""

    versions: list[Memory]
    log: list[LogEntry]


class MemoryHistory(Scoped[History]):
    """Return the versions and the change log of a memory."""

    method: ClassVar[str] = "memory.history"
    id: MemoryId


class StrengthPoint(Wire):
    """The salience of a memory at a time."""

    at: int
    salience: float


class MemoryUse(Wire):
    """One use of a memory by a session."""

    at: int
    usage: str
    session_id: str


class Strength(Wire):
    """The salience of a memory from its creation on, and what is expected if it is not used again.

    `archiveBelow` is the salience below which maintenance archives it, `archiveAt` when it falls below that; null if it
    does not within ten years.
    """

    past: list[StrengthPoint]
    future: list[StrengthPoint]
    uses: list[MemoryUse]
    archive_below: float
    archive_at: int | None


class MemoryStrength(Scoped[Strength]):
    """Return the salience of a memory over time, and its last 500 uses."""

    method: ClassVar[str] = "memory.strength"
    id: MemoryId


class MemoryTimeline(Scoped[MemoryPage]):
    """List memories created shortly before and after a memory or a point in time, oldest first."""

    method: ClassVar[str] = "memory.timeline"
    id: MemoryId | None = None
    at: Time | None = None
    before: Annotated[int, Meta(ge=0, le=100)] = 5
    after: Annotated[int, Meta(ge=0, le=100)] = 5


class Related(Wire):
    """A memory related to another one `via` a relation, a shared entity or vector similarity."""

    memory: Memory
    via: Literal["relation", "entity", "similarity"]
    detail: str
    score: float


class MemoryRelated(Scoped[list[Related]]):
    """List memories related to a memory, strongest first."""

    method: ClassVar[str] = "memory.related"
    id: MemoryId
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class Context(Wire):
    """Block of text for a prompt, empty if there is nothing to add; `ids` are the memories in it."""

    text: str
    ids: list[str]
    left_out: int
    degraded: str | None


class MemoryContext(Scoped[Context]):
    """Build the block of memories that recall would put into a prompt: those that match `query`, or without a query
    the pinned and strongest ones. It is what an agent gets, line by line, without the sessions and passages of recall.

    `maxCharacters` and `limit` default to those of recall. Near-duplicates appear once.
    """

    method: ClassVar[str] = "memory.context"
    ends_with_client: ClassVar[bool] = True
    query: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    max_characters: Annotated[int, Meta(ge=200, le=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] | None = None
    exclude: Annotated[list[MemoryId], Meta(max_length=1000)] = msgspec.field(default_factory=list)
